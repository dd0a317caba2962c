"""Jobs, the key-value store and state: anyone -> GCS."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from raysim.raycore.ids import JobID, NodeID, WorkerAddress
from raysim.raycore.protocol.addresses import SMALL_BYTES
from raysim.raycore.protocol.groups import PlacementGroupTableData
from raysim.raycore.resources import ResourceSet
from raysim.raycore.tasks import LabelMatch


class AddJob(NamedTuple):
    """A driver has started; answered with None."""

    job_id: JobID
    driver: WorkerAddress
    namespace: str
    entrypoint: str = ""
    size_bytes: int = 1_000


class MarkJobFinished(NamedTuple):
    """A driver has ended: its actors (not detached) and groups end with it. Answered None."""

    job_id: JobID
    size_bytes: int = SMALL_BYTES


class JobFinished(NamedTuple):
    """GCS -> raylets (pub/sub GCS_JOB): end the workers of the job. One way."""

    job_id: JobID
    size_bytes: int = SMALL_BYTES


class InternalKVPut(NamedTuple):
    """Answered with True if the key was new."""

    namespace: str
    key: str
    value: Any
    value_bytes: int
    overwrite: bool = True

    @property
    def size_bytes(self) -> int:
        """Header and value."""
        return SMALL_BYTES + self.value_bytes


class KVValue(NamedTuple):
    """A value with its size, as answered."""

    value: Any
    size_bytes: int


class InternalKVGet(NamedTuple):
    """Answered with ``KVValue`` or None."""

    namespace: str
    key: str
    size_bytes: int = SMALL_BYTES


class InternalKVDel(NamedTuple):
    """Answered with how many there were."""

    namespace: str
    key: str
    size_bytes: int = SMALL_BYTES


class InternalKVKeys(NamedTuple):
    """Answered with the keys of a namespace that begin so."""

    namespace: str
    prefix: str
    size_bytes: int = SMALL_BYTES


class GetAllNodeInfo(NamedTuple):
    """Answered with a tuple of ``NodeTableData``."""

    size_bytes: int = SMALL_BYTES


class NodeTableData(NamedTuple):
    """A row of the node table."""

    node_id: NodeID
    state: Literal["ALIVE", "DRAINING", "DEAD"]
    is_head: bool
    resources: dict[str, int]
    available: dict[str, int]
    labels: dict[str, str]
    node_type: str
    death_reason: str = ""
    start_ns: int = 0
    end_ns: int = -1
    drain_deadline_ns: int = -1
    """Of a DRAINING node, as ``GetDrainingNodes`` tells it; 0: it has none; -1: not draining."""
    size_bytes: int = 500


class WatchNodes(NamedTuple):
    """Any process -> GCS; answered with ``Nodes`` as soon as they are not those of ``seen``.

    It stands for asking again and again (``GetAllNodeInfo``, ``GetDrainingNodes``): who would ask
    every so often works out when that would have found the change.
    """

    seen: int = -1
    """Version of the table that is known."""
    size_bytes: int = SMALL_BYTES


class Nodes(NamedTuple):
    """The nodes that live, at a version of the table."""

    version: int
    rows: tuple[NodeTableData, ...]
    deadlines_ns: dict[NodeID, int]
    """Of those that drain; 0: none is known."""
    since_ns: int = 0
    """When it became so."""
    size_bytes: int = 1_000


class GetAllActorInfo(NamedTuple):
    """Answered with a tuple of ``ActorTableData``."""

    size_bytes: int = SMALL_BYTES


class ResourceDemand(NamedTuple):
    """``requests`` waiting requests of one shape."""

    resources: ResourceSet
    requests: int
    label_selector: tuple[LabelMatch, ...] = ()


class GetResourceLoad(NamedTuple):
    """GCS -> raylet, every second while anything waits there.

    Answered with a tuple of ``ResourceDemand``: queued and infeasible leases and backlogs.
    """

    size_bytes: int = SMALL_BYTES


class GetClusterResourceState(NamedTuple):
    """Autoscaler -> GCS; answered with ``ClusterResourceState``."""

    size_bytes: int = SMALL_BYTES


class ClusterResourceState(NamedTuple):
    """What the autoscaler sees."""

    nodes: tuple[NodeTableData, ...]
    idle_since_ns: tuple[int, ...]
    """Of each node; -1: in use."""
    demands: tuple[ResourceDemand, ...]
    gangs: tuple[PlacementGroupTableData, ...]
    """Placement groups that wait."""
    constraints: tuple[ResourceSet, ...]
    """``request_resources``."""
    size_bytes: int = 10_000


class RequestClusterResourceConstraint(NamedTuple):
    """``ray.autoscaler.sdk.request_resources``. Answered None."""

    bundles: tuple[ResourceSet, ...]
    size_bytes: int = SMALL_BYTES
