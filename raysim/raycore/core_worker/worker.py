"""One worker process or driver of Ray: what a program can ask of it, and what others tell it.

Real counterpart: ``src/ray/core_worker/core_worker.cc``. The room is the process's io thread; the
program's own thread keeps its account of time (``process``), and the execution thread is in
``executor``. Each part of the process has a file of its own; this one knows them all and passes
messages on.

Not modelled: Python's interpreter lock between the threads of a process; metrics and log shipping.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from raysim.kernel.component import Component, Failure, NodeDied, Reply, RoomDown
from raysim.raycore import protocol as p
from raysim.raycore.core_worker.actor_submitter import ActorSubmitter
from raysim.raycore.core_worker.borrowing import Borrowing
from raysim.raycore.core_worker.calls import Calls, Told, ignore, service_ns
from raysim.raycore.core_worker.cancellation import Cancellation
from raysim.raycore.core_worker.directory import Directory
from raysim.raycore.core_worker.executor import Executor
from raysim.raycore.core_worker.generators import ItemReports, Streams
from raysim.raycore.core_worker.groups import Groups
from raysim.raycore.core_worker.objects import Objects
from raysim.raycore.core_worker.recovery import Recovery
from raysim.raycore.core_worker.references import IN_PLASMA, PENDING, Reference, References
from raysim.raycore.core_worker.submission import Submission
from raysim.raycore.core_worker.task_manager import TaskManager
from raysim.raycore.core_worker.task_submitter import TaskSubmitter
from raysim.raycore.gcs_client import GcsClient
from raysim.raycore.ids import (
    ActorID,
    JobID,
    NodeID,
    ObjectID,
    WorkerAddress,
    WorkerID,
    actor_handle,
    task_of,
)
from raysim.raycore.protocol import WorkerType
from raysim.raycore.room import Surroundings
from raysim.raycore.state_log import Kind
from raysim.raycore.tasks import (
    Arg,
    Payload,
    Ref,
    RemoteFunction,
    TaskError,
    TaskOptions,
    TaskSpec,
    Value,
)
from raysim.units import NS_PER_S


class CoreWorker(Component):
    """A driver or worker process; implements ``process.CoreProcess``.

    ``job_id``: a driver's, or of the job its raylet started it for; 0: of the first task's.
    """

    __slots__ = (
        "_exits", "_job_done", "_leaving", "_ready", "actors", "borrowing", "calls",
        "cancellation", "config", "costs", "directory", "entrypoint", "env", "executor", "fresh",
        "gcs", "groups", "imported", "is_ready", "item_reports", "job_id", "kind", "leases",
        "log", "me", "memory_bytes", "namespace", "objects", "recovery", "references",
        "resource_ids", "runtime_env_key", "started_ns", "startup_token", "streams", "submission",
        "tasks",
    )  # fmt: skip

    runs_ahead = True

    def __init__(
        self,
        env: Surroundings,
        node_id: NodeID,
        worker_id: WorkerID,
        kind: WorkerType,
        job_id: JobID,
        *,
        startup_token: int = 0,
        runtime_env_key: str = "",
        namespace: str = "",
        entrypoint: str = "",
    ) -> None:
        word = "driver" if kind == "DRIVER" else "worker"
        address = f"node-{node_id}/{word}-{worker_id}"
        super().__init__(env.sim, address, service_ns=service_ns(env.costs))
        self.env = env
        self.config = env.config
        self.costs = env.costs
        self.log = env.log
        self.me = WorkerAddress(worker_id, address, node_id)
        self.kind = kind
        self.job_id = job_id
        self.startup_token = startup_token
        self.runtime_env_key = runtime_env_key
        self.namespace = namespace
        self.entrypoint = entrypoint
        self.memory_bytes = env.costs.worker_memory_bytes
        """Resident memory; ``use_memory`` changes it."""
        self.fresh = env.costs.first_value_core_s > 0
        """It has neither read nor written a value yet."""
        self._exits: list[Callable[[str], object]] = []

    @property
    def node(self) -> Any:
        """The machine."""
        return self.env.nodes[self.me.node_id]

    # Life

    def started(self) -> None:
        """A new process: everything from nothing."""
        self.started_ns = self.sim.now_ns
        self.is_ready, self._leaving = False, ""
        self.imported: set[str] = set()
        self.resource_ids: Any = {}
        self._ready: list[Callable[[CoreWorker], object]] = []
        self.gcs = GcsClient(self, self.env, self._gcs_gone)
        self.calls = Calls(self)
        self.references = References(self)
        self.borrowing = Borrowing(self)
        self.objects = Objects(self)
        self.directory = Directory(self)
        self.recovery = Recovery(self)
        self.tasks = TaskManager(self)
        self.submission = Submission(self)
        self.leases = TaskSubmitter(self)
        self.actors = ActorSubmitter(self)
        self.streams = Streams(self)
        self.executor = Executor(self)
        self.item_reports = ItemReports(self)
        self.cancellation = Cancellation(self)
        self.groups = Groups(self)
        self.call(
            p.raylet(self.me.node_id),
            p.RegisterClient(
                self.me, self.kind, self.job_id, self.runtime_env_key, self.startup_token
            ),
            self._registered,
        )

    def stopped(self, cause: RoomDown | NodeDied) -> None:
        """The process is gone."""
        self.executor.died()
        exits, self._exits = self._exits, []
        for fn in exits:
            fn(cause.reason)

    def _registered(self, answer: Any) -> None:
        self.started_ns = self.sim.now_ns  # its timers begin when its raylet has answered
        if isinstance(answer, Failure):
            self.exit("its raylet is gone", intended=False)
        elif self.kind == "DRIVER":
            self.calls.subscribe()
            self.gcs.call(
                p.AddJob(self.job_id, self.me, self.namespace, self.entrypoint), self._now_ready
            )
        else:
            self._now_ready(None)

    def _now_ready(self, _: object) -> None:
        self.is_ready = True
        ready, self._ready = self._ready, []
        for then in ready:
            Told(self, then)(self)

    def ready(self, then: Callable[[CoreWorker], object]) -> None:
        """``then(self)`` once the process is registered: now, or later."""
        if self.is_ready:
            then(self)
        else:
            self._ready.append(then)

    def exit(self, reason: str, *, intended: bool) -> None:
        """End this process at once."""
        if self.state == "up":
            if intended:
                owed = self.me if any(e.requests for e in self.leases.entries.values()) else None
                goodbye = p.DisconnectClient(self.me.worker_id, reason, intended, owed)
                self.send(p.raylet(self.me.node_id), goodbye)
            self.env.launcher.kill(self.me.worker_id, reason=reason, intended=intended)

    def leave(self, reason: str) -> None:
        """End when the objects owned here are not needed any more; an actor, when its tasks end."""
        self._leaving = self._leaving or reason
        self.after(0, self._leave)

    def owns_nothing(self) -> None:
        """The last owned object, or the last task submitted here, has gone."""
        if self._leaving:
            self.after(0, self._leave)

    def _leave(self, _: object) -> None:
        needed = self.tasks.pending if self.executor.actor_id else self.references.owned
        if not needed and not self.executor.running:
            self.exit(self._leaving, intended=True)

    def finish_job(self, then: Callable[[object], object]) -> None:
        """Of a driver: the program has ended; ``then`` when the GCS knows, and the process ends."""
        self._job_done = then
        self.gcs.call(p.MarkJobFinished(self.job_id), self._finished)

    def _finished(self, _: object) -> None:
        self._exits.clear()
        self._job_done(None)
        self.exit("the driver has finished", intended=True)

    def _gcs_gone(self) -> None:
        self.exit("the GCS is gone", intended=False)

    def note(self, kind: Kind, number: int, state: str, **what: Any) -> None:
        """A row for the state log; callers test ``log.enabled`` first."""
        self.log.note(kind, number, state, self.now_ns, **what)

    def at_exit(self, fn: Callable[[str], object]) -> None:
        """As ``CoreProcess.at_exit``."""
        self._exits.append(fn)

    def compute(self, core_s: float, then: Callable[[], object], *, width: float = 1.0) -> None:
        """As ``CoreProcess.compute``."""
        self.executor.compute(core_s, then, width)

    def use_memory(self, change_bytes: int) -> None:
        """As ``CoreProcess.use_memory``."""
        self.memory_bytes += change_bytes
        assert self.memory_bytes >= 0, f"{self.address} holds {self.memory_bytes} bytes"
        self.send(p.raylet(self.me.node_id), p.MemoryChanged(self.me.worker_id))

    # Tasks

    def submit_task(
        self,
        options: TaskOptions,
        args: Sequence[Arg],
        *,
        lead_ns: int = 0,
        parent: TaskSpec | None = None,
    ) -> list[Ref]:
        """As ``CoreProcess.submit_task``."""
        return self.submission.task(options, args, lead_ns, parent)

    def cancel(self, ref: Ref, *, force: bool, recursive: bool, lead_ns: int = 0) -> None:
        """As ``CoreProcess.cancel``."""
        self._when(lead_ns, self.cancellation.cancel, (ref, force, recursive))

    def is_pending(self, ref: Ref) -> bool:
        """As ``CoreProcess.is_pending``."""
        return task_of(ref.object_id) in self.tasks.pending

    def _when(self, lead_ns: int, fn: Callable[[Any], object], arg: Any) -> None:
        if lead_ns:
            if self.cores is not None:
                if self.submission.after_calls(lead_ns, fn, arg):
                    return
                lead_ns = self.cores.takes(self.executor, self.now_ns, lead_ns)
            self.after(lead_ns, fn, arg)
        else:
            fn(arg)

    def first_value_ns(self) -> int:
        """As ``CoreProcess.first_value_ns``."""
        fresh, self.fresh = self.fresh, False
        return round(self.costs.first_value_core_s * NS_PER_S) if fresh else 0

    def export_ns(self, function: RemoteFunction) -> int:
        """As ``CoreProcess.export_ns``."""
        return self.submission.pickle_ns(function)

    def reading_ns(self, refs: Sequence[Ref]) -> int:
        """As ``CoreProcess.reading_ns``."""
        return self.objects.reading_ns([self.references.of(ref) for ref in refs])

    # Actors

    def create_actor(
        self,
        options: TaskOptions,
        args: Sequence[Arg],
        then: Callable[[ActorID | TaskError], object],
        *,
        lead_ns: int = 0,
        parent: TaskSpec | None = None,
    ) -> ActorID:
        """As ``CoreProcess.create_actor``."""
        task = self.submission.actor(options, args, Told(self, then), parent)
        self._when(lead_ns, self.submission.begin_actor, task)
        return task.spec.actor_id

    def submit_actor_task(
        self,
        actor_id: ActorID,
        options: TaskOptions,
        args: Sequence[Arg],
        *,
        lead_ns: int = 0,
        parent: TaskSpec | None = None,
    ) -> list[Ref] | TaskError:
        """As ``CoreProcess.submit_actor_task``."""
        return self.submission.actor_task(actor_id, options, args, lead_ns, parent)

    def add_actor_handle(self, actor_id: ActorID, owner: WorkerAddress | None) -> None:
        """As ``CoreProcess.add_actor_handle``."""
        self.actors.add_handle(actor_id, owner)

    def remove_actor_handle(self, actor_id: ActorID, *, lead_ns: int = 0) -> None:
        """As ``CoreProcess.remove_actor_handle``."""
        if actor_handle(actor_id) in self.references.table:
            self._when(lead_ns, self.references.remove_local, actor_handle(actor_id))

    def kill_actor(self, actor_id: ActorID, *, no_restart: bool, lead_ns: int = 0) -> None:
        """As ``CoreProcess.kill_actor``."""
        self.actors.forget_name(actor_id)
        self.call_gcs(p.KillActorViaGcs(actor_id, no_restart), ignore, lead_ns=lead_ns)

    def get_named_actor(
        self, name: str, namespace: str, then: Callable[[Any], object], *, lead_ns: int = 0
    ) -> None:
        """As ``CoreProcess.get_named_actor``."""
        self._when(lead_ns, self.actors.find, (namespace or self.namespace, name, Told(self, then)))

    # Objects

    def put(
        self,
        payload: Payload,
        then: Callable[[TaskError | None], object],
        *,
        lead_ns: int = 0,
        owner: WorkerAddress | None = None,
    ) -> Ref:
        """As ``CoreProcess.put``; ``owner`` can only be this process."""
        assert owner is None or owner == self.me, f"{self.address}: put for {owner}"
        object_id = self.objects.new_put_id()
        record = self.references.own(object_id, 1, None)
        if payload.contained:
            self.references.contain(record, payload.contained)
        self._when(lead_ns, self._put, (record, payload, then))
        return Ref(object_id, self.me)

    def _put(self, put: tuple[Any, Payload, Callable[[TaskError | None], object]]) -> None:
        record, payload, then = put
        self.objects.put(record, payload, Told(self, then))

    def get(
        self,
        refs: Sequence[Ref],
        then: Callable[[list[Value] | TaskError], object],
        *,
        timeout_ns: int | None = None,
        lead_ns: int = 0,
    ) -> None:
        """As ``CoreProcess.get``."""
        records = [self.references.of(ref) for ref in refs]
        self._when(lead_ns, self._get, (records, Told(self, then), timeout_ns))

    def _get(self, get: tuple[list[Reference], Told, int | None]) -> None:
        self.objects.get(*get)

    def wait(
        self,
        refs: Sequence[Ref],
        num_returns: int,
        then: Callable[[list[bool]], object],
        *,
        timeout_ns: int | None = None,
        fetch_local: bool = True,
        lead_ns: int = 0,
    ) -> None:
        """As ``CoreProcess.wait``."""
        records = [self.references.of(ref) for ref in refs]
        told = Told(self, then)
        self._when(lead_ns, self._wait, (records, num_returns, told, timeout_ns, fetch_local))

    def _wait(self, wait: tuple[Any, Any, Any, Any, bool]) -> None:
        self.objects.wait(*wait[:-1], fetch_local=wait[-1])

    def add_local_reference(self, ref: Ref) -> None:
        """As ``CoreProcess.add_local_reference``."""
        self.references.of(ref).local += 1

    def remove_local_reference(self, object_id: ObjectID, *, lead_ns: int = 0) -> None:
        """As ``CoreProcess.remove_local_reference``."""
        if lead_ns:
            value = self.references.table[object_id].value
            if value is PENDING or value is IN_PLASMA:
                self.after(lead_ns, self.references.remove_local, object_id)
                return
        self.references.remove_local(object_id)

    def next_item(
        self, generator: Ref, then: Callable[[Ref | TaskError | None], object], *, lead_ns: int = 0
    ) -> None:
        """As ``CoreProcess.next_item``."""
        self._when(lead_ns, self.streams.next, (generator, Told(self, then)))

    def peek_locations(self, ref: Ref) -> p.Located | None:
        """As ``CoreProcess.peek_locations``."""
        return self.directory.peek(ref)

    def ask_locations(self, refs: Sequence[Ref], then: Any, *, lead_ns: int = 0) -> None:
        """As ``CoreProcess.ask_locations``."""
        self._when(lead_ns, self.directory.ask, (refs, Told(self, then)))

    def is_spilled(self, ref: Ref) -> bool:
        """As ``CoreProcess.is_spilled``."""
        return self.directory.is_spilled(ref)

    # Anything else of the GCS

    def call_gcs(self, message: Any, then: Callable[[Any], object], *, lead_ns: int = 0) -> None:
        """As ``CoreProcess.call_gcs``."""
        self._when(lead_ns, self.gcs.ask, (message, Told(self, then)))

    # Messages

    def on_node_added(self, _m: p.NodeAdded, reply: Reply) -> None:
        """A node is back; the shared view says so already."""
        reply()

    def on_node_removed(self, m: p.NodeRemoved, reply: Reply) -> None:
        """A node is dead."""
        self.calls.node_removed(m)
        reply()

    def on_worker_failed(self, m: p.WorkerFailed, reply: Reply) -> None:
        """A process has died."""
        self.calls.worker_failed(m)
        reply()

    def on_push_task(self, m: p.PushTask, reply: Reply) -> None:
        """Run a task."""
        if not self.job_id:
            self.job_id = m.spec.job_id
        self.executor.push(m, reply)

    def on_cancel_task(self, m: p.CancelTask, reply: Reply) -> None:
        """Cancel what runs or waits here, and what it submitted."""
        self.cancellation.on_cancel_task(m, reply)

    def on_cancel_remote_task(self, m: p.CancelRemoteTask, reply: Reply) -> None:
        """A borrower wants a task of ours cancelled."""
        self.cancellation.on_cancel_remote_task(m, reply)

    def on_kill_actor(self, m: p.KillActor, reply: Reply) -> None:
        """End; unless forced, after the calls that are here."""
        self.executor.on_kill_actor(m, reply)

    def on_exit_worker(self, m: p.ExitWorker, reply: Reply) -> None:
        """The raylet wants us to go: only if nothing of ours is needed."""
        here = self.executor.running or self.executor.waiting
        if (here or self.references.owned or self.tasks.pending) and not m.force:
            reply(False)
            return
        reply(True)
        self.after(0, self._exit, m.reason)

    def _exit(self, reason: str) -> None:
        self.exit(reason or "told to exit", intended=True)

    def on_report_generator_item_returns(
        self, m: p.ReportGeneratorItemReturns, reply: Reply
    ) -> None:
        """One item of a generator of ours."""
        self.streams.on_report(m, reply)

    def on_get_object_locations_owner(self, m: p.GetObjectLocationsOwner, reply: Reply) -> None:
        """A process asks where objects of ours are."""
        reply(self.directory.located(m))

    def on_get_object_status(self, m: p.GetObjectStatus, reply: Reply) -> None:
        """A borrower asks for a value."""
        self.directory.on_get_status(m, reply)

    def on_wait_for_ref_removed(self, m: p.WaitForRefRemoved, reply: Reply) -> None:
        """An owner wants to know when we let go."""
        self.borrowing.on_wait_for_ref_removed(m, reply)

    def on_add_borrower(self, m: p.AddBorrower, reply: Reply) -> None:
        """Another process holds an object of ours."""
        self.borrowing.on_add_borrower(m, reply)

    def on_subscribe_object_locations(self, m: p.SubscribeObjectLocations, reply: Reply) -> None:
        """An object manager looks for an object of ours."""
        self.directory.on_subscribe(m)
        reply()

    def on_update_object_location_batch(self, m: p.UpdateObjectLocationBatch, reply: Reply) -> None:
        """Copies of our objects have come or gone."""
        self.directory.on_update(m)
        reply()

    def on_actor_state_changed(self, m: p.ActorStateChanged, reply: Reply) -> None:
        """An actor we know."""
        self.actors.changed(m.actor)
        reply()
