"""What seeded chaos has found in core workers: small stories that would fail without the repair."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from raysim.raycore import scripts
from raysim.raycore.cluster import NodeOptions
from raysim.raycore.faults import Faults
from raysim.raycore.ids import hex_id
from raysim.raycore.resources import ResourceSet, within_group
from raysim.raycore.scripts import (
    Sleep,
    create_actor,
    drop,
    drop_actor,
    get,
    put,
    script,
    sleep,
    submit,
    wait,
)
from raysim.raycore.tasks import InPlacementGroup, NodeAffinity, Payload, TaskError
from raysim.raystate.moment import moment
from raysim.units import MB, NS_PER_S
from tests.faults.plans import plan
from tests.faults.runs import play
from tests.faults.tasks import body_of
from tests.faults.test_found import left
from tests.raycore_parts import ray_cluster
from tests.stories.ray_scripts import actor, method, run, task

S = NS_PER_S


def test_a_worker_hears_that_the_node_of_its_nested_task_has_died() -> None:
    cluster = ray_cluster(2, check=True)
    cluster.sim.at("10s", Faults(cluster).fail_node, 1)
    inner = task(Sleep(60 * S), strategy=NodeAffinity(node_id=1, soft=True))

    def outer(_: Any) -> Any:
        refs = yield submit(inner)
        yield get(refs)
        yield drop(*refs)
        return []

    def main(_: Any) -> Any:
        refs = yield submit(task(script(outer), strategy=NodeAffinity(node_id=0)))
        yield get(refs)
        yield drop(*refs)

    run(cluster, main)
    assert not left(cluster)


def test_an_actor_that_is_dropped_at_once_does_not_stay() -> None:
    cluster = ray_cluster(1, check=True)

    def main(_: Any) -> Any:
        for restarts in (0, 1, -1):
            yield drop_actor((yield create_actor(actor(max_restarts=restarts))))

    run(cluster, main)
    assert not left(cluster)


def test_who_asks_for_a_value_that_nobody_is_to_have_is_answered() -> None:
    cluster = ray_cluster(1, cpus=4, check=True)
    slow = task(Sleep(20 * S))

    def spawn(running: Any) -> Any:
        ref = (yield submit(slow))[0]
        yield sleep(1)
        return [Payload(8, contained=(ref,))]

    def main(driver: Any) -> Any:
        outer = yield submit(task(script(spawn)))
        inner = (yield get(outer))[0].contained[0]
        yield scripts.keep(inner)
        yield get([inner], timeout_ns=S)
        yield drop(inner, *outer)
        owner = cluster.worker_at(inner.owner)
        owner.remove_local_reference(inner.object_id)  # type: ignore[union-attr]
        return driver

    run(cluster, main)
    assert not left(cluster)


def test_an_item_of_a_generator_is_not_freed_before_its_report_has_come() -> None:
    cluster = ray_cluster(1, check=True)

    def items(_: Any) -> Any:
        for _ in range(3):
            yield scripts.yield_item(Payload(5 * MB))
        return []

    def main(_: Any) -> Any:
        generator = (yield submit(task(script(items), num_returns="streaming")))[0]
        refs = []
        while (ref := (yield scripts.next_item(generator))) is not None:
            refs.append(ref)
        yield sleep(5 * S)
        values = yield get(refs, timeout_ns=S)
        yield drop(generator, *refs)
        return values

    assert [v.size_bytes for v in run(cluster, main)] == [5 * MB] * 3
    assert not left(cluster)


def test_wait_looks_no_further_once_it_has_answered() -> None:
    cluster = ray_cluster(1, check=True)

    def main(_: Any) -> Any:
        refs = (yield submit(task())) + (yield submit(task()))
        yield get(refs)
        yield wait(refs, 1)
        yield drop(*refs)

    run(cluster, main)
    assert not left(cluster)


def test_a_request_is_not_sent_on_for_a_task_that_was_cancelled_meanwhile() -> None:
    cluster = ray_cluster(2, check=True)

    def main(_: Any) -> Any:
        yield sleep(5 * S)
        for late_us in range(0, 1_500, 50):
            group = yield scripts.make_group([ResourceSet.of({"CPU": 1})] * 2, "STRICT_SPREAD")
            yield scripts.wait_group(group, 10 * S)
            yield sleep(S)
            refs = []
            for index in (0, 1):
                name = hex_id("placement_group", group)
                request = within_group(ResourceSet.of({"CPU": 1}), name, index)
                strategy = InPlacementGroup(placement_group_id=group, bundle_index=index)
                refs += yield submit(replace(task(strategy=strategy), resources=request))
            yield sleep(late_us * 1_000)
            for ref in refs:
                yield scripts.cancel(ref)
            yield drop(*refs)
            yield scripts.remove_group(group)

    run(cluster, main)
    assert not left(cluster)


def test_a_call_that_is_tried_again_goes_before_calls_that_wait_for_it() -> None:
    cluster = ray_cluster(1, check=True)

    def leave(running: Any) -> Any:
        yield sleep(S)
        if running.attempt == 0:
            running.exit_process(reason="test", intended=False)
            yield sleep(1000 * S)
        return [Payload(8)]

    again = method(script(leave))
    once = method()

    def main(_: Any) -> Any:
        a = yield create_actor(actor(max_restarts=1, max_task_retries=1))
        first = yield scripts.call_actor(a, replace(again, max_retries=1))
        between = yield submit(task(), first)
        second = yield scripts.call_actor(a, once, between)
        values = yield get(first + second, timeout_ns=100 * S)
        yield drop(*first, *between, *second)
        yield drop_actor(a)
        return values

    assert not isinstance(run(cluster, main), TaskError)
    assert not left(cluster)


def test_returns_that_were_stored_before_another_failed_are_freed() -> None:
    cluster = ray_cluster(
        1, check=True, options={0: NodeOptions(object_store_bytes=100 * MB)}
    )  # fmt: skip
    Faults(cluster).fill_disk(0)
    three = task(scripts.Return([45 * MB] * 3), num_returns=3)

    def main(_: Any) -> Any:
        refs = yield submit(three)
        values = yield get(refs)
        yield drop(*refs)
        return values

    assert "OUT_OF_DISK" in {getattr(v, "error_type", "") for v in run(cluster, main)}
    assert not left(cluster)


def test_an_argument_that_failed_with_its_actor_is_no_death_of_the_actor_called() -> None:
    cluster = ray_cluster(1, check=True)

    def main(_: Any) -> Any:
        dead = yield create_actor(actor())
        yield get((yield scripts.call_actor(dead, method())))
        yield scripts.kill(dead)
        yield sleep(S)
        failed = yield scripts.call_actor(dead, method())
        alive = yield create_actor(actor(max_restarts=-1, max_task_retries=-1))
        refs = yield scripts.call_actor(alive, replace(method(), max_retries=-1), failed)
        values = yield get(refs, timeout_ns=100 * S)
        yield drop(*failed, *refs)
        yield drop_actor(dead)
        yield drop_actor(alive)
        return values

    assert [v.error_type for v in run(cluster, main)] == ["ACTOR_DIED"]


def test_a_get_of_a_task_that_was_cancelled_blocks_its_worker_no_more() -> None:
    cluster = ray_cluster(1, cpus=2, check=True)
    inner = task(Sleep(20 * S))

    def outer(running: Any, frame: Any) -> Any:
        refs = yield submit(inner)
        frame.locals += refs
        yield get(refs)
        return []

    def main(_: Any) -> Any:
        refs = yield submit(task(body_of(outer)))
        yield sleep(5 * S)
        yield scripts.cancel(refs[0])
        yield drop(*refs)

    run(cluster, main)
    assert not left(cluster)


def test_a_reference_that_outlived_its_object_comes_back_as_freed() -> None:
    cluster = ray_cluster(1, check=True)

    def main(_: Any) -> Any:
        ref = yield put(Payload(MB))
        yield drop(ref)
        yield scripts.keep(ref)
        values = yield get([ref])
        yield drop(ref)
        return values

    assert [v.error_type for v in run(cluster, main)] == ["OBJECT_FREED"]
    assert not left(cluster)


def test_an_actor_s_creation_has_finished_when_the_actor_lives() -> None:
    cluster = ray_cluster(1, check=True)

    def main(driver: Any) -> Any:
        actors = []
        for restarts in (0, 1):
            a = yield create_actor(actor(max_restarts=restarts))
            actors.append(a)
            calls = yield scripts.call_actor(a, method())
            yield get(calls)
            yield drop(*calls)
            yield scripts.kill(a, no_restart=False)
            yield sleep(10 * S)
        for a in actors:
            yield drop_actor(a)
        return driver

    run(cluster, main)
    rows = [r for r in cluster.env.log.rows if r.kind == "task"]
    made = [
        r.number for r in rows
        if r.state == "PENDING_ARGS_AVAIL" and r.detail.kind == "ACTOR_CREATION_TASK"
    ]  # fmt: skip
    told = [[r.state for r in rows if r.number == n][1:] for n in made]
    assert told == [["RUNNING", "FINISHED"], ["RUNNING", "FINISHED"] * 2]
    seen = [moment(cluster.env.log.rows).tasks[n] for n in made]
    assert [a.state for a in seen] == ["FINISHED"] * 2
    assert all(a.end_ns - a.events[0][1] < 5 * S for a in seen)  # type: ignore[operator]
    assert not left(cluster)


def test_a_task_after_one_that_was_cancelled_in_a_get_gives_its_cpu_away() -> None:
    cluster = ray_cluster(1, cpus=1, check=True)
    inner = task(Sleep(20 * S), resources={"x": 1})
    never: list[Any] = []

    def outer(_: Any) -> Any:
        refs = yield submit(inner)
        never.extend(refs)
        yield get(refs)
        return []

    def nest(_: Any) -> Any:
        refs = yield submit(task())
        yield get(refs)
        yield drop(*refs)
        return []

    def main(_: Any) -> Any:
        first = yield submit(task(script(outer)))
        yield sleep(5 * S)
        yield scripts.cancel(first[0], recursive=False)
        second = yield submit(task(script(nest)))
        values = yield get(second, timeout_ns=100 * S)
        yield drop(*first, *second)
        return values

    assert isinstance(run(cluster, main), list)
    assert never


def test_a_worker_with_pending_tasks_is_not_idle() -> None:
    cluster = ray_cluster(2, cpus=2, check=True)
    inner = task(Sleep(500 * S), strategy=NodeAffinity(node_id=1))

    def outer(_: Any, frame: Any) -> Any:
        frame.locals += yield submit(inner)
        yield sleep(2 * S)
        return []

    def main(_: Any) -> Any:
        many = []
        for _ in range(3):
            many += yield submit(task(body_of(outer), cpus=0.5, strategy=NodeAffinity(node_id=0)))
        yield get(many)
        yield drop(*many)
        busy = yield submit(task(Sleep(60 * S), cpus=2, strategy=NodeAffinity(node_id=0)))
        yield get(busy)
        yield drop(*busy)

    run(cluster, main)
    cluster.sim.run("900s")
    ended = {r.number for r in cluster.env.log.rows if r.kind == "task" and r.state == "FINISHED"}
    asked = {r.number for r in cluster.env.log.rows if r.kind == "task"}
    assert ended == asked


def test_an_item_that_cannot_be_stored_lets_go_of_what_it_contains() -> None:
    cluster = ray_cluster(1, check=True, options={0: NodeOptions(object_store_bytes=50 * MB)})

    def items(running: Any, _frame: Any) -> Any:
        box = running.args[0]
        for _ in range(4):
            yield scripts.yield_item(Payload(20 * MB, contained=box.contained))
        return []

    def main(_: Any) -> Any:
        ref = yield put(Payload(MB))
        Faults(cluster).fill_disk(0)
        options = task(body_of(items), num_returns="streaming")
        generator = (yield submit(options, [Payload(10, contained=(ref,))]))[0]
        yield sleep(30 * S)
        yield drop(generator, ref)

    run(cluster, main)
    assert not left(cluster)


def test_an_argument_that_was_evicted_while_others_came_is_brought_again() -> None:
    assert not play(plan(1024)).problems
