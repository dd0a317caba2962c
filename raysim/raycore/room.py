"""What every room of Ray Core is given: the run's shared, unchanging surroundings."""

from __future__ import annotations

from dataclasses import dataclass, field

from raysim.hardware.node import Node
from raysim.hardware.transfer import Network
from raysim.kernel.simulation import Simulation
from raysim.perf.ray_core import RayCosts
from raysim.raycore.config import RayConfig
from raysim.raycore.ids import Ids, NodeID, WorkerID
from raysim.raycore.launcher import ProcessLauncher
from raysim.raycore.resource_view import ResourceView
from raysim.raycore.state_log import StateLog


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
    nodes: list[Node]
    """Hardware, by NodeID."""
    launcher: ProcessLauncher
    head: NodeID = 0
    """Where the GCS is."""
    submitting: dict[NodeID, dict[WorkerID, int]] = field(default_factory=dict)
    """Programs that submit one call after another, by node, and until when (``Submission``)."""
