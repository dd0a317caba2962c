"""torchmetrics in workers with GPUs: of values that nobody knows, no state changes.

Real counterpart: ``torchmetrics/metric.py`` (1.4 to 1.9). Metrics count, meet and are reset as
ever; what they compute is of their first state, or nan where that has nothing to compute of. What
their kernels take is not modelled. Lightning's own metrics, behind ``self.log``, are as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced
    from raysim.rayapi.shapes.steps import Steps

_OWN = ("lightning.", "pytorch_lightning.")


def install(r: Replaced, module: ModuleType) -> None:
    """Of ``torchmetrics.metric``."""
    metric: Any = module.Metric
    r.around(metric, "_wrap_update", _update)
    r.around(metric, "_wrap_compute", _compute)
    r.around(metric, "_sync_dist", _sync)


def _update(real: Any, _steps: Steps, metric: Any, update: Callable[..., Any]) -> Any:
    if type(metric).__module__.startswith(_OWN):
        return real(metric, update)
    return real(metric, wraps(update)(lambda *_a, **_k: None))


def _compute(real: Any, _steps: Steps, metric: Any, compute: Callable[..., Any]) -> Any:
    @wraps(compute)
    def known(*args: Any, **kwargs: Any) -> Any:
        try:
            return compute(*args, **kwargs)
        except (RuntimeError, ValueError, IndexError):  # of no samples
            return torch.tensor(float("nan"))

    return real(metric, known)


def _sync(real: Any, steps: Steps, metric: Any, *_function: Any, **_group: Any) -> None:
    """States of all ranks are alike."""

    def gathered(state: Any, group: Any = None) -> list[Any]:
        del group
        worker = steps.worker.expect_group()
        worker.meet()
        return [state] * worker.context.world_size

    real(metric, gathered)
