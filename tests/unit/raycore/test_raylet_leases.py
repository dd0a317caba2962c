"""Leases on one node and between nodes: grants, returns, cancels, shares, caps, spillback."""

from __future__ import annotations

import pytest

from raysim.kernel.component import RoomDown
from raysim.raycore.protocol import (
    AsyncGetObjects,
    CancelGetRequest,
    GetResourceLoad,
    GetWorkerFailureCause,
    LeaseCancelled,
    LeaseGranted,
    LeaseRejected,
    LeaseSpillback,
    NotifyWorkerBlocked,
    NotifyWorkerUnblocked,
    PlasmaRelease,
    PullStatus,
    RegisterNode,
    ReportResources,
    WorkerFailed,
    object_manager,
    plasma,
    raylet,
)
from raysim.raycore.resources import UNIT
from raysim.raycore.tasks import NodeAffinity, Ref
from tests.unit.raycore.raylet_parts import (
    FREE,
    MS,
    Owner,
    S,
    World,
    holds_arguments,
    options,
    world,
)


def test_a_raylet_registers_with_what_it_offers() -> None:
    w = world([{"CPU": 4}])
    (m,) = w.gcs.of(RegisterNode)
    assert m.resources == {"CPU": 40_000}
    assert list(w.env.view.nodes) == [0]


def test_a_warm_worker_is_granted_and_taken_back() -> None:
    w = world([{"CPU": 2}])
    w.warm(0, 1)
    owner = w.owner()
    lease = owner.ask(options())
    w.run_for(MS)
    assert isinstance(owner.answer(lease), LeaseGranted)
    assert w.raylet().resources.available == {"CPU": 10_000}
    owner.give_back(lease)
    w.run_for(MS)
    assert w.raylet().resources.available == {"CPU": 20_000}
    assert len(w.starts) == 1


def test_requests_beyond_the_cpus_wait_in_order() -> None:
    w = world([{"CPU": 1}])
    owner = w.owner()
    f = options()
    first, second, third = (owner.ask(f) for _ in range(3))
    w.run_for(MS)
    assert list(owner.granted) == [first]
    owner.give_back(first)
    w.run_for(MS)
    assert list(owner.granted) == [second]
    owner.cancel(third)
    w.run_for(MS)
    assert owner.answer(third) == LeaseCancelled("INTENDED")
    assert owner.answered[-1][2] is True
    assert third not in w.raylet().leases


def test_an_actor_is_placed_by_one_cpu_and_holds_none() -> None:
    w = world([{"CPU": 1}])
    owner = w.owner()
    actor = options("A", resources={}, placement_resources=options().resources)
    leases = [owner.ask(actor, spec={"actor_id": i + 1}) for i in range(3)]
    w.run_for(MS)
    assert list(owner.granted) == leases
    assert w.raylet().resources.available == {"CPU": 10_000}


def test_64_cores_cold_start_in_waves_of_ten_requests() -> None:
    """Litmus 4, the raylet's part: ten leases outstanding become ten starts, then ten more."""
    w = world([{"CPU": 64}], start_ns=700 * MS)
    owner = w.owner()
    for _ in range(10):
        owner.ask(options())
    w.run_for(699 * MS)
    assert len(w.starts) == 10
    assert not owner.grants
    w.run_for(2 * MS)
    assert len(owner.grants) == 10


def test_two_classes_converge_to_equal_shares() -> None:
    """Litmus 8."""
    w = world([{"CPU": 8}])
    w.warm(0, 8)
    f, g = options("f"), options("g")
    owner = w.owner()
    kinds = {}
    for _ in range(60):
        kinds[owner.ask(f)] = "f"
    for _ in range(60):
        kinds[owner.ask(g)] = "g"
    w.run_for(MS)
    assert [kinds[i] for i in owner.granted] == ["f"] * 8
    for round_ in range(40):
        oldest = min(owner.granted)  # whichever began first ends first
        owner.give_back(oldest)
        w.run_for(MS)
        assert len(owner.granted) == 8, f"round {round_} leaves CPUs idle"
    running = [kinds[i] for i in owner.granted]
    assert running.count("f") == running.count("g") == 4


def test_a_class_at_its_cap_gets_one_more_after_1_2_4_8_10_10_seconds() -> None:
    """Litmus 7: parents that wait hold a lease but no CPU; children still get through."""
    w = world([{"CPU": 2}])
    owner = w.owner()
    f = options()
    parents = [owner.ask(f) for _ in range(9)]
    w.run_for(MS)
    assert len(owner.granted) == 2
    began_ns = w.sim.now_ns
    blocked: set[int] = set()
    while len(owner.granted) < 8 and w.sim.now_ns < 60 * S:
        for lease in parents:
            if lease in owner.granted and lease not in blocked:
                blocked.add(lease)
                worker = owner.granted[lease].worker
                owner.send(raylet(0), NotifyWorkerBlocked(worker.worker_id))
        w.run_for(10 * MS)
    times = [t for t, _, _ in owner.grants[2:]]
    gaps = [round((b - a) / S) for a, b in zip([began_ns, *times], times, strict=False)]
    assert gaps[1:] == [2, 4, 8, 10, 10]
    assert gaps[0] in (1, 2)  # to the deadline, and from there to the loop's next tick


def test_an_unblocked_worker_takes_its_cpu_back_even_if_that_is_one_too_many() -> None:
    w = world([{"CPU": 1, "GPU": 1}])
    owner = w.owner()
    parent = owner.ask(options("p", resources={"CPU": 1, "GPU": 1}))
    child = owner.ask(options("c"))
    w.run_for(MS)
    worker = owner.granted[parent].worker.worker_id
    owner.send(raylet(0), NotifyWorkerBlocked(worker))
    w.run_for(MS)
    assert list(owner.granted) == [parent, child]
    assert w.raylet().resources.available == {"CPU": 0, "GPU": 0}
    owner.send(raylet(0), NotifyWorkerUnblocked(worker))
    w.run_for(MS)
    assert w.raylet().resources.available == {"CPU": -10_000, "GPU": 0}
    owner.give_back(parent)
    owner.give_back(child)
    w.run_for(MS)
    assert w.raylet().resources.available == {"CPU": 10_000, "GPU": 10_000}


# ---- between nodes -------------------------------------------------------------------------------


def test_packs_here_until_half_full_then_spreads_over_the_least_used() -> None:
    """Litmus 5."""
    w = world([{"CPU": 10}] * 10)
    owner = w.owner()
    for _ in range(5):
        owner.ask(options())
        w.run_for(200 * MS)
    assert [node for *_, node in owner.grants] == [0] * 5
    for _ in range(20):
        owner.ask(options())
        w.run_for(200 * MS)
    nodes = [node for *_, node in owner.grants[5:]]
    assert set(nodes[:6]) == {1, 2}  # the best fifth of ten nodes
    assert max(nodes.count(n) for n in range(10)) == 5
    assert all(isinstance(a, LeaseSpillback | LeaseGranted) for *_, a in owner.answered)


def test_a_burst_does_not_follow_one_stale_report() -> None:
    w = world([{"CPU": 1}, {"CPU": 2}, {"CPU": 2}], register=True)
    owner = w.owner()
    for _ in range(5):
        owner.ask(options())
    w.run_for(50 * MS)  # before anybody reports
    assert sorted(node for *_, node in owner.grants) == [0, 1, 1, 2, 2]
    assert not [a for *_, a in owner.answered if isinstance(a, LeaseRejected)]


def test_cpu_tasks_use_gpu_nodes_last() -> None:
    """Litmus 6."""
    w = world([{"CPU": 0}, {"CPU": 2, "GPU": 1}, {"CPU": 2}])
    owner = w.owner()
    for _ in range(4):
        owner.ask(options())
        w.run_for(200 * MS)
    assert [node for *_, node in owner.grants] == [2, 2, 1, 1]


def test_a_second_hop_is_rejected_when_another_node_has_room() -> None:
    w = world([{"CPU": 1}, {"CPU": 1}])
    owner = w.owner(1)
    owner.ask(options(), node_id=0, grant_or_reject=True)
    w.run_for(MS)
    second = owner.ask(options(), node_id=0, grant_or_reject=True)
    w.run_for(MS)
    assert owner.answer(second) == LeaseRejected()


def test_a_second_hop_waits_when_no_node_has_room() -> None:
    w = world([{"CPU": 1}, {"x": 1}])
    owner = w.owner()
    first = owner.ask(options(), grant_or_reject=True)
    second = owner.ask(options(), grant_or_reject=True)
    w.run_for(200 * MS)
    assert owner.answer(second) is None
    owner.give_back(first)
    w.run_for(MS)
    assert second in owner.granted


def test_what_waits_here_goes_where_room_is_reported() -> None:
    w = world([{"CPU": 1}, {"CPU": 1}])
    owner = w.owner()
    f = options()
    leases = [owner.ask(f) for _ in range(3)]
    w.run_for(150 * MS)
    assert [node for *_, node in owner.grants] == [0, 1]
    owner.give_back(leases[1])
    w.run_for(150 * MS)  # node 1 reports, node 0 sends the third there
    assert owner.grants[2][2] == 1


def test_infeasible_requests_are_announced_and_wait_for_a_node() -> None:
    w = world([{"CPU": 1}])
    owner = w.owner()
    lease = owner.ask(options(resources={"CPU": 8}))
    w.run_for(150 * MS)
    assert w.gcs.of(ReportResources)[-1].demand_waiting
    loads: list[object] = []
    w.gcs.call(raylet(0), GetResourceLoad(), loads.append)
    w.run_for(MS)
    ((demand,),) = loads  # type: ignore[misc]
    assert demand.requests == 1
    assert demand.resources.quantities() == {"CPU": 8}
    bigger = world_node(w, 1, {"CPU": 16})
    w.run_for(MS)
    assert owner.grants == [(pytest.approx(w.sim.now_ns, abs=MS), lease, bigger)]


def world_node(w: World, node_id: int, resources: dict[str, float]) -> int:
    """One more node."""
    from types import SimpleNamespace

    from raysim.raycore.raylet.raylet import Raylet
    from tests.unit.raycore.raylet_parts import Peer

    w.env.nodes.append(
        SimpleNamespace(spec=SimpleNamespace(vcpus=resources["CPU"], memory_bytes=0))  # type: ignore[arg-type]
    )
    w.sim.add(Peer(w.sim, plasma(node_id)))
    w.sim.add(Peer(w.sim, object_manager(node_id)))
    units = {name: round(n * UNIT) for name, n in resources.items()}
    w.sim.add(Raylet(w.env, node_id, resources=units))
    return node_id


def test_hard_affinity_to_a_node_that_is_not_there_fails() -> None:
    w = world([{"CPU": 1}])
    owner = w.owner()
    hard = owner.ask(options(strategy=NodeAffinity(node_id=7)))
    soft = owner.ask(options(strategy=NodeAffinity(node_id=7, soft=True)))
    w.run_for(MS)
    assert owner.answer(hard).failure == "UNSCHEDULABLE"
    assert isinstance(owner.answer(soft), LeaseGranted)


def test_spread_goes_round_the_nodes() -> None:
    w = world([{"CPU": 4}] * 3)
    owner = w.owner()
    for _ in range(6):
        owner.ask(options(strategy="SPREAD"))
        w.run_for(MS)
    assert [node for *_, node in owner.grants] == [0, 1, 2, 0, 1, 2]


# ---- arguments -----------------------------------------------------------------------------------


def test_args_over_70_percent_of_the_store_are_serialised_and_a_larger_one_runs() -> None:
    """Litmus 10."""
    w = world([{"CPU": 4, "object_store_memory": 100}])
    owner = w.owner()
    holds_arguments(w, 0, {1: 40, 2: 40, 3: 90})
    first = owner.ask(options("f"), refs=(Ref(1, owner.me),))
    second = owner.ask(options("g"), refs=(Ref(2, owner.me),))
    w.run_for(MS)
    assert list(owner.granted) == [first]
    larger = owner.ask(options("h"), refs=(Ref(3, owner.me),))
    w.run_for(MS)
    assert list(owner.granted) == [first, larger]
    owner.give_back(larger)
    w.run_for(MS)
    assert list(owner.granted) == [first]
    owner.give_back(first)
    w.run_for(MS)
    assert list(owner.granted) == [second]


def test_shared_arguments_count_once_and_are_let_go_at_the_end() -> None:
    w = world([{"CPU": 4, "object_store_memory": 100}])
    owner = w.owner()
    holds_arguments(w, 0, {1: 60})
    leases = [owner.ask(options(), refs=(Ref(1, owner.me),)) for _ in range(3)]
    w.run_for(MS)
    assert list(owner.granted) == leases
    assert w.raylet().local.dependencies.granted_bytes == 60
    for lease in leases:
        owner.give_back(lease)
    w.run_for(MS)
    assert w.raylet().local.dependencies.granted_bytes == 0
    assert len(w.peer(plasma(0)).of(PlasmaRelease)) == 3
    assert len(w.peer(object_manager(0)).of(CancelGetRequest)) == 3


def test_what_waits_for_arguments_leaves_when_its_pulls_are_blocked() -> None:
    w = world([{"CPU": 4}, {"CPU": 4}])
    owner = w.owner()
    w.peer(object_manager(0)).hold.add(AsyncGetObjects)
    pulled, waits = (owner.ask(options(), refs=(Ref(i, owner.me),), follow=False) for i in (1, 2))
    w.run_for(MS)
    assert [owner.answer(i) for i in (pulled, waits)] == [None, None]
    w.gcs.send(raylet(0), PullStatus(True, 0, 0, leases_blocked=(waits,)))
    w.run_for(MS)
    assert owner.answer(waits) == LeaseSpillback(1)
    assert owner.answer(pulled) is None  # its arguments are on their way here


def test_what_waited_for_room_and_is_pulled_now_stays() -> None:
    w = world([{"CPU": 4}, {"CPU": 4}])
    owner = w.owner()
    w.peer(object_manager(0)).hold.add(AsyncGetObjects)
    total = {"CPU": 4 * UNIT}
    w.env.view.publish(1, {"CPU": 0}, total, draining=False, pulls_blocked=False)
    lease = owner.ask(options(), refs=(Ref(1, owner.me),), follow=False)
    w.run_for(MS)
    w.gcs.send(raylet(0), PullStatus(True, 0, 0, leases_blocked=(lease,)))
    w.run_for(MS)
    w.gcs.send(raylet(0), PullStatus(False, 0, 0, leases_unblocked=(lease,)))
    w.run_for(MS)
    w.env.view.publish(1, total, total, draining=False, pulls_blocked=False)
    w.raylet().local.grant_all()
    w.run_for(MS)
    assert owner.answer(lease) is None


@pytest.mark.parametrize(("strategy", "looks"), [("DEFAULT", 1), ("SPREAD", 0)])
def test_others_are_looked_at_only_where_it_may_matter(strategy: str, looks: int) -> None:
    """What is spread stays where it waits for its arguments, whatever others report."""
    w = world([{"CPU": 4}, {"CPU": 4}])
    owner = w.owner()
    for node_id in (0, 1):
        w.peer(object_manager(node_id)).hold.add(AsyncGetObjects)
    owner.ask(options(strategy=strategy), refs=(Ref(1, owner.me),))
    w.run_for(150 * MS)
    before, total = w.sim.log.events, {"CPU": 4 * UNIT}
    w.env.view.publish(1, total, total, draining=False, pulls_blocked=False)
    w.run_for(MS)
    assert w.sim.log.events - before == looks * 2  # the entry, and the note of whose it is


# ---- ends ----------------------------------------------------------------------------------------


def test_a_worker_that_dies_frees_its_lease_and_says_why() -> None:
    w = world([{"CPU": 1}])
    owner = w.owner()
    first, second = owner.ask(options()), owner.ask(options())
    w.run_for(MS)
    worker = owner.granted[first].worker
    w.kill(worker.worker_id, reason="segfault")
    w.run_for(MS)
    assert second in owner.granted
    assert [m.worker for m in w.gcs.of(WorkerFailed)] == [worker]
    causes: list[object] = []
    owner.call(raylet(0), GetWorkerFailureCause(first), causes.append)
    w.run_for(MS)
    ((error, counts),) = causes  # type: ignore[misc]
    assert (error.error_type, error.message, counts) == ("WORKER_DIED", "segfault", True)


def test_a_dead_owner_loses_its_leases_and_its_place_in_the_queue() -> None:
    w = world([{"CPU": 1}])
    dead, alive = w.owner(), w.owner()
    dead.ask(options())
    dead.ask(options())
    last = alive.ask(options())
    w.run_for(MS)
    leased = dead.grants[0][1]
    worker = dead.granted[leased].worker
    dead.crash()
    w.gcs.send(raylet(0), WorkerFailed(dead.me, "gone"))
    w.run_for(MS)
    assert w.killed == [(worker.worker_id, "owner died")]
    assert list(alive.granted) == [last]


def test_a_dead_raylet_refuses_and_comes_back_empty() -> None:
    w = world([{"CPU": 2}])
    owner = w.owner()
    owner.ask(options())
    w.run_for(MS)
    w.raylet().crash(reason="killed")
    lease = owner.ask(options())
    w.run_for(MS)
    assert owner.answer(lease) == RoomDown(address="node-0/raylet", reason="killed")
    w.raylet().restart()
    w.run_for(MS)
    assert w.raylet().resources.available == {"CPU": 20_000}
    assert not w.raylet().leases


def test_an_idle_raylet_costs_no_events() -> None:
    w = world([{"CPU": 4}, {"CPU": 4}], check=False)
    owner = w.owner()
    owner.give_back(run_one(w, owner))
    w.run_for(20 * S)  # reports and idle killing come to rest
    before = w.sim.log.events
    w.run_for(1_000 * S)
    assert w.sim.log.events == before


def run_one(w: World, owner: Owner) -> int:
    lease = owner.ask(options())
    w.run_for(MS)
    return lease


def test_service_times_are_charged() -> None:
    from dataclasses import replace

    costs = replace(FREE, raylet_lease_ns=50_000, raylet_pop_worker_ns=20_000)
    w = world([{"CPU": 2}], costs=costs, latency_ns=0)
    w.warm(0, 2)
    owner = w.owner()
    began_ns = w.sim.now_ns
    owner.ask(options())
    owner.ask(options())
    w.run_for(MS)
    assert [t - began_ns for t, *_ in owner.grants] == [70_000, 140_000]
