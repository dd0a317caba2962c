"""Objects whose primary copy is lost: another copy is pinned, or the task runs again.

Real counterpart: ``src/ray/core_worker/object_recovery_manager.cc``. Only the owner recovers.
Arguments of the task that are lost too are recovered first, by the same rule. What was put has no
task to run again. Running again uses up one of the task's retries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raysim.raycore.core_worker.references import FREED, IN_PLASMA, PENDING, Reference
from raysim.raycore.ids import NodeID
from raysim.raycore.protocol import PinObjectIDs, object_manager
from raysim.raycore.tasks import ErrorType, Ref, TaskError

if TYPE_CHECKING:
    from raysim.raycore.core_worker.worker import CoreWorker


class Recovery:
    """Of the objects one process owns."""

    def __init__(self, core: CoreWorker) -> None:
        self.core = core
        self.references = core.references

    def recover(self, record: Reference) -> None:
        """Bring it back, or let it be an error."""
        if record.value is PENDING:
            return
        if record.value is FREED:  # kept as lineage only
            self.references.owned += 1
            record.value = PENDING
            self.make_again(record)
            return
        nodes = record.copies.nodes if record.copies is not None else {}
        alive = self.core.env.view.nodes
        holder = next((n for n in nodes if n in alive), None)
        if holder is not None:
            self.core.calls.call(
                holder,
                object_manager(holder),
                PinObjectIDs((record.object_id,), self.core.me),
                _Pinned(self, record, holder),
            )
        elif record.copies is not None and record.copies.spilled_url:
            return  # its file is still there
        else:
            record.value = PENDING
            self.make_again(record)

    def pinned(self, record: Reference, node_id: NodeID, answer: Any) -> None:
        """Another copy is the primary one now, or was gone as well."""
        if record.value is not IN_PLASMA or record.copies is None:
            return
        if isinstance(answer, tuple) and answer and answer[0] is True:
            record.copies.pinned_at = node_id
        else:
            record.copies.nodes.pop(node_id, None)
            self.recover(record)

    def make_again(self, record: Reference) -> None:
        """Of what has no copy: run its task again, or let it be an error."""
        task = record.task
        tasks = self.core.tasks
        record.copies = None
        if task is None or task.spec.task_id not in tasks.lineage:
            error: ErrorType = "OBJECT_LOST" if task is None else "OBJECT_UNRECONSTRUCTABLE"
            if task is not None and task.spec.task_id in tasks.pending:
                self.core.directory.publish(record)
                self.core.streams.lost(record, task)
                return  # it runs again already, for another of its returns, or still
            if task is not None and not task.retries_left:
                error = "OBJECT_UNRECONSTRUCTABLE_MAX_ATTEMPTS_EXCEEDED"
            self._lost(record, error)
            return
        if record.kept:
            record.kept = False
            task.returns_alive -= 1
        self.core.directory.publish(record)
        if task.spec.task_id in tasks.pending:
            self.core.streams.lost(record, task)
            return
        if not task.retries_left:
            self._lost(record, "OBJECT_UNRECONSTRUCTABLE_MAX_ATTEMPTS_EXCEEDED")
            return
        self.core.streams.lost(record, task)
        if task.retries_left > 0:
            task.retries_left -= 1
        tasks.pending[task.spec.task_id] = task
        for arg in task.spec.args:
            if isinstance(arg, Ref):
                self._needed_again(arg)
        tasks.hold_args(task.spec.args)
        tasks.resubmit_for_lineage(task)

    def _needed_again(self, arg: Ref) -> None:
        """An argument must exist again."""
        needed = self.references.of(arg)
        if needed.owner is not self.core.me:
            return
        if needed.value is FREED or (
            needed.value is IN_PLASMA
            and needed.copies is not None
            and not needed.copies.nodes
            and not needed.copies.spilled_url
        ):
            self.recover(needed)

    def _lost(self, record: Reference, error: ErrorType) -> None:
        text = "all copies are lost" if error == "OBJECT_LOST" else "and cannot be made again"
        self.core.tasks.fail_object(record, TaskError(error, text))


class _Pinned:
    """Waits for a node to pin a copy as the primary one."""

    __slots__ = ("node_id", "record", "recovery")

    def __init__(self, recovery: Recovery, record: Reference, node_id: NodeID) -> None:
        self.recovery = recovery
        self.record = record
        self.node_id = node_id

    def __call__(self, answer: Any) -> None:
        self.recovery.pinned(self.record, self.node_id, answer)
