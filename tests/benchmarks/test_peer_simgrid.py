"""SimGrid, a compiled peer, beside raysim on the same exchange; skipped where it is not installed.

    apt-get install libsimgrid-dev g++
    pytest tests/benchmarks/test_peer_simgrid.py -m benchmark --benchmark-enable -s

SimGrid's masters and workers say what an owner, a raylet and a worker say for each task: request,
grant, task, reply. They keep no books; raysim's Ray Core keeps all of Ray's.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.table import row
from tests.benchmarks.test_ray_core_speed import emulated_s

pytestmark = pytest.mark.benchmark

SOURCE = Path(__file__).with_name("simgrid_master_workers.cpp")
TASKS = 100_000


def compiled(folder: Path) -> Path:
    """The program, or a skip."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    program = folder / "simgrid_master_workers"
    command = [compiler, "-O2", "-o", str(program), str(SOURCE), "-lsimgrid"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("no SimGrid to compile against (libsimgrid-dev)")
    return program


def test_masters_and_workers(benchmark: Any, tmp_path: Path) -> None:
    program = compiled(tmp_path)
    for workers in (100, 1_000):
        run = [str(program), str(workers), str(TASKS)]
        out = subprocess.run(run, capture_output=True, text=True, check=True).stdout
        theirs_s = float(out.split()[-1])
        row("SimGrid (C++)", f"{TASKS:,} tasks, one master, {workers:,} workers", theirs_s,
            f"{TASKS / theirs_s:,.0f} tasks/s")  # fmt: skip
    ours_s, _ = emulated_s(TASKS, 1_000)
    row("no-op tasks beside SimGrid", f"{TASKS:,} tasks with Ray's full lease protocol", ours_s,
        f"{TASKS / ours_s:,.0f} tasks/s", theirs_s / ours_s,
        "SimGrid's master with 1,000 workers")  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)
