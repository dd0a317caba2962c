"""``deepspeed.ops``: optimizers by their names.

Real counterparts: ``deepspeed/ops/{adam,lamb,lion,adagrad}``. Their kernels' time is the tower's.
"""

from __future__ import annotations

from typing import Any

import torch


class _Named(torch.optim.Optimizer):
    """Parameters, groups and a learning rate."""

    def __init__(self, params: Any, lr: float = 1e-3, **more: Any) -> None:
        super().__init__(params, {"lr": lr, "fused": True, **more})

    def step(self, closure: Any = None) -> Any:
        """What it computes is not."""
        return None if closure is None else closure()


class DeepSpeedOptimizer:
    """``deepspeed.runtime.base_optimizer.DeepSpeedOptimizer``: here, optimizers are torch's."""


class FusedAdam(_Named):
    """``deepspeed.ops.adam.FusedAdam``."""


class DeepSpeedCPUAdam(_Named):
    """``deepspeed.ops.adam.DeepSpeedCPUAdam``."""


class FusedLamb(_Named):
    """``deepspeed.ops.lamb.FusedLamb``."""


class FusedLion(_Named):
    """``deepspeed.ops.lion.FusedLion``."""


class DeepSpeedCPULion(_Named):
    """``deepspeed.ops.lion.DeepSpeedCPULion``."""


class DeepSpeedCPUAdagrad(_Named):
    """``deepspeed.ops.adagrad.DeepSpeedCPUAdagrad``."""
