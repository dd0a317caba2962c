"""The autoscaler: bin packing, what shape the cluster should have, and the loop."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raysim.raycore.autoscaler import Autoscaler, AutoscalerConfig, NodeTypeConfig
from raysim.raycore.autoscaler.bin_packing import Availability, Node, Request, pack
from raysim.raycore.autoscaler.launch_limits import v1_launches, v2_launches
from raysim.raycore.autoscaler.scheduler import Decision, schedule
from raysim.raycore.ids import NodeID
from raysim.raycore.protocol import (
    Bundle,
    ClusterResourceState,
    DrainRaylet,
    PlacementGroupTableData,
    RequestClusterResourceConstraint,
    ResourceDemand,
    UnregisterNode,
)
from raysim.raycore.resources import ResourceSet
from raysim.raycore.tasks import LabelMatch
from tests.unit.raycore.autoscaler_cases import Case
from tests.unit.raycore.gcs_case import GcsCase

RECORD = Path(__file__).parents[2] / "data" / "autoscaler_decisions.json"
"""Decisions of ResourceDemandScheduler (python/ray/autoscaler/v2/scheduler.py, ray 2.60)."""
EVEN = Availability({}, {})
SMALL = NodeTypeConfig(name="small", resources={"CPU": 4}, max_workers=100)
BIG = NodeTypeConfig(name="big", resources={"CPU": 16}, max_workers=100)
GPU = NodeTypeConfig(name="gpu", resources={"CPU": 16, "GPU": 4}, max_workers=100)


def units(**quantities: float) -> ResourceSet:
    return ResourceSet.of(quantities)


def node(node_type: NodeTypeConfig, node_id: NodeID = 1, *, free: float | None = None,
         idle_s: float = 0, head: bool = False) -> Node:  # fmt: skip
    total = ResourceSet.of(node_type.resources).units
    available = total if free is None else {**total, "CPU": round(free * 10_000)}
    return Node.new(
        node_type.name, total, available, node_type.labels, instance=node_id, node_id=node_id,
        idle_ns=int(idle_s * 1e9), is_head=head,
    )  # fmt: skip


def demand(*shapes: tuple[ResourceSet, int]) -> ClusterResourceState:
    return ClusterResourceState((), (), tuple(ResourceDemand(*s) for s in shapes), (), ())


def gang(strategy: str, *bundles: ResourceSet, nodes: tuple[int, ...] = (),
         group: int = 1) -> PlacementGroupTableData:  # fmt: skip
    parts = tuple(Bundle(group, i, b) for i, b in enumerate(bundles))
    return PlacementGroupTableData(
        group, "", "PENDING", strategy, parts, nodes or (-1,) * len(bundles)
    )


def decide(state: ClusterResourceState, *types: NodeTypeConfig, nodes: tuple[Node, ...] = (),
           max_workers: int | None = None, idle_s: float = 60) -> Decision:  # fmt: skip
    config = AutoscalerConfig(node_types=types, max_workers=max_workers)
    return schedule(config, state, nodes, idle_timeout_s=idle_s, availability=EVEN)


@pytest.mark.parametrize(
    ("state", "types", "launch"),
    [
        (demand((units(CPU=1), 9)), (SMALL,), {"small": 3}),
        # the fuller node wins: 4 of 4 on a small one beats 4 of 16
        (demand((units(CPU=1), 4)), (SMALL, BIG), {"small": 1}),
        # total x utilisation^3: 16 of 16 beats 4 of 4
        (demand((units(CPU=1), 16)), (SMALL, BIG), {"big": 1}),
        # a GPU node is not wasted on CPU work, even if it would be fuller
        (demand((units(CPU=2), 8)), (SMALL, GPU), {"small": 4}),
        (demand((units(CPU=1, GPU=1), 6)), (SMALL, GPU), {"gpu": 2}),
        # what fits nowhere launches nothing
        (demand((units(CPU=64), 1)), (SMALL,), {}),
        (demand((ResourceSet(), 5)), (SMALL,), {"small": 1}),
    ],
)
def test_demand_becomes_nodes(
    state: ClusterResourceState, types: tuple[NodeTypeConfig, ...], launch: dict[str, int]
) -> None:
    assert decide(state, *types).launch == launch


def test_room_on_nodes_there_and_coming_is_used_first() -> None:
    there = (node(SMALL, 1, free=2), node(SMALL, -1))
    assert decide(demand((units(CPU=1), 6)), SMALL, nodes=there).launch == {}
    assert decide(demand((units(CPU=1), 7)), SMALL, nodes=there).launch == {"small": 1}


def test_limits_hold_and_what_is_left_is_infeasible() -> None:
    few = NodeTypeConfig(name="few", resources={"CPU": 1}, max_workers=2)
    decision = decide(demand((units(CPU=1), 5)), few)
    assert decision.launch == {"few": 2}
    assert decision.infeasible == [Request(units(CPU=1), 3)]
    head = (node(SMALL, 0, free=0, head=True),)
    assert decide(demand((units(CPU=4), 5)), SMALL, nodes=head, max_workers=3).launch == {
        "small": 3
    }


def test_min_workers_are_launched_unasked() -> None:
    least = NodeTypeConfig(name="least", resources={"CPU": 1}, min_workers=2, max_workers=5)
    assert decide(demand(), least, nodes=(node(least, 1),)).launch == {"least": 1}


@pytest.mark.parametrize(
    ("strategy", "launch"),
    [("PACK", {"big": 1}), ("SPREAD", {"big": 1}), ("STRICT_PACK", {"big": 1}),
     ("STRICT_SPREAD", {"small": 4})],
)  # fmt: skip
def test_gangs(strategy: str, launch: dict[str, int]) -> None:
    state = demand()._replace(gangs=(gang(strategy, *[units(CPU=4)] * 4),))
    assert decide(state, SMALL, BIG).launch == launch


def test_a_gang_is_placed_whole_or_not_at_all() -> None:
    few = NodeTypeConfig(name="few", resources={"CPU": 4}, max_workers=2)
    too_many = gang("STRICT_SPREAD", *[units(CPU=1)] * 3)
    state = demand()._replace(gangs=(too_many,))
    decision = decide(state, few)
    assert (decision.launch, decision.infeasible_gangs) == ({}, [too_many])


def test_a_strict_spread_gang_avoids_nodes_that_hold_its_other_bundles() -> None:
    lost_one = gang("STRICT_SPREAD", units(CPU=1), units(CPU=1), nodes=(1, -1))
    there = node(SMALL, 1)
    there.labels["_PG_1"] = ""
    assert decide(demand()._replace(gangs=(lost_one,)), SMALL, nodes=(there,)).launch == {
        "small": 1
    }


def test_request_resources_counts_whole_nodes_and_is_not_added_to_demand() -> None:
    state = demand()._replace(constraints=(units(CPU=4),) * 3)
    busy = (node(SMALL, 1, free=0), node(SMALL, 2, free=0))
    assert decide(state, SMALL, nodes=busy).launch == {"small": 1}


def test_idle_nodes_end_longest_first_unless_needed() -> None:
    least = NodeTypeConfig(name="small", resources={"CPU": 4}, min_workers=1, max_workers=9)
    there = (node(least, 0, idle_s=999, head=True), node(least, 1, idle_s=70),
             node(least, 2, idle_s=90), node(least, 3, idle_s=59))  # fmt: skip
    ended = decide(demand(), least, nodes=there).terminate
    assert [(n.node_id, n.cause) for n in ended] == [(1, "IDLE"), (2, "IDLE")]
    three = NodeTypeConfig(name="small", resources={"CPU": 4}, min_workers=3, max_workers=9)
    assert [n.node_id for n in decide(demand(), three, nodes=there).terminate] == [2]
    kept = decide(demand((units(CPU=4), 4)), least, nodes=there)
    assert kept.terminate == []


def test_labels_choose_the_type() -> None:
    zone = NodeTypeConfig(name="z", resources={"CPU": 1}, labels={"zone": "b"}, max_workers=9)
    selector = (LabelMatch(key="zone", operator="in", values=("b",)),)
    state = demand()._replace(demands=(ResourceDemand(units(CPU=1), 2, selector),))
    assert decide(state, SMALL, zone).launch == {"z": 2}


def test_a_type_that_failed_lately_is_avoided() -> None:
    twin = NodeTypeConfig(name="twin", resources={"CPU": 4}, max_workers=9)
    launchable = {t.name: (9, node(t, -1)) for t in (SMALL, twin)}
    for failed, chosen in (("small", "twin"), ("twin", "small")):
        placed, _ = pack(
            [Request(units(CPU=4))], [], launchable, "demand", Availability({failed: 0.3}, {})
        )
        assert [n.node_type for n in placed] == [chosen]


def test_recorded_decisions_of_rays_scheduler() -> None:
    recorded = json.loads(RECORD.read_text())
    assert len(recorded) == 60
    for seed, (launch, ended) in recorded.items():
        assert Case(int(seed)).ours() == (launch, ended), f"seed {seed}"


def test_outdated_nodes_end_first_if_that_is_looked_at() -> None:
    new = NodeTypeConfig(name="small", resources={"CPU": 4}, max_workers=9, launch_config="b")
    there = (node(SMALL, 1, free=0), node(new, 2, free=0), node(SMALL, 0, head=True))
    there[1].launch_config = "b"
    gone = node(NodeTypeConfig(name="gone", resources={"CPU": 1}), 3)
    for checked, ended in ((False, []), (True, [(1, "OUTDATED"), (3, "OUTDATED")])):
        config = AutoscalerConfig(node_types=(new,), disable_launch_config_check=not checked)
        decision = schedule(config, demand(), (*there, gone), idle_timeout_s=60, availability=EVEN)
        assert sorted((n.node_id, n.cause) for n in decision.terminate) == ended


@pytest.mark.parametrize(
    ("running", "requested", "speed", "launches"),
    [(0, 0, 0.0, {"a": 1, "b": 1}), (7, 0, 1.0, {"a": 7, "b": 1}),
     (7, 0, 1000.0, {"a": 10, "b": 0}), (7, 4, 1000.0, {"a": 6, "b": 0}),
     (0, 10, 5.0, {"a": 0, "b": 0})],
)  # fmt: skip
def test_version_2_requests_ten_at_a_time(
    running: int, requested: int, speed: float, launches: dict[str, int]
) -> None:
    said = v2_launches(
        {"a": 40, "b": 40}, {"a": running}, requested=requested, speed=speed, most_requested=10
    )
    assert said == launches


@pytest.mark.parametrize(
    ("running", "pending", "urgent", "speed", "launches"),
    [(0, 0, 0, 1.0, {"a": 5}), (0, 5, 0, 1.0, {}), (8, 3, 0, 1.0, {"a": 5}),
     (0, 5, 12, 1.0, {"a": 12}), (8, 0, 0, 2.0, {"a": 16})],
)  # fmt: skip
def test_version_1_keeps_five_pending_but_for_groups_and_minima(
    running: int, pending: int, urgent: int, speed: float, launches: dict[str, int]
) -> None:
    said = v1_launches({"a": 40}, {"a": running}, {"a": pending}, {"a": urgent}, speed=speed)
    assert said == launches


# ---- the loop ------------------------------------------------------------------------------------


class Cloud:
    """Starts nodes after a fixed delay, on demand."""

    boots = True

    def __init__(self, case: GcsCase, delay_s: float, config: AutoscalerConfig) -> None:
        self.case = case
        self.delay_ns = int(delay_s * 1e9)
        self.types = {t.name: t for t in config.node_types}
        self.asked: list[tuple[float, str]] = []
        self.terminated: list[tuple[float, NodeID]] = []
        self.next_id = 100
        self.has_none = False

    @property
    def now_s(self) -> float:
        return round(self.case.sim.now_ns / 1e9, 2)

    def launch(self, node_type: str, then: Callable[[NodeID | None], object]) -> None:
        self.asked.append((self.now_s, node_type))
        if self.has_none:
            then(None)
            return
        self.case.sim.call_later(self.delay_ns, functools.partial(self._up, node_type, then), None)

    def _up(self, node_type: str, then: Callable[[NodeID | None], object], _: Any) -> None:
        node_id, self.next_id = self.next_id, self.next_id + 1
        then(node_id)
        its = self.types[node_type]
        self.case.add_node(
            node_id, cpus=its.resources["CPU"], labels=its.labels, node_type=node_type
        )

    def machines(self) -> dict[int, str]:
        return {}

    def runs(self, node_id: NodeID) -> bool:
        return self.boots and node_id < self.next_id

    def terminate(self, node_id: NodeID) -> None:
        self.terminated.append((self.now_s, node_id))


def loop(delay_s: float = 30, *, waiting: int = 0, types: tuple[NodeTypeConfig, ...] = (SMALL,),
         **options: Any) -> tuple[GcsCase, Cloud, Autoscaler]:  # fmt: skip
    """A head without room, and so many one-CPU requests waiting at its raylet."""
    case = GcsCase(nodes=1, cpus=0, check=False)
    config = AutoscalerConfig(node_types=types, **options)
    cloud = Cloud(case, delay_s, config)
    autoscaler = case.sim.add(Autoscaler(case.env, config, provider=cloud))
    if waiting:
        case.raylets[0].load = (ResourceDemand(units(CPU=1), waiting),)
        case.report(0, cpus=0, total=0, waiting=True)
    return case, cloud, autoscaler


def per_round(cloud: Cloud) -> list[tuple[float, int]]:
    counts: dict[float, int] = {}
    for at_s, _ in cloud.asked:
        counts[at_s] = counts.get(at_s, 0) + 1
    return list(counts.items())


def test_litmus_15_one_node_per_type_and_five_seconds_at_upscaling_speed_0() -> None:
    _, cloud, _ = scene = loop(waiting=400, types=(SMALL, GPU))
    scene[0].run(22)
    assert per_round(cloud)[:4] == [(5.0, 1), (10.0, 1), (15.0, 1), (20.0, 1)]


def test_litmus_15_at_most_ten_pending_however_eager() -> None:
    case, cloud, autoscaler = loop(delay_s=42, waiting=400, upscaling_speed=1000.0)
    most = 0
    for second in range(200):
        case.run(second)
        pending = [i for i in autoscaler.instances.values() if i.status == "REQUESTED"]
        most = max(most, len(pending))
    assert most == 10
    assert per_round(cloud)[:3] == [(5.0, 10), (50.0, 10), (95.0, 10)]


def test_speed_1_doubles_what_runs() -> None:
    case, cloud, _ = loop(delay_s=1, waiting=400, upscaling_speed=1.0)
    case.run(42)
    assert [n for _, n in per_round(cloud)][:6] == [1, 1, 2, 4, 8, 10]


def test_an_instance_goes_its_way_and_an_idle_one_is_given_back() -> None:
    case, cloud, autoscaler = loop(delay_s=7, waiting=1, idle_timeout_s=60)
    seen: dict[int, list[str]] = {}
    for half in range(400):
        case.run(half / 2)
        if case.sim.now_ns > 30e9 and case.raylets[0].load:
            case.raylets[0].load = ()
            case.report(0, cpus=0, total=0)
            case.report(100, cpus=4, idle_since_ns=case.sim.now_ns)
        for instance in autoscaler.instances.values():
            states = seen.setdefault(instance.number, [])
            if not states or states[-1] != instance.status:
                states.append(instance.status)
        drains = case.raylets[100].of(DrainRaylet) if 100 in case.raylets else []
        if drains and case.gcs.nodes.alive(100):
            case.raylets[100].ask(UnregisterNode(100, "drained"))
    [head, worker] = seen.values()
    assert head == ["RAY_RUNNING"]
    assert worker == ["REQUESTED", "RAY_RUNNING", "RAY_STOP_REQUESTED",
                      "TERMINATING"]  # fmt: skip
    assert cloud.terminated == [(100.0, 100)]


def test_a_refused_drain_leaves_the_node_running() -> None:
    case, cloud, autoscaler = loop(waiting=0, idle_timeout_s=10)
    its = case.add_node(1, node_type="small")
    its.drain_answer = (False, "not idle")
    case.run(1)
    case.report(1, cpus=4, idle_since_ns=0)
    case.run(17)
    assert [i.status for i in autoscaler.instances.values()][1] == "RAY_STOP_REQUESTED"
    case.report(1, cpus=1)
    case.run(21)
    assert [i.status for i in autoscaler.instances.values()][1] == "RAY_RUNNING"
    assert cloud.terminated == []


def test_a_dead_node_is_replaced_while_demand_lasts() -> None:
    least = NodeTypeConfig(name="small", resources={"CPU": 4}, min_workers=1, max_workers=2)
    case, cloud, _ = loop(delay_s=1, types=(least,))
    case.run(20)
    case.kill_raylet(100)
    case.run(60)
    assert [t for t, _ in cloud.terminated] == [pytest.approx(40, abs=5)]
    assert len(cloud.asked) == 2


def test_a_cloud_that_has_none_is_asked_again() -> None:
    case, cloud, autoscaler = loop(waiting=1)
    cloud.has_none = True
    case.run(21)
    assert per_round(cloud) == [(5.0, 1), (10.0, 1), (15.0, 1), (20.0, 1)]
    cloud.has_none = False
    case.run(100)
    assert [i.status for i in autoscaler.instances.values()] == ["RAY_RUNNING"] * 2


def test_a_slow_cloud_is_asked_again_after_ten_minutes() -> None:
    case, cloud, autoscaler = loop(delay_s=700, waiting=1)
    case.run(1400)
    assert [t for t, _ in cloud.asked][:2] == [5.0, 610.0]
    running = [i for i in autoscaler.instances.values() if i.status == "RAY_RUNNING"]
    assert len(running) >= 2


def test_request_resources_scales_without_demand_and_holds_idle_nodes() -> None:
    case, cloud, autoscaler = loop(delay_s=1, idle_timeout_s=10, upscaling_speed=10)
    case.me.ask(RequestClusterResourceConstraint((units(CPU=4),) * 2))
    case.run(30)
    assert len(cloud.asked) == 2
    for node_id in (100, 101):
        case.report(node_id, cpus=4, idle_since_ns=0)
    case.run(60)
    assert cloud.terminated == []
    assert [i.status for i in autoscaler.instances.values()].count("RAY_RUNNING") == 3


def test_nothing_is_scaled_before_the_head_is_there() -> None:
    case = GcsCase(nodes=0, check=False)
    least = NodeTypeConfig(name="small", resources={"CPU": 4}, min_workers=1, max_workers=2)
    config = AutoscalerConfig(node_types=(least,))
    cloud = Cloud(case, 1, config)
    case.sim.add(Autoscaler(case.env, config, provider=cloud))
    case.run(20)
    assert cloud.asked == []
    case.add_node(0)
    case.run(26)
    assert len(cloud.asked) == 1


def test_version_1_asks_for_five_and_works_out_the_rest_anew() -> None:
    case, cloud, _ = loop(delay_s=12, waiting=400, upscaling_speed=1.0, version="v1")
    case.run(32)
    assert per_round(cloud) == [(5.0, 5), (20.0, 5)]


def test_version_1_looks_at_a_thousand_requests() -> None:
    case, _, autoscaler = loop(waiting=5_000, types=(SMALL,), version="v1")
    case.run(6)
    assert sum(autoscaler.decision.launch.values()) == 100
    one = NodeTypeConfig(name="one", resources={"CPU": 1}, max_workers=9_999)
    case, _, autoscaler = loop(waiting=5_000, types=(one,), version="v1")
    case.run(6)
    assert sum(autoscaler.decision.launch.values()) == 1_000


def test_ray_is_installed_once_a_machine_has_booted() -> None:
    case, cloud, autoscaler = loop(delay_s=1, waiting=1)
    cloud.boots, cloud.next_id = False, 101
    cloud._up = lambda node_type, then, _: then(100)  # type: ignore[method-assign]  # no raylet
    case.run(11)
    (worker,) = [i for i in autoscaler.instances.values() if not i.is_head]
    assert worker.status == "ALLOCATED"
    cloud.boots = True
    case.run(16)
    assert worker.status == "RAY_INSTALLING"
    case.run(1_830)
    assert cloud.terminated == [(1820.0, 100)]


def test_machines_there_at_the_start_are_not_asked_for_again() -> None:
    least = NodeTypeConfig(name="small", resources={"CPU": 4}, min_workers=1, max_workers=5)
    case = GcsCase(nodes=1, cpus=0, check=False)
    config = AutoscalerConfig(node_types=(least,))
    cloud = Cloud(case, 1, config)
    cloud.machines = lambda: {7: "small"}  # type: ignore[method-assign]
    autoscaler = case.sim.add(Autoscaler(case.env, config, provider=cloud))
    case.run(21)
    assert cloud.asked == []
    assert [i.node_id for i in autoscaler.instances.values() if not i.is_head] == [7]


def test_a_changed_file_is_looked_at_in_the_next_round() -> None:
    more = NodeTypeConfig(name="small", resources={"CPU": 4}, min_workers=2, max_workers=5)
    case, cloud, autoscaler = loop(delay_s=1)
    case.run(12)
    assert cloud.asked == []
    autoscaler.reconfigure(AutoscalerConfig(node_types=(more,), upscaling_speed=2))
    case.run(16)
    assert per_round(cloud) == [(15.0, 2)]
