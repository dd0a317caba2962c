"""``bitsandbytes``: its optimizers by their names; states take what 8 bits take.

Real counterpart: ``bitsandbytes/optim`` (0.49). Weights in 4 bits: ``huggingface/four_bit.py``.
"""

from __future__ import annotations

from typing import Any

import torch

__version__ = "0.49.0"


class _Named(torch.optim.Optimizer):
    def __init__(self, params: Any, lr: float = 1e-3, **more: Any) -> None:
        super().__init__(params, {"lr": lr, "fused": True, **more})

    def step(self, closure: Any = None) -> Any:
        """What it computes is not."""
        return None if closure is None else closure()


class Adam(_Named):
    """``bitsandbytes.optim.Adam``: 32 bits."""


class AdamW(_Named):
    """``bitsandbytes.optim.AdamW``: 32 bits."""


class Adam8bit(_Named):
    """``bitsandbytes.optim.Adam8bit``."""


class AdamW8bit(_Named):
    """``bitsandbytes.optim.AdamW8bit``."""


class PagedAdam8bit(_Named):
    """``bitsandbytes.optim.PagedAdam8bit``."""


class PagedAdamW8bit(_Named):
    """``bitsandbytes.optim.PagedAdamW8bit``."""


class optim:  # noqa: N801  (a module of theirs)
    """``bitsandbytes.optim``."""

    Adam, AdamW, Adam8bit, AdamW8bit = Adam, AdamW, Adam8bit, AdamW8bit
    PagedAdam8bit, PagedAdamW8bit = PagedAdam8bit, PagedAdamW8bit
