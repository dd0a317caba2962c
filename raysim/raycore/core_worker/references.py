"""What a process knows of each object it has a reference to, and why it keeps it.

Real counterpart: ``src/ray/core_worker/reference_counter.cc`` and, for the values of small
objects, ``store_provider/memory_store/memory_store.cc``: one record here, looked up once.

An object is in scope while handles (local), pending tasks (submitted), values that contain it
(nested) or other processes (borrowers) need it. Its record then goes: the owner frees the value
everywhere, a borrower lets the owner know (``borrowing``). What is out of scope but needed to make
something else again (lineage) keeps a record without a value.

Not modelled: the ``ray memory`` call sites.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import TYPE_CHECKING

from raysim.kernel.component import Reply
from raysim.raycore.ids import NodeID, ObjectID, WorkerAddress
from raysim.raycore.tasks import Ref, TaskError, Value

if TYPE_CHECKING:
    from raysim.raycore.core_worker.task_manager import PendingTask
    from raysim.raycore.core_worker.worker import CoreWorker


class Marker(Enum):
    """What stands where a value will be, or instead of it."""

    PENDING = "not made yet, or its owner has not been asked"
    IN_PLASMA = "in the object store of some node"
    FREED = "out of scope; kept as lineage"


PENDING, IN_PLASMA, FREED = Marker.PENDING, Marker.IN_PLASMA, Marker.FREED

Waiter = Callable[["Reference"], object]


class Copies:
    """Of an object in plasma: its size and where it is, as its owner knows or told."""

    __slots__ = ("nodes", "pinned_at", "size_bytes", "spilled_node", "spilled_url")

    def __init__(self) -> None:
        self.size_bytes = 0
        self.nodes: dict[NodeID, None] = {}
        self.pinned_at: NodeID = -1
        self.spilled_url = ""
        self.spilled_node: NodeID = -1


class Sharing:
    """What few objects have: other processes that use it, references inside it, lineage."""

    __slots__ = (
        "asked", "borrowers", "contains", "holds", "lineage", "removed", "subscribers",
    )  # fmt: skip

    def __init__(self) -> None:
        self.borrowers: dict[WorkerAddress, int] = {}
        """Of an owned object: answers awaited from each borrower."""
        self.contains: dict[ObjectID, None] = {}
        """Objects that this one's value refers to."""
        self.holds = 0
        """Reasons of this process itself: a hand-over that is not confirmed yet."""
        self.lineage = 0
        """Tasks that may have to run again and take it as an argument."""
        self.removed: list[Reply] = []
        """Of a borrowed object: its owner, which knows us then, waits for the end of our use."""
        self.subscribers: dict[str, None] = {}
        """Object managers that look for it."""
        self.asked = False
        """Of a borrowed object: its owner has been asked for the value."""


class Reference:
    """One object in one process."""

    __slots__ = (
        "copies", "kept", "local", "nested", "object_id", "owner", "sharing", "submitted", "task",
        "value", "waiters",
    )  # fmt: skip

    def __init__(
        self, object_id: ObjectID, owner: WorkerAddress, local: int, task: PendingTask | None
    ) -> None:
        self.object_id = object_id
        self.owner = owner
        self.local = local
        self.submitted = 0
        self.nested = 0
        self.value: Value | Marker = PENDING
        self.waiters: list[Waiter] | None = None
        self.task = task
        """What makes it, if this process owns it and it was not put."""
        self.kept = False
        """It counts among the returns for which its task is kept as lineage."""
        self.copies: Copies | None = None
        self.sharing: Sharing | None = None

    def share(self) -> Sharing:
        """Its ``sharing``, made at first use."""
        sharing = self.sharing
        if sharing is None:
            sharing = self.sharing = Sharing()
        return sharing

    def located(self) -> Copies:
        """Its ``copies``, made at first use."""
        copies = self.copies
        if copies is None:
            copies = self.copies = Copies()
        return copies

    def wait(self, waiter: Waiter) -> None:
        """Call ``waiter(self)`` when it has a value."""
        if self.waiters is None:
            self.waiters = [waiter]
        else:
            self.waiters.append(waiter)

    def __repr__(self) -> str:
        borrowers = len(self.sharing.borrowers) if self.sharing else 0
        return (
            f"object {self.object_id:x}: local {self.local}, submitted {self.submitted},"
            f" nested {self.nested}, borrowers {borrowers}"
        )


class References:
    """Every object this process has a reference to."""

    def __init__(self, core: CoreWorker) -> None:
        self.core = core
        self.me = core.me
        self.table: dict[ObjectID, Reference] = {}
        self.owned = 0
        """Owned objects in scope: while there are any, the process may not exit by itself."""
        self.borrowed: dict[ObjectID, Reference] = {}
        """Of the table, those that other processes own."""
        self.unknown: dict[ObjectID, Reference] = {}
        """Borrowed, and the owner has not been told by anyone that this process has them."""
        if core.sim.check:
            core.sim.invariants.register(f"{core.address}/{core.epoch} references", self.wrong)

    def wrong(self) -> str:
        """What breaks the laws of counting now, for invariant checking; empty when all is well."""
        if self.core.state != "up":
            return ""
        for record in self.table.values():
            if min(record.local, record.submitted, record.nested) < 0:
                return f"{record!r} has a negative count"
            lineage = record.sharing.lineage if record.sharing is not None else 0
            if record.value is FREED and not lineage:
                return f"{record!r} is freed and still known"
        return ""

    # Into the table

    def own(self, object_id: ObjectID, local: int, task: PendingTask | None) -> Reference:
        """A new object of this process."""
        record = self.table[object_id] = Reference(object_id, self.me, local, task)
        self.owned += 1
        return record

    def of(self, ref: Ref) -> Reference:
        """The record of a reference that has come into this process, made at first sight."""
        record = self.table.get(ref.object_id)
        if record is None:
            object_id, owner = ref
            if owner == self.me:  # it comes back in a value that outlived it
                record = self.own(object_id, 0, None)
                record.value = TaskError("OBJECT_FREED", f"object {object_id:x} was freed")
                return record
            record = self.table[object_id] = Reference(object_id, owner, 0, None)
            self.borrowed[object_id] = record
            self.unknown[object_id] = record
            self.core.calls.subscribe()
        return record

    def knows(self, records: Iterable[Reference]) -> bool:
        """Whether none of them has gone."""
        table = self.table
        return all(table.get(record.object_id) is record for record in records)

    def hold(self, refs: Iterable[Ref]) -> list[Reference]:
        """One handle more of each, for the process itself; ``remove_local`` ends it."""
        held = [self.of(ref) for ref in refs]
        for record in held:
            record.local += 1
        return held

    def set_value(self, record: Reference, value: Value | Marker) -> None:
        """It is here, or in plasma, or has failed: let who waits go on."""
        record.value = value
        waiters = record.waiters
        if waiters is not None:
            record.waiters = None
            for waiter in waiters:
                waiter(record)

    def contain(self, outer: Reference, refs: Iterable[Ref]) -> None:
        """The value of ``outer`` holds these references."""
        contains = outer.share().contains
        for ref in refs:
            if ref.object_id not in contains:
                contains[ref.object_id] = None
                self.of(ref).nested += 1

    # Out of it

    def remove_local(self, object_id: ObjectID) -> None:
        """A handle has gone."""
        record = self.table[object_id]
        left = record.local - 1
        assert left >= 0, f"{self.me.address} has no handle left: {record!r}"
        record.local = left
        if not left:
            self.look(record)

    def remove_submitted(self, object_id: ObjectID) -> None:
        """A task does not need it any more as an argument."""
        record = self.table[object_id]
        record.submitted -= 1
        assert record.submitted >= 0, f"{record!r}"
        if not record.submitted:
            self.look(record)

    def release_hold(self, record: Reference) -> None:
        """A hand-over is through."""
        sharing = record.sharing
        assert sharing is not None, f"{record!r} has no holds"
        sharing.holds -= 1
        self.look(record)

    def look(self, record: Reference) -> None:
        """Let it go if nothing needs its value."""
        sharing = record.sharing
        if (
            record.local or record.submitted or record.nested or record.value is FREED
            or (sharing is not None and (sharing.borrowers or sharing.holds))
        ):  # fmt: skip
            return
        if record.owner is not self.me:
            self.core.borrowing.let_go(record)
            return
        self.owned -= 1
        object_id, core = record.object_id, self.core
        if object_id < 0:
            del self.table[object_id]
            core.actors.out_of_scope(-object_id)
        else:
            if sharing is None or not sharing.lineage:
                del self.table[object_id]
            if core.streams.streams:
                core.streams.dropped(object_id)
            if record.copies is not None or sharing is not None:
                core.directory.free(record)
            if core.log.enabled:
                core.note("object", object_id, "FREED")
            record.value = FREED
            if record.waiters is not None:
                self.gone(record)
            if record.kept and not (sharing is not None and sharing.lineage):
                self.core.tasks.uncount(record)
        if sharing is not None and sharing.contains:
            contains, sharing.contains = sharing.contains, {}
            self.uncontain(contains)
        if not self.owned:
            self.core.owns_nothing()

    @staticmethod
    def gone(record: Reference) -> None:
        """Nobody needs it any more, but perhaps a call that was given up still waits for it."""
        waiters, record.waiters = record.waiters, None
        for waiter in waiters or ():
            waiter(record)

    def uncontain(self, contains: Iterable[ObjectID]) -> None:
        """A value that held these references is gone."""
        for inner in contains:
            record = self.table[inner]
            record.nested -= 1
            assert record.nested >= 0, f"{record!r}"
            self.look(record)

    def drop_lineage(self, object_id: ObjectID) -> None:
        """A task that took it will not run again."""
        record = self.table.get(object_id)
        if record is None:
            return
        sharing = record.share()
        sharing.lineage -= 1
        if not sharing.lineage and record.value is FREED:
            del self.table[object_id]
            self.core.tasks.uncount(record)
