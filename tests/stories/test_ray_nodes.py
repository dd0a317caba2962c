"""Nodes that are cut off, drained and taken back, seen on whole clusters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raysim.raycore.cluster import Cluster
from raysim.raycore.faults import Faults
from raysim.raycore.protocol import GCS, DrainNode
from raysim.raycore.scripts import (
    Sleep,
    call_actor,
    create_actor,
    get,
    script,
    sleep,
    submit,
)
from raysim.raycore.tasks import NodeAffinity, Payload, TaskError
from raysim.units import NS_PER_S
from tests.raycore_parts import ray_cluster
from tests.stories.ray_scripts import actor, method, run, seconds, starts, task

S = NS_PER_S


def rows(cluster: Cluster, kind: str, *states: str) -> list[Any]:
    return [r for r in cluster.env.log.rows if r.kind == kind and r.state in states]


def died_s(cluster: Cluster, node_id: int = 1) -> list[float]:
    """When the GCS declared the node dead."""
    return [r.t_ns / S for r in rows(cluster, "node", "DEAD") if r.number == node_id]


def on_node(node_id: int, body: Any, **options: Any) -> Any:
    """A task that goes there if it can."""
    return task(body, strategy=NodeAffinity(node_id=node_id, soft=True), **options)


# ---- cut off -------------------------------------------------------------------------------------


def cut(cluster: Cluster, from_s: float, until_s: float) -> Faults:
    """The last node's cable is out for so long."""
    faults, last = Faults(cluster), len(cluster.env.nodes) - 1
    cluster.sim.at(f"{from_s}s", faults.partition, last)
    cluster.sim.at(f"{until_s}s", faults.heal, last)
    return faults


def test_a_node_given_up_while_it_was_cut_off_exits_when_it_is_back() -> None:
    cluster = ray_cluster(2)
    cut(cluster, 100, 200)
    cluster.sim.run("199s")
    assert died_s(cluster), "given up after a minute"
    assert cluster.is_up(1), "it does not know"
    cluster.sim.run("201s")
    assert not cluster.is_up(1)


def test_it_asks_on_the_minute_since_its_start() -> None:
    cluster = ray_cluster(2, config={"health_check_failure_threshold": 1})
    cut(cluster, 65, 90)
    cluster.sim.run("119.9s")
    assert died_s(cluster)[0] < 90
    assert cluster.is_up(1)
    cluster.sim.run("120.1s")
    assert not cluster.is_up(1)


def test_a_node_that_was_cut_off_for_less_than_a_minute_stays() -> None:
    cluster = ray_cluster(2)
    cut(cluster, 100, 150)
    cluster.sim.run("1000s")
    assert cluster.is_up(1)
    assert not died_s(cluster)


def test_every_node_asks_when_it_is_the_head_that_was_cut_off() -> None:
    cluster = ray_cluster(3)
    faults = Faults(cluster)
    cluster.sim.at("100s", faults.partition, 0)
    cluster.sim.at("200s", faults.heal, 0)
    cluster.sim.run("201s")
    assert [cluster.is_up(n) for n in range(3)] == [True, False, False]


def test_workers_of_a_node_given_up_end_and_its_tasks_run_elsewhere() -> None:
    cluster = ray_cluster(2)
    there = on_node(1, Sleep(600 * S))
    cut(cluster, 30, 130)

    def main(_: Any) -> Any:
        (ref,) = yield submit(there)
        yield sleep(135 * S)
        left = [p for p in cluster.processes.values() if p.me.node_id == 1]
        return left, (yield get([ref]))

    left, values = run(cluster, main)
    assert not left
    assert not isinstance(values[0], TaskError)
    assert [r.node_id for r in rows(cluster, "task", "RUNNING")] == [1, 0]


def test_a_quiet_cluster_pays_nothing_for_it() -> None:
    cluster = ray_cluster(20)
    cluster.sim.run("100s")
    before = len(cluster.sim.log.times)
    cluster.sim.run("100000s")
    assert len(cluster.sim.log.times) == before


# ---- drained and taken back ----------------------------------------------------------------------


def drain(cluster: Cluster, node_id: int, reason: Any, notice_s: float = 0) -> list[Any]:
    """Ask the GCS; its answer, once it is there."""
    answers: list[Any] = []
    deadline_ns = cluster.sim.now_ns + int(notice_s * S) if notice_s else 0
    driver = next(iter(cluster.processes.values()))
    driver.call(GCS, DrainNode(node_id, reason, deadline_ns), answers.append)
    return answers


def test_idle_termination_is_refused_while_a_lease_or_an_object_is_there() -> None:
    cluster = ray_cluster(2)

    def big(_: Any) -> Any:
        return [Payload(10_000_000)]
        yield

    def main(_: Any) -> Any:
        answers = []
        (busy,) = yield submit(on_node(1, Sleep(10 * S)))
        yield sleep(5 * S)
        answers += [drain(cluster, 1, "IDLE_TERMINATION")]
        yield get([busy])
        (kept,) = yield submit(on_node(1, script(big)))
        yield sleep(5 * S)
        answers += [drain(cluster, 1, "IDLE_TERMINATION")]
        yield sleep(S)
        return answers, kept

    answers, _ = run(cluster, main)
    reason = "The node to be idle-terminated is no longer idle."
    assert answers == [[(False, reason)]] * 2
    assert cluster.is_up(1)


def test_an_idle_node_leaves_at_once() -> None:
    cluster = ray_cluster(2)

    def main(_: Any) -> Any:
        yield sleep(S)
        asked_s, answers = seconds(cluster), drain(cluster, 1, "IDLE_TERMINATION")
        yield sleep(S)
        return asked_s, answers

    asked_s, answers = run(cluster, main)
    assert answers == [(True, "")]
    assert died_s(cluster) == [pytest.approx(asked_s, abs=0.5)]
    assert not cluster.is_up(1)


def test_a_node_to_be_preempted_gets_no_new_leases_but_finishes_its_work() -> None:
    cluster = ray_cluster(2, cpus=4)

    def main(_: Any) -> Any:
        (old,) = yield submit(on_node(1, Sleep(30 * S)))
        yield sleep(5 * S)
        drain(cluster, 1, "PREEMPTION", 120)
        yield sleep(S)
        new = []
        for _ in range(3):
            new += yield submit(on_node(1, Sleep(S)))
        return old, new, (yield get([old, *new]))

    old, new, values = run(cluster, main)
    assert not any(isinstance(v, TaskError) for v in values)
    assert [node for _, node in starts(cluster, [old])] == [1]
    assert [node for _, node in starts(cluster, new)] == [0, 0, 0]
    (gone_s,) = died_s(cluster)
    assert 30 < gone_s < 35, "it leaves when its work is done, before the deadline"


def test_at_the_deadline_it_dies_and_tries_again_are_not_charged() -> None:
    cluster = ray_cluster(2)
    faults = Faults(cluster)

    def main(_: Any) -> Any:
        (ref,) = yield submit(on_node(1, Sleep(100 * S), max_retries=1))
        yield sleep(5 * S)
        faults.preempt(1, "30s")
        yield sleep(100 * S)
        faults.kill_worker(rows(cluster, "task", "RUNNING")[-1].worker_id)
        return (yield get([ref]))

    (value,) = run(cluster, main)
    assert not isinstance(value, TaskError), "the only retry is there for the crash"
    ran = rows(cluster, "task", "RUNNING")
    assert [r.node_id for r in ran] == [1, 0, 0]
    assert 35 + 60 < died_s(cluster)[0] < 35 + 66, "nobody is told when it loses power"


def test_tasks_that_may_not_run_again_fail_with_a_preempted_node() -> None:
    cluster = ray_cluster(2)
    faults = Faults(cluster)

    def main(_: Any) -> Any:
        (ref,) = yield submit(on_node(1, Sleep(100 * S), max_retries=0))
        yield sleep(5 * S)
        faults.preempt(1, "30s")
        return (yield get([ref]))

    (error,) = run(cluster, main)
    assert error.error_type == "NODE_DIED"


def test_restarts_of_actors_of_a_preempted_node_are_not_charged() -> None:
    cluster = ray_cluster(3, cpus=4)
    faults = Faults(cluster)

    def alive() -> list[Any]:
        return rows(cluster, "actor", "ALIVE")

    def story(driver: Any) -> Any:
        there = replace(actor(max_restarts=1), strategy=NodeAffinity(node_id=1, soft=True))
        a = yield create_actor(there)
        yield get((yield call_actor(a, method())))
        assert alive()[-1].node_id == 1
        faults.preempt(1, "10s")
        yield sleep(120 * S)
        assert alive()[-1].node_id != 1
        second = alive()[-1]
        faults.kill_worker(second.worker_id)
        yield sleep(20 * S)
        third = alive()[-1]
        assert third.worker_id != second.worker_id, "its one restart was left"
        faults.kill_worker(third.worker_id)
        yield sleep(20 * S)
        return [r.state for r in rows(cluster, "actor", "DEAD")]

    assert run(cluster, story) == ["DEAD"]


def test_calls_of_actors_of_a_preempted_node_are_not_charged() -> None:
    cluster = ray_cluster(3, cpus=4)
    faults = Faults(cluster)

    def story(_: Any) -> Any:
        there = replace(actor(max_restarts=1), strategy=NodeAffinity(node_id=1, soft=True))
        a = yield create_actor(there)
        yield get((yield call_actor(a, method())))
        long = replace(method(Sleep(200 * S)), max_retries=1)
        (call,) = yield call_actor(a, long)
        yield sleep(S)
        faults.preempt(1, "10s")
        yield sleep(120 * S)
        faults.kill_worker(rows(cluster, "task", "RUNNING")[-1].worker_id)
        return (yield get([call]))

    (value,) = run(cluster, story)
    assert not isinstance(value, TaskError), "the only retry is there for the crash"
    assert len({r.node_id for r in rows(cluster, "task", "RUNNING")}) >= 2
