"""Forwards that are alike: what they give, what they were given, and the model that they are of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from raysim.models.table import Model
from raysim.tracing.operators import tensors


@dataclass(kw_only=True)
class Role:
    """What a forward gives, and once a backward has followed, the model it was of."""

    outputs: Any
    model: Model | None = None
    recomputes: bool = False
    """It checkpoints activations."""
    held: bool = False
    """The script has its output in a variable when backward begins."""
    half: torch.dtype | None = None
    """What it casts to within."""
    batch: int = 1
    input_bytes: int = 0


def samples_of(given: Any) -> int:
    """The first tensor's leading dimension."""
    first = next(tensors(given), None)
    return int(first.shape[0]) if first is not None and first.dim() else 1


def bytes_of(given: Any) -> int:
    """Of all its tensors."""
    return sum(t.nbytes for t in tensors(given))
