"""A training job: how many steps of a plan, fed by which data, saved how often, started how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from raysim.training.plan import TrainingPlan
from raysim.workloads.failures import Failures
from raysim.workloads.machines import Machines


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """Where samples come from and what the CPU pays for each."""

    train_samples: int | None = None
    eval_samples: int = 0
    eval_batch_per_gpu: int | None = None
    """None: the training micro-batch."""
    cpu_seconds_per_sample: float = 0.0
    """Decode and transform on one vCPU; loaders overlap with the GPU."""
    loader_workers: int = 0
    """Loader processes per GPU; 0: the training process itself loads, nothing overlaps."""
    bytes_per_sample: float = 0.0
    """Copied host to device per sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """When and what is saved."""

    every_epoch: bool = False
    every_s: float | None = None
    every_steps: int | None = None
    optimal: bool = False
    """Instead of both: as often as makes a run with failures shortest."""
    kind: Literal["model", "full"] = "full"
    """``model``: low-precision weights from rank 0; ``full``: weights and sharded optimizer
    state.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainJob:
    """One ``TorchTrainer`` run."""

    name: str
    plan: TrainingPlan
    epochs: int | None = None
    steps: int | None = None
    """Optimizer steps in all; exactly one of ``epochs`` (with ``data.train_samples``) and
    ``steps``.
    """
    data: DataSettings = field(default_factory=DataSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    machines: Machines = field(default_factory=Machines)
    failures: Failures | None = None
    resume: bool = False
    """It loads a checkpoint before the first step."""
    exact: bool = False
    """Simulate every rank instead of one per class of symmetric ranks."""
