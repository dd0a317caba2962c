"""What every room of Ray Core is given: the run's shared, unchanging surroundings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from raysim.hardware.node import Node
from raysim.hardware.storage import Disk
from raysim.hardware.topology import Link, Topology
from raysim.hardware.transfer import Network
from raysim.kernel.simulation import Simulation
from raysim.perf.ray_core import RayCosts
from raysim.raycore.config import RayConfig
from raysim.raycore.ids import Ids, NodeID, WorkerID
from raysim.raycore.launcher import ProcessLauncher
from raysim.raycore.resource_view import ResourceView
from raysim.raycore.state_log import StateLog

VOLUMES = ("ebs", "network")
"""Kinds of disks that a cloud's machines boot from; their own disks are mounted elsewhere, if at
all."""


class Changes:
    """How often what a raylet says of itself may have changed: idle polls are not played."""

    __slots__ = ("of", "wake")

    def __init__(self) -> None:
        self.of: dict[NodeID, int] = {}
        self.wake: Callable[[], object] | None = None
        """Called once, at the next change."""

    def count(self, node_id: NodeID) -> None:
        """Something may have changed there."""
        self.of[node_id] = self.of.get(node_id, 0) + 1
        wake, self.wake = self.wake, None
        if wake is not None:
            wake()


@dataclass(slots=True, kw_only=True)
class Surroundings:
    """One per cluster. Rooms read it; ``ids``, ``view`` and ``log`` change by their methods."""

    sim: Simulation
    config: RayConfig
    costs: RayCosts
    ids: Ids
    view: ResourceView
    log: StateLog
    network: Network
    topology: Topology
    nodes: list[Node]
    """Hardware, by NodeID."""
    launcher: ProcessLauncher
    head: NodeID = 0
    """Where the GCS is."""
    changes: Changes = field(default_factory=Changes)
    submitting: dict[NodeID, dict[WorkerID, int]] = field(default_factory=dict)
    """Programs that submit one call after another, by node, and until when (``Submission``)."""
    shared_links: dict[str, Link] = field(default_factory=dict)
    """Of stores that all jobs write to or read from, by name."""
    files: list[Any] = field(default_factory=list)
    """That programs may read though they are not on this machine (``raylibs.data.stored``)."""
    reports: list[Any] = field(default_factory=list)
    """What Ray's libraries say of their jobs, in the order these ended (``raylibs.report``)."""

    def spill_disks(self, node_id: NodeID) -> list[Disk]:
        """Disks of a node that spilled objects are written to, in turn."""
        disks = self.nodes[node_id].disks
        volumes = [d for d in disks if d.spec.kind in VOLUMES]
        own = [d for d in disks if d.spec.kind not in VOLUMES]
        return own or volumes if self.config.object_spilling_directory else volumes or own
