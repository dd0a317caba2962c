"""raysim: throughput and memory per GPU of Ray and DeepSpeed jobs, before renting a GPU.

The public door. Names are imported on first use, so ``import raysim`` costs nothing.

Examples
--------
>>> import raysim
>>> result = raysim.run(raysim.load("scenarios/vit_cifar10_ddp"))
>>> print(result.summary["verdict"]["text"])
Fits: ... on the fullest GPU ...; ... images/s on 4 GPUs.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysim.by_hand import Cluster
    from raysim.errors import (
        CalibrationError,
        InfeasibleError,
        InvariantViolation,
        RaysimError,
        ScenarioError,
    )
    from raysim.hardware.cluster import ClusterSpec, FabricSpec, NodeGroup
    from raysim.kernel.simulation import Simulation
    from raysim.models.table import Model
    from raysim.planner.door import plan, sweep
    from raysim.rayapi.compute import charge, cost
    from raysim.results.result import Result
    from raysim.run import run
    from raysim.scenario.load import Scenario, load
    from raysim.training.plan import TrainingPlan
    from raysim.what_if import WhatIf, save, what_if
    from raysim.workloads.train_job import TrainJob

__version__ = "0.1.0"

__all__ = [
    "CalibrationError",
    "Cluster",
    "ClusterSpec",
    "FabricSpec",
    "InfeasibleError",
    "InvariantViolation",
    "Model",
    "NodeGroup",
    "RaysimError",
    "Result",
    "Scenario",
    "ScenarioError",
    "Simulation",
    "TrainJob",
    "TrainingPlan",
    "WhatIf",
    "charge",
    "cost",
    "load",
    "plan",
    "run",
    "save",
    "sweep",
    "what_if",
]

_HOME = {
    "CalibrationError": "errors",
    "InfeasibleError": "errors",
    "InvariantViolation": "errors",
    "RaysimError": "errors",
    "ScenarioError": "errors",
    "Cluster": "by_hand",
    "ClusterSpec": "hardware.cluster",
    "FabricSpec": "hardware.cluster",
    "NodeGroup": "hardware.cluster",
    "Simulation": "kernel.simulation",
    "Model": "models.table",
    "plan": "planner.door",
    "sweep": "planner.door",
    "charge": "rayapi.compute",
    "cost": "rayapi.compute",
    "Result": "results.result",
    "run": "run",
    "Scenario": "scenario.load",
    "load": "scenario.load",
    "TrainingPlan": "training.plan",
    "TrainJob": "workloads.train_job",
    "WhatIf": "what_if",
    "save": "what_if",
    "what_if": "what_if",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its home, once."""
    if name not in _HOME:
        raise AttributeError(f"module 'raysim' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"raysim.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


class _Door(ModuleType):
    """Keeps ``raysim.run`` the function, also after the module of the same name is imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """By name, as any module, when a remote function refers to it."""
        return importlib.import_module, (__name__,)


sys.modules[__name__].__class__ = _Door
