"""What chaos has found where something ends: exits, requests whose sender or receiver has gone."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from raysim.kernel.component import NodeDied
from raysim.raycore import scripts
from raysim.raycore.faults import Faults
from raysim.raycore.protocol import (
    CheckAlive,
    PlasmaAbort,
    PlasmaCreate,
    object_manager,
    plasma,
    raylet,
)
from raysim.raycore.scripts import (
    Sleep,
    cancel,
    create_actor,
    drop,
    drop_actor,
    get,
    put,
    script,
    sleep,
    submit,
)
from raysim.raycore.tasks import NodeAffinity, Payload, TaskError
from raysim.units import NS_PER_MS, NS_PER_S
from tests.faults.tasks import body_of
from tests.faults.test_found import left
from tests.raycore_parts import ray_cluster
from tests.stories.ray_scripts import actor, method, run, task

S = NS_PER_S


@pytest.mark.parametrize(
    ("kind", "ran", "answers"),
    [
        ({}, [], "DDDD"),
        ({"max_concurrency": 2}, [1], "U.DD"),
        ({"is_async": True}, [1, 2, 3], "U..."),
    ],
    ids=["sync", "threaded", "async"],
)
def test_calls_behind_an_exit_do_not_run(kind: Any, ran: list[int], answers: str) -> None:
    """As real Ray 2.60: what runs goes on to its end, what waits never begins.

    Where something still runs a second later, the call that exited fails with ACTOR_UNAVAILABLE,
    since nobody knows yet that the actor is dead.
    """
    cluster = ray_cluster(1, check=True)
    began: list[int] = []

    def leave(running: Any, _frame: Any) -> Any:
        yield sleep(S)
        running.exit_process(reason="exit_actor", intended=True)
        yield sleep(1000 * S)
        return []

    def behind(number: int) -> Any:
        def body(_running: Any, _frame: Any) -> Any:
            began.append(number)
            yield sleep(4 * S)
            return []

        return body_of(body)

    def main(_: Any) -> Any:
        a = yield create_actor(actor(**kind))
        refs = yield scripts.call_actor(a, method(body_of(leave)))
        for number in (1, 2, 3):
            refs += yield scripts.call_actor(a, method(behind(number)))
        values = []
        for ref in refs:
            values += yield get([ref])
        yield drop(*refs)
        yield drop_actor(a)
        return values

    letters = {"ACTOR_DIED": "D", "ACTOR_UNAVAILABLE": "U"}
    got = run(cluster, main)
    said = "".join(letters[v.error_type] if isinstance(v, TaskError) else "." for v in got)
    assert (began, said) == (ran, answers)
    assert not left(cluster)


def test_an_actor_that_exits_waits_for_its_tasks_and_not_for_its_objects() -> None:
    cluster = ray_cluster(1, check=True)
    times: list[float] = []

    def make(_: Any) -> Any:
        yield submit(task(Sleep(5 * S)))
        return [Payload(1, None, ((yield put(Payload(1_000_000))),))]

    def leave(running: Any, _frame: Any) -> Any:
        running.exit_process(reason="exit_actor", intended=True)
        yield sleep(1000 * S)

    def main(driver: Any) -> Any:
        a = yield create_actor(actor())
        made = yield scripts.call_actor(a, method(script(make)))
        (value,) = yield get(made)
        (mine,) = value.contained
        yield scripts.keep(mine)
        begin_ns = driver.sim.now_ns
        refs = yield scripts.call_actor(a, method(body_of(leave)))
        refs += yield scripts.call_actor(a, method())
        answers = (yield get(refs[:1])) + (yield get(refs[1:]))
        times.append((driver.sim.now_ns - begin_ns) / S)
        yield sleep(S)
        answers += yield get([mine])
        yield drop(*made, *refs, mine)
        yield drop_actor(a)
        return [answer.error_type for answer in answers]

    assert run(cluster, main) == ["ACTOR_UNAVAILABLE", "ACTOR_DIED", "OWNER_DIED"]
    assert 5 < times[0] < 6
    assert not left(cluster)


def test_what_was_sent_to_a_raylet_that_was_dead_does_not_reach_the_next() -> None:
    cluster = ray_cluster(2, check=True)
    faults = Faults(cluster)
    driver = cluster.driver()
    cluster.sim.run("10s")
    faults.partition(1)
    faults.kill_raylet(1)
    answers: list[Any] = []
    driver.call(raylet(1), CheckAlive(1), answers.append)  # held up by the cable
    cluster.sim.run("12s")
    faults.restart_node(1)
    faults.heal(1)
    cluster.sim.run("20s")
    assert isinstance(answers[0], NodeDied)


def test_a_lease_whose_owner_left_before_the_grant_reached_it_ends() -> None:
    cluster = ray_cluster(2, cpus=1, check=True)
    faults = Faults(cluster)
    there = task(Sleep(S), strategy=NodeAffinity(node_id=1))

    def asks(_: Any) -> Any:
        refs = yield submit(there)
        yield sleep(10 * NS_PER_MS)  # a worker is starting there
        faults.partition(1)
        yield cancel(refs[0])
        yield drop(*refs)
        return []

    def main(driver: Any) -> Any:
        refs = yield submit(task(Sleep(3 * S), cpus=0))
        refs += yield submit(task(script(asks), cpus=0))
        yield get(refs)
        yield drop(*refs)
        yield sleep(20 * S)
        here = [p for p in cluster.processes.values() if p.me.node_id == 0]
        faults.heal(1)
        return len(here)

    assert run(cluster, main) == 2, "driver and one worker: there is one CPU, and the owner left"
    granted = [r for r in cluster.env.log.rows if r.kind == "lease" and r.state == "GRANTED"]
    assert [r for r in granted if r.node_id == 1]
    assert not left(cluster)


def test_a_raylet_that_refuses_is_not_asked_again_until_it_is_declared_dead() -> None:
    cluster = ray_cluster(2, check=True)
    faults = Faults(cluster)

    def main(driver: Any) -> Any:
        first = yield submit(task(strategy=NodeAffinity(node_id=1, soft=True)))
        yield get(first)
        faults.kill_raylet(1)
        begin, begin_ns = cluster.sim.log.events, driver.sim.now_ns
        refs = yield submit(task(strategy=NodeAffinity(node_id=1, soft=True)))
        yield get(refs)
        yield drop(*first, *refs)
        return cluster.sim.log.events - begin, (driver.sim.now_ns - begin_ns) / S

    events, took_s = run(cluster, main)
    assert 5 < took_s < 16
    assert events < 100
    assert not left(cluster)


def test_a_local_write_that_meets_a_cancelled_transfer_is_stored() -> None:
    """A return is made here while a copy, made elsewhere before, was coming here."""
    cluster = ray_cluster(1, check=True)
    manager, store = object_manager(0), plasma(0)
    other: Any = cluster.sim.components[manager]

    def main(driver: Any) -> Any:
        number = driver.objects.new_put_id() + 1  # the next
        arriving = PlasmaCreate(number, 50_000_000, driver.me, manager, primary=False)
        other.call(store, arriving, lambda _: None)
        yield sleep(NS_PER_MS)
        cluster.sim.call_later(S, partial(other.send, store), PlasmaAbort(number))
        mine = yield put(Payload(50_000_000))
        assert mine.object_id == number
        took_s = driver.sim.now_ns / S
        values = yield get([mine], timeout_ns=5 * S)
        yield drop(mine)
        return took_s, values

    took_s, (value,) = run(cluster, main)
    assert took_s > 2
    assert value.size_bytes == 50_000_000
    assert not left(cluster)


def test_a_week_of_waiting_for_what_no_node_has_costs_nothing() -> None:
    cluster = ray_cluster(2)

    def main(_: Any) -> Any:
        yield get((yield submit(task(resources={"x": 1}))))

    cluster.driver(lambda d: scripts.drive(d, main, lambda _: None))
    cluster.sim.run("60s")
    events = cluster.sim.log.events
    cluster.sim.run("7d")
    assert cluster.sim.log.events == events
    assert sum(d.requests for d in cluster.gcs.demand.state().demands) == 1
