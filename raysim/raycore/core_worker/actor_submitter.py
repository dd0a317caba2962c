"""Calls of actors: one queue per actor, in order, and what happens when the actor is not there.

Real counterpart: ``src/ray/core_worker/task_submission/actor_task_submitter.cc``,
``actor_manager.cc``, ``actor_creator.cc``. Calls are sent in the order they were made, as soon as
the actor is alive and their arguments exist; all are in flight at once. Numbers count anew for each
incarnation of the actor. When it dies, calls with retries left wait for the next incarnation (100
ms x 2^n at most 5 s before each try), others get the actor's death, or ACTOR_UNAVAILABLE if no
death is known after a second. The actor itself is an object of its creator: when no handle is left
anywhere, the GCS is told.

Not modelled: handles by name keep nothing alive, as Ray's weak references.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raysim.raycore.core_worker.task_manager import Again, PendingTask
from raysim.raycore.ids import ActorID, NodeID, TaskID, WorkerAddress, actor_handle
from raysim.raycore.protocol import (
    ActorTableData,
    CreateActor,
    GetNamedActorInfo,
    PushTaskReply,
    RegisterActor,
    ReportActorOutOfScope,
    SubscribeActor,
    push_task,
)
from raysim.raycore.resources import Allocation
from raysim.raycore.tasks import Ref, TaskError
from raysim.units import NS_PER_MS

if TYPE_CHECKING:
    from raysim.raycore.core_worker.worker import CoreWorker

_NO_RESOURCES: Allocation = {}


class Actor:
    """One actor, as its callers see it."""

    __slots__ = (
        "actor_id", "address", "creation", "death", "failures", "inflight", "pending", "queue",
        "seq_no", "state", "submitter", "subscribed", "unordered", "waiting",
    )  # fmt: skip

    def __init__(self, submitter: ActorSubmitter, actor_id: ActorID) -> None:
        self.submitter = submitter
        self.actor_id = actor_id
        self.state = "DEPENDENCIES_UNREADY"
        self.address: WorkerAddress | None = None
        self.seq_no = 0
        """Of the next call to this incarnation."""
        self.queue: deque[PendingTask] = deque()
        """Not sent yet, in order."""
        self.inflight: dict[TaskID, PendingTask] = {}
        self.waiting: dict[TaskID, PendingTask] = {}
        """Failed without retries: for word of the actor's death."""
        self.failures: dict[TaskID, int] = {}
        """Tries that met no actor, of calls that are to be tried again."""
        self.pending = 0
        self.death: TaskError | None = None
        self.subscribed = False
        self.unordered = False
        self.creation: PendingTask | None = None
        """If this process created it: what its arguments are kept for."""

    def enqueue(self, task: PendingTask) -> None:
        """Put a call in its place: one that is tried again goes before those made after it."""
        task_id = task.spec.task_id
        if task.spec.attempt:
            for index, other in enumerate(self.queue):
                if other.spec.task_id > task_id:
                    self.queue.insert(index, task)
                    return
        self.queue.append(task)

    def replied(self, task: PendingTask, answer: Any) -> None:
        """A call has ended, or its process has."""
        if self.inflight.pop(task.spec.task_id, None) is None:
            return  # this incarnation was given up before
        if answer.__class__ is PushTaskReply:
            error = answer.error
            gone = error is not None and error.error_type in ("ACTOR_UNAVAILABLE", "ACTOR_DIED")
            # an argument may have failed so: of another call
            if gone and error is not None and error.task_id == task.spec.task_id:
                self.submitter.call_failed(self, task, error)
            else:
                self.submitter.core.tasks.complete(task, answer)
        else:
            text = getattr(answer, "reason", "no answer")
            cause = TaskError("ACTOR_UNAVAILABLE", text, actor_id=self.actor_id)
            self.submitter.call_failed(self, task, cause)


class ActorSubmitter:
    """Every actor one process knows."""

    def __init__(self, core: CoreWorker) -> None:
        self.core = core
        self.actors: dict[ActorID, Actor] = {}
        self._named: dict[tuple[str, str], ActorTableData] = {}
        """Rows that the GCS gave for a namespace and a name."""

    # Handles

    def of(self, actor_id: ActorID) -> Actor:
        """The actor; the GCS is asked to keep us informed at first sight."""
        actor = self.actors.get(actor_id)
        if actor is None:
            actor = self.actors[actor_id] = Actor(self, actor_id)
        return actor

    def subscribe(self, actor: Actor) -> None:
        """Hear of every change of its state."""
        if not actor.subscribed:
            actor.subscribed = True
            self.core.calls.subscribe()
            self.core.gcs.call(
                SubscribeActor(actor.actor_id, self.core.address), self._row_answered
            )

    def _row_answered(self, row: ActorTableData | None) -> None:
        if row is not None:
            self.changed(row)

    def add_handle(self, actor_id: ActorID, owner: WorkerAddress | None) -> None:
        """A handle has come into this process."""
        actor = self.of(actor_id)
        if owner is not None:
            self.core.references.of(Ref(actor_handle(actor_id), owner)).local += 1
        self.subscribe(actor)

    def find(self, asked: tuple[str, str, Callable[[Any], object]]) -> None:
        """The row of a namespace's actor of that name: from the GCS, the first time.

        As long as a handle is here and the actor is not known to be dead, it is remembered.
        """
        namespace, name, then = asked
        row = self._named.get((namespace, name))
        actor = None if row is None else self.actors.get(row.actor_id)
        if actor is not None and actor.subscribed and actor.state != "DEAD":
            then(row)
            return

        def found(row: ActorTableData | None) -> None:
            if row is not None:
                self._named[namespace, name] = row
            then(row)

        self.core.gcs.call(GetNamedActorInfo(name, namespace), found)

    def forget_name(self, actor_id: ActorID) -> None:
        """Being killed by this process: whoever asks for its name next asks the GCS."""
        self._named = {key: row for key, row in self._named.items() if row.actor_id != actor_id}

    def out_of_scope(self, actor_id: ActorID) -> None:
        """No process has a handle any more; this one, its creator, tells the GCS."""
        actor = self.actors.get(actor_id)
        if actor is not None and actor.state != "DEAD":
            self.core.gcs.call(ReportActorOutOfScope(actor_id), _ignore)

    def handle_gone(self, actor_id: ActorID) -> None:
        """Of an actor of another process: there is no use for it here any more.

        The number of the next call stays: a handle may come back.
        """
        actor = self.actors.get(actor_id)
        if actor is not None and not actor.pending:
            if actor.state == "DEAD" or not actor.seq_no:
                del self.actors[actor_id]
            if actor.subscribed:
                actor.subscribed = False
                actor.state = "DEPENDENCIES_UNREADY"
                self.core.gcs.call(
                    SubscribeActor(actor_id, self.core.address, unsubscribe=True), _ignore
                )

    # Creation

    def create(self, task: PendingTask, then: Callable[[Any], object], namespace: str) -> None:
        """Register it, then have it created once its arguments exist."""
        actor = self.of(task.spec.actor_id)
        actor.creation = task
        self.core.gcs.call(RegisterActor(task.spec, namespace), _Registered(self, actor, then))

    def registered(self, actor: Actor, answer: Any, then: Callable[[Any], object]) -> None:
        """The GCS knows it, or the name is taken."""
        task = actor.creation
        assert task is not None, f"actor {actor.actor_id} has no creation task here"
        if answer.__class__ is TaskError:
            actor.creation = None
            self._dead(actor, answer)
            self._end_creation(task, answer)
        else:
            self.subscribe(actor)
            if actor_handle(actor.actor_id) not in self.core.references.table:
                self.out_of_scope(actor.actor_id)  # the GCS could not be told before
            elif self.core.tasks.resolve(task):
                self.create_resolved(task)
        then(answer if answer.__class__ is TaskError else actor.actor_id)

    def create_resolved(self, task: PendingTask) -> None:
        """Its arguments exist: the GCS can place and start it."""
        actor = self.actors[task.spec.actor_id]
        self.core.gcs.call(CreateActor(task.spec), _Created(self, actor))

    def created(self, actor: Actor, answer: Any) -> None:
        """It is alive, or could not be made."""
        task = actor.creation
        if task is None:
            return
        options = task.spec.options.actor
        if answer.__class__ is TaskError:
            actor.creation = None
            self._dead(actor, answer)
            self._end_creation(task, answer)
        elif options is None or not options.max_restarts:
            actor.creation = None
            self._end_creation(task, None)
        else:
            self._lives(actor)

    def _end_creation(self, task: PendingTask, error: TaskError | None) -> None:
        tasks = self.core.tasks
        if task.state != "done":
            noted = task.state == "created"
            task.state = "done"
            tasks.pending.pop(task.spec.task_id, None)
            tasks.release_args(task.spec.args)
            if self.core.log.enabled and not noted:
                state = "FINISHED" if error is None else "FAILED"
                self.core.note("task", task.spec.task_id, state, detail=error)

    # State

    def changed(self, row: ActorTableData) -> None:
        """The GCS says how it is."""
        actor = self.actors.get(row.actor_id)
        if actor is None or actor.state == "DEAD":
            return
        options = row.options.actor
        actor.unordered = options is not None and options.allow_out_of_order_execution
        if row.state == "ALIVE":
            if actor.address != row.address:
                self._lost(actor)
                actor.address = row.address
                actor.seq_no = 0
                self._lives(actor)
            actor.state = "ALIVE"
            self.flush(actor)
        elif row.state == "DEAD":
            cause = row.death_cause or TaskError("ACTOR_DIED", actor_id=row.actor_id)
            if row.preempted and "preempt" not in cause.message:
                cause = cause._replace(message=f"{cause.message} (its node was preempted)")
            if actor.creation is not None:
                task, actor.creation = actor.creation, None
                self._end_creation(task, cause)
            self._dead(actor, cause)
        else:
            if actor.state == "ALIVE":
                self._lost(actor)
                actor.address = None
            if row.state == "RESTARTING" and actor.creation is not None:
                actor.creation.state = "retrying"
            actor.state = row.state

    def _lives(self, actor: Actor) -> None:
        """Its creation has ended well; while it may restart, the arguments are kept."""
        task = actor.creation
        if task is not None and task.state != "created":
            task.state = "created"
            if self.core.log.enabled:
                self.core.note("task", task.spec.task_id, "FINISHED")

    def _lost(self, actor: Actor, *, charged: bool = True) -> None:
        """What was in flight to the incarnation before will not be answered."""
        inflight, actor.inflight = actor.inflight, {}
        cause = TaskError("ACTOR_UNAVAILABLE", "it is restarting", actor_id=actor.actor_id)
        for task in inflight.values():
            self.call_failed(actor, task, cause, charged=charged)

    def _dead(self, actor: Actor, cause: TaskError) -> None:
        """For good: everything fails."""
        actor.state = "DEAD"
        actor.address = None
        actor.death = cause = cause._replace(actor_id=actor.actor_id)
        failed = [*actor.waiting.values(), *actor.inflight.values(), *actor.queue]
        actor.waiting, actor.inflight = {}, {}
        actor.queue.clear()
        actor.failures = {}
        for task in failed:
            self.core.tasks.finish(task, cause)

    # Calls

    def submit(self, task: PendingTask) -> None:
        """Queue a call; it is sent when those before it are."""
        actor = self.actors[task.spec.actor_id]
        task.via = actor
        if actor.state == "DEAD" and actor.death is not None:
            self.core.tasks.finish(task, actor.death)
            return
        if task.spec.args and not self.core.tasks.resolve(task):
            actor.enqueue(task)
            if not actor.subscribed:
                self.subscribe(actor)
            return
        task.state = "queued"
        if actor.state == "ALIVE" and not actor.queue:
            self._push(actor, task)
        else:
            actor.enqueue(task)
            self.flush(actor)
            if not actor.subscribed and actor.creation is None:
                self.subscribe(actor)

    def resolved(self, task: PendingTask) -> None:
        """Its arguments exist now."""
        task.state = "queued"
        if task.via is not None:
            self.flush(task.via)

    def flush(self, actor: Actor) -> None:
        """Send what can be sent, in order."""
        queue = actor.queue
        if actor.state != "ALIVE":
            return
        if actor.unordered:
            ready = [task for task in queue if task.state == "queued"]
            if len(ready) < len(queue):
                actor.queue = deque(task for task in queue if task.state != "queued")
            else:
                queue.clear()
            for task in ready:
                self._push(actor, task)
            return
        while queue and queue[0].state == "queued" and actor.state == "ALIVE":
            self._push(actor, queue.popleft())

    def _push(self, actor: Actor, task: PendingTask) -> None:
        core, spec, address = self.core, task.spec, actor.address
        assert address is not None, f"actor {actor.actor_id} is alive nowhere"
        spec.seq_no = actor.seq_no
        actor.seq_no += 1
        task.state = "pushed"
        actor.inflight[spec.task_id] = task
        if core.log.enabled:
            core.note(
                "task", spec.task_id, "SUBMITTED_TO_WORKER",
                node_id=address.node_id, worker_id=address.worker_id,
            )  # fmt: skip
        then = Again(task).replied if spec.attempt else task.replied
        core.call(address.address, push_task(spec, _NO_RESOURCES), then)

    def ended(self, task: PendingTask) -> None:
        """A call has ended, one way or the other."""
        if task.spec.kind == "ACTOR_TASK":
            actor_id = task.spec.actor_id
            self.actors[actor_id].pending -= 1
            if actor_handle(actor_id) in self.core.references.table:
                self.core.references.remove_submitted(actor_handle(actor_id))

    # Failures

    def call_failed(
        self, actor: Actor, task: PendingTask, cause: TaskError, *, charged: bool = True
    ) -> None:
        """A call met no actor: dead, restarting, or its process has just gone."""
        core = self.core
        if actor.state == "DEAD" and actor.death is not None:
            core.tasks.finish(task, actor.death)
            return
        if task.cancelled:
            core.tasks.finish(task, TaskError("TASK_CANCELLED", task_id=task.spec.task_id))
            return
        config = core.config
        if task.retries_left or (not charged and task.spec.options.max_retries):
            if charged and task.retries_left > 0:
                task.retries_left -= 1
            task_id = task.spec.task_id
            n = actor.failures[task_id] = actor.failures.get(task_id, -1) + 1
            delay_ms = min(
                config.task_actor_unavailable_retry_base_ms << min(n, 16),
                config.task_actor_unavailable_retry_cap_ms,
            )
            task.state = "retrying"
            task.via = actor
            actor.waiting[task_id] = task
            core.tasks.at_heartbeat(delay_ms * NS_PER_MS, self._retry, (actor, task))
            return
        task.via = actor
        actor.waiting[task.spec.task_id] = task
        wait_ms = config.timeout_ms_task_wait_for_death_info
        core.tasks.at_heartbeat(wait_ms * NS_PER_MS, self._no_death_info, (actor, task, cause))

    def _retry(self, call: tuple[Actor, PendingTask]) -> None:
        actor, task = call
        if actor.waiting.pop(task.spec.task_id, None) is not None:
            self.core.tasks.resubmit(task)

    def _no_death_info(self, call: tuple[Actor, PendingTask, TaskError]) -> None:
        actor, task, cause = call
        if actor.waiting.pop(task.spec.task_id, None) is not None:
            self.core.tasks.finish(task, cause)

    def node_removed(self, node_id: NodeID) -> None:
        """Actors there are gone; the GCS will say what becomes of them."""
        for actor in list(self.actors.values()):
            if actor.address is not None and actor.address.node_id == node_id:
                actor.address = None
                if actor.state == "ALIVE":
                    actor.state = "RESTARTING"
                self._lost(actor, charged=node_id not in self.core.calls.preempted)

    def remove(self, task: PendingTask) -> None:
        """A call is cancelled before it was sent."""
        actor: Actor = task.via
        actor.waiting.pop(task.spec.task_id, None)
        if task in actor.queue:
            actor.queue.remove(task)


class _Registered:
    """Waits for the GCS to know an actor."""

    __slots__ = ("actor", "submitter", "then")

    def __init__(
        self, submitter: ActorSubmitter, actor: Actor, then: Callable[[Any], object]
    ) -> None:
        self.submitter = submitter
        self.actor = actor
        self.then = then

    def __call__(self, answer: Any) -> None:
        self.submitter.registered(self.actor, answer, self.then)


class _Created:
    """Waits for the GCS to have created an actor."""

    __slots__ = ("actor", "submitter")

    def __init__(self, submitter: ActorSubmitter, actor: Actor) -> None:
        self.submitter = submitter
        self.actor = actor

    def __call__(self, answer: Any) -> None:
        self.submitter.created(self.actor, answer)


def _ignore(_answer: object) -> None:
    """Nothing depends on the answer."""
