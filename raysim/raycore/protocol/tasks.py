"""Tasks: owner or GCS -> worker (``core_worker.proto``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from raysim.raycore.ids import ActorID, NodeID, ObjectID, TaskID, WorkerAddress, WorkerID
from raysim.raycore.protocol.addresses import SMALL_BYTES
from raysim.raycore.resources import Allocation
from raysim.raycore.tasks import SPEC_BYTES, Payload, Ref, TaskError, TaskSpec


class PushTask:
    """Run this, as ``push_task`` puts it. Answered with ``PushTaskReply``."""

    __slots__ = ("resource_ids", "size_bytes", "spec")

    spec: TaskSpec
    resource_ids: Allocation
    size_bytes: int
    """The spec with its inlined arguments."""


def push_task(spec: TaskSpec, resource_ids: Allocation) -> PushTask:
    """The message that has ``spec`` run; soonest made without an ``__init__``, as ``Reply``."""
    message = PushTask()
    message.spec = spec
    message.resource_ids = resource_ids
    message.size_bytes = spec.size_bytes if spec.args else SPEC_BYTES
    return message


@dataclass(slots=True)
class ReturnObject:
    """One return: inline, or where it is."""

    object_id: ObjectID
    size_bytes: int
    """Of the value."""
    payload: Payload | None
    """None: it is in plasma on the executor's node."""
    contained: tuple[Ref, ...] = ()
    """References inside it, when it is in plasma."""


class Borrowed(NamedTuple):
    """An argument (or what was inside one) that the executor still holds a reference to."""

    object_id: ObjectID
    borrower: WorkerAddress
    owner: WorkerAddress


@dataclass(slots=True)
class PushTaskReply:
    """The task's end."""

    returns: tuple[ReturnObject, ...]
    error: TaskError | None = None
    node_id: NodeID = 0
    """Where plasma returns are."""
    borrowed: tuple[Borrowed, ...] = ()
    worker_exiting: bool = False
    items: int = 0
    """Of a streaming generator: how many it made."""

    @property
    def size_bytes(self) -> int:
        """Headers and inlined values."""
        size_bytes = SMALL_BYTES if self.error is None else SMALL_BYTES + self.error.size_bytes
        for item in self.returns:
            if item.payload is not None:
                size_bytes += item.size_bytes
        return size_bytes


class ReportGeneratorItemReturns(NamedTuple):
    """Executor -> owner: one item of a streaming generator.

    Answered with the number of items the consumer has taken (an int), late if backpressure holds
    the executor up.
    """

    task_id: TaskID
    item: ReturnObject
    node_id: NodeID
    attempt: int

    @property
    def size_bytes(self) -> int:
        """Header and inlined value."""
        return SMALL_BYTES + (self.item.size_bytes if self.item.payload is not None else 0)


class CancelTask(NamedTuple):
    """Owner -> executor; answered with True if it was found."""

    task_id: TaskID
    force_kill: bool
    recursive: bool
    size_bytes: int = SMALL_BYTES


class CancelRemoteTask(NamedTuple):
    """Borrower -> owner: cancel what makes this object. One way."""

    object_id: ObjectID
    force_kill: bool
    recursive: bool
    size_bytes: int = SMALL_BYTES


class KillActor(NamedTuple):
    """Raylet -> actor's worker: exit. One way."""

    actor_id: ActorID
    force_kill: bool
    no_restart: bool
    reason: str = ""
    size_bytes: int = SMALL_BYTES


class KillLocalActor(NamedTuple):
    """GCS -> raylet: have an actor's worker exit. One way."""

    worker_id: WorkerID
    order: KillActor
    size_bytes: int = SMALL_BYTES
