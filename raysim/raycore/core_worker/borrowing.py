"""References that cross from process to process, and how owners learn who still holds one.

Real counterpart: the borrowing part of ``src/ray/core_worker/reference_counter.cc``. A task that
keeps a reference says so in its reply; whoever passed it on keeps it until the owner knows the new
borrower and waits for it (``WaitForRefRemoved``). A borrower's death ends its borrowing.

A simplification: Ray hands tables of borrowers of borrowers up the chain of callers; here whoever
passes on a reference it does not own tells the owner itself (``AddBorrower``), one message more on
a rare path, and nobody keeps a table for others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from raysim.kernel.component import Failure, Reply
from raysim.raycore.core_worker.references import FREED, PENDING, Reference
from raysim.raycore.ids import ObjectID, WorkerAddress
from raysim.raycore.protocol import AddBorrower, Borrowed, WaitForRefRemoved
from raysim.raycore.tasks import Ref, TaskError

if TYPE_CHECKING:
    from raysim.raycore.core_worker.task_manager import PendingTask
    from raysim.raycore.core_worker.worker import CoreWorker


class Borrowing:
    """Of one process, as owner and as borrower."""

    def __init__(self, core: CoreWorker) -> None:
        self.core = core
        self.references = core.references

    # Owner

    def add_borrower(
        self, record: Reference, borrower: WorkerAddress, contained_in: ObjectID
    ) -> None:
        """Keep the object until that process has let go of it."""
        borrowers = record.share().borrowers
        borrowers[borrower] = borrowers.get(borrower, 0) + 1
        self.core.calls.subscribe()
        self.core.calls.call(
            borrower.node_id,
            borrower.address,
            WaitForRefRemoved(record.object_id, self.core.me, contained_in),
            _Removed(self, record, borrower),
        )

    def removed(self, record: Reference, borrower: WorkerAddress) -> None:
        """It has let go, or died."""
        borrowers = record.share().borrowers
        borrowers[borrower] -= 1
        if not borrowers[borrower]:
            del borrowers[borrower]
            self.references.look(record)

    def on_add_borrower(self, m: AddBorrower, reply: Reply) -> None:
        """A borrower has passed it on."""
        record = self.references.table.get(m.object_id)
        if record is not None and record.value is not FREED:
            if m.borrower != self.core.me:
                self.add_borrower(record, m.borrower, m.contained_in)
            elif m.contained_in:
                self._keep_within(record, m.contained_in)
        reply()

    def _keep_within(self, record: Reference, contained_in: ObjectID) -> None:
        outer = self.references.table.get(contained_in)
        if outer is not None and outer.value is not FREED:
            self.references.contain(outer, (Ref(record.object_id, record.owner),))

    # The process that passes a reference on

    def handed_over(self, task: PendingTask, borrowed: Sequence[Borrowed]) -> None:
        """A task's worker keeps these: their owners shall know before the arguments are let go."""
        handover: _Handover | None = None
        for item in borrowed:
            if item.owner == self.core.me:
                record = self.references.table.get(item.object_id)
                if record is not None and record.value is not FREED:
                    self.add_borrower(record, item.borrower, 0)
                continue
            if handover is None:
                args = task.spec.args
                self.core.tasks.hold_args(args)
                handover = _Handover(self, args)
            handover.waits += 1
            self._tell_owner(item.owner, AddBorrower(item.object_id, item.borrower), handover)

    def returned(self, outer: ObjectID, contained: Iterable[Ref], caller: WorkerAddress) -> None:
        """A value with references goes to the caller, who will own ``outer``."""
        for ref in contained:
            record = self.references.of(ref)
            if record.owner is self.core.me:
                if caller != self.core.me:
                    self.add_borrower(record, caller, outer)
                continue
            record.share().holds += 1
            message = AddBorrower(ref.object_id, caller, outer)
            self._tell_owner(ref.owner, message, _Held(self, record))

    def _tell_owner(self, owner: WorkerAddress, message: AddBorrower, then: Any) -> None:
        self.core.calls.subscribe()
        self.core.calls.call(owner.node_id, owner.address, message, then)

    # Borrower

    def to_report(self) -> tuple[Borrowed, ...]:
        """What this process has borrowed and no owner knows of, at the end of a task."""
        return tuple(
            Borrowed(record.object_id, self.core.me, record.owner)
            for record in self.references.unknown.values()
        )

    def announce(self, borrowed: Sequence[Borrowed], reply: Reply, answer: Any) -> None:
        """Tell the owners of these directly, then ``reply(answer)``."""
        if not borrowed:
            reply(answer)
            return
        then = _Announced(reply, answer, len(borrowed))
        for item in borrowed:
            self._tell_owner(item.owner, AddBorrower(item.object_id, item.borrower), then)

    def on_wait_for_ref_removed(self, m: WaitForRefRemoved, reply: Reply) -> None:
        """The owner knows us now; answer when we do not need it any more."""
        references = self.references
        record = references.table.get(m.object_id)
        if m.contained_in:
            outer = references.table.get(m.contained_in)
            if outer is not None and outer.value is not FREED:
                references.contain(outer, (Ref(m.object_id, m.owner),))
                record = references.table[m.object_id]
        if record is None:
            reply(())
            return
        references.unknown.pop(m.object_id, None)
        record.share().removed.append(reply)

    def let_go(self, record: Reference) -> None:
        """A borrowed object is out of scope here.

        What was found inside it and stays is announced to its owners before this one's owner hears
        of it.
        """
        references = self.references
        del references.table[record.object_id]
        del references.borrowed[record.object_id]
        references.unknown.pop(record.object_id, None)
        self.core.objects.released(record)
        if record.object_id < 0:
            self.core.actors.handle_gone(-record.object_id)
        sharing = record.sharing
        if sharing is None:
            return
        removed, sharing.removed = sharing.removed, []
        contains, sharing.contains = sharing.contains, {}
        goodbye = _Goodbye(removed)
        for inner in contains:
            held = references.table[inner]
            if removed and inner in references.unknown and (held.local or held.submitted):
                goodbye.waits += 1
                message = AddBorrower(inner, self.core.me)
                self._tell_owner(held.owner, message, goodbye)
        references.uncontain(contains)
        if not goodbye.waits:
            goodbye.say()

    # Deaths

    def owner_died(self, is_dead: Any) -> None:
        """Objects of dead owners are lost to us, whatever copies exist."""
        for record in list(self.references.borrowed.values()):
            if not is_dead(record.owner):
                continue
            self.references.unknown.pop(record.object_id, None)
            if record.value is PENDING or not isinstance(record.value, tuple):
                self.core.tasks.fail_object(record, TaskError("OWNER_DIED", "its owner died"))


class _Removed:
    """Waits for a borrower to let go."""

    __slots__ = ("borrower", "borrowing", "record")

    def __init__(self, borrowing: Borrowing, record: Reference, borrower: WorkerAddress) -> None:
        self.borrowing = borrowing
        self.record = record
        self.borrower = borrower

    def __call__(self, answer: Any) -> None:
        assert answer == () or isinstance(answer, Failure), f"{self.record!r}: {answer}"
        self.borrowing.removed(self.record, self.borrower)


class _Handover:
    """Keeps a task's arguments until the owners know who keeps something of them."""

    __slots__ = ("args", "borrowing", "waits")

    def __init__(self, borrowing: Borrowing, args: Sequence[Any]) -> None:
        self.borrowing = borrowing
        self.args = args
        self.waits = 0

    def __call__(self, _answer: object) -> None:
        self.waits -= 1
        if not self.waits:
            self.borrowing.core.tasks.release_args(self.args)


class _Held:
    """Keeps one reference until its owner knows where it went."""

    __slots__ = ("borrowing", "record")

    def __init__(self, borrowing: Borrowing, record: Reference) -> None:
        self.borrowing = borrowing
        self.record = record

    def __call__(self, _answer: object) -> None:
        self.borrowing.references.release_hold(self.record)


class _Announced:
    """Replies when so many owners know."""

    __slots__ = ("answer", "reply", "waits")

    def __init__(self, reply: Reply, answer: Any, waits: int) -> None:
        self.reply = reply
        self.answer = answer
        self.waits = waits

    def __call__(self, _answer: object) -> None:
        self.waits -= 1
        if not self.waits:
            self.reply(self.answer)


class _Goodbye:
    """Answers the owner that waits for our end of use."""

    __slots__ = ("replies", "waits")

    def __init__(self, replies: list[Reply]) -> None:
        self.replies = replies
        self.waits = 0

    def __call__(self, _answer: object) -> None:
        self.waits -= 1
        if not self.waits:
            self.say()

    def say(self) -> None:
        """It is not used here any more."""
        for reply in self.replies:
            reply(())
