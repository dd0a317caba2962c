"""Nodes join, are checked, drained and declared dead."""

from __future__ import annotations

import pytest

from raysim.raycore.protocol import (
    GCS,
    AddJob,
    CheckAlive,
    DrainNode,
    DrainRaylet,
    GetAllNodeInfo,
    GetClusterResourceState,
    GetResourceLoad,
    JobFinished,
    NodeAdded,
    NodeRemoved,
    ResourceDemand,
    SubscribeAll,
    UnregisterNode,
    WorkerFailed,
)
from raysim.raycore.resources import ResourceSet
from tests.unit.raycore.gcs_case import GcsCase


def removed(
    case: GcsCase, subscriber: str = "node-0/worker-901"
) -> list[tuple[float, NodeRemoved]]:
    return case.sim.components["node-0/worker-901"].of(NodeRemoved)  # type: ignore[attr-defined]


def case_with_listener(nodes: int = 2) -> GcsCase:
    case = GcsCase(nodes=nodes)
    case.listener().ask(SubscribeAll("node-0/worker-901"))
    case.run(0.0)
    return case


def test_a_node_that_joins_is_in_the_view_and_not_announced() -> None:
    case = case_with_listener(nodes=1)
    case.run(1.0)
    case.add_node(7, cpus=2)
    case.run(2.0)
    assert list(case.env.view.nodes) == [0, 7]
    listener = case.sim.components["node-0/worker-901"]
    assert listener.of(NodeAdded) == []  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("cut_at_s", "dead_at_s"),
    [(4.0, 5 + 5 * 10 + 4 * 3), (6.0, 8 + 62), (5.5, 70.0), (10.9, 11 + 62)],
)
def test_litmus_13_a_cable_pulled_is_noticed_after_62_to_65_s(
    cut_at_s: float, dead_at_s: float
) -> None:
    case = case_with_listener()
    case.run(cut_at_s)
    case.power_off(1)
    case.run(200)
    [(t_s, m)] = removed(case)
    assert round(t_s, 6) == dead_at_s
    assert (m.node_id, m.expected) == (1, False)
    assert 1 not in case.env.view.nodes


@pytest.mark.parametrize(("killed_at_s", "dead_at_s"), [(6.0, 8 + 12), (8.5, 11 + 12)])
def test_litmus_13_a_killed_raylet_is_noticed_after_12_to_15_s(
    killed_at_s: float, dead_at_s: float
) -> None:
    case = case_with_listener()
    case.run(killed_at_s)
    case.kill_raylet(1)
    case.run(60)
    [(t_s, _)] = removed(case)
    assert round(t_s, 6) == dead_at_s


def test_a_report_replaces_a_check_and_moves_the_next() -> None:
    """Checks at 5, 8, 11; the report at 10 puts the one at 11 off to 13, where it fails."""
    case = case_with_listener()
    case.run(10.0)
    case.report(1, cpus=3)
    case.run(10.5)
    case.kill_raylet(1)
    case.run(60)
    [(t_s, _)] = removed(case)
    assert round(t_s, 6) == 13 + 12


def test_a_node_that_answers_again_starts_from_five_failures() -> None:
    case = case_with_listener()
    case.run(6.0)
    case.reach(1, "refuses")  # fails at 8, 11, 14
    case.run(15.0)
    case.reach(1, "answers")  # succeeds at 17
    case.run(18.0)
    case.reach(1, "refuses")  # fails at 20, 23, 26, 29, 32
    case.run(60)
    [(t_s, _)] = removed(case)
    assert round(t_s, 6) == 32


def test_healthy_nodes_cost_no_events() -> None:
    case = GcsCase(nodes=50)
    events = case.sim.log.events
    case.run(3600)
    assert case.sim.log.events == events


def test_unregistering_is_instant_and_expected_only_if_drained() -> None:
    case = case_with_listener(nodes=3)
    case.me.ask(DrainNode(1, "IDLE_TERMINATION", 0))
    case.run(1.0)
    assert case.me.last == (True, "")
    assert case.raylets[1].of(DrainRaylet)
    for node_id in (1, 2):
        case.raylets[node_id].ask(UnregisterNode(node_id, "bye"))
    case.run(2.0)
    assert [(m.node_id, m.expected) for _, m in removed(case)] == [(1, True), (2, False)]
    case.me.ask(GetAllNodeInfo())
    case.run(3.0)
    assert [(row.node_id, row.state) for row in case.me.last] == [
        (0, "ALIVE"), (1, "DEAD"), (2, "DEAD"),
    ]  # fmt: skip


def test_a_drain_can_be_refused_and_a_dead_node_needs_none() -> None:
    case = GcsCase(nodes=2)
    case.raylets[1].drain_answer = (False, "not idle")
    case.me.ask(DrainNode(1, "IDLE_TERMINATION", 0))
    case.run(1.0)
    assert case.me.last == (False, "not idle")
    assert case.gcs.tables.nodes[1].state == "ALIVE"
    case.me.ask(DrainNode(9, "IDLE_TERMINATION", 0))
    case.run(2.0)
    assert case.me.last == (True, "The node is not alive.")


def test_a_drain_under_way_is_answered_when_the_node_dies_silently() -> None:
    case = GcsCase(nodes=2)
    case.run(6.0)
    case.power_off(1)
    case.me.ask(DrainNode(1, "PREEMPTION", 0))
    case.run(69.0)
    assert case.me.answers == []
    case.run(71.0)
    assert case.me.answers == [(70.0, (True, "The raylet did not answer."))]


def test_a_node_past_its_preemption_deadline_dies_expectedly() -> None:
    case = case_with_listener()
    case.me.ask(DrainNode(1, "PREEMPTION", int(5e9), "spot"))
    case.run(5.0)
    case.power_off(1)
    case.run(100)
    [(_, m)] = removed(case)
    assert (m.expected, m.reason) == (True, "spot")


def test_a_raylet_asks_whether_it_is_thought_alive() -> None:
    case = GcsCase(nodes=2)
    case.run(6.0)
    case.kill_raylet(1)
    case.me.ask(CheckAlive(1))
    case.run(40.0)
    case.me.ask(CheckAlive(1))
    case.run(41.0)
    assert [a for _, a in case.me.answers] == [True, False]


def test_a_restarted_raylet_is_a_new_node_and_the_old_one_is_removed_at_once() -> None:
    case = case_with_listener()
    case.run(6.0)
    case.kill_raylet(1)
    case.run(9.0)
    case.add_node(1)
    case.run(100.0)
    listener = case.sim.components["node-0/worker-901"]
    assert [type(m).__name__ for _, m in listener.got] == ["NodeRemoved", "NodeAdded"]  # type: ignore[attr-defined]
    assert case.gcs.tables.nodes[1].start_ns == int(9e9) + 1


def test_worker_failures_go_only_to_those_who_want_them() -> None:
    case = GcsCase()
    a, b = case.listener("node-0/worker-901"), case.listener("node-0/worker-902")
    a.ask(SubscribeAll(a.address))
    b.ask(SubscribeAll(b.address, worker_failures=False))
    case.run(1.0)
    dead = case.address_of(case.worker(0))
    for _ in range(2):  # said twice, published once
        case.raylets[0].ask(WorkerFailed(dead, "oom"))
        case.run(2.0)
    assert [m.worker for _, m in a.of(WorkerFailed)] == [dead]
    assert b.got == []


def test_a_job_ends_with_its_driver() -> None:
    case = GcsCase(nodes=2)
    case.me.ask(AddJob(1, case.address_of(case.me), "ns"))
    case.run(1.0)
    case.raylets[0].send(GCS, WorkerFailed(case.address_of(case.me), "killed"))
    case.run(2.0)
    assert [m for _, m in case.raylets[1].of(JobFinished)] == [JobFinished(1)]
    assert [s for _, s in case.states("job", 1)] == ["RUNNING", "FINISHED"]


def test_load_is_pulled_each_second_where_something_waits_and_may_have_changed() -> None:
    case = GcsCase(nodes=3)
    shape = ResourceSet.of({"CPU": 64})
    for node_id in (1, 2):
        case.raylets[node_id].load = (ResourceDemand(shape, 5),)
    case.run(0.5)
    case.report(1, cpus=0, waiting=True)
    case.report(2, cpus=0, waiting=True)
    case.run(1.4)
    case.env.changes.count(2)
    case.run(2.1)
    case.report(2, cpus=0, waiting=False)
    case.run(5.4)
    case.env.changes.count(1)
    case.env.changes.count(2)
    case.run(6.1)
    assert [round(t, 6) for t, _ in case.raylets[1].of(GetResourceLoad)] == [1, 6]
    assert [round(t, 6) for t, _ in case.raylets[2].of(GetResourceLoad)] == [1, 2]
    assert case.raylets[0].of(GetResourceLoad) == []
    case.me.ask(GetClusterResourceState())
    case.run(6.2)
    assert case.me.last.demands == (ResourceDemand(shape, 5),)
    case.report(1, cpus=4)
    case.run(6.3)
    events = case.sim.log.events
    case.run(60)
    assert case.sim.log.events <= events + 1


def test_a_report_reaches_the_shared_view_one_hop_later() -> None:
    case = GcsCase(nodes=1)
    case.run(1.0)
    case.report(0, cpus=1)
    case.run(1.0001)
    assert case.env.view.nodes[0].resources.available == {"CPU": 40_000}
    case.run(1.0002)
    assert case.env.view.nodes[0].resources.available == {"CPU": 10_000}
