"""How time and memory grow with nodes and tasks: slopes of logarithms, each point a process.

    pytest tests/benchmarks/test_scaling.py -m benchmark --benchmark-enable -s

A slope of 1 is proportional. ``RAYSIM_BENCH_MOST_TASKS`` sets the largest burst (1,000,000),
``RAYSIM_BENCH_MOST_STREAMED`` the most tasks in waves (10,000,000), and
``RAYSIM_BENCH_MOST_SHUFFLED`` the longest side of a shuffle (1,000: a million blocks).
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.benchmarks.alone import alone
from tests.benchmarks.table import law
from tests.benchmarks.test_ray_core_patterns import shuffle
from tests.benchmarks.test_ray_core_speed import emulated_s, streamed_s

pytestmark = pytest.mark.benchmark

MOST_SHUFFLED = int(os.environ.get("RAYSIM_BENCH_MOST_SHUFFLED", "1000"))
MOST = int(os.environ.get("RAYSIM_BENCH_MOST_TASKS", "1000000"))
STREAMED = int(os.environ.get("RAYSIM_BENCH_MOST_STREAMED", "10000000"))
WAVE = 100_000


def test_more_tasks(benchmark: Any) -> None:
    sizes = [n for n in (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000) if n <= MOST]
    points = [alone(emulated_s, n, 1_000) for n in sizes]
    law("CPU seconds of n no-op tasks on 1,000 nodes",
        [(n, sum(s)) for n, (s, _) in zip(sizes, points, strict=True)])  # fmt: skip
    law("bytes of the process, n no-op tasks pending at once",
        [(n, b) for n, (_, b) in zip(sizes, points, strict=True)],
        "Python and the 1,000 nodes are in every point")  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)


@pytest.mark.timeout(3_600)
def test_a_longer_stream_of_tasks(benchmark: Any) -> None:
    sizes = [n for n in (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000) if n <= STREAMED]
    points = [alone(streamed_s, n, WAVE, 1_000) for n in sizes]
    law(f"CPU seconds of n no-op tasks on 1,000 nodes, {WAVE:,} pending at most",
        [(n, s) for n, (s, _) in zip(sizes, points, strict=True)],
        f"{points[-1][1] / 1e9:.2f} GB at most")  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)


def test_more_nodes(benchmark: Any) -> None:
    sizes = (100, 300, 1_000, 3_000, 10_000)
    points = [alone(emulated_s, 4 * n, n, 60.0) for n in sizes]
    law("CPU seconds of 4 tasks of a minute for each of n nodes",
        [(n, sum(s)) for n, (s, _) in zip(sizes, points, strict=True)],
        "the same calls take longer, as nodes no longer fit in the processor's caches")  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)


@pytest.mark.timeout(3_600)
def test_more_blocks(benchmark: Any) -> None:
    sides = [n for n in (100, 200, 400, 1_000) if n <= MOST_SHUFFLED]
    alone(shuffle, 10, 10)  # what is compiled is kept
    points = [alone(shuffle, n, n) for n in sides]
    blocks = [n * n for n in sides]
    million_s = points[-1][0][0] * 1e6 / blocks[-1]
    million_gb = points[-1][1] * 1e-3 / blocks[-1]
    law("CPU seconds of a shuffle of n blocks (as many maps as reduces)",
        [(n, s) for n, ((s, _), _) in zip(blocks, points, strict=True)],
        f"a million blocks: some {million_s / 60:.0f} minutes and {million_gb:.1f} GB; each is an"
        " object with an owner, a location and a transfer of its own")  # fmt: skip
    law("bytes of the process, n blocks shuffled",
        [(n, b) for n, (_, b) in zip(blocks, points, strict=True)],
        "Python and the 100 nodes are in every point")  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)
