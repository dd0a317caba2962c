"""What a what-if costs from the middle of a run, against the same run anew; never gates.

    pytest tests/benchmarks/test_fork_speed.py -m benchmark --benchmark-enable -s

A week of Ray Train on spot nodes that are taken back, split after three and a half days.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.branching import Branches
from raysim.units import GIB, MIB
from raysim.workloads.moment import Pause, Running
from tests.benchmarks.table import cpu_s, row

pytestmark = pytest.mark.benchmark

HALF_NS = int(3.5 * 86_400 * 10**9)
WEEK = {"trainer.train.tokens": "11.2G", "trainer.failure_config.max_failures": 1000}


def private_bytes() -> int:
    """Pages of this process that no other shares."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return sum(int(kb) for kb in re.findall(r"Private_\w+:\s*(\d+) kB", text)) * 1024


def test_a_what_if_from_the_middle_of_a_week(benchmark: Any) -> None:
    scenario = raysim.load("scenarios/llama3_70b_spot").with_(WEEK)
    raysim.run(raysim.load("scenarios/llama3_70b_spot"), record=False)  # imports, formulas' tables
    ended: list[raysim.Result] = []
    anew_s = cpu_s(lambda: ended.append(raysim.run(scenario, record=False)))
    days = ended[0].summary["run"]["virtual_seconds"] / 86_400
    branches, fork_s, held = Branches(["as it is"]), [0.0], [0]

    def split(_: Running) -> None:
        held[0] = private_bytes()
        started = time.perf_counter()
        pid = os.fork()
        if not pid:
            os._exit(0)
        fork_s[0] = time.perf_counter() - started
        os.waitpid(pid, 0)
        branches.split()

    def play() -> tuple[float, int, str]:
        result = raysim.run(scenario, record=False, pause=Pause(at_ns=HALF_NS, then=split))
        return time.process_time(), private_bytes(), result.summary["simulation"]["digest"]

    branches.play(play)
    half_s, copied, digest = branches.endings["as it is"].value
    assert digest == ended[0].summary["simulation"]["digest"]
    week = f"{days:.1f} days of Ray Train on up to 64 spot GPUs"
    row("fork", f"{week}: the second half in a branch, {copied / MIB:.0f} MiB of its own at the"
        f" end, {held[0] / MIB:.0f} when it split", half_s, f"{half_s:.2f} s", anew_s / half_s,
        "all of it anew")  # fmt: skip
    row("fork, alone", f"{held[0] / GIB:.2f} GiB of a running simulation", fork_s[0],
        f"{fork_s[0] * 1e3:.1f} ms", anew_s / fork_s[0], "all of it anew")  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)
