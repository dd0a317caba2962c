"""How time and memory grow with nodes and tasks: slopes of logarithms, each point a process.

    pytest tests/benchmarks/test_scaling.py -m benchmark --benchmark-enable -s

A slope of 1 is proportional. ``RAYSIM_BENCH_MOST_TASKS`` sets the largest burst (1,000,000),
``RAYSIM_BENCH_MOST_STREAMED`` the most tasks in waves (10,000,000), and
``RAYSIM_BENCH_MOST_SHUFFLED`` the longest side of a shuffle (1,000: a million blocks).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.table import law

pytestmark = pytest.mark.benchmark

ROOT = Path(__file__).resolve().parents[2]
MOST_SHUFFLED = int(os.environ.get("RAYSIM_BENCH_MOST_SHUFFLED", "1000"))
MOST = int(os.environ.get("RAYSIM_BENCH_MOST_TASKS", "1000000"))
STREAMED = int(os.environ.get("RAYSIM_BENCH_MOST_STREAMED", "10000000"))
WAVE = 100_000
CODE = """
import json, re, sys
from pathlib import Path
from tests.benchmarks.test_ray_core_speed import emulated_s, streamed_s
tasks, nodes, core_s, wave = [*map(float, sys.argv[1:]), 0, 0][:4]
tasks, nodes, wave = int(tasks), int(nodes), int(wave)
spent_s = streamed_s(tasks, wave, nodes) if wave else sum(emulated_s(tasks, nodes, core_s))
peak_kb = re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]
print(json.dumps([spent_s, int(peak_kb) * 1024]))
"""
SHUFFLE = """
import json, re, sys
from pathlib import Path
from tests.benchmarks.test_ray_core_patterns import shuffle
side = int(sys.argv[1])
spent_s, _ = shuffle(side, side)
peak_kb = re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]
print(json.dumps([spent_s, int(peak_kb) * 1024]))
"""


def point(*arguments: float, code: str = CODE) -> tuple[float, float]:
    """CPU seconds of a burst and the bytes it took, in a process of its own."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    spent_s, taken_bytes = json.loads(done.stdout)
    return spent_s, taken_bytes


def test_more_tasks(benchmark: Any) -> None:
    sizes = [n for n in (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000) if n <= MOST]
    points = [point(n, 1_000, 0.0) for n in sizes]
    law("CPU seconds of n no-op tasks on 1,000 nodes",
        [(n, s) for n, (s, _) in zip(sizes, points, strict=True)])  # fmt: skip
    law("bytes of the process, n no-op tasks pending at once",
        [(n, b) for n, (_, b) in zip(sizes, points, strict=True)],
        "Python and the 1,000 nodes are in every point")  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)


@pytest.mark.timeout(3_600)
def test_a_longer_stream_of_tasks(benchmark: Any) -> None:
    sizes = [n for n in (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000) if n <= STREAMED]
    points = [point(n, 1_000, 0, WAVE) for n in sizes]
    law(f"CPU seconds of n no-op tasks on 1,000 nodes, {WAVE:,} pending at most",
        [(n, s) for n, (s, _) in zip(sizes, points, strict=True)],
        f"{points[-1][1] / 1e9:.2f} GB at most")  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)


def test_more_nodes(benchmark: Any) -> None:
    sizes = (100, 300, 1_000, 3_000, 10_000)
    points = [point(4 * n, n, 60.0) for n in sizes]
    law("CPU seconds of 4 tasks of a minute for each of n nodes",
        [(n, s) for n, (s, _) in zip(sizes, points, strict=True)],
        "the same calls take longer, as nodes no longer fit in the processor's caches")  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)


@pytest.mark.timeout(3_600)
def test_more_blocks(benchmark: Any) -> None:
    sides = [n for n in (100, 200, 400, 1_000) if n <= MOST_SHUFFLED]
    point(10, code=SHUFFLE)  # what is compiled is kept
    points = [point(n, code=SHUFFLE) for n in sides]
    blocks = [n * n for n in sides]
    million_s = points[-1][0] * 1e6 / blocks[-1]
    million_gb = points[-1][1] * 1e-3 / blocks[-1]
    law("CPU seconds of a shuffle of n blocks (as many maps as reduces)",
        [(n, s) for n, (s, _) in zip(blocks, points, strict=True)],
        f"a million blocks: some {million_s / 60:.0f} minutes and {million_gb:.1f} GB; each is an"
        " object with an owner, a location and a transfer of its own")  # fmt: skip
    law("bytes of the process, n blocks shuffled",
        [(n, b) for n, (_, b) in zip(blocks, points, strict=True)],
        "Python and the 100 nodes are in every point")  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)
