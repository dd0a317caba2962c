"""Tasks this process owns, from submission to their end: retries, errors, lineage.

Real counterpart: ``src/ray/core_worker/task_manager.cc``,
``task_submission/dependency_resolver.cc``. System failures are retried ``max_retries`` times,
out-of-memory kills have their own count and a growing delay, preemptions cost nothing, a program's
own exceptions are retried if ``retry_exceptions`` says so. What is retried is submitted at the
process's next heartbeat (``CoreWorker::InternalHeartbeat``), once a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raysim.raycore.core_worker.references import FREED, IN_PLASMA, PENDING, Reference
from raysim.raycore.ids import ObjectID, TaskID, object_id
from raysim.raycore.protocol import PushTaskReply, ReturnObject
from raysim.raycore.tasks import Arg, Payload, Ref, TaskError, TaskSpec
from raysim.units import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from raysim.raycore.core_worker.worker import CoreWorker

_OOM_DELAY_CAP_MS = 60_000
"""``ExponentialBackoff`` of out-of-memory retries ends at a minute."""


class PendingTask:
    """A task of this process, until nothing of it can be needed again."""

    __slots__ = (
        "cancelled", "children", "lineage", "oom_retries", "record", "retries_left",
        "returns_alive", "spec", "state", "unresolved", "via",
    )  # fmt: skip

    def __init__(self, spec: TaskSpec, retries_left: int) -> None:
        self.spec = spec
        self.retries_left = retries_left
        """-1: without limit."""
        self.state = "args"
        """args, queued, pushed, retrying, done; created: of an actor that may restart."""
        self.unresolved = 0
        self.via: Any = None
        """Where it is queued, or the lease or actor it was pushed to."""
        self.cancelled = False
        self.oom_retries = 0
        self.returns_alive = 0
        """Returns in plasma that may have to be made again: while any, it stays as lineage."""
        self.lineage: tuple[ObjectID, ...] = ()
        """Arguments it would need then."""
        self.children: Any = None
        self.record: Reference | None = None
        """Of its return while it is pending, if it has one: found without a look-up."""

    def replied(self, answer: Any) -> None:
        """The actor that runs it answers, or cannot; unless it was given up meanwhile."""
        if self.via is not None and not self.spec.attempt:
            self.via.replied(self, answer)


class Again:
    """A second or later push of a call of an actor: answers to earlier ones do not count."""

    __slots__ = ("attempt", "task")

    def __init__(self, task: PendingTask) -> None:
        self.task = task
        self.attempt = task.spec.attempt

    def replied(self, answer: Any) -> None:
        """As ``PendingTask.replied``."""
        task = self.task
        if task.via is not None and task.spec.attempt == self.attempt:
            task.via.replied(task, answer)


class TaskManager:
    """All of them."""

    def __init__(self, core: CoreWorker) -> None:
        self.core = core
        self.references = core.references
        self.pending: dict[TaskID, PendingTask] = {}
        self.lineage: dict[TaskID, PendingTask] = {}
        """Finished, but what they made may be lost and needed again; oldest first."""
        self.lineage_bytes = 0

    # Start

    def add(self, spec: TaskSpec, max_retries: int) -> PendingTask:
        """A new task: its arguments are needed until it ends."""
        task = PendingTask(spec, max_retries)
        self.pending[spec.task_id] = task
        if spec.args:
            self.hold_args(spec.args)
        if self.core.log.enabled:
            self.core.note("task", spec.task_id, "PENDING_ARGS_AVAIL", detail=spec)
        return task

    def hold_args(self, args: Iterable[Arg]) -> None:
        """Keep what these arguments refer to."""
        of = self.references.of
        for arg in args:
            if arg.__class__ is Ref:
                of(arg).submitted += 1
            elif arg.__class__ is Payload:
                for ref in arg.contained:
                    of(ref).submitted += 1

    def release_args(self, args: Iterable[Arg]) -> None:
        """The task does not need them any more."""
        remove = self.references.remove_submitted
        for arg in args:
            if arg.__class__ is Ref:
                remove(arg.object_id)
            elif arg.__class__ is Payload:
                for ref in arg.contained:
                    remove(ref.object_id)

    def resolve(self, task: PendingTask) -> bool:
        """Whether its arguments exist; small ones are in its spec then. Else ``ready`` follows."""
        spec = task.spec
        objects = self.core.objects
        for arg in spec.args:
            if arg.__class__ is Ref:
                record = self.references.of(arg)
                if record.value is PENDING or record.value is FREED:
                    task.unresolved += 1
                    objects.want(record, _Dependency(self, task))
        if task.unresolved:
            task.state = "args"
            return False
        self.inline(task)
        return True

    def inline(self, task: PendingTask) -> None:
        """Put small arguments into the spec; what they contain is needed instead of them."""
        spec = task.spec
        inlined: list[ObjectID] = []
        args: list[Any] = []
        for arg in spec.args:
            if arg.__class__ is Ref:
                value = self.references.table[arg.object_id].value
                if value is not IN_PLASMA:
                    inlined.append(arg.object_id)
                    if value.__class__ is Payload:
                        for ref in value.contained:
                            self.references.of(ref).submitted += 1
                    args.append(value)
                    continue
            args.append(arg)
        if inlined:
            spec.args = tuple(args)
            for object_id_ in inlined:
                self.references.remove_submitted(object_id_)

    def dependency_ready(self, task: PendingTask) -> None:
        """One argument more exists."""
        task.unresolved -= 1
        if not task.unresolved and task.state == "args" and self.resolve(task):
            self.core.submission.resolved(task)

    # End

    def complete(self, task: PendingTask, reply: PushTaskReply) -> None:
        """The worker has answered: values, or the program's error."""
        error = reply.error
        if reply.borrowed:
            self.core.borrowing.handed_over(task, reply.borrowed)
        if error is not None:
            if self._retries_exception(task, error):
                return
            self.finish(task, error)
            return
        for item in reply.returns:
            record, payload = task.record, item.payload
            if record is None or record.value is FREED:
                record = self.references.table.get(item.object_id)
            if record is None or record.value is FREED:
                if payload is None:
                    self.core.directory.stray(item.object_id, reply.node_id)
            elif payload is None:
                self.stored(record, task, item, reply.node_id)
            else:
                if payload.contained:
                    self.references.contain(record, payload.contained)
                if self.core.log.enabled:
                    self.core.note(
                        "object", item.object_id, "INLINE",
                        detail=(item.size_bytes, record.owner),
                    )  # fmt: skip
                self.references.set_value(record, payload)
        self._end(task, None)
        if not reply.returns and task.spec.options.num_returns == "streaming":
            self.core.streams.ended(task, reply.items, None)

    def stored(
        self, record: Reference, task: PendingTask | None, item: ReturnObject, node_id: int
    ) -> None:
        """A return is in plasma, pinned on the node that made it."""
        if item.contained:
            self.references.contain(record, item.contained)
        copies = record.located()
        copies.size_bytes = item.size_bytes
        copies.nodes[node_id] = None
        copies.pinned_at = node_id
        if task is not None and not record.kept:
            record.kept = True
            task.returns_alive += 1
        self.references.set_value(record, IN_PLASMA)
        self.core.directory.publish(record)

    def finish(self, task: PendingTask, error: TaskError) -> None:
        """It failed for good: its returns are the error."""
        table = self.references.table
        spec = task.spec
        n = spec.options.num_returns
        self._end(task, error)
        for index in range(1, 2 if n == "streaming" else n + 1):
            record = table.get(object_id(spec.task_id, index))
            if record is not None and record.value is not FREED:
                self.fail_object(record, error)
        if n == "streaming":
            self.core.streams.ended(task, -1, error)

    def fail_object(self, record: Reference, error: TaskError) -> None:
        """An error takes the value's place; who looks for copies is told."""
        self.uncount(record)
        self.references.set_value(record, error)
        self.core.directory.publish(record)

    def _end(self, task: PendingTask, error: TaskError | None) -> None:
        spec, core = task.spec, self.core
        task.state = "done"
        task.via = task.record = None
        self.pending.pop(spec.task_id, None)
        if not self.pending:
            core.owns_nothing()
        if spec.actor_id:
            core.actors.ended(task)
        if task.returns_alive and task.retries_left != 0:
            self._keep_lineage(task)
        elif self.lineage:
            self.lineage_unneeded(task)
        if spec.args:
            self.release_args(spec.args)
        if core.log.enabled:
            if error is None:
                core.note("task", spec.task_id, "FINISHED")
            else:
                core.note("task", spec.task_id, "FAILED", detail=error)

    # Retries

    def _retries_exception(self, task: PendingTask, error: TaskError) -> bool:
        """Whether the program's error is one to run again for; then it is under way."""
        wanted = task.spec.options.retry_exceptions
        if not wanted or not task.retries_left or task.cancelled:
            return False
        if error.error_type != "TASK_EXECUTION_EXCEPTION":
            return False
        if isinstance(wanted, tuple) and not any(name in wanted for name in error.class_names):
            return False
        self._retry(task, self.core.config.task_retry_delay_ms)
        return True

    def fail_or_retry(self, task: PendingTask, error: TaskError, *, counts: bool = True) -> bool:
        """The system failed it. Whether it is tried again; if not, it has ended with the error."""
        if task.cancelled:
            self.finish(task, TaskError("TASK_CANCELLED", task_id=task.spec.task_id))
            return False
        config, options = self.core.config, task.spec.options
        delay_ms = config.task_retry_delay_ms
        if error.error_type == "OUT_OF_MEMORY":
            no_more = 0 <= config.task_oom_retries <= task.oom_retries
            if counts or no_more or not options.max_retries:
                self.finish(task, error)
                return False
            delay_ms = min(
                config.task_oom_retry_delay_base_ms << min(task.oom_retries, 16),
                _OOM_DELAY_CAP_MS,
            )
            task.oom_retries += 1
        elif counts or options.max_retries == 0:
            if not task.retries_left:
                self.finish(task, error)
                return False
            if task.retries_left > 0:
                task.retries_left -= 1
        self._resubmit_later(task, delay_ms)
        return True

    def _retry(self, task: PendingTask, delay_ms: int) -> None:
        if task.retries_left > 0:
            task.retries_left -= 1
        self._resubmit_later(task, delay_ms)

    def _resubmit_later(self, task: PendingTask, delay_ms: int) -> None:
        task.state = "retrying"
        task.via = None
        self.at_heartbeat(delay_ms * NS_PER_MS, self.resubmit, task)

    def at_heartbeat(self, delay_ns: int, fn: Callable[[Any], object], arg: Any) -> None:
        """Call ``fn(arg)`` at the first heartbeat of this process after ``delay_ns``."""
        core = self.core
        period_ns = core.config.core_worker_internal_heartbeat_ms * NS_PER_MS
        age_ns = core.now_ns - core.started_ns
        core.after(delay_ns + period_ns - (age_ns + delay_ns) % period_ns, fn, arg)

    def resubmit(self, task: PendingTask) -> None:
        """Submit it once more."""
        if task.state == "done":
            return
        task.spec.attempt += 1
        if self.core.log.enabled:
            self.core.note("task", task.spec.task_id, "PENDING_ARGS_AVAIL", detail=task.spec)
        self.core.submission.submit(task)

    def resubmit_for_lineage(self, task: PendingTask) -> None:
        """Run again what has finished once."""
        task.state = "retrying"
        self.resubmit(task)

    # Lineage

    def _keep_lineage(self, task: PendingTask) -> None:
        """What it made may be lost: keep what is needed to make it again."""
        spec = task.spec
        again = spec.task_id in self.lineage
        self.lineage[spec.task_id] = task
        if not again:
            task.lineage = tuple(a.object_id for a in spec.args if isinstance(a, Ref))
            for needed in task.lineage:
                self.references.table[needed].share().lineage += 1
            self.lineage_bytes += spec.size_bytes
            if self.lineage_bytes > self.core.config.max_lineage_bytes:
                self._evict_lineage()

    def _evict_lineage(self) -> None:
        """Drop the oldest half: what they made cannot be made again."""
        limit_bytes = self.core.config.max_lineage_bytes // 2
        for task in list(self.lineage.values()):
            if self.lineage_bytes <= limit_bytes:
                break
            self.lineage_unneeded(task)

    def uncount(self, record: Reference) -> None:
        """A return need not be made again; its task may not be needed any more."""
        task = record.task
        if task is not None and record.kept:
            record.kept = False
            task.returns_alive -= 1
            if not task.returns_alive and task.spec.task_id not in self.pending:
                self.lineage_unneeded(task)

    def lineage_unneeded(self, task: PendingTask) -> None:
        """It need not be run again, ever."""
        if self.lineage.pop(task.spec.task_id, None) is None:
            return
        self.lineage_bytes -= task.spec.size_bytes
        needed, task.lineage = task.lineage, ()
        for object_id_ in needed:
            self.references.drop_lineage(object_id_)


class _Dependency:
    """Waits for one argument of one task."""

    __slots__ = ("manager", "task")

    def __init__(self, manager: TaskManager, task: PendingTask) -> None:
        self.manager = manager
        self.task = task

    def __call__(self, _record: Reference) -> None:
        """In a turn of its own, as the memory store's callbacks: whoever made it is idle then."""
        self.manager.core.after(0, self.manager.dependency_ready, self.task)
