"""The litmus tests of objects: spilling, arguments in memory, pulls; and of owners that leave."""

from __future__ import annotations

from typing import Any

import pytest

from raysim.raycore.cluster import NodeOptions
from raysim.raycore.scripts import (
    Sleep,
    call_actor,
    create_actor,
    drop,
    get,
    put,
    script,
    sleep,
    submit,
)
from raysim.raycore.tasks import NodeAffinity, Payload
from raysim.units import GB, NS_PER_S
from tests.raycore_parts import ray_cluster
from tests.stories.ray_scripts import (
    actor,
    method,
    run,
    seconds,
    starts,
    task,
)

S = NS_PER_S


def small_stores(nodes: int, store_bytes: int, **config: Any) -> Any:
    """Equal nodes with object stores of this size."""
    options = {k: NodeOptions(object_store_bytes=store_bytes) for k in range(nodes)}
    return ray_cluster(nodes, options=options, config=config)


def rows(cluster: Any, kind: str, *states: str) -> list[Any]:
    return [r for r in cluster.env.log.rows if r.kind == kind and r.state in states]


def test_9_spilling_begins_at_80_percent_and_nothing_falls_back_to_disk() -> None:
    cluster = small_stores(1, GB)

    def main(_: Any) -> Any:
        refs = []
        for _ in range(15):
            refs.append((yield put(Payload(GB // 10))))
            yield sleep(S // 2)
        return refs

    refs = run(cluster, main)
    created = [r.t_ns for r in rows(cluster, "object", "CREATED")]
    spilled = [r.t_ns for r in rows(cluster, "object", "SPILLED")]
    assert len(refs) == len(created) == 15
    # a process starts and 800 MB are written before the first is reported
    assert created[7] < spilled[0] < created[7] + 4 * S
    assert not rows(cluster, "object", "FALLBACK")


def test_9_with_nothing_to_spill_a_producer_waits_two_seconds_and_falls_back() -> None:
    cluster = small_stores(1, GB, object_spilling_threshold=1.0)

    def main(_: Any) -> Any:
        refs = []
        for _ in range(9):
            refs.append((yield put(Payload(GB // 10))))
        refs += yield submit(task(Sleep(60 * S)), refs)  # arguments in use cannot be spilled
        yield sleep(S)
        t0 = seconds(cluster)
        refs.append((yield put(Payload(GB // 5))))
        return seconds(cluster) - t0, refs

    waited, _ = run(cluster, main)
    assert 2.0 <= waited < 2.5
    assert len(rows(cluster, "object", "FALLBACK")) == 1


def overlap(store_bytes: int, arg_bytes: int) -> bool:
    """Whether two tasks with an argument each ran at the same time; both ran."""
    cluster = small_stores(1, store_bytes)
    work = task(Sleep(5 * S))

    def main(_: Any) -> Any:
        first = yield put(Payload(arg_bytes))
        second = yield put(Payload(arg_bytes))
        refs = yield submit(work, [first])
        refs += yield submit(work, [second])
        yield get(refs)
        return refs

    refs = run(cluster, main)
    (a, _), (b, _) = starts(cluster, refs)
    return b - a < 5


def test_10_arguments_of_running_tasks_take_at_most_70_percent_of_the_store() -> None:
    assert overlap(GB, GB // 3)
    assert not overlap(GB, GB * 2 // 5)


def test_10_a_task_with_a_larger_argument_still_runs() -> None:
    overlap(GB, GB * 4 // 5)


def test_11_a_get_goes_before_arguments_that_are_being_pulled() -> None:
    cluster = ray_cluster(2, options={0: NodeOptions(), 1: NodeOptions(object_store_bytes=10 * GB)})
    there = NodeAffinity(node_id=1)

    def getter(running: Any) -> Any:
        yield sleep(2 * S)
        yield get(list(running.args[0].contained))
        return []

    def main(driver: Any) -> Any:
        wanted = yield put(Payload(8 * GB))
        argument = yield put(Payload(8 * GB))
        box = Payload(100, contained=(wanted,))
        first = yield submit(task(script(getter), strategy=there), [box])
        yield sleep(S + S // 2)
        second = yield submit(task(strategy=there), [argument])
        yield get(first + second)
        return wanted, argument, driver

    wanted, argument, _ = run(cluster, main)
    copies = [r.number for r in rows(cluster, "object", "COPY") if r.node_id == 1]
    assert copies == [wanted.object_id, argument.object_id]


def carried_by_the_holder(apart_s: float) -> float:
    """Objects' worth of bytes that left node 0 when five nodes pulled one object."""
    cluster = ray_cluster(6)
    size = 4 * GB

    def getter(running: Any) -> Any:
        yield get(list(running.args[0].contained))
        return []

    def main(_: Any) -> Any:
        ref = yield put(Payload(size))
        refs = []
        for k in range(1, 6):
            refs += yield submit(task(strategy=NodeAffinity(node_id=k)))
        yield get(refs)  # every node has a process now
        refs = []
        for k in range(1, 6):
            here = task(script(getter), strategy=NodeAffinity(node_id=k))
            refs += yield submit(here, [Payload(100, contained=(ref,))])
            yield sleep(int(apart_s * S))
        yield get(refs)
        return ref

    run(cluster, main)
    out = cluster.env.nodes[0].nics[0][0]
    return sum(u.carried_bytes for u in cluster.env.network.uses() if u.link is out) / size


def test_12_simultaneous_pulls_all_ask_the_holder_staggered_ones_use_peers() -> None:
    assert carried_by_the_holder(apart_s=0.0) == pytest.approx(5, abs=0.1)
    assert carried_by_the_holder(apart_s=20.0) < 4.5


def test_17_an_owners_exit_frees_its_objects_and_borrowers_fail() -> None:
    cluster = ray_cluster(2)

    def owner(_: Any) -> Any:
        ref = yield put(Payload(10**8))
        kept.append(ref)
        return [Payload(100, contained=(ref,))]

    def hold(running: Any) -> Any:
        running.keep("kept")
        yield sleep(1)
        return []

    kept: list[Any] = []
    make = method(script(owner))

    def main(driver: Any) -> Any:
        a = yield create_actor(actor())
        boxed = yield call_actor(a, make)
        value = (yield get(boxed))[0]
        inner = value.contained[0]
        driver.add_local_reference(inner)
        assert (yield get([inner]))[0].size_bytes == 10**8
        yield drop(inner)
        cluster.kill(inner.owner.worker_id, reason="test")
        yield sleep(2 * S)
        answer = yield get([inner], timeout_ns=30 * S)
        used = [cluster.sim.components[f"node-{k}/plasma"] for k in (0, 1)]
        return answer, used

    answer, stores = run(cluster, main)
    assert answer[0].error_type == "OWNER_DIED"
    assert all(store.used == 0 for store in stores)
