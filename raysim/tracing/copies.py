"""A module's copy, of whatever else than tensors it keeps.

Real counterpart: ``copy.deepcopy``, which nodes of autograd's graph and process groups refuse.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

UNCOPIED = (RuntimeError, TypeError, AttributeError)
"""What copying raises of what cannot be."""


def copy_of(module: torch.nn.Module, memo: dict[int, Any]) -> torch.nn.Module:
    """Attributes that cannot be copied (nodes of a graph, groups) are the original's."""
    try:
        return copy.deepcopy(module, dict(memo))
    except UNCOPIED:
        for part in module.modules():
            for name, value in vars(part).items():
                if name not in ("_modules", "_parameters", "_buffers"):
                    try:
                        copy.deepcopy(value, dict(memo))
                    except UNCOPIED:
                        memo[id(value)] = copy.copy(value) if isinstance(value, dict) else value
        return copy.deepcopy(module, memo)
