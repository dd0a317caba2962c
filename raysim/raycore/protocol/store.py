"""The object store: worker, raylet or object manager -> plasma (``plasma.fbs``)."""

from __future__ import annotations

from typing import NamedTuple

from raysim.raycore.ids import ObjectID, WorkerAddress
from raysim.raycore.protocol.addresses import SMALL_BYTES
from raysim.raycore.tasks import Payload


class PlasmaCreate(NamedTuple):
    """Make room; answered with ``PlasmaCreated`` or a ``TaskError`` OUT_OF_DISK, in queue order.

    Creating is a use by the client. Of a primary copy, the use ends when the object manager pins it
    (``PinObjectIDs``), so the client need not release what it made.
    """

    object_id: ObjectID
    object_size: int
    owner: WorkerAddress
    client: str
    """Address of who creates it; its death aborts what it has not sealed."""
    primary: bool = True
    """Made here by its owner or task; False: received from another node, or restored."""
    try_immediately: bool = False
    """Do not queue: go to fallback allocation at once if there is no room."""
    writer: str = ""
    """Address of the process that writes to its pages, if the client has another do so."""
    size_bytes: int = SMALL_BYTES


class PlasmaCreated(NamedTuple):
    """There is room for it."""

    fallback: bool = False
    """On disk, outside the capacity."""
    existed: bool = False
    """The object is there already; do not write or seal."""
    fresh_bytes: int = 0
    """Of its memory, what nobody has written to yet: the kernel must provide those pages first."""
    unmapped_bytes: int = 0
    """Of the rest, what who writes has not written to yet: the kernel must map those pages."""
    size_bytes: int = SMALL_BYTES


class PlasmaSeal(NamedTuple):
    """It is written: readable from now on. Answered with None."""

    object_id: ObjectID
    payload: Payload
    size_bytes: int = SMALL_BYTES


class PlasmaAbort(NamedTuple):
    """It will not be written. One way."""

    object_id: ObjectID
    size_bytes: int = SMALL_BYTES


class PlasmaGet(NamedTuple):
    """Wait until all are sealed here, and use them (one use per id until released).

    Answered with a tuple of ``Payload``. ``timeout_ns`` 0: what is here now, None for the rest.
    """

    object_ids: tuple[ObjectID, ...]
    client: str
    timeout_ns: int | None = None
    size_bytes: int = SMALL_BYTES


class PlasmaRelease(NamedTuple):
    """A client does not use it any more. One way."""

    object_id: ObjectID
    client: str
    size_bytes: int = SMALL_BYTES


class PlasmaContains(NamedTuple):
    """Which are sealed here (a tuple of bool)."""

    object_ids: tuple[ObjectID, ...]
    size_bytes: int = SMALL_BYTES


class PlasmaDelete(NamedTuple):
    """Delete as soon as nobody uses them. One way; from the raylet or object manager."""

    object_ids: tuple[ObjectID, ...]
    size_bytes: int = SMALL_BYTES


class ObjectSealed(NamedTuple):
    """Plasma -> object manager: it is here now. One way, same process."""

    object_id: ObjectID
    object_size: int
    owner: WorkerAddress
    primary: bool
    fallback: bool = False
    size_bytes: int = 0


class ObjectDeleted(NamedTuple):
    """Plasma -> object manager: evicted or deleted. One way, same process."""

    object_id: ObjectID
    size_bytes: int = 0


class PlasmaReserve(NamedTuple):
    """Object manager -> plasma: a client is about to get these; keep them from eviction until then.

    Its next ``PlasmaGet`` of each takes the place over. Answered with which are here (a tuple of
    bool). It holds up neither spilling nor deletion.
    """

    object_ids: tuple[ObjectID, ...]
    client: str
    size_bytes: int = 0


class StoreFull(NamedTuple):
    """Plasma -> object manager: the head of the create queue does not fit; spill.

    Answered with ``SpillStatus``; sent again whenever something has changed and it still does not.
    """

    needed_bytes: int
    size_bytes: int = 0


class SpillStatus(NamedTuple):
    """The answer to ``StoreFull``, and sent by itself when a spill of then has ended."""

    spilling: bool
    """Spills are under way."""
    disk_full: bool
    """Above ``local_fs_capacity_threshold``."""
    size_bytes: int = 0


class GetStoreUsage(NamedTuple):
    """Object manager -> plasma; answered with ``StoreUsage``, then one ``StoreChanged``."""

    size_bytes: int = 0


class StoreUsage(NamedTuple):
    """How full the store is."""

    capacity_bytes: int
    available_bytes: int
    """Free, evictable, or of objects in the making."""
    size_bytes: int = 0


class IsObjectSpillable(NamedTuple):
    """Object manager -> plasma: which of these does nobody but you use (a tuple of bool).

    If not all of them: ``StoreChanged`` comes once when one more is.
    """

    object_ids: tuple[ObjectID, ...]
    size_bytes: int = 0


class StoreChanged(NamedTuple):
    """Plasma -> object manager, once per question: what was asked has changed. One way."""

    spillable: bool
    """Of ``IsObjectSpillable``, else of ``GetStoreUsage``."""
    size_bytes: int = 0


class ClientDisconnected(NamedTuple):
    """Raylet -> plasma, object manager: a worker has gone, with what it used and asked. One way."""

    client: str
    size_bytes: int = 0
