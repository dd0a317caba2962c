"""Running tasks: queues, concurrency, arguments, functions, returns.

Real counterpart: ``src/ray/core_worker/task_execution/`` (``task_receiver.cc``, the scheduling
queues), ``python/ray/_raylet.pyx`` (``execute_task``). Calls of one caller run in the order of
their numbers unless the actor is async, threaded or allows otherwise; one that came too early waits
for those before it. Beginning, reading, writing and replying take the execution thread
``execute_ns``, a task ``execute_task_ns`` more; all calls share it, as they share Python's lock.

Not modelled: the order of fibers in an event loop; a call's share of the thread is not preempted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from raysim.kernel.component import Reply
from raysim.raycore.core_worker.execution import NOTHING_HELD, Caller, Group, Running
from raysim.raycore.core_worker.references import IN_PLASMA, PENDING, Reference
from raysim.raycore.ids import OBJECT_INDEX_BITS, ActorID, TaskID, WorkerID, object_id
from raysim.raycore.protocol import (
    SMALL_BYTES,
    ActorCreationTaskDone,
    InternalKVGet,
    KillActor,
    PullPriority,
    PushTask,
    PushTaskReply,
    ReturnObject,
    raylet,
)
from raysim.raycore.tasks import NONE, Payload, Ref, RemoteFunction, TaskError, TaskSpec, Value
from raysim.units import NS_PER_S

if TYPE_CHECKING:
    from raysim.raycore.core_worker.worker import CoreWorker

_SYSTEM_GROUP = "_ray_system"
"""Every actor has it, for Ray's own calls: the loops of compiled graphs."""
_ASYNC_CONCURRENCY = 1000
"""``DEFAULT_MAX_CONCURRENCY_ASYNC`` of ray_constants."""


class Executor:
    """The executing side of one process."""

    def __init__(self, core: CoreWorker) -> None:
        self.core = core
        self._clock = core.sim.clock
        self._node_id = core.me.node_id
        self._inline_bytes = core.config.max_direct_call_object_size
        self.execute_ns = core.costs.execute_ns + core.costs.execute_task_ns
        self.turns_ns = 0
        self.after_ns = 0
        """Of a call, when its answer is on its way."""
        self.free_ns = 0
        """When the execution thread has done what it has."""
        self.instance: Any = None
        self.actor_id: ActorID = 0
        self.actor: TaskSpec | None = None
        """The creation task, of an actor's process."""
        self.running: dict[TaskID, Running] = {}
        """Bodies that have begun."""
        self.waiting: dict[TaskID, Running] = {}
        """For arguments, their turn or a thread."""
        self.computing: dict[int, list[Any]] = {}
        """What goes on on the node's cores: [then, job]."""
        self.groups = {"": Group("", 1), _SYSTEM_GROUP: Group(_SYSTEM_GROUP, 1)}
        self.default = self.groups[""]
        self.callers: dict[WorkerID, Caller] = {}
        self.ordered = True
        self.functions: dict[RemoteFunction, int] = {}
        """Fetched; calls made."""
        self._fetching: dict[RemoteFunction, list[Running]] = {}
        self.leaving = ""
        """Not empty: the process ends after the calls it has."""
        self.stopped = False
        """The actor is killed or has called ``exit_actor``: what has not begun never will, and
        its callers hear of it when the process ends; what runs goes on (``TaskReceiver::Stop``)."""

    # In

    def push(self, m: PushTask, reply: Reply) -> None:
        """A task has come in."""
        if self.stopped:
            return
        spec = m.spec
        payload = spec.options.instant
        if payload is not None and self._at_once(spec, payload, reply):
            return
        running = Running(self.core, m, reply)
        if spec.kind != "NORMAL_TASK" and not self._fits(running):
            return
        if spec.options.function in self.functions and _all_here(spec) and self.ordered_next(spec):
            running.args = spec.args  # type: ignore[assignment]
            self.enqueue(running)
            return
        self.waiting[spec.task_id] = running
        if spec.kind == "ACTOR_TASK" and self.ordered:
            caller = self.callers.setdefault(spec.caller.worker_id, Caller())
            caller.early[spec.seq_no] = running
            self._in_order(caller)
            if spec.seq_no in caller.early:
                self.core.after(
                    self.core.config.actor_scheduling_queue_max_reorder_wait_seconds * NS_PER_S,
                    self._waited_too_long, (caller, running),
                )  # fmt: skip
        else:
            self._prepare(running)

    def _at_once(self, spec: TaskSpec, payload: Payload, reply: Reply) -> bool:
        """Run nobody's code ahead of the clock, if nothing else is going on here."""
        core, function = self.core, spec.options.function
        calls, size_bytes = self.functions.get(function), payload.size_bytes
        if (
            calls is None or spec.args or spec.kind != "NORMAL_TASK" or self.running
            or self.waiting or core.log.enabled or size_bytes > self._inline_bytes
        ):  # fmt: skip
            return False
        self.functions[function] = calls + 1
        now_ns = self._clock.now
        start_ns = now_ns + core.lead_ns
        if start_ns < self.free_ns:
            start_ns = self.free_ns
        work_ns = self.execute_ns
        if core.cores is not None:
            work_ns = core.cores.takes(self, start_ns, work_ns)
        self.free_ns = end_ns = start_ns + work_ns
        core.lead_ns = end_ns - now_ns
        item = ReturnObject((spec.task_id << OBJECT_INDEX_BITS) + 1, size_bytes, payload)
        answer = PushTaskReply((item,), None, self._node_id, (), self.leaving != "")
        reply(answer, SMALL_BYTES + size_bytes)
        if self.leaving:
            core.leave(self.leaving)
        return True

    def ordered_next(self, spec: TaskSpec) -> bool:
        """Whether nothing must come before it; of an actor's call it counts as its turn."""
        if spec.kind != "ACTOR_TASK" or not self.ordered:
            return True
        caller = self.callers.get(spec.caller.worker_id)
        if caller is None:
            caller = self.callers[spec.caller.worker_id] = Caller()
        if caller.early or caller.next != spec.seq_no:
            return False
        caller.next += 1
        return True

    def _fits(self, running: Running) -> bool:
        """Whether a call is for the actor that lives here; else it is refused."""
        spec = running.spec
        if spec.kind == "ACTOR_CREATION_TASK":
            self.actor, self.actor_id = spec, spec.actor_id
            options = spec.options.actor
            assert options is not None, f"actor {spec.actor_id} without ActorOptions"
            self.execute_ns = self.core.costs.execute_ns
            if options.is_async:
                self.execute_ns += self.core.costs.execute_async_ns
                self.turns_ns = self.core.costs.execute_async_wait_ns
            else:
                self.after_ns = self.core.costs.execute_after_ns
            limit = options.max_concurrency or (_ASYNC_CONCURRENCY if options.is_async else 1)
            self.default.limit = limit
            for name, n in options.concurrency_groups:
                self.groups[name] = Group(name, n)
            self.ordered = not (options.is_async or limit > 1 or options.concurrency_groups
                                or options.allow_out_of_order_execution)  # fmt: skip
            return True
        if spec.actor_id == self.actor_id:
            name = spec.options.concurrency_group
            if name and name not in self.groups:  # a failed check, in Ray
                text = f"Failed to look up the executor of the given concurrency group {name}"
                self.core.exit(text, intended=False)
                return False
            return True
        cause = TaskError(
            "ACTOR_UNAVAILABLE", "not this worker's actor",
            actor_id=spec.actor_id, task_id=spec.task_id,
        )  # fmt: skip
        running.reply(PushTaskReply((), cause, self.core.me.node_id))
        return False

    def _in_order(self, caller: Caller) -> None:
        while caller.next in caller.early:
            running = caller.early.pop(caller.next)
            caller.next += 1
            self._prepare(running)

    def _waited_too_long(self, early: tuple[Caller, Running]) -> None:
        """Those before it will not come: go on without them."""
        caller, running = early
        if caller.early.get(running.spec.seq_no) is running:
            caller.next = min(caller.early)
            self._in_order(caller)

    # Before it runs

    def _prepare(self, running: Running) -> None:
        """Reserve its place in the queue, then get its function and arguments."""
        spec = running.spec
        if spec.task_id not in self.waiting:  # cancelled before its turn
            return
        group = self.groups.get(spec.options.concurrency_group) or self.default
        running.group = group
        group.queue.append(running)
        function = spec.options.function
        if function not in self.functions:
            waiting = self._fetching.get(function)
            if waiting is not None:
                waiting.append(running)
                return
            self._fetching[function] = [running]
            self.core.gcs.call(
                InternalKVGet(namespace="fun", key=f"{spec.job_id}:{function.name}"),
                partial(self.fetched, function),
            )
            return
        self._get_args(running)

    def fetched(self, function: RemoteFunction, _answer: object) -> None:
        """The function's pickle is here."""
        core = self.core
        start_ns = max(core.now_ns, self.free_ns)
        work_ns = self.thread_takes(start_ns, core.costs.import_function_ns)
        self.free_ns = start_ns + work_ns
        core.after(self.free_ns - core.now_ns, self._imported, function)

    def _imported(self, function: RemoteFunction) -> None:
        """The function can be called."""
        self.functions.setdefault(function, 0)
        for running in self._fetching.pop(function, ()):
            self._get_args(running)

    def _get_args(self, running: Running) -> None:
        """Values of plasma arguments, and records of everything it was given a reference to."""
        spec = running.spec
        if spec.task_id not in self.waiting:  # cancelled
            return
        references = self.core.references
        held: list[Reference] = []
        refs: list[Ref] = []
        for arg in spec.args:
            if arg.__class__ is Ref:
                record = references.of(arg)
                if record.value is PENDING and record.owner is not self.core.me:
                    references.set_value(record, IN_PLASMA)
                record.local += 1
                held.append(record)
                refs.append(arg)
            elif arg.__class__ is Payload:
                held += references.hold(arg.contained)
        running.held = held
        if refs:
            running.stored_args = len(refs)
            priority: PullPriority = "WAIT" if spec.kind == "ACTOR_TASK" else "TASK_ARGS"
            self.core.objects.get_args(refs, _Arguments(self, running), priority)
        else:
            self.args_ready(running, ())

    def args_ready(self, running: Running, values: Sequence[Value]) -> None:
        """All are here; an error among them is the call's own."""
        if running.spec.task_id not in self.waiting:  # cancelled
            return
        got = iter(values)
        args: list[Any] = [next(got) if a.__class__ is Ref else a for a in running.spec.args]
        for value in args:
            if value.__class__ is TaskError:
                running.error = running.error or value
                break
        running.args = args
        group = running.group
        running.group = None
        assert group is not None, f"task {running.spec.task_id} was never queued"
        self.ready(group)

    # Its turn

    def enqueue(self, running: Running) -> None:
        """Nothing to fetch: run it now, or after those before it."""
        name = running.spec.options.concurrency_group
        group = self.default if not name else self.groups.get(name, self.default)
        if group.running < group.limit and not group.queue:
            self._run(group, running)
        else:
            self.waiting[running.spec.task_id] = running
            group.queue.append(running)

    def ready(self, group: Group) -> None:
        """Start what may start, in order; one whose arguments are not here holds up the rest."""
        queue = group.queue
        while queue and group.running < group.limit and not self.stopped:
            running = queue[0]
            if running.group is not None:  # still waits for something
                if self.ordered:
                    return
                running = next((r for r in queue if r.group is None), running)
                if running.group is not None:
                    return
                queue.remove(running)
            else:
                queue.popleft()
            del self.waiting[running.spec.task_id]
            self._run(group, running)

    def _run(self, group: Group, running: Running) -> None:
        spec = running.spec
        core = self.core
        group.running += 1
        running.group = group
        self.running[spec.task_id] = running
        if core.log.enabled:
            core.note("task", spec.task_id, "RUNNING",
                      node_id=core.me.node_id, worker_id=core.me.worker_id)  # fmt: skip
        function = spec.options.function
        self.functions[function] += 1
        if running.error is not None:
            wrap = function.of_failed_argument
            if wrap is not None and not running.cancelled:
                running.error = wrap(running, running.error)
            running.finish()
        elif core.fresh and spec.args:
            running.begin_first()
        else:
            function.body(running)

    # Out

    def over(self, running: Running) -> None:
        """The thread is through with it: large returns go to plasma first, then the reply."""
        core = self.core
        if running.epoch != core.epoch:
            return
        spec = running.spec
        if running.error is not None:
            self.answer(running, ())
            return
        payloads = running.returns
        n = spec.options.num_returns
        if not payloads and n == 1:
            self.answer(running, (ReturnObject(object_id(spec.task_id, 1), 0, NONE),))
            return
        if n == "streaming":
            core.item_reports.close(running)
            return
        if len(payloads) != n:
            payloads = tuple(payloads) + (NONE,) * (n - len(payloads))
        config = core.config
        room_bytes = config.task_rpc_inlined_bytes_limit
        limit_bytes = config.max_direct_call_object_size
        returns = []
        large: list[tuple[int, Payload]] = []
        task_id = spec.task_id
        for index, payload in enumerate(payloads[:n]):
            size_bytes = payload.size_bytes
            if size_bytes <= limit_bytes and size_bytes <= room_bytes:
                room_bytes -= size_bytes
                returns.append(ReturnObject(object_id(task_id, index + 1), size_bytes, payload))
            else:
                large.append((index, payload))
                returns.append(
                    ReturnObject(object_id(task_id, index + 1), size_bytes, None, payload.contained)
                )
        if large:
            core.objects.store_returns(running, returns, large)
        else:
            self.answer(running, tuple(returns))

    def answer(self, running: Running, returns: tuple[ReturnObject, ...], items: int = 0) -> None:
        """Reply, let go of what it was given, and start the next."""
        core, spec = self.core, running.spec
        del self.running[spec.task_id]
        if core.objects.blocked:
            core.objects.task_over(spec.task_id)
        for item in returns:
            contained = item.contained if item.payload is None else item.payload.contained
            if contained:
                core.borrowing.returned(item.object_id, contained, spec.caller)
        for record in running.held:
            core.references.remove_local(record.object_id)
        borrowed = core.borrowing.to_report() if core.references.unknown else ()
        here = self.running or (self.waiting and not self.stopped)
        exiting = (bool(self.leaving) and not here) or (
            0 < spec.options.max_calls <= self.functions.get(spec.options.function, 0)
        )
        reply = PushTaskReply(returns, running.error, core.me.node_id, borrowed, exiting, items)
        if spec.kind == "ACTOR_CREATION_TASK":
            self._created(running, reply)
        else:
            running.reply(reply)
        group = running.group
        assert group is not None, f"task {spec.task_id} ended without having run"
        group.running -= 1
        if exiting:
            core.leave(self.leaving or "max_calls reached")
        elif group.queue:
            self.ready(group)

    def _created(self, running: Running, reply: PushTaskReply) -> None:
        """The GCS passes nothing on, so owners hear of borrowed references from here first."""
        core = self.core
        if reply.error is None:
            core.send(
                raylet(core.me.node_id),
                ActorCreationTaskDone(core.me.worker_id, running.spec.actor_id),
            )
        else:
            self.actor_id = 0
        core.borrowing.announce(reply.borrowed, running.reply, reply)

    # Cancellation and death

    def on_kill_actor(self, m: KillActor, reply: Reply) -> None:
        """End; unless forced, after the calls that are here."""
        reply()
        core, reason = self.core, m.reason or "killed"
        if m.force_kill:
            self.stopped = True  # what comes meanwhile is lost with the process
            work_ns = self.thread_takes(core.now_ns, core.costs.force_exit_ns)
            core.after(work_ns, partial(core.exit, intended=True), reason)
        elif self.running or self.waiting:
            self.leaving = reason
        else:
            core.exit(reason, intended=True)

    def cancel(self, task_id: TaskID) -> bool:
        """Whether the task was found: dropped if it had not begun, else interrupted.

        A call of an actor keeps its place, and fails when its turn comes.
        """
        running = self.waiting.get(task_id)
        if running is not None and running.spec.kind == "ACTOR_TASK":
            running.cancelled = True
            running.error = TaskError("TASK_CANCELLED", task_id=task_id)
            return True
        running = self.waiting.pop(task_id, None)
        if running is not None:
            for group in self.groups.values():
                if running in group.queue:
                    group.queue.remove(running)
            for record in running.held:
                self.core.references.remove_local(record.object_id)
            running.held = NOTHING_HELD
            error = TaskError("TASK_CANCELLED", task_id=task_id)
            running.reply(PushTaskReply((), error, self.core.me.node_id))
            return True
        running = self.running.get(task_id)
        if running is None:
            return False
        if not running.cancelled and not running.ended:
            running.cancelled = True
            if running.on_cancel is not None:
                running.on_cancel()
        return True

    def thread_takes(self, start_ns: int, work_ns: int) -> int:
        """Nanoseconds that the process's main thread needs for ``work_ns`` from ``start_ns`` on."""
        cores = self.core.cores
        return work_ns if cores is None else cores.takes(self, start_ns, work_ns)

    def compute(self, core_s: float, then: Callable[[], object], width: float) -> None:
        """Use the node's cores; the share is that of ``width`` threads."""
        work: list[Any] = [then, None]
        work[1] = self.core.node.cpu.job(core_s * width, self._computed, work, width=width)
        self.computing[id(work)] = work

    def _computed(self, work: list[Any]) -> None:
        if self.computing.pop(id(work), None) is not None:
            work[0]()

    def died(self) -> None:
        """The process is gone: its threads leave the cores."""
        computing, self.computing = self.computing, {}
        for _, job in computing.values():
            self.core.node.cpu.cancel(job)


def _all_here(spec: TaskSpec) -> bool:
    """Whether its arguments are values in the spec, no errors and without references."""
    for arg in spec.args:  # noqa: SIM110  (a generator costs more than most tasks have arguments)
        if arg.__class__ is not Payload or arg.contained:
            return False
    return True


class _Arguments:
    """Waits for the plasma arguments of one call."""

    __slots__ = ("executor", "running")

    def __init__(self, executor: Executor, running: Running) -> None:
        self.executor = executor
        self.running = running

    def __call__(self, values: Any) -> None:
        running = self.running
        if values.__class__ is TaskError:
            running.error = values
            values = (NONE,) * sum(a.__class__ is Ref for a in running.spec.args)
        self.executor.args_ready(running, values)
