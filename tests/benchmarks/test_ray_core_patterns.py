"""CPU time of what Ray programs do most, beside what the same costs as bare SimPy; never gates.

    pytest tests/benchmarks/test_ray_core_patterns.py -m benchmark --benchmark-enable -s

Chains of tasks that need each other's results, calls of an actor one after the other, one object
for every node, an all-to-all shuffle, and objects that exceed the store three times. The yardstick
is a SimPy process that waits four times (request, grant, push, reply) per task or call, and twice
(ask, data) per object that moves, with no bookkeeping at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import simpy

from raysim.kernel.simulation import collector_at_ease
from raysim.raycore.cluster import Cluster, NodeOptions
from raysim.raycore.scripts import call_actor, create_actor, drive, drop, get, put, submit
from raysim.raycore.scripts.bodies import Return
from raysim.raycore.tasks import Payload
from tests.benchmarks.alone import alone
from tests.benchmarks.table import row
from tests.raycore_parts import ray_cluster
from tests.stories.ray_scripts import actor, method, task

pytestmark = pytest.mark.benchmark

MB, GIB = 10**6, 2**30


def bare_s(times: int, waits: int) -> float:
    """CPU seconds of so many SimPy processes that wait so many times."""
    env = simpy.Environment()

    def one() -> Any:
        for _ in range(waits):
            yield env.timeout(1)

    def all_of_them() -> Any:
        for _ in range(times):
            env.process(one())
            yield env.timeout(1)

    env.process(all_of_them())
    started = time.process_time()
    env.run()
    return time.process_time() - started


def played_s(cluster: Cluster, main: Callable[[Any], Any], until: str) -> tuple[float, float]:
    """CPU seconds of a driver's script on a cluster that is up, and when it ended, virtually."""
    drivers: list[Any] = []
    cluster.driver(drivers.append)
    cluster.sim.run("5s")
    ended: list[float] = []
    started = time.process_time()
    with collector_at_ease():
        drive(drivers[0], main, lambda _: ended.append(cluster.sim.now_ns / 1e9))
        cluster.sim.run(until)
    assert ended, f"the script has not ended by {until}"
    return time.process_time() - started, ended[0]


def test_chains_of_tasks(benchmark: Any) -> None:
    chains, links = 1_000, 100
    step = task(Return([100]))

    def main(_: Any) -> Any:
        heads = []
        for _ in range(chains):
            heads += yield submit(step)
        for _ in range(links - 1):
            for i, head in enumerate(heads):
                heads[i] = (yield submit(step, [head]))[0]
                yield drop(head)
        yield get(heads)

    played, _ = played_s(ray_cluster(100, cpus=32, log=False), main, "1h")
    tasks = chains * links
    row("tasks with dependencies", f"{chains:,} chains of {links} tasks on 100 nodes", played,
        f"{tasks / played:,.0f} tasks/s", bare_s(tasks, 4) / played, "SimPy processes")  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)


def test_actor_ping_pong(benchmark: Any) -> None:
    calls = 20_000
    ping = method(Return([100]))

    def main(_: Any) -> Any:
        there = yield create_actor(actor())
        for _ in range(calls):
            (answer,) = yield call_actor(there, ping)
            yield get([answer])
            yield drop(answer)

    played, _ = played_s(ray_cluster(2, cpus=4, log=False), main, "1h")
    row("actor ping-pong", f"{calls:,} calls of one actor, one after the other", played,
        f"{calls / played:,.0f} calls/s", bare_s(calls, 2) / played, "SimPy processes")  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)


def test_broadcast(benchmark: Any) -> None:
    nodes = 1_000
    look = task(cpus=1, strategy="SPREAD")

    def main(_: Any) -> Any:
        big = yield put(Payload(GIB))
        refs = []
        for _ in range(nodes):
            refs += yield submit(look, [big])
        yield get(refs)
        yield drop(*refs, big)

    cluster = ray_cluster(
        nodes, cpus=1, log=False,
        options={n: NodeOptions(object_store_bytes=2 * GIB) for n in range(nodes)},
    )  # fmt: skip
    played, ended_s = played_s(cluster, main, "1h")
    row("broadcast", f"1 GiB to {nodes:,} nodes ({ended_s - 5:.1f} virtual s)", played,
        f"{nodes / played:,.0f} copies/s", bare_s(nodes * 205, 2) / played,
        "SimPy processes, one for each chunk of 5 MiB")  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)


def shuffle(maps: int, reduces: int) -> tuple[float, float]:
    """CPU seconds of an all-to-all between tasks on 100 nodes, and its virtual seconds."""
    split = task(Return([200_000] * reduces), num_returns=reduces, strategy="SPREAD")
    merge = task(Return([100]), strategy="SPREAD")

    def main(_: Any) -> Any:
        columns: list[list[Any]] = [[] for _ in range(reduces)]
        for _ in range(maps):
            parts = yield submit(split)
            for column, part in zip(columns, parts, strict=True):
                column.append(part)
        refs = []
        for column in columns:
            refs += yield submit(merge, column)
            yield drop(*column)
        yield get(refs)

    nodes = 100
    cluster = ray_cluster(
        nodes, cpus=16, log=False,
        options={n: NodeOptions(object_store_bytes=64 * GIB) for n in range(nodes)},
    )  # fmt: skip
    played, ended_s = played_s(cluster, main, "10h")
    return played, ended_s - 5


@pytest.mark.parametrize("side", [100, 200])
def test_shuffle(benchmark: Any, side: int) -> None:
    (played, virtual_s), peak_bytes = alone(shuffle, side, side)
    row("shuffle", f"{side:,} x {side:,} blocks of 200 kB, 100 nodes ({virtual_s:.1f} virtual s,"
        f" {peak_bytes / 1e9:.2f} GB at most)", played, f"{side * side / played:,.0f} blocks/s",
        bare_s(side * side, 2) / played, "SimPy processes, one for each block")  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)


def test_spilling(benchmark: Any) -> None:
    blocks, block_bytes = 3_000, 10 * MB
    make = task(Return([block_bytes]))
    look = task()

    def main(_: Any) -> Any:
        refs = []
        for _ in range(blocks):
            refs += yield submit(make)
        looks = []
        for ref in refs:
            looks += yield submit(look, [ref])
        yield get(looks)

    cluster = ray_cluster(
        1, cpus=8, log=False,
        options={0: NodeOptions(object_store_bytes=blocks * block_bytes // 3)},
    )  # fmt: skip
    played, ended_s = played_s(cluster, main, "10h")
    row("spilling", f"{blocks:,} objects of 10 MB, three times the store, made and read"
        f" ({ended_s - 5:.0f} virtual s)", played, f"{blocks / played:,.0f} objects/s",
        bare_s(blocks * 2, 4) / played, "SimPy processes, two tasks for each object")  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)
