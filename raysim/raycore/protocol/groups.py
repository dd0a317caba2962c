"""Placement groups: worker -> GCS -> raylets."""

from __future__ import annotations

from typing import Literal, NamedTuple

from raysim.raycore.ids import ActorID, JobID, NodeID, PlacementGroupID, WorkerAddress
from raysim.raycore.protocol.addresses import SMALL_BYTES
from raysim.raycore.resources import ResourceSet
from raysim.raycore.tasks import LabelMatch


class Bundle(NamedTuple):
    """One bundle of a group."""

    group: PlacementGroupID
    bundle_index: int
    resources: ResourceSet
    label_selector: tuple[LabelMatch, ...] = ()


class CreatePlacementGroup(NamedTuple):
    """Answered when the group is persisted, with None or a ``TaskError`` (name taken)."""

    group: PlacementGroupID
    bundles: tuple[Bundle, ...]
    strategy: str
    name: str
    ray_namespace: str
    job_id: JobID
    creator: WorkerAddress
    creator_actor: ActorID
    detached: bool
    soft_target_node: NodeID | None = None
    size_bytes: int = 1_000


class WaitPlacementGroupUntilReady(NamedTuple):
    """Answered with True when it is CREATED, False when removed."""

    group: PlacementGroupID
    size_bytes: int = SMALL_BYTES


class RemovePlacementGroup(NamedTuple):
    """Answered with None."""

    group: PlacementGroupID
    size_bytes: int = SMALL_BYTES


class GetPlacementGroups(NamedTuple):
    """Rows of the table, all or one: a tuple of ``PlacementGroupTableData``."""

    group: PlacementGroupID = 0
    name: str = ""
    ray_namespace: str = ""
    size_bytes: int = SMALL_BYTES


class PlacementGroupTableData(NamedTuple):
    """A row of the table."""

    group: PlacementGroupID
    name: str
    state: Literal["PENDING", "PREPARED", "CREATED", "REMOVED", "RESCHEDULING"]
    strategy: str
    bundles: tuple[Bundle, ...]
    nodes: tuple[NodeID, ...]
    """Of each bundle; -1: not placed."""
    size_bytes: int = 1_000


class PrepareBundleResources(NamedTuple):
    """GCS -> raylet: hold these back; answered with True or False."""

    bundles: tuple[Bundle, ...]
    size_bytes: int = SMALL_BYTES


class CommitBundleResources(NamedTuple):
    """GCS -> raylet: offer them under the group's names; answered with True."""

    bundles: tuple[Bundle, ...]
    size_bytes: int = SMALL_BYTES


class CancelResourceReserve(NamedTuple):
    """GCS -> raylet: undo either; leases within end with PLACEMENT_GROUP_REMOVED. Answered None."""

    bundles: tuple[Bundle, ...]
    size_bytes: int = SMALL_BYTES
