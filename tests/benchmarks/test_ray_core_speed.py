"""CPU time of an emulated no-op task, full lease protocol, against bare SimPy; ratios, never gates.

    pytest tests/benchmarks/test_ray_core_speed.py -m benchmark --benchmark-enable -s

A driver submits a burst of no-op tasks to a cluster of 1,000 nodes of 32 CPUs. Beside it, in the
same process: what a task costs as one SimPy process that waits for a worker out of a ``Store``,
waits four times (request, grant, push, reply) and puts the worker back, with no bookkeeping at all.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
import simpy

from raysim.kernel.simulation import collector_at_ease
from raysim.raycore import scripts
from raysim.raycore.scripts import Compute, drive, drop, get, submit
from tests.benchmarks.alone import alone
from tests.benchmarks.table import row
from tests.benchmarks.test_ray_core_patterns import played_s
from tests.raycore_parts import ray_cluster
from tests.stories.ray_scripts import task

pytestmark = pytest.mark.benchmark

TASKS = 100_000
NODES, CPUS = 1_000, 32


def bare_simpy_s() -> float:
    """CPU seconds of ``TASKS`` SimPy processes."""
    env = simpy.Environment()
    workers = simpy.Store(env)
    for worker in range(64):
        workers.put(worker)

    def one() -> Any:
        yield env.timeout(1)
        worker = yield workers.get()
        for _ in range(3):
            yield env.timeout(1)
        yield workers.put(worker)

    def driver() -> Any:
        for _ in range(TASKS):
            env.process(one())
            yield env.timeout(1)

    env.process(driver())
    started = time.process_time()
    env.run()
    return time.process_time() - started


def burst(asked: Any, count: int) -> Any:
    """Submit so many, get all results, let go of them."""
    refs = []
    for _ in range(count):
        refs += yield submit(asked)
    yield get(refs)
    yield drop(*refs)


def streamed_s(tasks: int, wave: int, nodes: int) -> float:
    """CPU seconds of no-op tasks, each wave of which is submitted when the one before has ended."""
    no_op = task(scripts.no_op)

    def main(_: Any) -> Any:
        for _ in range(tasks // wave):
            yield from burst(no_op, wave)

    cluster = ray_cluster(nodes, cpus=CPUS, log=False)
    return played_s(cluster, main, f"{5 + tasks * 4e-4}s")[0]


def emulated_s(tasks: int, nodes: int, core_s: float = 0.0) -> tuple[float, float]:
    """CPU seconds of a burst on an emulated cluster that is up already, from the io thread's first
    turn until the last result is let go of; and those of the program's own calls before it.

    Each task computes for ``core_s``; 0: does nothing.
    """
    cluster = ray_cluster(nodes, cpus=CPUS, log=False)
    no_op = task(Compute(core_s) if core_s else scripts.no_op)

    drivers: list[Any] = []
    cluster.driver(drivers.append)
    cluster.sim.run("5s")
    started = time.process_time()
    with collector_at_ease():
        drive(drivers[0], lambda _: burst(no_op, tasks))
    submitted = time.process_time()
    cluster.sim.run(f"{5 + 3 * core_s + tasks * 2e-4}s")
    return time.process_time() - submitted, submitted - started


def test_a_task_against_a_bare_process(benchmark: Any) -> None:
    bare_s = min(bare_simpy_s() for _ in range(2))
    full_s, calls_s = min(emulated_s(TASKS, NODES) for _ in range(2))
    benchmark.extra_info["tasks_per_cpu_s"] = TASKS / full_s
    row("no-op tasks", f"{TASKS:,} tasks, {NODES:,} nodes of {CPUS} CPUs, full lease protocol:"
        f" {full_s / TASKS * 1e6:.1f} us each, {calls_s / TASKS * 1e6:.1f} us more for the"
        " program's own call", full_s, f"{TASKS / full_s:,.0f} tasks/s", bare_s / full_s,
        "SimPy processes without bookkeeping")  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)


def test_a_million_tasks_and_ten_thousand_idle_nodes(benchmark: Any) -> None:
    (full_s, _), peak_bytes = alone(emulated_s, 1_000_000, NODES)
    row("no-op tasks", f"1,000,000 tasks, {peak_bytes / 1e9:.2f} GB at most", full_s,
        f"{1e6 / full_s:,.0f} tasks/s")  # fmt: skip
    cluster = ray_cluster(10_000, cpus=CPUS, log=False)
    cluster.sim.run("10s")
    events, started = cluster.sim.log.events, time.process_time()
    cluster.sim.run("24h")
    row("idle cluster", "10,000 nodes for a day", time.process_time() - started,
        f"{cluster.sim.log.events - events} events")  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)
