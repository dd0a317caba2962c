"""``ray.cancel``: of tasks that wait, that are queued, and that run, with their children.

Real counterpart: ``CoreWorker::CancelTask``, ``NormalTaskSubmitter::CancelTask``,
``ActorTaskSubmitter::CancelTask``. A task that has not been pushed fails at once; of one that has,
its worker is asked, again every two seconds until it is found or has ended.

Not modelled: interrupts that Python code catches; the body of a task decides what one does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raysim.kernel.component import Reply
from raysim.raycore.core_worker.task_manager import PendingTask
from raysim.raycore.ids import TaskID, WorkerAddress, task_of
from raysim.raycore.protocol import CancelRemoteTask, CancelTask
from raysim.raycore.tasks import Ref, TaskError
from raysim.units import NS_PER_MS

if TYPE_CHECKING:
    from raysim.raycore.core_worker.worker import CoreWorker


class Cancellation:
    """Of one process's tasks."""

    def __init__(self, core: CoreWorker) -> None:
        self.core = core

    def cancel(self, what: tuple[Ref, bool, bool]) -> None:
        """Cancel what makes the object."""
        ref, force, recursive = what
        core = self.core
        if ref.owner != core.me:
            core.send(ref.owner.address, CancelRemoteTask(ref.object_id, force, recursive))
            return
        task = core.tasks.pending.get(task_of(ref.object_id))
        if task is not None:
            self._cancel(task, force=force, recursive=recursive)

    def _cancel(self, task: PendingTask, *, force: bool, recursive: bool) -> None:
        core = self.core
        task.cancelled = True
        if task.state == "pushed":
            self._ask((task, force, recursive))
            return
        state, via = task.state, task.via
        actor = task.spec.kind == "ACTOR_TASK"
        error = TaskError("TASK_CANCELLED", task_id=task.spec.task_id)
        if actor and via is not None:
            core.actors.remove(task)
        elif state == "queued":
            core.leases.remove(task)
        core.tasks.finish(task, error)

    def _ask(self, what: tuple[PendingTask, bool, bool]) -> None:
        task, force, recursive = what
        worker = self._worker(task)
        if worker is None:
            return
        message = CancelTask(task.spec.task_id, force, recursive)
        self.core.calls.call(worker.node_id, worker.address, message, _Found(self, what))

    def _worker(self, task: PendingTask) -> WorkerAddress | None:
        """Where it was pushed to."""
        if task.state != "pushed" or task.via is None:
            return None
        if task.spec.kind == "ACTOR_TASK":
            return task.via.address  # type: ignore[no-any-return]
        return task.via.worker  # type: ignore[no-any-return]

    def asked(self, what: tuple[PendingTask, bool, bool], answer: Any) -> None:
        """The worker has found it, or not: then it will come later, or has ended."""
        if answer is not True and what[0].state == "pushed":
            delay_ns = self.core.config.cancellation_retry_ms * NS_PER_MS
            self.core.after(delay_ns, self._ask, what)

    def on_cancel_remote_task(self, m: CancelRemoteTask, reply: Reply) -> None:
        """A borrower wants a task of ours cancelled."""
        record = self.core.references.table.get(m.object_id)
        if record is not None:
            self.cancel((Ref(m.object_id, record.owner), m.force_kill, m.recursive))
        reply()

    def on_cancel_task(self, m: CancelTask, reply: Reply) -> None:
        """The owner of a task here wants it cancelled."""
        if m.recursive:
            self._cancel_children(m.task_id, force=m.force_kill)
        reply(self.core.executor.cancel(m.task_id))
        if m.force_kill and m.task_id in self.core.executor.running:
            self.core.exit("cancelled with force", intended=False)

    def _cancel_children(self, task_id: TaskID, *, force: bool) -> None:
        for child in list(self.core.tasks.pending.values()):
            if child.spec.parent == task_id and child.spec.kind == "NORMAL_TASK":
                self._cancel(child, force=force, recursive=True)


class _Found:
    """Waits for a worker's word on a task to cancel."""

    __slots__ = ("cancellation", "what")

    def __init__(self, cancellation: Cancellation, what: tuple[PendingTask, bool, bool]) -> None:
        self.cancellation = cancellation
        self.what = what

    def __call__(self, answer: Any) -> None:
        self.cancellation.asked(self.what, answer)
