"""One execution of one task: what its body sees, and what the executor keeps of it.

Real counterpart: ``task_execution_handler`` of ``_raylet.pyx``, ``concurrency_group_manager.cc``.

Not modelled: memory of a task beyond what its process declares.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from raysim.kernel.component import Reply
from raysim.raycore.core_worker.references import Reference
from raysim.raycore.protocol import PushTask
from raysim.raycore.resources import Allocation
from raysim.raycore.tasks import ErrorType, Payload, TaskError, TaskSpec, Value

if TYPE_CHECKING:
    from raysim.raycore.core_worker.worker import CoreWorker

NOTHING_HELD: tuple[Reference, ...] = ()


class Running:
    """One execution of one task: what its body sees (``running.RunningTask``)."""

    __slots__ = (
        "args", "attempt", "cancelled", "core", "ended", "epoch", "error", "group", "held",
        "on_cancel", "reply", "resource_ids", "returns", "spec", "stored_args", "stream",
    )  # fmt: skip

    args: Sequence[Value]

    def __init__(self, core: CoreWorker, m: PushTask, reply: Reply) -> None:
        self.core = core
        self.spec: TaskSpec = m.spec
        self.resource_ids: Allocation = m.resource_ids
        self.reply = reply
        self.args = ()
        self.attempt = m.spec.attempt
        self.epoch = core.epoch
        self.on_cancel: Callable[[], None] | None = None
        self.group: Group | None = None
        self.held: Sequence[Reference] = NOTHING_HELD
        """References it was given, kept until it ends."""
        self.stored_args = 0
        """Arguments that were read from the store."""
        self.returns: Sequence[Payload] = ()
        self.error: TaskError | None = None
        self.ended = False
        self.cancelled = False
        self.stream: Any = None

    @property
    def worker(self) -> CoreWorker:
        """The process it runs in."""
        return self.core

    @property
    def state(self) -> Any:
        """The actor's instance, kept from its creation task."""
        return self.core.executor.instance

    @state.setter
    def state(self, instance: Any) -> None:
        self.core.executor.instance = instance

    def keep(self, instance: Any) -> None:
        """Of a creation task: what later methods find as ``state``."""
        self.core.executor.instance = instance

    def begin_first(self) -> None:
        """As the process's first call, with arguments: when values can be read and written."""
        core = self.core
        core.fresh = False
        core.compute(core.costs.first_value_core_s, self._begin, width=1.0)

    def _begin(self) -> None:
        if self.cancelled:
            self.fail(TaskError("TASK_CANCELLED"))
        else:
            self.spec.options.function.body(self)

    def compute(self, core_s: float, then: Callable[[], object], *, width: float = 1.0) -> None:
        """Use the node's cores; its share is that of ``width`` threads."""
        self.core.compute(core_s, then, width=width)

    def sleep(self, delay_ns: int, then: Callable[[], object]) -> None:
        """Let time pass."""
        self.core.after(delay_ns, self._slept, then)

    def _slept(self, then: Callable[[], object]) -> None:
        then()

    def finish(self, returns: Sequence[Payload] = (), *, lead_ns: int = 0) -> None:
        """Return: the reply leaves when the thread has serialised the values."""
        assert not self.ended, f"task {self.spec.task_id} of {self.core.address} ended twice"
        self.ended = True
        self.returns = returns
        core = self.core
        if core.fresh and self.spec.kind != "ACTOR_CREATION_TASK":
            core.fresh = False
            core.sim.call_later(core.lead_ns + lead_ns, self._first_value, None)
        else:
            self._serialise(lead_ns)

    def _first_value(self, _: None) -> None:
        """The first value of its process is what it returns."""
        core = self.core
        if self.epoch == core.epoch:
            core.compute(core.costs.first_value_core_s, self._serialise, width=1.0)

    def _serialise(self, lead_ns: int = 0) -> None:
        """The thread makes the reply of what was returned."""
        core, returns = self.core, self.returns
        costs, inline_bytes = core.costs, core.config.max_direct_call_object_size
        executor = core.executor
        work_ns = executor.execute_ns + costs.stored_arg_ns * self.stored_args
        for payload in returns:
            if payload.contained:  # kept until the caller is known to have them
                self.held = [*self.held, *core.references.hold(payload.contained)]
            if payload.size_bytes > inline_bytes:
                work_ns += costs.stored_return_ns
        if len(returns) > 1:
            work_ns += costs.per_return_ns * (len(returns) - 1)
        now_ns = core.sim.clock.now
        end_ns = now_ns + core.lead_ns + lead_ns
        end_ns = max(end_ns, executor.free_ns)
        end_ns += executor.thread_takes(end_ns, work_ns)
        if len(self.spec.args) > 1 + self.stored_args:  # the first says only how they are named
            end_ns += executor.thread_takes(end_ns, costs.execute_args_ns)
        executor.free_ns = end_ns + executor.turns_ns
        if executor.after_ns:
            executor.free_ns += executor.thread_takes(end_ns, executor.after_ns)
        end_ns += executor.turns_ns
        core.sim.call_later(end_ns - now_ns, executor.over, self)

    def fail(self, error: TaskError, *, lead_ns: int = 0) -> None:
        """Raise."""
        assert not self.ended, f"task {self.spec.task_id} of {self.core.address} ended twice"
        self.error = error._replace(task_id=self.spec.task_id)
        self.finish((), lead_ns=lead_ns)

    def exit_process(self, *, reason: str, intended: bool, lead_ns: int = 0) -> None:
        """End the process; an intended end answers this call first."""
        self.core.after(lead_ns, self._exit, (reason, intended))

    def _exit(self, why: tuple[str, bool]) -> None:
        reason, intended = why
        if intended and not self.ended:
            self.ended = True
            kind: ErrorType = "ACTOR_UNAVAILABLE" if self.spec.actor_id else "WORKER_DIED"
            self.error = TaskError(
                kind, reason, actor_id=self.spec.actor_id, task_id=self.spec.task_id
            )
            self.core.executor.leaving = reason
            self.core.executor.stopped = bool(self.spec.actor_id)
            self.core.executor.over(self)
        else:
            self.core.exit(reason, intended=intended)

    def yield_item(self, item: Payload, then: Callable[[], object], *, lead_ns: int = 0) -> None:
        """Of a streaming generator: hand over one item; ``then`` when it may go on."""
        self.core.item_reports.report(self, item, then, lead_ns + self.core.first_value_ns())


class Group:
    """A concurrency group: so many calls at once, the others in order."""

    __slots__ = ("limit", "name", "queue", "running")

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.limit = limit
        self.running = 0
        self.queue: deque[Running] = deque()


class Caller:
    """Calls of one process to this actor, in the order of their numbers."""

    __slots__ = ("early", "next")

    def __init__(self) -> None:
        self.next = 0
        self.early: dict[int, Running] = {}
