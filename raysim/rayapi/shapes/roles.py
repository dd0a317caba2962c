"""Forwards that are alike: what they give, what they were given, and the model that they are of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from raysim.models.table import Model
from raysim.rayapi.shapes.known import META
from raysim.tracing.operators import tensors

_C: Any = torch._C  # noqa: SLF001  (modes of a thread have no other door)


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


def again(outputs: Any, *, grad: bool = True) -> Any:
    """Outputs like those of before, of a graph that is not there."""

    def like(t: torch.Tensor) -> torch.Tensor:
        made = torch.empty(t.shape, dtype=t.dtype, device=META)
        if grad and t.requires_grad:
            return made.requires_grad_().clone()  # no leaf, which could not be changed in place
        return made

    with _C.DisableTorchFunction():
        if isinstance(outputs, torch.Tensor):
            return like(outputs)
        return tree_map_only(torch.Tensor, like, outputs)
