"""Placement groups: strategies, the queue, two phases, what nodes and owners take with them."""

from __future__ import annotations

from typing import Any

import pytest

from raysim.raycore.config import RayConfig
from raysim.raycore.gcs.bundle_policies import place
from raysim.raycore.gcs.tables import GcsNode
from raysim.raycore.protocol import (
    GCS,
    AddJob,
    Bundle,
    CancelResourceReserve,
    CommitBundleResources,
    CreateActor,
    GetClusterResourceState,
    GetPlacementGroups,
    MarkJobFinished,
    PrepareBundleResources,
    RegisterActor,
    RegisterNode,
    RemovePlacementGroup,
    WaitPlacementGroupUntilReady,
)
from raysim.raycore.resources import ResourceSet
from raysim.raycore.tasks import LabelMatch, TaskError
from tests.unit.raycore.gcs_case import GcsCase


def nodes(*resources: dict[str, float], labels: Any = None) -> list[GcsNode]:
    return [
        GcsNode(RegisterNode(i, "", ResourceSet.of(r).units, (labels or {}).get(i, {})), 0)
        for i, r in enumerate(resources)
    ]


def bundles(*resources: dict[str, float], selectors: Any = None) -> list[Bundle]:
    return [
        Bundle(1, i, ResourceSet.of(r), (selectors or {}).get(i, ()))
        for i, r in enumerate(resources)
    ]


CPU1, CPU2, CPU3, CPU4 = ({"CPU": float(n)} for n in (1, 2, 3, 4))


@pytest.mark.parametrize(
    ("strategy", "asked", "there", "chosen"),
    [
        # the emptiest node after placement, filled up; the rest goes on without it
        ("PACK", [CPU2, CPU2, CPU2], [CPU3, CPU4, CPU2], [1, 1, 0]),
        # a node is left for good once it does not take all that is left
        ("PACK", [CPU3, CPU3, CPU1], [CPU4, CPU4], [0, 1, 0]),
        ("PACK", [CPU3, CPU3, CPU3], [CPU4, CPU4], "FAILED"),
        # a node of its own while there are, then chosen ones again
        ("SPREAD", [CPU1, CPU1, CPU1], [CPU4, CPU2], [0, 1, 0]),
        ("SPREAD", [CPU4, CPU4], [CPU4, CPU2], "FAILED"),
        ("STRICT_SPREAD", [CPU1, CPU1], [CPU1, CPU4], [1, 0]),
        ("STRICT_SPREAD", [CPU1, CPU1, CPU1], [CPU4, CPU4], "INFEASIBLE"),
        ("STRICT_SPREAD", [CPU2, CPU2], [CPU4, CPU1], "FAILED"),
        ("STRICT_PACK", [CPU2, CPU2], [CPU3, CPU4], [1, 1]),
        ("STRICT_PACK", [CPU3, CPU2], [CPU4, CPU4], "INFEASIBLE"),
        # scarce resources first, though asked for last
        ("SPREAD", [CPU1, {"CPU": 1, "GPU": 1}], [{"CPU": 4, "GPU": 1}, CPU2], [1, 0]),
        ("PACK", [CPU1], [], "INFEASIBLE"),
    ],
)
def test_strategies(strategy: str, asked: Any, there: Any, chosen: Any) -> None:
    assert place(strategy, bundles(*asked), nodes(*there)) == chosen


def test_busy_is_not_infeasible() -> None:
    [node] = nodes(CPU4)
    node.take(ResourceSet.of(CPU1))
    assert place("STRICT_PACK", bundles(CPU4), [node]) == "FAILED"


def test_strict_pack_prefers_its_soft_target_and_strict_spread_avoids_nodes_in_use() -> None:
    there = nodes(CPU2, CPU4)
    assert place("STRICT_PACK", bundles(CPU1), there, soft_target=0) == [0]
    assert place("STRICT_PACK", bundles(CPU3), there, soft_target=0) == [1]
    assert place("STRICT_SPREAD", bundles(CPU1), there, in_use=frozenset({1})) == [0]


def test_bundles_go_where_their_labels_say() -> None:
    there = nodes(CPU4, CPU4, labels={1: {"zone": "b"}})
    selector = (LabelMatch(key="zone", operator="in", values=("b",)),)
    asked = bundles(CPU1, CPU1, selectors={1: selector})
    assert place("SPREAD", asked, there) == [0, 1]
    assert place("STRICT_PACK", asked, there) == [1, 1]
    assert place("STRICT_PACK", asked, there[:1]) == "INFEASIBLE"


def test_prepare_everywhere_then_commit_everywhere() -> None:
    case = GcsCase(nodes=2)
    case.group(1, [CPU3, CPU3])
    case.me.ask(WaitPlacementGroupUntilReady(1))
    case.run(1.0)
    assert [a for _, a in case.me.answers] == [None, True]
    for its in case.raylets.values():
        assert [type(m).__name__ for _, m in its.got] == [
            "PrepareBundleResources", "CommitBundleResources",
        ]  # fmt: skip
    assert [s for _, s in case.states("placement_group", 1)] == ["PENDING", "PREPARED", "CREATED"]


def test_a_refused_prepare_undoes_the_others() -> None:
    case = GcsCase(nodes=2)
    case.raylets[1].on_prepare = lambda _, reply: reply(False)
    case.group(1, [CPU3, CPU3])
    case.run(0.5)
    assert case.raylets[0].bundles == case.raylets[1].bundles == {}
    assert len(case.raylets[0].of(CancelResourceReserve)) == 1
    assert case.raylets[1].of(CancelResourceReserve) == []
    assert case.gcs.tables.nodes[0].available == {"CPU": 40_000}
    case.raylets[1].on_prepare = None
    case.run(1.5)
    assert case.state_of(1) == "CREATED"


def test_litmus_16_groups_are_placed_one_at_a_time_in_order() -> None:
    case = GcsCase(nodes=1)
    held: list[Any] = []
    case.raylets[0].on_prepare = lambda m, reply: held.append((m, reply))
    for group in (1, 2, 3):
        case.group(group, [CPU1])
    case.run(0.1)
    assert [m.bundles[0].group for m, _ in held] == [1]
    case.raylets[0].bundles[1, 0] = "prepared"
    held[0][1](True)
    case.run(0.2)
    assert [m.bundles[0].group for m, _ in held] == [1, 2]


def test_litmus_16_one_that_does_not_fit_backs_off_and_blocks_nobody() -> None:
    """Alone, it is tried when the second strikes; others pass it meanwhile."""
    case = GcsCase(nodes=1)
    tries: list[float] = []
    start = case.gcs.bundle_scheduler.start

    def counted(group: Any) -> None:
        if group.spec.group == 2:
            tries.append(round(case.sim.now_ns / 1e9, 3))
        start(group)

    case.gcs.bundle_scheduler.start = counted  # type: ignore[method-assign]
    case.group(1, [CPU4])
    case.run(0.2)
    case.group(2, [CPU4])
    case.run(4.5)
    assert tries == [0.2, 1.0, 2.0, 3.0, 4.0]
    assert case.gcs.tables.groups[2].delay_ns == int(100e6 * 1.5**4)
    for group, at_s in ((3, 4.6), (4, 5.01)):  # due again at 4.506 + ..., so another's end wakes it
        case.run(at_s)
        case.group(group, [{"CPU": 0.0}])
    case.run(20)
    assert case.gcs.tables.groups[2].delay_ns == int(1e9)
    assert case.state_of(3) == "CREATED"
    case.me.ask(RemovePlacementGroup(1))
    case.run(20.1)
    case.report(0, cpus=4)
    case.run(21.5)
    assert case.state_of(2) == "CREATED"


def test_the_delays_are_100_150_225_up_to_1000_ms() -> None:
    case = GcsCase(nodes=1)
    case.group(1, [CPU4])
    case.group(2, [CPU4])
    delays = []
    for second in range(9):
        case.run(second + 0.5)
        delays.append(case.gcs.tables.groups[2].delay_ns / 1e6)
    assert delays[:4] == [100, 150, 225, 337.5]
    assert delays[-1] == 1000


def test_an_infeasible_group_waits_for_a_node_and_is_demand() -> None:
    case = GcsCase(nodes=1)
    case.group(1, [CPU3, CPU3], "STRICT_SPREAD")
    case.run(1.0)
    events = case.sim.log.events
    case.run(100.0)
    assert case.sim.log.events == events, "an infeasible group is not tried again"
    case.me.ask(GetClusterResourceState())
    case.run(100.1)
    assert [g.group for g in case.me.last.gangs] == [1]
    case.add_node(1)
    case.run(100.2)
    assert case.gcs.tables.groups[1].nodes == [0, 1]
    assert case.state_of(1) == "CREATED"


def test_a_dead_node_takes_its_bundles_only() -> None:
    case = GcsCase(nodes=3)
    case.group(1, [CPU3, CPU3])
    case.run(6.0)
    case.kill_raylet(1)
    case.run(60)
    assert case.gcs.tables.groups[1].nodes == [0, 2]
    assert [s for _, s in case.states("placement_group", 1)] == [
        "PENDING", "PREPARED", "CREATED", "RESCHEDULING", "PREPARED", "CREATED",
    ]  # fmt: skip
    assert len(case.raylets[0].of(PrepareBundleResources)) == 1


def test_a_rescheduled_group_goes_before_those_that_wait() -> None:
    case = GcsCase(nodes=2)
    case.group(1, [CPU4])
    case.group(2, [CPU4])
    case.group(3, [CPU4])
    case.run(6.0)
    case.kill_raylet(1)
    case.run(30)
    case.add_node(5)
    case.run(40)
    assert (case.state_of(2), case.state_of(3)) == ("CREATED", "PENDING")


def test_a_node_that_dies_while_it_prepares_fails_the_attempt() -> None:
    case = GcsCase(nodes=2)
    case.run(6.0)
    case.power_off(1)  # it will be asked and never answer
    case.group(1, [CPU3, CPU3])
    case.run(69.0)
    assert case.raylets[0].bundles == {(1, 0): "prepared"}
    case.run(75.0)
    assert case.raylets[0].bundles == {}
    case.add_node(2)
    case.run(80.0)
    assert case.gcs.tables.groups[1].nodes == [0, 2]


def test_a_raylet_that_has_started_again_is_neither_asked_nor_undone_for_the_one_before() -> None:
    """It refuses until it has registered, and what it then holds is not cancelled."""
    case = GcsCase(nodes=1)
    case.run(1.0)
    its = case.raylets[0]
    its.crash(reason="killed")
    case.group(1, [CPU1])
    case.run(1.05)  # the prepare is refused, and so is its undoing, tried again in a second
    its.start()
    case.run(1.5)
    assert its.bundles == {}
    its = case.add_node(0)
    case.run(4.0)
    assert case.state_of(1) == "CREATED"
    assert its.bundles == {(1, 0): "committed"}


def test_a_group_removed_while_it_is_prepared_leaves_nothing() -> None:
    case = GcsCase(nodes=1)
    held: list[Any] = []

    def hold(m: PrepareBundleResources, reply: Any) -> None:
        case.raylets[0].bundles[1, 0] = "prepared"
        held.append(reply)

    case.raylets[0].on_prepare = hold
    case.group(1, [CPU3])
    case.me.ask(WaitPlacementGroupUntilReady(1))
    case.run(0.5)
    case.me.ask(RemovePlacementGroup(1))
    case.run(0.6)
    held[0](True)
    case.run(1.0)
    assert case.raylets[0].bundles == {}
    assert case.raylets[0].of(CommitBundleResources) == []
    assert [a for _, a in case.me.answers] == [None, False, None]
    assert case.gcs.tables.nodes[0].available == {"CPU": 40_000}


def test_what_a_removed_group_held_is_free_once_reported_and_waiters_hear_of_it() -> None:
    """Real Ray: 120 groups of a quarter of a node, each removed before the next, take 14 s."""
    case = GcsCase(nodes=1)
    case.group(1, [CPU4])
    case.run(0.1)
    case.me.ask(RemovePlacementGroup(1))
    case.run(0.15)
    assert case.raylets[0].bundles == {}
    case.group(2, [CPU4])
    case.run(0.2)
    assert case.raylets[0].bundles == {}
    case.report(0, cpus=4)
    case.run(0.95)
    assert case.raylets[0].bundles == {}
    case.run(1.05)
    assert case.raylets[0].bundles == {(2, 0): "committed"}
    case.me.ask(WaitPlacementGroupUntilReady(1))
    case.me.ask(GetPlacementGroups())
    case.run(1.1)
    assert case.me.answers[-2][1] is False
    assert [(g.group, g.state) for g in case.me.last] == [(2, "CREATED"), (1, "REMOVED")]


def test_a_name_is_taken_until_its_group_is_removed() -> None:
    case = GcsCase(nodes=1)
    case.group(1, [CPU1], name="x")
    case.group(2, [CPU1], name="x")
    case.run(0.1)
    assert isinstance(case.me.last, TaskError)
    case.me.ask(GetPlacementGroups(name="x", ray_namespace="ns"))
    case.run(0.2)
    assert [g.group for g in case.me.last] == [1]
    case.me.ask(RemovePlacementGroup(1))
    case.group(3, [CPU1], name="x")
    case.run(0.3)
    assert case.state_of(3) == "CREATED"


def test_groups_end_with_their_job_unless_detached_or_a_living_actor_made_them() -> None:
    case = GcsCase(nodes=1)
    case.me.ask(AddJob(1, case.address_of(case.me), "ns"))
    for m in (RegisterActor, CreateActor):
        spec = case.actor_spec(77, name="keeper", detached=True, resources={"CPU": 1})
        case.me.ask(m(spec, "ns") if m is RegisterActor else m(spec))
    case.group(1, [CPU1])
    case.group(2, [CPU1], detached=True)
    case.group(3, [CPU1], creator_actor=77)
    case.run(1.0)
    case.me.send(GCS, MarkJobFinished(1))
    case.run(2.0)
    assert [case.state_of(g) for g in (1, 2, 3)] == ["REMOVED", "CREATED", "CREATED"]
    case.gcs.actors.on_worker_dead(_failed(case, 77))
    assert [case.state_of(g) for g in (2, 3)] == ["CREATED", "REMOVED"]


def _failed(case: GcsCase, actor_id: int) -> Any:
    from raysim.raycore.protocol import WorkerFailed

    worker = case.gcs.tables.actors[actor_id].worker
    assert worker is not None
    return WorkerFailed(worker, "killed")


def test_a_restarted_gcs_undoes_what_was_half_prepared() -> None:
    case = GcsCase(nodes=2, config=RayConfig(gcs_storage="redis"))
    case.raylets[1].on_prepare = lambda _m, _reply: None  # the answer never comes
    case.group(1, [CPU3, CPU3])
    case.run(1.0)
    assert case.raylets[0].bundles == {(1, 0): "prepared"}
    case.gcs.crash()
    case.raylets[1].on_prepare = None
    case.run(2.0)
    case.gcs.restart()
    case.run(4.0)
    assert case.state_of(1) == "CREATED"
    assert [type(m).__name__ for _, m in case.raylets[0].got] == [
        "PrepareBundleResources", "ReleaseUnusedActorWorkers", "CancelResourceReserve",
        "PrepareBundleResources", "CommitBundleResources",
    ]  # fmt: skip
