"""The owner's directory: where copies of its objects are, who looks for them, who asks for values.

Real counterpart: ``src/ray/core_worker/object_recovery_manager.cc`` aside, the location part of
``reference_counter.cc`` and the handlers ``HandleUpdateObjectLocationBatch``,
``HandleGetObjectStatus`` and the pub/sub channel WORKER_OBJECT_LOCATIONS of ``core_worker.cc``.

Not modelled: batching of publications in long-poll replies; each change is one message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from raysim.kernel.component import Failure, Reply
from raysim.raycore.core_worker.references import FREED, IN_PLASMA, PENDING, Reference
from raysim.raycore.ids import NodeID, ObjectID, WorkerAddress
from raysim.raycore.protocol import (
    FreeObjects,
    GetObjectLocationsOwner,
    GetObjectStatus,
    Located,
    LocationUpdate,
    ObjectLocations,
    ObjectStatus,
    SubscribeObjectLocations,
    UpdateObjectLocationBatch,
    object_manager,
)
from raysim.raycore.tasks import Ref, TaskError

if TYPE_CHECKING:
    from raysim.raycore.core_worker.worker import CoreWorker


class Directory:
    """Of the objects one process owns."""

    def __init__(self, core: CoreWorker) -> None:
        self.core = core
        self.references = core.references

    def put_here(self, record: Reference, size_bytes: int) -> None:
        """A put is sealed and pinned on this node."""
        node_id = self.core.me.node_id
        if record.value is FREED:
            self.stray(record.object_id, node_id)
            return
        copies = record.located()
        copies.size_bytes = size_bytes
        copies.nodes[node_id] = None
        copies.pinned_at = node_id
        self.references.set_value(record, IN_PLASMA)
        self.publish(record)

    def free(self, record: Reference) -> None:
        """Out of scope: delete every copy, in memory and on disk."""
        copies = record.copies
        if copies is not None:  # of a task that failed with some of its returns stored, too
            nodes = dict(copies.nodes)
            if copies.pinned_at >= 0:
                nodes[copies.pinned_at] = None
            if copies.spilled_node >= 0:
                nodes[copies.spilled_node] = None
            elif copies.spilled_url:
                nodes[self.core.me.node_id] = None
            message = FreeObjects((record.object_id,))
            for node_id in nodes:
                self.core.send(object_manager(node_id), message)
        record.copies = None
        sharing = record.sharing
        if sharing is not None and sharing.subscribers:
            subscribers, sharing.subscribers = sharing.subscribers, {}
            gone = ObjectLocations(record.object_id, 0, (), ref_removed=True)
            for subscriber in subscribers:
                self.core.send(subscriber, gone)

    def stray(self, object_id: ObjectID, node_id: NodeID) -> None:
        """A copy of what is out of scope has turned up."""
        self.core.send(object_manager(node_id), FreeObjects((object_id,)))

    def publish(self, record: Reference) -> None:
        """Tell who looks for it what is known now."""
        sharing = record.sharing
        if sharing is not None and sharing.subscribers:
            message = self._locations(record)
            for subscriber in list(sharing.subscribers):
                self.core.send(subscriber, message)

    def _locations(self, record: Reference) -> ObjectLocations:
        copies = record.copies
        if record.value is IN_PLASMA and copies is not None:
            return ObjectLocations(
                record.object_id, copies.size_bytes, tuple(copies.nodes),
                copies.spilled_url, copies.spilled_node,
            )  # fmt: skip
        if record.value is PENDING:
            return ObjectLocations(record.object_id, 0, (), pending_creation=True)
        error = record.value if record.value.__class__ is TaskError else None
        return ObjectLocations(record.object_id, 0, (), ref_removed=True, error=error)

    def peek(self, ref: Ref) -> Located | None:
        """Size and nodes of an object, on disk too, as far as this process knows.

        As ``ray.experimental.get_object_locations``, which counts the node that spilled it.
        """
        record = self.references.table.get(ref.object_id)
        if record is None or record.value is PENDING or record.value is FREED:
            return None
        copies = record.copies
        if copies is not None:
            nodes = dict(copies.nodes)
            if copies.spilled_node >= 0:
                nodes[copies.spilled_node] = None
            return Located(copies.size_bytes, tuple(nodes), copies.spilled_url != "")
        return Located(getattr(record.value, "size_bytes", 0), (), spilled=False)

    def located(self, m: GetObjectLocationsOwner) -> tuple[Located | None, ...]:
        """Where objects of this process are now."""
        found: list[Located | None] = []
        for object_id in m.object_ids:
            record = self.references.table.get(object_id)
            if record is None or record.owner is not self.core.me or record.value is FREED:
                found.append(None)
            else:
                where = self.peek(Ref(object_id, record.owner))
                found.append(where or Located(0, (), spilled=False))
        return tuple(found)

    def ask(self, question: tuple[Sequence[Ref], Callable[[Any], object]]) -> None:
        """Every owner where its objects are, this process as well."""
        refs, then = question
        by_owner: dict[WorkerAddress, dict[ObjectID, None]] = {}
        for ref in refs:
            by_owner.setdefault(ref.owner, {})[ref.object_id] = None
        asked = _Asked(len(by_owner), then)
        for owner, ids in by_owner.items():
            message = GetObjectLocationsOwner(tuple(ids))
            told = partial(asked.answered, message)
            self.core.calls.call(owner.node_id, owner.address, message, told)

    def is_spilled(self, ref: Ref) -> bool:
        """Whether the only copy this process knows of is on disk."""
        record = self.references.table.get(ref.object_id)
        copies = None if record is None else record.copies
        return copies is not None and copies.spilled_node >= 0 and not copies.nodes

    # Messages

    def on_subscribe(self, m: SubscribeObjectLocations) -> None:
        """An object manager looks for an object, or does not any more."""
        record = self.references.table.get(m.object_id)
        if m.unsubscribe:
            if record is not None and record.sharing is not None:
                record.sharing.subscribers.pop(m.subscriber, None)
            return
        if record is None or record.owner is not self.core.me or record.value is FREED:
            gone = ObjectLocations(m.object_id, 0, (), ref_removed=True)
            self.core.send(m.subscriber, gone)
            return
        record.share().subscribers[m.subscriber] = None
        self.core.send(m.subscriber, self._locations(record))

    def on_update(self, m: UpdateObjectLocationBatch) -> None:
        """Copies have come or gone on a node."""
        node_id = m.node_id
        stray: list[ObjectID] = []
        for update in m.updates:
            record = self.references.table.get(update.object_id)
            if record is None or record.value is FREED:
                if record is None and self.core.streams.is_early(update, node_id):
                    continue
                if update.added or update.spilled_url:
                    stray.append(update.object_id)
                continue
            self.updated(record, update, node_id)
        if stray:
            self.core.send(object_manager(node_id), FreeObjects(tuple(stray)))

    def updated(self, record: Reference, update: LocationUpdate, node_id: NodeID) -> None:
        """One copy more or less of an object that is in scope."""
        copies = record.located()
        if update.added:
            copies.nodes[node_id] = None
        elif update.added is not None:
            copies.nodes.pop(node_id, None)
        if update.spilled_url:
            copies.spilled_url = update.spilled_url
            copies.spilled_node = -1 if update.spilled_to_cloud else node_id
        if record.value is IN_PLASMA:
            self.publish(record)

    def on_get_status(self, m: GetObjectStatus, reply: Reply) -> None:
        """A borrower asks for the value: it gets it, or its size and place, once it exists."""
        record = self.references.table.get(m.object_id)
        if record is None or record.value is FREED:
            reply(ObjectStatus(TaskError("OBJECT_FREED", "its owner has let go of it")))
        elif record.value is PENDING:
            record.wait(_Asker(self, reply))
        else:
            self.answer(record, reply)

    def answer(self, record: Reference, reply: Reply) -> None:
        """What it is."""
        value: Any = record.value
        if value is IN_PLASMA:
            copies = record.located()
            reply(ObjectStatus(None, copies.size_bytes, tuple(copies.nodes)))
        elif value is FREED:
            reply(ObjectStatus(TaskError("OBJECT_FREED", "its owner has let go of it")))
        else:
            reply(ObjectStatus(value))

    def node_removed(self, node_id: NodeID) -> None:
        """Its copies are gone; those that were the primary ones are recovered at the heartbeat."""
        lost = []
        for record in self.references.table.values():
            copies = record.copies
            if copies is None:
                continue
            was_there = copies.nodes.pop(node_id, self) is None
            if copies.spilled_node == node_id:
                copies.spilled_node, copies.spilled_url = -1, ""
            if copies.pinned_at == node_id:
                copies.pinned_at = -1
                if record.owner is self.core.me and record.value is IN_PLASMA:
                    lost.append(record)
            elif was_there and record.owner is self.core.me:
                self.publish(record)
        if lost:
            self.core.tasks.at_heartbeat(0, self._recover, lost)

    def _recover(self, lost: list[Reference]) -> None:
        """Those that somebody still has, and that were not found meanwhile."""
        for record in lost:
            copies = record.copies
            here = self.references.table.get(record.object_id) is record
            if here and record.value is IN_PLASMA and copies is not None and copies.pinned_at < 0:
                self.core.recovery.recover(record)


class _Asked:
    """A program that waits for several owners' answers."""

    __slots__ = ("found", "missing", "then")

    def __init__(self, missing: int, then: Callable[[Any], object]) -> None:
        self.missing = missing
        self.then = then
        self.found: dict[ObjectID, Located] = {}

    def answered(self, asked: GetObjectLocationsOwner, answer: Any) -> None:
        """One more; a dead one's objects are nowhere."""
        if not isinstance(answer, Failure):
            pairs = zip(asked.object_ids, answer, strict=True)
            self.found |= {object_id: where for object_id, where in pairs if where is not None}
        self.missing -= 1
        if not self.missing:
            self.then(self.found)


class _Asker:
    """A borrower that waits for an object to be made."""

    __slots__ = ("directory", "reply")

    def __init__(self, directory: Directory, reply: Reply) -> None:
        self.directory = directory
        self.reply = reply

    def __call__(self, record: Reference) -> None:
        self.directory.answer(record, self.reply)
