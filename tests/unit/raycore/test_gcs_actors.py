"""Actors: registered, placed, restarted, killed, forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from raysim.raycore.config import RayConfig
from raysim.raycore.protocol import (
    GCS,
    ActorStateChanged,
    AddJob,
    CancelWorkerLease,
    CreateActor,
    DrainNode,
    GetAllActorInfo,
    GetNamedActorInfo,
    KillActor,
    KillActorViaGcs,
    LeaseCancelled,
    LeaseRejected,
    LeaseSpillback,
    MarkJobFinished,
    PushTask,
    PushTaskReply,
    RegisterActor,
    ReleaseUnusedActorWorkers,
    ReportActorOutOfScope,
    RequestWorkerLease,
    RestartActorForLineageReconstruction,
    ReturnWorkerLease,
    SubscribeActor,
    WorkerFailed,
)
from raysim.raycore.tasks import NodeAffinity, TaskError
from tests.unit.raycore.gcs_case import GcsCase, ScriptedWorker


def make(case: GcsCase, actor_id: int = 1, **options: Any) -> None:
    """Register and create."""
    spec = case.actor_spec(actor_id, **options)
    case.me.ask(RegisterActor(spec, "ns"))
    case.me.ask(CreateActor(spec))


def row(case: GcsCase, actor_id: int = 1) -> Any:
    return case.gcs.actors.row(actor_id)


def worker_of(case: GcsCase, actor_id: int = 1) -> ScriptedWorker:
    worker = case.gcs.tables.actors[actor_id].worker
    assert worker is not None
    found = case.sim.components[worker.address]
    assert isinstance(found, ScriptedWorker)
    return found


def die(case: GcsCase, actor_id: int = 1, *, intended: bool = False) -> None:
    """Its worker crashes, and the raylet says so."""
    worker = worker_of(case, actor_id)
    worker.crash(reason="segfault")
    address = case.address_of(worker)
    case.raylets[address.node_id].send(GCS, WorkerFailed(address, "segfault", intended))


def history(case: GcsCase, actor_id: int = 1) -> list[str]:
    return [s for _, s in case.states("actor", actor_id)]


BIRTH = ["DEPENDENCIES_UNREADY", "PENDING_CREATION", "ALIVE"]


def test_an_actor_is_registered_leased_pushed_and_alive() -> None:
    case = GcsCase()
    listener = case.listener()
    listener.ask(SubscribeActor(1, listener.address))
    make(case)
    case.run(1.0)
    registered, created = (a for _, a in case.me.answers)
    assert (registered.state, created.state) == ("DEPENDENCIES_UNREADY", "ALIVE")
    assert created.address == case.address_of(worker_of(case))
    [(_, push)] = worker_of(case).of(PushTask)
    assert push.spec.actor_id == 1
    published = [m.actor.state for _, m in listener.of(ActorStateChanged)]
    assert published == history(case) == BIRTH


def test_what_it_needs_to_be_placed_is_leased_not_what_it_holds() -> None:
    case = GcsCase()
    make(case, 1)
    make(case, 2, resources={"CPU": 2})
    case.run(1.0)
    leases = [m.spec.resources.quantities() for _, m in case.raylets[0].of(RequestWorkerLease)]
    assert leases == [{"CPU": 1}, {"CPU": 2}]


def test_who_is_asked_first() -> None:
    """Its owner's raylet if it holds resources; a random one if not; the one it is pinned to."""
    case = GcsCase(nodes=8)
    for i in range(1, 9):
        make(case, i, resources={"CPU": 1})
    make(case, 50, resources={"CPU": 1}, task={"strategy": NodeAffinity(node_id=5)})
    case.run(1.0)
    asked = [len(case.raylets[n].of(RequestWorkerLease)) for n in range(8)]
    assert asked == [8, 0, 0, 0, 0, 1, 0, 0]
    for i in range(100, 140):
        make(case, i)
    case.run(2.0)
    asked = [len(case.raylets[n].of(RequestWorkerLease)) for n in range(8)]
    assert all(n >= 1 for n in asked[1:]), asked


def test_a_spilled_request_says_grant_or_reject_and_a_rejected_one_starts_over() -> None:
    case = GcsCase(nodes=2)
    rejected: list[int] = []

    def first(m: RequestWorkerLease, reply: Any) -> None:
        reply(LeaseSpillback(1))

    def second(m: RequestWorkerLease, reply: Any) -> None:
        assert m.grant_or_reject
        if rejected:
            case.raylets[1].grant(m, reply)
        else:
            rejected.append(1)
            reply(LeaseRejected())

    case.raylets[0].on_lease, case.raylets[1].on_lease = first, second
    make(case, resources={"CPU": 1})
    case.run(1.0)
    assert [len(case.raylets[n].of(RequestWorkerLease)) for n in (0, 1)] == [2, 2]
    assert row(case).address.node_id == 1


def test_a_raylet_that_does_not_answer_is_asked_again_every_200_ms() -> None:
    case = GcsCase(nodes=1)
    case.run(6.0)
    case.raylets[0].stop()
    make(case, resources={"CPU": 1})
    case.run(6.9)
    case.raylets[0].start()
    case.run(10.0)
    [(at_s, _)] = case.raylets[0].of(RequestWorkerLease)
    assert round(at_s, 3) == 7.0
    assert row(case).state == "ALIVE"


def test_with_no_node_an_actor_waits_for_one() -> None:
    case = GcsCase(nodes=0)
    make(case)
    case.run(5.0)
    assert row(case).state == "PENDING_CREATION"
    case.add_node(0)
    case.run(6.0)
    assert row(case).state == "ALIVE"


@pytest.mark.parametrize(
    ("failure", "error_type"),
    [
        ("UNSCHEDULABLE", "ACTOR_UNSCHEDULABLE_ERROR"),
        ("RUNTIME_ENV_SETUP_FAILED", "RUNTIME_ENV_SETUP_FAILED"),
        ("PLACEMENT_GROUP_REMOVED", "ACTOR_PLACEMENT_GROUP_REMOVED"),
        ("WORKER_START_FAILED", "ACTOR_UNSCHEDULABLE_ERROR"),
    ],
)
def test_a_lease_that_cannot_be_had_ends_the_actor(failure: Any, error_type: str) -> None:
    case = GcsCase()
    case.raylets[0].on_lease = lambda _, reply: reply(LeaseCancelled(failure, "why"))
    make(case)
    case.run(1.0)
    error = case.me.last
    assert isinstance(error, TaskError)
    assert (error.error_type, error.message.endswith("why")) == (error_type, True)
    assert row(case).state == "DEAD"


def test_init_that_raises_ends_the_actor_and_its_worker() -> None:
    case = GcsCase()
    pushed: list[ScriptedWorker] = []

    def grant(m: RequestWorkerLease, reply: Any) -> None:
        worker = case.raylets[0].grant(m, reply)
        error = TaskError("TASK_EXECUTION_EXCEPTION", "boom", data=b"x")
        worker.on_push = lambda _, r: r(PushTaskReply((), error))
        pushed.append(worker)

    case.raylets[0].on_lease = grant
    make(case, max_restarts=5)
    case.run(1.0)
    assert case.me.last == TaskError("ACTOR_CREATION_FAILED", "boom", data=b"x", actor_id=1)
    assert row(case).state == "DEAD"
    assert len(pushed[0].of(KillActor)) == 1


def test_restarts_are_counted_and_then_it_is_dead() -> None:
    case = GcsCase()
    make(case, max_restarts=2)
    for second in range(1, 4):
        case.run(second)
        assert row(case).state == "ALIVE"
        assert row(case).remaining_restarts == 3 - second
        die(case)
    case.run(5)
    dead = row(case)
    assert (dead.state, dead.num_restarts) == ("DEAD", 2)
    assert "worker process has died" in dead.death_cause.message
    assert history(case) == [*BIRTH, "RESTARTING", "ALIVE", "RESTARTING", "ALIVE", "DEAD"]


def test_an_intended_exit_is_not_restarted() -> None:
    case = GcsCase()
    make(case, max_restarts=-1)
    case.run(1)
    die(case, intended=True)
    case.run(2)
    assert row(case).state == "DEAD"


def test_a_worker_that_dies_while_it_creates_costs_a_restart() -> None:
    case = GcsCase()

    def grant(m: RequestWorkerLease, reply: Any) -> None:
        worker = case.raylets[0].grant(m, reply)
        if len(case.raylets[0].of(RequestWorkerLease)) == 1:
            worker.on_push = lambda _m, _r: None

    case.raylets[0].on_lease = grant
    make(case, max_restarts=1)
    case.run(1)
    die(case)
    case.run(2)
    assert (row(case).state, row(case).num_restarts) == ("ALIVE", 1)


def test_a_silent_node_is_given_up_only_when_declared_dead() -> None:
    case = GcsCase(nodes=2)
    make(case, max_restarts=1, task={"strategy": NodeAffinity(node_id=1, soft=True)})
    case.run(6)
    case.power_off(1)
    case.run(69.9)
    assert row(case).state == "ALIVE"
    case.run(71)
    assert (row(case).state, row(case).address.node_id) == ("ALIVE", 0)
    assert row(case).num_restarts == 1


def test_preemption_is_free() -> None:
    case = GcsCase(nodes=2)
    make(case, max_restarts=1, task={"strategy": NodeAffinity(node_id=1, soft=True)})
    case.run(1)
    case.me.ask(DrainNode(1, "PREEMPTION", int(5e9)))
    case.run(5)
    assert row(case).preempted
    case.power_off(1)
    case.run(100)
    alive = row(case)
    assert (alive.state, alive.num_restarts, alive.remaining_restarts) == ("ALIVE", 1, 1)
    assert not alive.preempted


def test_kill_with_and_without_restart() -> None:
    case = GcsCase()
    make(case, 1, max_restarts=1)
    make(case, 2, max_restarts=1)
    case.run(1)
    workers = [worker_of(case, 1), worker_of(case, 2)]
    case.me.ask(KillActorViaGcs(1, no_restart=True))
    case.me.ask(KillActorViaGcs(2, no_restart=False))
    case.me.ask(KillActorViaGcs(9, no_restart=True))
    case.run(2)
    assert [a for _, a in case.me.answers[-3:]] == [True, True, False]
    assert [len(w.of(KillActor)) for w in workers] == [1, 1]
    assert (row(case, 1).state, row(case, 2).state) == ("DEAD", "ALIVE")
    die(case, 2, intended=True)  # an exit on demand
    case.run(3)
    assert (row(case, 2).state, row(case, 2).num_restarts) == ("ALIVE", 1)


def test_one_killed_while_it_waits_for_a_lease_returns_what_comes_later() -> None:
    case = GcsCase()
    held: list[Any] = []
    case.raylets[0].on_lease = lambda m, reply: held.append((m, reply))
    make(case)
    case.run(1)
    case.me.ask(KillActorViaGcs(1, no_restart=True))
    case.run(2)
    assert [m.lease_id for _, m in case.raylets[0].of(CancelWorkerLease)] == [held[0][0].lease_id]
    assert [a.error_type for _, a in case.me.answers if isinstance(a, TaskError)] == ["ACTOR_DIED"]
    case.raylets[0].grant(*held[0])
    case.run(3)
    [(_, back)] = case.raylets[0].of(ReturnWorkerLease)
    assert back.disconnect_worker
    assert row(case).state == "DEAD"


def test_names_are_taken_at_registration_and_free_after_death() -> None:
    case = GcsCase()
    make(case, 1, name="x")
    make(case, 2, name="x")
    case.run(1)
    errors = [a for _, a in case.me.answers if isinstance(a, TaskError)]
    assert "already exists in the namespace ns" in errors[0].message
    case.me.ask(GetNamedActorInfo("x", "ns"))
    case.me.ask(GetNamedActorInfo("x", "other"))
    case.run(2)
    assert case.me.answers[-2][1].actor_id == 1
    assert case.me.last is None
    die(case)
    case.run(3)
    make(case, 3, name="x")
    case.run(4)
    assert row(case, 3).state == "ALIVE"


def test_owned_actors_die_with_their_owner_and_detached_ones_do_not() -> None:
    case = GcsCase()
    owner = case.worker(0)
    for actor_id, detached in ((1, False), (2, True)):
        make(case, actor_id, owner=case.address_of(owner), max_restarts=-1, detached=detached)
    case.run(1)
    worker = worker_of(case)
    case.raylets[0].send(GCS, WorkerFailed(case.address_of(owner), "killed"))
    case.run(2)
    assert [row(case, i).state for i in (1, 2)] == ["DEAD", "ALIVE"]
    assert "its owner has died" in row(case).death_cause.message
    assert len(worker.of(KillActor)) == 1
    make(case, 3, owner=case.address_of(owner))
    case.run(3)
    assert row(case, 3).state == "DEAD", "registered by a dead owner"


def test_a_finished_job_takes_its_actors_but_detached_ones() -> None:
    case = GcsCase()
    case.me.ask(AddJob(1, case.address_of(case.me), "ns"))
    make(case, 1)
    make(case, 2, detached=True, name="d")
    case.run(1)
    case.me.send(GCS, MarkJobFinished(1))
    case.run(2)
    assert [row(case, i).state for i in (1, 2)] == ["DEAD", "ALIVE"]


def test_out_of_scope_is_graceful_and_forced_after_30_s() -> None:
    case = GcsCase()
    make(case, 1)
    make(case, 2)
    case.run(1)
    workers = [worker_of(case, i) for i in (1, 2)]
    for i in (1, 2):
        case.me.ask(ReportActorOutOfScope(i))
    case.run(2)
    assert [row(case, i).state for i in (1, 2)] == ["DEAD", "DEAD"]
    case.raylets[0].send(GCS, WorkerFailed(case.address_of(workers[0]), "exited", True))
    case.run(40)
    orders = [[(round(t), m.force_kill) for t, m in w.of(KillActor)] for w in workers]
    assert orders == [[(1, False)], [(1, False), (31, True)]]


def test_lineage_brings_back_an_actor_out_of_scope_while_it_has_restarts() -> None:
    case = GcsCase()
    make(case, 1, max_restarts=1)
    make(case, 2)
    for second, message in (
        (1, ReportActorOutOfScope),
        (2, RestartActorForLineageReconstruction),
    ):
        case.run(second)
        for i in (1, 2):
            case.me.ask(message(i))
    case.run(3)
    assert [row(case, i).state for i in (1, 2)] == ["ALIVE", "DEAD"]
    assert row(case, 1).remaining_restarts == 0


def test_requests_sent_twice_change_nothing() -> None:
    case = GcsCase()
    spec = case.actor_spec(1, name="x")
    for _ in range(2):
        case.me.ask(RegisterActor(spec, "ns"))
        case.me.ask(CreateActor(spec))
    case.run(1)
    case.me.ask(CreateActor(spec))
    case.run(2)
    states = [a.state for _, a in case.me.answers]
    assert states == ["DEPENDENCIES_UNREADY", "PENDING_CREATION", "ALIVE", "ALIVE", "ALIVE"]
    assert len(case.raylets[0].of(RequestWorkerLease)) == 1


def test_a_restarted_gcs_keeps_living_actors_and_places_the_others_again() -> None:
    case = GcsCase(config=RayConfig(gcs_storage="redis"))
    make(case, 1)
    case.run(1)
    alive = worker_of(case)
    case.raylets[0].on_lease = lambda _m, _r: None
    make(case, 2)
    case.run(2)
    case.gcs.crash()
    case.run(3)
    case.raylets[0].on_lease = None
    case.gcs.restart()
    case.run(4)
    [(_, kept)] = case.raylets[0].of(ReleaseUnusedActorWorkers)
    assert kept.worker_ids == (case.address_of(alive).worker_id,)
    assert [row(case, i).state for i in (1, 2)] == ["ALIVE", "ALIVE"]
    assert worker_of(case) is alive
    assert len(alive.of(PushTask)) == 1


def test_a_gcs_in_memory_forgets_everything() -> None:
    case = GcsCase()
    make(case)
    case.run(1)
    case.gcs.restart()
    case.me.ask(GetAllActorInfo())
    case.run(2)
    assert case.me.last == ()


def test_ceiling_of_some_650_actors_per_second() -> None:
    from raysim.perf.ray_core import RayCosts

    case = GcsCase(nodes=4, costs=RayCosts(), check=False)
    for i in range(1, 1001):
        make(case, i)
    case.run(60)
    alive = [c.t_ns for c in case.env.log.rows if c.kind == "actor" and c.state == "ALIVE"]
    assert len(alive) == 1000
    assert 1000 / (alive[-1] / 1e9) == pytest.approx(650, rel=0.1)
