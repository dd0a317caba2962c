"""Nodes: raylet <-> GCS (``gcs_service.proto``)."""

from __future__ import annotations

from typing import Literal, NamedTuple

from raysim.raycore.ids import NodeID, WorkerAddress, WorkerID
from raysim.raycore.protocol.addresses import SMALL_BYTES


class RegisterNode(NamedTuple):
    """A raylet joins; answered with None."""

    node_id: NodeID
    address: str
    resources: dict[str, int]
    labels: dict[str, str]
    is_head: bool = False
    node_type: str = ""
    """Of the autoscaler's node types."""
    incarnation: int = 0
    """How often this raylet has died; in Ray each start has a node id of its own."""
    size_bytes: int = 1_000


class UnregisterNode(NamedTuple):
    """A raylet leaves in good order; answered with None."""

    node_id: NodeID
    reason: str = ""
    size_bytes: int = SMALL_BYTES


class CheckAlive(NamedTuple):
    """GCS -> raylet (health check), or raylet -> GCS about itself; answered with True."""

    node_id: NodeID = -1
    size_bytes: int = SMALL_BYTES


class ReachabilityChanged(NamedTuple):
    """The wiring -> GCS, and to a raylet that is cut off.

    What health checks of a node will meet from now on: an answer, a refused connection, or nothing.
    It stands for the checks of healthy nodes, which therefore cost nothing; from here on the GCS
    plays each check that fails, and the raylet asks the GCS about itself. One way, instant.
    """

    node_id: NodeID
    how: Literal["answers", "refuses", "silent"]
    size_bytes: int = 0


class NodeRemoved(NamedTuple):
    """GCS -> every subscriber (pub/sub GCS_NODE_INFO). One way."""

    node_id: NodeID
    expected: bool
    """Drained or preempted: restarts and retries are not charged."""
    reason: str
    size_bytes: int = SMALL_BYTES


class NodeAdded(NamedTuple):
    """GCS -> every subscriber. One way."""

    node_id: NodeID
    size_bytes: int = SMALL_BYTES


class WorkerFailed(NamedTuple):
    """Raylet -> GCS (ReportWorkerFailure), and GCS -> subscribers (pub/sub WORKER_DELTA).

    A worker or driver has died; objects it owned are lost, leases it held end. One way.
    """

    worker: WorkerAddress
    reason: str
    intended: bool = False
    size_bytes: int = SMALL_BYTES


class SubscribeAll(NamedTuple):
    """Raylet, worker -> GCS.

    Send me NodeAdded, NodeRemoved, WorkerFailed (and to drivers errors) from now on; answered with
    None.
    """

    subscriber: str
    worker_failures: bool = True
    """Whether WorkerFailed too; the messages are workers x subscribers, so only if of use."""
    missed: bool = False
    """Answer with the workers and the nodes that are dead already, as two dicts."""
    size_bytes: int = SMALL_BYTES


class DrainNode(NamedTuple):
    """Autoscaler or operator -> GCS; answered with (accepted, reason)."""

    node_id: NodeID
    reason: Literal["IDLE_TERMINATION", "PREEMPTION"]
    deadline_ns: int
    """Absolute; 0: none."""
    message: str = ""
    size_bytes: int = SMALL_BYTES


class DrainRaylet(NamedTuple):
    """GCS -> raylet; answered with (accepted, reason)."""

    reason: Literal["IDLE_TERMINATION", "PREEMPTION"]
    deadline_ns: int
    message: str = ""
    size_bytes: int = SMALL_BYTES


class ReportResources(NamedTuple):
    """Raylet -> GCS (ray_syncer), at most once per 100 ms and only when something changed.

    The GCS publishes it into the shared ``ResourceView``. One way.
    """

    node_id: NodeID
    version: int
    """Of the node's resources: two reports with the same amounts may differ in it alone."""
    available: dict[str, int]
    total: dict[str, int]
    draining: bool
    pulls_blocked: bool
    idle_since_ns: int
    """-1 while in use."""
    demand_waiting: bool = False
    """Leases wait here, or are infeasible, or owners reported backlogs: ``GetResourceLoad`` of this
    raylet is worth asking for."""
    size_bytes: int = 500


class ReleaseUnusedActorWorkers(NamedTuple):
    """GCS after its restart -> raylets: keep these leased workers for actors, end the others."""

    worker_ids: tuple[WorkerID, ...]
    size_bytes: int = SMALL_BYTES
