"""What a trainer is asked to do: ``TorchTrainer(...)``, as one frozen spec.

Real counterpart: ``python/ray/train/v2/api/data_parallel_trainer.py`` and
``python/ray/train/torch/config.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Script
from raysim.raycore.tasks import TaskError
from raysim.raylibs.train.config import RunConfig, ScalingConfig
from raysim.raylibs.train.datasets import TrainDataset
from raysim.raylibs.train.defaults import TRAIN_2_60, TrainDefaults
from raysim.raylibs.train.reports import Checkpoint, TrainingReport
from raysim.raylibs.train.worker import TrainFunction

PROCESS_GROUP_S = 1.0
"""Rendezvous and first communicator: about a second (assumed)."""


class Watching(Protocol):
    """Who hears of a run, in its controller's process."""

    def reported(self, process: CoreProcess, reports: Sequence[TrainingReport]) -> Script:
        """Every worker has, this time."""

    def failed(self, process: CoreProcess, failures: Mapping[int, TaskError]) -> Script:
        """Workers have, by rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSpec:
    """One run."""

    function: TrainFunction
    scaling_config: ScalingConfig = field(default_factory=ScalingConfig)
    run_config: RunConfig = field(default_factory=RunConfig)
    datasets: Mapping[str, TrainDataset] = field(default_factory=dict)
    defaults: TrainDefaults = TRAIN_2_60
    import_core_s: float | None = None
    """On a core, by every worker that starts; None: the machine's ``train_worker_core_s``."""
    process_group_s: float = PROCESS_GROUP_S
    """``init_process_group``, when all ranks are there."""
    watched: Watching | None = None
    """Whom the controller tells of reports and failures."""
    earlier: tuple[tuple[Checkpoint, Mapping[str, Any]], ...] = ()
    """Checkpoints that a run of this name has left, the latest last."""
    patience_s: float = 86_400.0
    """How long a run is played that waits for nodes; Ray Train itself waits for ever."""
