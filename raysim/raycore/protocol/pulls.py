"""Pulls, pushes and spills: between object managers, and from raylet and workers to theirs."""

from __future__ import annotations

from typing import Literal, NamedTuple

from raysim.hardware.topology import Link
from raysim.raycore.ids import NodeID, ObjectID, WorkerAddress
from raysim.raycore.protocol.addresses import SMALL_BYTES
from raysim.raycore.tasks import Payload, Ref

PullPriority = Literal["GET", "WAIT", "TASK_ARGS"]


class AsyncGetObjects(NamedTuple):
    """Get these here.

    Answered with None when all are local and pinned for the request (or with a ``TaskError`` that
    the owner's word caused: OWNER_DIED, OBJECT_FETCH_TIMED_OUT, ...). Of TASK_ARGS they stay pinned
    until ``CancelGetRequest``; of GET until the worker's ``PlasmaGet``, which should follow. From a
    worker for get and wait, from the raylet for a lease's arguments.
    """

    request_id: tuple[str, int]
    """(address of who asks, its number)."""
    refs: tuple[Ref, ...]
    priority: PullPriority
    size_bytes: int = SMALL_BYTES


class CancelGetRequest(NamedTuple):
    """Not needed any more: unpin what came. One way."""

    request_id: tuple[str, int]
    size_bytes: int = SMALL_BYTES


class Pull(NamedTuple):
    """Object manager -> object manager: send me this; sent again after a timeout. One way."""

    object_id: ObjectID
    requester: NodeID
    through: Link | None = None
    """The requester's threads that copy chunks, as a link which the transfer goes through."""
    size_bytes: int = SMALL_BYTES


class PushBegun(NamedTuple):
    """Object manager -> object manager: the first chunk; all follow as one flow. One way."""

    object_id: ObjectID
    object_size: int
    owner: WorkerAddress
    source: NodeID
    size_bytes: int = SMALL_BYTES


class PushDone(NamedTuple):
    """Object manager -> object manager: the last chunk; None: no more will come. One way."""

    object_id: ObjectID
    payload: Payload | None
    source: NodeID
    size_bytes: int = SMALL_BYTES


class SpillObjects(NamedTuple):
    """Object manager -> IO worker: write these into one file; answered with its url or an error."""

    object_ids: tuple[ObjectID, ...]
    total_bytes: int
    fresh_bytes: int
    """Of those, what goes to pages of memory that no file of this node had before."""
    size_bytes: int = SMALL_BYTES


class RestoreSpilledObjects(NamedTuple):
    """Object manager -> IO worker: read it back; answered with None or an error.

    The object manager makes room in plasma before and seals after.
    """

    object_id: ObjectID
    object_size: int
    url: str
    fresh_bytes: int = 0
    unmapped_bytes: int = 0
    """Of the room made for it, as ``PlasmaCreated`` says."""
    size_bytes: int = SMALL_BYTES


class DeleteSpilledObjects(NamedTuple):
    """Object manager -> IO worker: remove the files. One way."""

    urls: tuple[str, ...]
    size_bytes: int = SMALL_BYTES


class PullStatus(NamedTuple):
    """Object manager -> raylet, at every change.

    Whether pulls wait for room here (its node then does not count as available to leases that bring
    arguments) and the pinned primary bytes it reports as object_store_memory used. One way, same
    process.
    """

    blocked: bool
    primary_bytes: int
    used_bytes: int
    """Of the store in all, as the memory monitor counts it."""
    leases_blocked: tuple[int, ...] = ()
    """Leases whose arguments wait for room, and did not when this was last told."""
    leases_unblocked: tuple[int, ...] = ()
    """Leases of which that is no longer true."""
    size_bytes: int = 0
