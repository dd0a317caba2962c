"""What a user sets on a trainer: ``ScalingConfig``, ``RunConfig`` and what is in them.

Real counterpart: ``python/ray/train/v2/api/config.py`` and ``python/ray/air/config.py``. Not
modelled: TPUs, local mode (``num_workers=0``), callbacks, validation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from raysim.hardware.specs import SharedStorageSpec
from raysim.raycore.process import BundleStrategy

WITHOUT_LIMIT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingConfig:
    """How many workers, and what each holds."""

    num_workers: int | tuple[int, int] = 1
    """Or the fewest and the most, of an elastic run."""
    use_gpu: bool = False
    resources_per_worker: Mapping[str, float] | None = None
    placement_strategy: BundleStrategy = "PACK"
    elastic_resize_monitor_interval_s: float | None = None
    """None: as Ray Train has it."""

    def __post_init__(self) -> None:
        assert 1 <= self.min_workers <= self.max_workers, f"num_workers {self.num_workers}"

    @property
    def elastic(self) -> bool:
        """Whether the group may have other sizes."""
        return isinstance(self.num_workers, tuple)

    @property
    def min_workers(self) -> int:
        """Fewest."""
        return self.num_workers if isinstance(self.num_workers, int) else self.num_workers[0]

    @property
    def max_workers(self) -> int:
        """Most."""
        return self.num_workers if isinstance(self.num_workers, int) else self.num_workers[1]

    @property
    def resources(self) -> dict[str, float]:
        """Of one worker: a GPU and no CPU, or a CPU, if nothing is said."""
        if self.resources_per_worker is None:
            return {"GPU": 1.0} if self.use_gpu else {"CPU": 1.0}
        said = {name: float(n) for name, n in self.resources_per_worker.items() if n}
        if self.use_gpu:
            said.setdefault("GPU", 1.0)
        return said

    @property
    def backend(self) -> str:
        """What ``TorchConfig(backend=None)`` comes to."""
        return "nccl" if self.resources.get("GPU") else "gloo"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureConfig:
    """How often a run begins again; -1: without limit."""

    max_failures: int = 0
    """Of workers."""
    controller_failure_limit: int = WITHOUT_LIMIT
    """Of starts of the worker group."""
    max_preemption_failures: int = WITHOUT_LIMIT
    """Of nodes that were taken back."""
    preemption_grace_s: float = 0.0
    """How long survivors go on past the deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """Which of the reported checkpoints stay."""

    num_to_keep: int | None = None
    checkpoint_score_attribute: str | None = None
    checkpoint_score_order: Literal["max", "min"] = "max"

    def __post_init__(self) -> None:
        assert self.num_to_keep is None or self.num_to_keep >= 1, "num_to_keep is None or >= 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Where results go, and what happens when something fails."""

    name: str = "ray_train_run"
    storage: SharedStorageSpec | None = None
    """``storage_path``: what all nodes reach; None: a folder on each node's own disk."""
    failure_config: FailureConfig = field(default_factory=FailureConfig)
    checkpoint_config: CheckpointConfig = field(default_factory=CheckpointConfig)
