"""The actor table: from registration to death, and back.

Real counterpart: ``src/ray/gcs/actor/gcs_actor_manager.cc``. The life of an actor::

    DEPENDENCIES_UNREADY --CreateActor--> PENDING_CREATION --created--> ALIVE --worker dies--+
          |                                   ^                                              |
          |                                   |            RESTARTING <--restarts left-------+
          |                                   +--(same way as at first)--+                   |
          +------------> DEAD <------- killed, owner dead, no references, no restarts left --+

An owner registers an actor (and the name is taken) before its constructor's arguments are ready,
and asks for its creation once they are. Restarts after a node's preemption are free. An actor that
is not detached dies with its owner or its job. One that died for want of references while it had
restarts left can be called back to make a lost object again.

Differences: a creation task that raises leaves the actor DEAD at once (Ray shows it ALIVE until its
worker has exited), and the name of an actor that died by itself is free at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raysim.kernel.clock import Handle
from raysim.kernel.component import Reply
from raysim.raycore.gcs.tables import GcsActor, forget_oldest
from raysim.raycore.ids import ActorID, JobID, NodeID, WorkerAddress, WorkerID, hex_id
from raysim.raycore.protocol import (
    OUT_OF_MEMORY_EXIT,
    ActorTableData,
    CreateActor,
    KillActor,
    KillActorViaGcs,
    KillLocalActor,
    LeaseCancelled,
    PushTaskReply,
    RegisterActor,
    WorkerFailed,
    raylet,
)
from raysim.raycore.tasks import ErrorType, TaskError
from raysim.units import NS_PER_MS

if TYPE_CHECKING:
    from raysim.raycore.gcs.server import Gcs

_KILLED = "The actor is dead because it was killed by `ray.kill`."
_OUT_OF_SCOPE = "The actor is dead because all references to the actor were removed."
_DEAD_WORKERS_KEPT = 100_000
"""``maximum_gcs_dead_worker_cached_count``."""

_CANCELLED: dict[str, tuple[ErrorType, str]] = {
    "PLACEMENT_GROUP_REMOVED": (
        "ACTOR_PLACEMENT_GROUP_REMOVED",
        "Could not create the actor because its associated placement group was removed.\n",
    ),
    "RUNTIME_ENV_SETUP_FAILED": (
        "RUNTIME_ENV_SETUP_FAILED",
        "Could not create the actor because its associated runtime env failed to be created.\n",
    ),
    "UNSCHEDULABLE": ("ACTOR_UNSCHEDULABLE_ERROR", ""),
    "WORKER_START_FAILED": (
        "ACTOR_UNSCHEDULABLE_ERROR",
        "Could not create the actor because worker startup repeatedly failed.\n",
    ),
}


class GcsActorManager:
    """One per GCS."""

    def __init__(self, gcs: Gcs) -> None:
        self._gcs = gcs
        self._table = gcs.tables.actors
        self._names = gcs.tables.actor_names
        self._creations: dict[ActorID, list[Reply]] = {}
        """Owners waiting for ``CreateActor`` to be answered."""
        self._owned: dict[WorkerID, dict[ActorID, None]] = {}
        """By owner; detached ones have none."""
        self._of_worker: dict[WorkerID, GcsActor] = {}
        """Actors being created or alive, by their worker."""
        for actor in self._table.values():
            self._own(actor)
        self._graceful: dict[WorkerID, Handle] = {}
        """Workers asked to exit when they have finished, and when they will be forced to."""

    # From owners

    def register(self, m: RegisterActor) -> ActorTableData | TaskError:
        """Write it down and take its name; the same request a second time changes nothing."""
        actor_id = m.spec.actor_id
        there = self._table.get(actor_id)
        if there is not None:
            return there.row()
        actor = GcsActor(m.spec, m.ray_namespace)
        if actor.name_key is not None:
            if actor.name_key in self._names:
                return TaskError(
                    "ACTOR_CREATION_FAILED",
                    f"Actor with name '{actor.name_key[1]}' already exists in the namespace"
                    f" {actor.name_key[0]}",
                    actor_id=actor_id,
                )
            self._names[actor.name_key] = actor_id
        self._table[actor_id] = actor
        self._own(actor)
        self._changed(actor)
        owner, tables = m.spec.caller, self._gcs.tables
        owner_gone = owner.worker_id in tables.dead_workers or owner.node_id in tables.dead_nodes
        if owner_gone and not actor.options.detached:
            self._destroy(actor, self._owner_died(actor, "Owner's worker process has crashed."))
        return actor.row()

    def create(self, m: CreateActor, reply: Reply) -> None:
        """Its arguments are there: place it; answered when it is alive or never will be."""
        actor = self._table.get(m.spec.actor_id)
        if actor is None or actor.state == "DEAD":
            gone = actor or self._gcs.tables.destroyed_actors.get(m.spec.actor_id)
            cause = gone.death_cause if gone is not None else None
            reply(cause or TaskError("ACTOR_DIED", "Actor may be already destroyed."))
            return
        if actor.state == "ALIVE":
            reply(actor.row())
            return
        self._creations.setdefault(m.spec.actor_id, []).append(reply)
        if actor.state == "DEPENDENCIES_UNREADY":
            actor.spec = m.spec
            actor.state = "PENDING_CREATION"
            self._changed(actor)
            self._gcs.actor_scheduler.schedule(actor)

    def kill(self, m: KillActorViaGcs) -> bool:
        """``ray.kill``; False if it is unknown or gone."""
        actor = self._table.get(m.actor_id)
        if actor is None:
            return False
        if m.no_restart:
            self._destroy(actor, TaskError("ACTOR_DIED", _KILLED, actor_id=m.actor_id))
        elif actor.phase in ("creating", "created"):
            actor.restart_wanted = True
            self._send_kill(actor, force=m.force_kill, no_restart=False, reason=_KILLED)
        elif actor.phase in ("leasing", "waiting"):
            self._gcs.actor_scheduler.cancel(actor)
            cause = TaskError("ACTOR_DIED", _KILLED, actor_id=m.actor_id)
            self._restart(actor, cause, may_restart=True)
        return True

    def out_of_scope(self, actor_id: ActorID) -> None:
        """No handle is left: end it gracefully, or by force after 30 s."""
        actor = self._table.get(actor_id)
        if actor is None:
            return
        if actor.state != "DEAD":
            actor.out_of_scope = True
        cause = TaskError("ACTOR_DIED", _OUT_OF_SCOPE, actor_id=actor_id)
        self._destroy(actor, cause, force=False)

    def restart_for_lineage(self, actor_id: ActorID) -> None:
        """A dead actor's object is needed again."""
        actor = self._table.get(actor_id)
        if actor is not None and actor.state == "DEAD" and actor.restartable:
            actor.out_of_scope = False
            cause = TaskError("ACTOR_DIED", _OUT_OF_SCOPE, actor_id=actor_id)
            self._restart(actor, cause, may_restart=True)

    # Questions

    def row(self, actor_id: ActorID) -> ActorTableData | None:
        """Of one actor, dead or alive."""
        actor = self._table.get(actor_id) or self._gcs.tables.destroyed_actors.get(actor_id)
        return None if actor is None else actor.row()

    def named(self, name: str, namespace: str) -> ActorTableData | None:
        """Of the actor that has this name now."""
        actor_id = self._names.get((namespace, name))
        actor = None if actor_id is None else self._table.get(actor_id)
        return None if actor is None or actor.state == "DEAD" else actor.row()

    def rows(self) -> tuple[ActorTableData, ...]:
        """Of all."""
        destroyed = self._gcs.tables.destroyed_actors.values()
        return tuple(a.row() for a in [*self._table.values(), *destroyed])

    def is_detached(self, actor_id: ActorID) -> bool:
        """Whether it outlives its owner."""
        actor = self._table.get(actor_id)
        return actor is not None and actor.options.detached

    # From the scheduler

    def created(self, actor: GcsActor, reply: PushTaskReply) -> None:
        """Its creation task has ended."""
        if reply.error is not None:
            cause = reply.error
            if cause.error_type == "TASK_EXECUTION_EXCEPTION":
                cause = cause._replace(error_type="ACTOR_CREATION_FAILED", actor_id=actor.actor_id)
            self._destroy(actor, cause)
            return
        actor.phase = "created"
        actor.state = "ALIVE"
        actor.preempted = False
        self._changed(actor)
        self._answer_creation(actor, actor.row())

    def unschedulable(self, actor: GcsActor, answer: LeaseCancelled) -> None:
        """No raylet will ever grant it."""
        error_type, head = _CANCELLED[answer.failure]
        self._destroy(actor, TaskError(error_type, head + answer.message, actor_id=actor.actor_id))

    # From the rest of the cluster

    def on_node_added(self) -> None:
        """Actors that found no node at all try again."""
        for actor in list(self._table.values()):
            if actor.phase == "waiting":
                self._gcs.actor_scheduler.schedule(actor)

    def on_worker_dead(self, m: WorkerFailed) -> None:
        """End what it owned, and restart the actor it was, if any."""
        worker_id = m.worker.worker_id
        dead = self._gcs.tables.dead_workers
        dead[worker_id] = None
        forget_oldest(dead, _DEAD_WORKERS_KEPT)
        timer = self._graceful.pop(worker_id, None)
        if timer is not None:
            self._gcs.sim.cancel(timer)
        for actor_id in list(self._owned.get(worker_id, ())):
            actor = self._table[actor_id]
            self._destroy(actor, self._owner_died(actor, "Owner's worker process has crashed."))
        victim = self._of_worker.pop(worker_id, None)
        if victim is not None and victim.phase in ("creating", "created"):
            cause = _why_it_died(m)._replace(actor_id=victim.actor_id)
            may_restart = victim.restart_wanted or not m.intended
            self._restart(victim, cause, may_restart=may_restart)

    def on_node_dead(self, node_id: NodeID, reason: str) -> None:
        """End what was owned there; restart what was there or on its way there.

        As in Ray, an actor whose lease was being asked for there counts as having been there.
        """
        for actor in list(self._table.values()):
            if actor.spec.caller.node_id == node_id and not actor.options.detached:
                self._destroy(actor, self._owner_died(actor, "Owner's node has crashed."))
            elif actor.phase in ("leasing", "creating", "created") and actor.lease_node == node_id:
                cause = TaskError(
                    "ACTOR_DIED",
                    f"The actor died because its node has died. Node Id:"
                    f" {hex_id('node', node_id)}\n\tthe actor's node was terminated: {reason}",
                    actor_id=actor.actor_id,
                )
                self._restart(actor, cause, may_restart=True)

    def on_job_finished(self, job_id: JobID) -> None:
        """Its actors end with it, but for detached ones and what those have made."""
        for actor in list(self._table.values()):
            detached = actor.options.detached or actor.spec.root_detached_actor_id
            if actor.spec.job_id == job_id and not detached:
                self._destroy(actor, self._owner_died(actor, "The job has finished."))

    def set_preempted(self, node_id: NodeID) -> None:
        """The node will be taken away: deaths of its actors will not count."""
        for actor in self._table.values():
            if actor.phase == "created" and actor.lease_node == node_id:
                actor.preempted = True
                self._changed(actor)

    def recover(self) -> None:
        """After a restart of the GCS: keep what is alive, place again what was being placed."""
        in_use: dict[NodeID, list[int]] = {}
        for actor in self._table.values():
            if actor.phase == "created" and actor.worker is not None:
                in_use.setdefault(actor.worker.node_id, []).append(actor.worker.worker_id)
        self._gcs.actor_scheduler.recover(in_use)
        for actor in list(self._table.values()):
            if actor.state in ("PENDING_CREATION", "RESTARTING"):
                self._gcs.actor_scheduler.schedule(actor)

    # Ends

    def _restart(self, actor: GcsActor, cause: TaskError, *, may_restart: bool) -> None:
        """Its worker is gone: place it again if it has restarts left."""
        free = actor.options.max_restarts > 0 and actor.preempted
        remaining = actor.remaining_restarts
        self._gcs.groups.on_actor_dead(actor.actor_id)
        actor.restart_wanted = False
        self._leave_worker(actor)
        actor.try_no += 1
        actor.phase = ""
        if may_restart and (remaining != 0 or free):
            actor.num_preempted += actor.preempted
            actor.num_restarts += 1
            actor.spec.attempt = actor.num_restarts
            actor.worker = None
            actor.state = "RESTARTING"
            self._changed(actor)
            self._gcs.actor_scheduler.schedule(actor)
            return
        actor.state = "DEAD"
        actor.death_cause = cause
        self._free_name(actor)
        self._changed(actor)
        self._answer_creation(actor, cause)
        if actor.options.detached:
            self._forget(actor)

    def _destroy(self, actor: GcsActor, cause: TaskError, *, force: bool = True) -> None:
        """End it for good, wherever it stands."""
        if actor.phase in ("creating", "created"):
            reason, worker = cause.message, actor.worker
            self._send_kill(actor, force=force, no_restart=True, reason=reason)
            if not force and worker is not None:
                limit_ns = self._gcs.env.config.actor_graceful_shutdown_timeout_ms * NS_PER_MS
                late = (worker, KillActor(actor.actor_id, True, True, reason))
                timer = self._gcs.after(limit_ns, self._force, late)
                self._graceful[worker.worker_id] = timer
        self._leave_worker(actor)
        if actor.phase:
            self._gcs.actor_scheduler.cancel(actor)
        if force:
            actor.out_of_scope = False
        if not actor.restartable:
            self._forget(actor)
        if actor.state != "DEAD":
            actor.state = "DEAD"
            actor.death_cause = cause
            self._changed(actor)
        self._gcs.groups.on_actor_dead(actor.actor_id)
        self._answer_creation(actor, actor.death_cause or cause)

    def _forget(self, actor: GcsActor) -> None:
        """Nobody can call it back."""
        self._free_name(actor)
        self._owned.get(actor.spec.caller.worker_id, {}).pop(actor.actor_id, None)
        if self._table.pop(actor.actor_id, None) is not None:
            destroyed = self._gcs.tables.destroyed_actors
            destroyed[actor.actor_id] = actor
            limit = self._gcs.env.config.maximum_gcs_destroyed_actor_cached_count
            forget_oldest(destroyed, limit)

    def _own(self, actor: GcsActor) -> None:
        if not actor.options.detached:
            self._owned.setdefault(actor.spec.caller.worker_id, {})[actor.actor_id] = None
        if actor.worker is not None and actor.phase in ("creating", "created"):
            self._of_worker[actor.worker.worker_id] = actor

    def leased(self, actor: GcsActor) -> None:
        """A worker has been leased for it."""
        assert actor.worker is not None, f"actor {actor.actor_id} was leased no worker"
        self._of_worker[actor.worker.worker_id] = actor

    def _leave_worker(self, actor: GcsActor) -> None:
        if actor.worker is not None:
            self._of_worker.pop(actor.worker.worker_id, None)

    def _free_name(self, actor: GcsActor) -> None:
        key = actor.name_key
        if key is not None and self._names.get(key) == actor.actor_id:
            del self._names[key]

    def _send_kill(self, actor: GcsActor, *, force: bool, no_restart: bool, reason: str) -> None:
        if actor.worker is not None:
            self._order(actor.worker, KillActor(actor.actor_id, force, no_restart, reason))

    def _force(self, late: tuple[WorkerAddress, KillActor]) -> None:
        """It has had its time to finish."""
        worker, order = late
        self._graceful.pop(worker.worker_id, None)
        self._order(worker, order)

    def _order(self, worker: WorkerAddress, order: KillActor) -> None:
        """By way of its raylet (``NotifyRayletToKillActor``)."""
        self._gcs.send(raylet(worker.node_id), KillLocalActor(worker.worker_id, order))

    def _owner_died(self, actor: GcsActor, why: str) -> TaskError:
        return TaskError(
            "ACTOR_DIED",
            "The actor is dead because its owner has died. Owner Id:"
            f" {hex_id('worker', actor.spec.caller.worker_id)} {why}",
            actor_id=actor.actor_id,
        )

    def _answer_creation(self, actor: GcsActor, answer: ActorTableData | TaskError) -> None:
        for reply in self._creations.pop(actor.actor_id, ()):
            reply(answer)

    def _changed(self, actor: GcsActor) -> None:
        """Write it, tell those who listen, and note it."""
        row = actor.row()
        self._gcs.publisher.publish_actor(row)
        log = self._gcs.env.log
        if log.enabled:
            at = actor.worker
            log.note(
                "actor", actor.actor_id, actor.state, self._gcs.sim.now_ns,
                node_id=-1 if at is None else at.node_id,
                worker_id=0 if at is None else at.worker_id, detail=row,
            )  # fmt: skip


def _why_it_died(m: WorkerFailed) -> TaskError:
    """``GenWorkerDiedCause``."""
    if m.reason.startswith(OUT_OF_MEMORY_EXIT):
        return TaskError("OUT_OF_MEMORY", m.reason.removeprefix(OUT_OF_MEMORY_EXIT))
    exit_type = "INTENDED_USER_EXIT" if m.intended else "SYSTEM_ERROR"
    return TaskError(
        "ACTOR_DIED",
        "The actor is dead because its worker process has died. Worker exit type:"
        f" {exit_type} Worker exit detail: {m.reason}",
    )
