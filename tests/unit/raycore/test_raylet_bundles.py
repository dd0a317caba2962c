"""Placement group bundles, draining and reports of one raylet."""

from __future__ import annotations

from raysim.raycore.ids import hex_id
from raysim.raycore.protocol import (
    Bundle,
    CancelResourceReserve,
    CommitBundleResources,
    DrainRaylet,
    GetWorkerFailureCause,
    LeaseCancelled,
    LeaseSpillback,
    PrepareBundleResources,
    PullStatus,
    ReleaseUnusedActorWorkers,
    ReportResources,
    UnregisterNode,
    raylet,
)
from raysim.raycore.resources import ResourceSet, within_group
from raysim.raycore.tasks import InPlacementGroup, TaskOptions
from tests.unit.raycore.raylet_parts import MS, S, World, gpu_slots, options, world

GROUP = hex_id("placement_group", 5)


def bundle(index: int, **quantities: float) -> Bundle:
    return Bundle(5, index, ResourceSet.of(quantities))


def ask_gcs(w: World, message: object, node_id: int = 0) -> list[object]:
    answers: list[object] = []
    w.gcs.call(raylet(node_id), message, answers.append)
    w.run_for(MS)
    return answers


def in_group(index: int, **quantities: float) -> TaskOptions:
    request = within_group(ResourceSet.of(quantities), GROUP, index)
    strategy = InPlacementGroup(placement_group_id=5, bundle_index=index)
    return options(resources=request.quantities(), strategy=strategy)


def test_all_bundles_are_prepared_or_none() -> None:
    w = world([{"CPU": 3}])
    both = (bundle(0, CPU=2), bundle(1, CPU=2))
    assert ask_gcs(w, PrepareBundleResources(both)) == [False]
    assert w.raylet().resources.available == {"CPU": 30_000}
    assert ask_gcs(w, PrepareBundleResources(both[:1])) == [True]
    assert ask_gcs(w, PrepareBundleResources(both[:1])) == [True]  # asked again: nothing more
    assert w.raylet().resources.available == {"CPU": 10_000}


def test_tasks_get_the_gpus_their_bundle_holds() -> None:
    w = world([{"CPU": 4, "GPU": 4}])
    owner = w.owner()
    outside = owner.ask(options(resources={"GPU": 1}))
    w.run_for(MS)
    assert gpu_slots(owner.granted[outside]) == [0]
    both = (bundle(0, CPU=1, GPU=1), bundle(1, CPU=1, GPU=2))
    ask_gcs(w, PrepareBundleResources(both))
    assert ask_gcs(w, CommitBundleResources(both)) == [True]
    inside = owner.ask(in_group(1, GPU=2))
    w.run_for(MS)
    assert gpu_slots(owner.granted[inside], f"GPU_group_1_{GROUP}") == [2, 3]
    assert owner.ask(in_group(1, GPU=1)) not in owner.granted


def test_a_bundle_that_goes_takes_its_tasks_with_it() -> None:
    w = world([{"CPU": 2}])
    owner = w.owner()
    one = (bundle(0, CPU=1),)
    ask_gcs(w, PrepareBundleResources(one))
    ask_gcs(w, CommitBundleResources(one))
    f = in_group(0, CPU=1)
    runs, waits = owner.ask(f), owner.ask(f)
    w.run_for(MS)
    worker = owner.granted[runs].worker.worker_id
    assert ask_gcs(w, CancelResourceReserve(one)) == [None]
    assert owner.answer(waits) == LeaseCancelled(
        "PLACEMENT_GROUP_REMOVED", "Placement group removed."
    )
    assert w.killed == [(worker, "placement group removed")]
    ((error, _),) = ask_gcs(w, GetWorkerFailureCause(runs))  # type: ignore[misc]
    assert error.error_type == "WORKER_DIED"
    assert w.raylet().resources.total == w.raylet().resources.available == {"CPU": 20_000}


def test_requests_for_a_group_wait_until_its_bundle_is_there() -> None:
    w = world([{"CPU": 2}])
    owner = w.owner()
    lease = owner.ask(in_group(-1, CPU=1))
    w.run_for(MS)
    assert lease in w.raylet().leases
    one = (bundle(0, CPU=1),)
    ask_gcs(w, PrepareBundleResources(one))
    ask_gcs(w, CommitBundleResources(one))
    assert lease in owner.granted


# ---- draining ------------------------------------------------------------------------------------


def test_a_busy_node_refuses_to_be_drained_for_idleness() -> None:
    w = world([{"CPU": 2}])
    owner = w.owner()
    owner.ask(options())
    w.run_for(MS)
    ((accepted, why),) = ask_gcs(w, DrainRaylet("IDLE_TERMINATION", 0))  # type: ignore[misc]
    assert not accepted
    assert "no longer idle" in why
    w2 = world([{"CPU": 2}])
    w2.gcs.send(raylet(0), PullStatus(False, 10, 10))
    ((accepted, _),) = ask_gcs(w2, DrainRaylet("IDLE_TERMINATION", 0))  # type: ignore[misc]
    assert not accepted  # primary objects are use, too


def test_a_preempted_node_sends_on_what_waits_finishes_what_runs_and_leaves() -> None:
    w = world([{"CPU": 1}, {"CPU": 1}])
    owner = w.owner()
    f = options()
    runs = owner.ask(f)
    elsewhere = owner.ask(f)
    w.run_for(MS)
    waits = owner.ask(f, follow=False)
    w.run_for(200 * MS)
    assert owner.answer(waits) is None
    assert ask_gcs(w, DrainRaylet("PREEMPTION", 0)) == [(True, "")]
    assert owner.answer(waits) == LeaseSpillback(1)
    w.run_for(200 * MS)
    assert w.env.view.nodes[0].draining
    assert not w.ended
    ((_, counts),) = ask_gcs(w, GetWorkerFailureCause(runs))  # type: ignore[misc]
    assert not counts
    owner.give_back(runs)
    w.run_for(200 * MS)
    assert [m.node_id for m in w.gcs.of(UnregisterNode)] == [0]
    assert w.ended == [(0, "drained")]
    assert elsewhere in owner.granted


def test_an_idle_node_that_drains_leaves_at_once() -> None:
    w = world([{"CPU": 1}])
    ask_gcs(w, DrainRaylet("IDLE_TERMINATION", 0))
    w.run_for(MS)
    assert w.ended == [(0, "drained")]


# ---- reports -------------------------------------------------------------------------------------


def test_reports_are_on_the_beat_and_only_after_a_change() -> None:
    w = world([{"CPU": 2, "object_store_memory": 100}])
    owner = w.owner()
    times: list[int] = []
    w.gcs.answers[ReportResources] = lambda _m: times.append(w.sim.now_ns)
    w.run_for(250 * MS)
    assert times == []
    owner.ask(options())
    w.run_for(500 * MS)
    assert times == [300 * MS + 1_000]
    (report,) = w.gcs.of(ReportResources)
    assert report.available == {"CPU": 10_000, "object_store_memory": 1_000_000}
    assert report.idle_since_ns == -1
    w.gcs.send(raylet(0), PullStatus(True, 40, 60))
    w.run_for(100 * MS)
    report = w.gcs.of(ReportResources)[-1]
    assert report.available["object_store_memory"] == 600_000
    assert report.pulls_blocked


def test_a_change_that_was_undone_since_is_reported_too() -> None:
    """Whoever sent a task here has deducted it from its own view, and waits for word of it."""
    w = world([{"CPU": 2}])
    owner = w.owner()
    w.warm(0, 1)
    w.run_for(200 * MS)
    for _ in range(2):
        lease = owner.ask(options())
        w.run_for(50 * MS)
        owner.give_back(lease)
        w.run_for(50 * MS)
    w.run_for(200 * MS)
    before, after = w.gcs.of(ReportResources)[-2:]
    assert (after.available, after.total) == (before.available, before.total)
    assert after.version > before.version


def test_idleness_counts_from_the_last_use() -> None:
    w = world([{"CPU": 1}])
    owner = w.owner()
    lease = owner.ask(options())
    w.run_for(5 * S)
    owner.give_back(lease)
    w.run_for(S)
    idle_since_ns = w.gcs.of(ReportResources)[-1].idle_since_ns
    assert 5 * S <= idle_since_ns <= 5 * S + MS


def test_after_a_gcs_restart_unknown_actors_end_and_everything_is_reported_anew() -> None:
    w = world([{"CPU": 2}])
    owner = w.owner()
    known, unknown = (owner.ask(options(), spec={"actor_id": i}) for i in (1, 2))
    w.run_for(200 * MS)
    reports = len(w.gcs.of(ReportResources))
    keep = owner.granted[known].worker.worker_id
    gone = owner.granted[unknown].worker.worker_id
    ask_gcs(w, ReleaseUnusedActorWorkers((keep,)))
    w.run_for(200 * MS)
    assert [worker for worker, _ in w.killed] == [gone]
    assert len(w.gcs.of(ReportResources)) > reports
