"""``ray.air``: configurations as they were before Ray Train and Ray Tune had their own.

Real counterpart: ``ray/air/config.py``, ``ray/air/session.py`` of ray 2.60. Tune takes
them; Train takes none and says so. ``session`` is Tune's.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

from raysim.rayapi import tune
from raysim.rayapi.train.configs import OfWorkers
from raysim.rayapi.tune import CheckpointConfig, FailureConfig, PlacementGroupFactory, Result
from raysim.rayapi.tune.configs import RunConfig as TuneRunConfig
from raysim.rayapi.unsupported import getattr_of


class RunConfig(TuneRunConfig):
    """``ray.air.RunConfig``."""


@dataclass
class ScalingConfig(OfWorkers):
    """``ray.air.ScalingConfig``: of a trainer that is a bundle itself, which holds one CPU."""

    trainer_resources: dict[str, float] | None = None
    num_workers: int | None = None
    use_gpu: bool = False
    resources_per_worker: dict[str, float] | None = None
    placement_strategy: Any = "PACK"
    accelerator_type: str | None = None
    use_tpu: bool = False
    topology: str | None = None

    def __post_init__(self) -> None:
        """As Ray checks."""
        self.check_gpus()

    @property
    def _each(self) -> dict[str, float]:
        said = self.resources_per_worker
        found: dict[str, float] = (
            {"CPU": 1} if said is None and not self.use_gpu else dict(said or {})
        )
        return found | ({"GPU": found.get("GPU", 1)} if self.use_gpu else {})

    @property
    def total_resources(self) -> dict[str, float]:
        """Of the trainer and its workers."""
        total = dict(self.trainer_resources or {"CPU": 1})
        for name, amount in self._each.items():
            total[name] = total.get(name, 0.0) + amount * (self.num_workers or 0)
        return total

    def as_placement_group_factory(self) -> PlacementGroupFactory:
        """A bundle of every worker; the trainer is in the first."""
        bundles = [dict(self._each) for _ in range(self.num_workers or 0)]
        first = bundles[0] if bundles else {}
        for name, amount in (self.trainer_resources or {"CPU": 1}).items():
            first[name] = first.get(name, 0.0) + amount
        return PlacementGroupFactory(bundles or [first], strategy=self.placement_strategy)


def _session() -> Any:
    made: Any = ModuleType("ray.air.session")
    made.report, made.get_checkpoint = tune.report, tune.get_checkpoint
    for what in ("experiment_name", "trial_name", "trial_id", "trial_resources", "trial_dir"):
        setattr(made, f"get_{what}", _of_context(f"get_{what}"))
    return made


def _of_context(name: str) -> Any:
    def said() -> Any:
        return getattr(tune.get_context(), name)()

    return said


session = _session()
for _class in (RunConfig, ScalingConfig):
    _class.__module__ = "ray.air.config"
__all__ = ["CheckpointConfig", "FailureConfig", "Result", "RunConfig", "ScalingConfig", "session"]
__getattr__ = getattr_of("ray.air")
