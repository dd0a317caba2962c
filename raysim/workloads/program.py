"""A Ray program as a job: script, workload or library's job, and what goes wrong meanwhile."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from raysim.perf.ray_core import RayCosts
from raysim.raycore.autoscaler import AutoscalerConfig
from raysim.raycore.config import RayConfig
from raysim.workloads.library import LibraryJob
from raysim.workloads.ray.start import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultEvent:
    """One thing that goes wrong, by the name of the method of ``raycore.faults.Faults``."""

    at_s: float
    kind: str
    node_id: int
    notice_s: float = 120.0
    share: float = 1.0
    restart_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramJob:
    """What is run."""

    name: str
    script: Path | None = None
    """A Ray program; None: ``workload`` or ``library`` says what is done."""
    workload: Workload | None = None
    library: LibraryJob | None = None
    args: tuple[str, ...] = ()
    compute: str = "measured"
    """``measured``, ``declared`` or ``table``; of a workload or a library's job, ``drawn``."""
    compute_table: Path | None = None
    """Of ``table``: the compute.csv of an earlier run."""
    node_speed: float = 1.0
    """Speed of a core of the cluster over this host's."""
    config: RayConfig = field(default_factory=RayConfig)
    costs: RayCosts = field(default_factory=RayCosts)
    """Service times of Ray's own code on these machines."""
    autoscaling: AutoscalerConfig | None = None
    object_store_bytes: int | None = None
    faults: tuple[FaultEvent, ...] = ()
    until_s: float | None = None

    @property
    def title(self) -> str:
        """The script's file name, or the kind of workload or library: ``task_bag``."""
        if self.script is not None:
            return self.script.name
        if self.library is not None:
            return self.library.kind
        return re.sub("(?<=[a-z])(?=[A-Z])", "_", type(self.workload).__name__).lower()
