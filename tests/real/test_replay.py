"""A few workloads on real Ray, now and here, against what raysim says to them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.real,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.xdist_group("real clusters"),  # one at a time
]
pytest.importorskip("ray")

from raysim.measure.replay import replay  # noqa: E402
from raysim.measure.workload import read_workload  # noqa: E402
from raysim.validate.replayed import Against, replayed_points  # noqa: E402

PROGRAM = '''"""Two nodes: sleeps, a chain, calls of an actor, an array from the other node."""
# cluster: 2 CPU; 2 CPU
# role: validation

import json
import time

import numpy as np
import ray


def row(name, start):
    print(json.dumps({"row": name, "value": time.perf_counter() - start, "unit": "s"}), flush=True)


@ray.remote
def doze(seconds, *_):
    time.sleep(seconds)


@ray.remote
class Counter:
    def add(self):
        return 1


@ray.remote(resources={"n1": 0.01})
def make():
    return np.ones(50 * 2**20, dtype=np.uint8)


ray.init()
counter = Counter.options(num_cpus=0).remote()
ray.get([counter.add.remote(), *[doze.remote(2) for _ in range(4)]])

start = time.perf_counter()
ray.get([doze.remote(0.5) for _ in range(12)])
row("sleeps", start)

start = time.perf_counter()
ref = None
for _ in range(10):
    ref = doze.remote(0.1, ref)
ray.get(ref)
row("chain", start)

start = time.perf_counter()
assert sum(ray.get([counter.add.remote() for _ in range(500)])) == 500
row("calls", start)

ref = make.remote()
ray.wait([ref], fetch_local=False)
start = time.perf_counter()
ray.get(ref)
row("array", start)
'''
SLEEPS = ("sleeps", "chain")
"""Rows that are mostly the program's own time: near even on a busy machine."""


def test_real_ray_and_raysim_agree_on_a_small_workload(tmp_path: Path) -> None:
    """Bounds are wide, since nothing is known of this machine: the emulator's constants are of
    another one. They fail when a row is off by its nature: a lost parallelism, a wait, a unit."""
    path = tmp_path / "own/small_two_nodes.py"
    path.parent.mkdir()
    path.write_text(PROGRAM)
    workload, folder = read_workload(path), tmp_path / "data"
    done = replay([workload], folder, repetitions=1, command="test")
    assert done.failed == {}
    points = list(replayed_points([workload], Against.at(folder)))
    ratios = {}
    for p in points:
        assert p.left_out == ""
        assert p.measured is not None
        assert p.predicted is not None
        ratios[p.name.split()[1]] = p.measured / p.predicted
        print(f"{p.name:30} measured {p.measured:.3f} predicted {p.predicted:.3f}")
    assert set(ratios) == {"sleeps", "chain", "calls", "array"}
    for name, ratio in ratios.items():
        low, high = (0.8, 2.5) if name in SLEEPS else (1 / 5, 50)
        assert low < ratio < high, f"{name}: real Ray takes {ratio:.2f} times what is predicted"
