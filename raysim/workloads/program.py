"""Ray programs as jobs: scripts, workloads or libraries' jobs, and what goes wrong meanwhile.

One is the cluster's driver from the beginning. Several share the cluster: each is submitted at its
time, as by ``ray job submit``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raysim.perf.constants import TrainingConstants
from raysim.perf.ray_core import RayCosts
from raysim.rayapi.launch.commands import Command
from raysim.raycore.autoscaler import AutoscalerConfig
from raysim.raycore.cloud import EVERYWHERE, CloudSpec
from raysim.raycore.config import RayConfig
from raysim.raylibs.data.stored import StoredFiles
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
class Submission:
    """One job of several; retries and deadline are a RayJob's."""

    name: str
    at_s: float = 0.0
    script: Path | None = None
    source: str | None = None
    """The script's text, if it is not in its file."""
    workload: Workload | None = None
    library: LibraryJob | None = None
    args: tuple[str, ...] = ()
    mode: str = ""
    """``submissionMode`` of a RayJob: applied at ``at_s``, submitted when all is ready."""
    own_cluster: bool = False
    """Of a RayJob: the cluster starts with it."""
    paid_after_s: float | None = None
    """Of a RayJob: how long its cluster stays when it has finished; None: nobody shuts it down."""
    resources: dict[str, Any] = field(default_factory=dict)
    """What the entrypoint holds, as options of its actor: ``num_cpus``."""
    runtime_env: dict[str, Any] = field(default_factory=dict)
    backoff_limit: int = 0
    """How often it is submitted again after it has failed."""
    active_deadline_s: float | None = None
    """It is stopped, and has failed, so long after it was submitted first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotSpec:
    """Nodes that the cloud takes back: how often, and how long before it says so."""

    per_hour: float
    """Mean number per node and hour; times are exponential."""
    notice_s: float = 120.0
    """0: none; health checks find out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramJob:
    """What is run."""

    name: str
    submissions: tuple[Submission, ...] = ()
    """Several jobs; then neither ``script`` nor ``workload`` is given."""
    script: Path | None = None
    """A Ray program; None: ``workload`` or ``library`` says what is done."""
    workload: Workload | None = None
    library: LibraryJob | None = None
    args: tuple[str, ...] = ()
    launched: Command | None = None
    """What starts the script's ranks, if it is no Ray program."""
    compute: str = "measured"
    """``measured``, ``declared`` or ``table``; of a workload or a library's job, ``drawn``."""
    compute_table: Path | None = None
    """Of ``table``: the compute.csv of an earlier run."""
    node_speed: float = 1.0
    """Speed of a core of the cluster over this host's."""
    config: RayConfig = field(default_factory=RayConfig)
    costs: RayCosts = field(default_factory=RayCosts)
    """Service times of Ray's own code on these machines."""
    training: TrainingConstants = field(default_factory=TrainingConstants)
    """Of GPUs and hosts, for the steps of a script's own training loops."""
    autoscaling: AutoscalerConfig | None = None
    clouds: CloudSpec = EVERYWHERE
    """How machines come."""
    spot: dict[str, SpotSpec] = field(default_factory=dict)
    """By node group."""
    kuberay: bool = False
    """An operator replaces pods that are lost, if no autoscaler does."""
    object_store_bytes: int | None = None
    files: tuple[StoredFiles, ...] = ()
    """That scripts may read, and that are described only."""
    faults: tuple[FaultEvent, ...] = ()
    until_s: float | None = None
    steps: int | None = None
    """Optimizer steps of a training run after which a script is stopped (``rayapi.enough``)."""
    stops: bool = False
    """Where those are None: a Ray program is stopped, too, once its only run's steps are alike."""

    @property
    def title(self) -> str:
        """The script's file name, the kind of workload or library, or how many jobs."""
        if self.submissions:
            return f"{len(self.submissions)} jobs"
        if self.launched is not None:
            return self.launched.title
        if self.script is not None:
            return self.script.name
        if self.library is not None:
            return self.library.kind
        return re.sub("(?<=[a-z])(?=[A-Z])", "_", type(self.workload).__name__).lower()
