"""``torchvision.ops``: the layers that models written elsewhere take from it (timm).

Real counterpart: ``torchvision/ops/misc.py``. Not there: what needs its compiled code (``nms``,
``roi_align``).
"""

from __future__ import annotations

import torch

__version__ = "0.28.0"


class FrozenBatchNorm2d(torch.nn.Module):
    """A batch norm of ``num_features`` channels whose statistics and weights are buffers."""

    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        for name, made in (
            ("weight", torch.ones), ("bias", torch.zeros),
            ("running_mean", torch.zeros), ("running_var", torch.ones),
        ):  # fmt: skip
            self.register_buffer(name, made(num_features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of pictures (N, C, H, W): one product and one sum, as torchvision writes it."""
        w, b, mean, var = (
            getattr(self, name).reshape(1, -1, 1, 1)
            for name in ("weight", "bias", "running_mean", "running_var")
        )
        scale = w * (var + self.eps).rsqrt()
        found: torch.Tensor = x * scale + (b - mean * scale)
        return found
