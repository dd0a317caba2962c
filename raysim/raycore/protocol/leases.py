"""Leases: owner or GCS -> raylet (``node_manager.proto``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from raysim.raycore.ids import ActorID, JobID, LeaseID, NodeID, TaskID, WorkerAddress, WorkerID
from raysim.raycore.protocol.addresses import SMALL_BYTES
from raysim.raycore.resources import Allocation, ResourceSet
from raysim.raycore.tasks import Ref, TaskOptions


@dataclass(slots=True)
class LeaseSpec:
    """What a lease is for: what all tasks of one scheduling key have in common, and its first."""

    options: TaskOptions
    resources: ResourceSet
    """To be placed (``placement_resources`` of an actor's creation)."""
    dependencies: tuple[Ref, ...]
    """Plasma arguments of the first task; of all of its key, since they make the key."""
    owner: WorkerAddress
    job_id: JobID
    task_id: TaskID
    """Of the first task, for messages."""
    depth: int = 1
    actor_id: ActorID = 0
    """Of a creation task, else 0."""
    root_detached_actor_id: ActorID = 0
    retriable: bool = True
    attempt: int = 0

    @property
    def scheduling_class(self) -> tuple[Any, ...]:
        """Tasks of one class wait in one queue of the raylet."""
        return (self.options.scheduling_class, self.depth)

    def of(self, task_id: TaskID, attempt: int) -> LeaseSpec:
        """The same, with another first task."""
        return LeaseSpec(
            self.options, self.resources, self.dependencies, self.owner, self.job_id, task_id,
            self.depth, self.actor_id, self.root_detached_actor_id, self.retriable, attempt,
        )  # fmt: skip


@dataclass(slots=True)
class RequestWorkerLease:
    """Ask for a worker. Answered, perhaps much later, with one of the four types below."""

    lease_id: LeaseID
    spec: LeaseSpec
    grant_or_reject: bool = False
    """A second hop: no more spilling, yes or no."""
    backlog: int = 0
    selected_by_locality: bool = False
    preferred_node: NodeID = -1
    """The owner's node."""
    size_bytes: int = 2_000


@dataclass(slots=True)
class LeaseGranted:
    """A worker is yours until returned."""

    lease_id: LeaseID
    worker: WorkerAddress
    resource_ids: Allocation
    size_bytes: int = SMALL_BYTES


class LeaseSpillback(NamedTuple):
    """Ask there instead, with ``grant_or_reject``."""

    node_id: NodeID
    size_bytes: int = SMALL_BYTES


class LeaseRejected(NamedTuple):
    """Of a ``grant_or_reject`` request: not free after all. Start again."""

    size_bytes: int = SMALL_BYTES


LeaseFailure = Literal[
    "INTENDED", "RUNTIME_ENV_SETUP_FAILED", "PLACEMENT_GROUP_REMOVED", "UNSCHEDULABLE",
    "NODE_DRAINED", "WORKER_START_FAILED",
]  # fmt: skip
"""``RequestWorkerLeaseReply.SchedulingFailureType``; INTENDED: the owner cancelled it."""


class LeaseCancelled(NamedTuple):
    """No lease."""

    failure: LeaseFailure
    message: str = ""
    size_bytes: int = SMALL_BYTES


@dataclass(slots=True)
class ReturnWorkerLease:
    """The worker is not needed any more. One way."""

    lease_id: LeaseID
    worker_id: WorkerID
    disconnect_worker: bool = False
    """The last task failed at system level: do not use this worker again."""
    worker_exiting: bool = False
    size_bytes: int = SMALL_BYTES


@dataclass(slots=True)
class CancelWorkerLease:
    """Answered with True if the request was still waiting."""

    lease_id: LeaseID
    size_bytes: int = SMALL_BYTES


class ReportWorkerBacklog(NamedTuple):
    """How many tasks of each class wait in this owner. One way."""

    worker_id: WorkerID
    backlogs: tuple[tuple[tuple[Any, ...], ResourceSet, int], ...]
    """(scheduling class, resources, tasks)."""
    size_bytes: int = SMALL_BYTES
