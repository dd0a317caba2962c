"""Objects: between owners, borrowers and the nodes that hold copies (``core_worker.proto``)."""

from __future__ import annotations

from typing import NamedTuple

from raysim.raycore.ids import NodeID, ObjectID, WorkerAddress
from raysim.raycore.protocol.addresses import SMALL_BYTES
from raysim.raycore.tasks import TaskError, Value


class GetObjectStatus(NamedTuple):
    """Borrower -> owner: the value if small, else where it is; answered once the object exists."""

    object_id: ObjectID
    size_bytes: int = SMALL_BYTES


class ObjectStatus(NamedTuple):
    """The answer: a small value or error, or the size and place of one in plasma."""

    value: Value | None
    object_size: int = 0
    node_ids: tuple[NodeID, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Header and inlined value."""
        return SMALL_BYTES + (self.value.size_bytes if self.value is not None else 0)


class GetObjectLocationsOwner(NamedTuple):
    """Anybody -> owner: where are these? Answered at once with ``Located | None`` of each."""

    object_ids: tuple[ObjectID, ...]

    @property
    def size_bytes(self) -> int:
        """About thirty bytes an object."""
        return SMALL_BYTES + 30 * len(self.object_ids)


class Located(NamedTuple):
    """Part of the answer: what an owner knows of an object of its own."""

    object_size: int
    """0: not known, for it is not made yet."""
    node_ids: tuple[NodeID, ...]
    """That hold it, in memory or on disk; () of what is in no store."""
    spilled: bool


class WaitForRefRemoved(NamedTuple):
    """Owner -> borrower; answered (a tuple of further ``Borrowed``) once the borrower let go."""

    object_id: ObjectID
    owner: WorkerAddress
    contained_in: ObjectID = 0
    """The borrower's own object whose value holds the reference, if it learns of it that way."""
    size_bytes: int = SMALL_BYTES


class AddBorrower(NamedTuple):
    """Holder of a borrowed reference -> its owner: ``borrower`` holds it too.

    Answered with None, from when on the owner waits for the borrower itself.
    """

    object_id: ObjectID
    borrower: WorkerAddress
    contained_in: ObjectID = 0
    size_bytes: int = SMALL_BYTES


class PinObjectIDs(NamedTuple):
    """Owner or executor -> raylet: these are primary copies, keep them.

    Answered with which were there (a tuple of bool).
    """

    object_ids: tuple[ObjectID, ...]
    owner: WorkerAddress
    size_bytes: int = SMALL_BYTES


class FreeObjects(NamedTuple):
    """Owner -> nodes that hold copies: unpin and delete them, and the spilled file. One way.

    In Ray: pub/sub WORKER_OBJECT_EVICTION to the primary's node, then FreeObjects between nodes.
    """

    object_ids: tuple[ObjectID, ...]
    size_bytes: int = SMALL_BYTES


class SubscribeObjectLocations(NamedTuple):
    """Object manager -> owner.

    The owner sends ``ObjectLocations`` now and at every change, until unsubscribed.
    """

    object_id: ObjectID
    subscriber: str
    unsubscribe: bool = False
    size_bytes: int = SMALL_BYTES


class ObjectLocations(NamedTuple):
    """Owner -> object manager (pub/sub WORKER_OBJECT_LOCATIONS). One way."""

    object_id: ObjectID
    object_size: int
    node_ids: tuple[NodeID, ...]
    """Nodes that hold it in memory."""
    spilled_url: str = ""
    spilled_node: NodeID = -1
    """-1 with a url: on cloud storage."""
    pending_creation: bool = False
    ref_removed: bool = False
    """The owner has let go of it, or never knew it."""
    error: TaskError | None = None
    """It has failed: why, where its value would be."""
    size_bytes: int = SMALL_BYTES


class LocationUpdate(NamedTuple):
    """One copy more or less, or a spill."""

    object_id: ObjectID
    added: bool | None
    """None: nothing about a copy in memory."""
    spilled_url: str = ""
    spilled_to_cloud: bool = False


class UpdateObjectLocationBatch(NamedTuple):
    """Object manager or raylet -> owner. One way."""

    node_id: NodeID
    updates: tuple[LocationUpdate, ...]

    @property
    def size_bytes(self) -> int:
        """About a hundred bytes an object."""
        return SMALL_BYTES + 100 * len(self.updates)
