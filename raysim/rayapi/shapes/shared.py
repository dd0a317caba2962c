"""What the ranks of a run know together: models that were traced, what they take, what was said."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from raysim.rayapi.shapes.prediction import Prediction
from raysim.rayapi.shapes.roles import Role

if TYPE_CHECKING:
    from raysim.training.checkpoint.cost import CheckpointCost

AskedFor = tuple[Any, ...]
"""What makes two forwards alike."""


@dataclass(kw_only=True)
class Shared:
    """What the ranks of a run know together."""

    roles: dict[AskedFor, Role] = field(default_factory=dict)
    predictions: dict[Any, Prediction] = field(default_factory=dict)
    forwards: dict[Any, int] = field(default_factory=dict)
    shapes: dict[Any, tuple[torch.Size, torch.dtype]] = field(default_factory=dict)
    """What functions of torch have made, by what they were given."""
    said: set[str] = field(default_factory=set)
    """What the user has been told."""
    steps: dict[int, tuple[Prediction, int]] = field(default_factory=dict)
    """Optimizer steps under each prediction, of rank 0; by its identity."""
    beside: dict[Any, tuple[int, int]] = field(default_factory=dict)
    """Bytes of inputs and nanoseconds of the first forward of models that are not trained."""
    saves: dict[tuple[int, str], CheckpointCost] = field(default_factory=dict)
    """Of DeepSpeed's checkpoints, by the prediction they are of and what they hold."""
    several: bool = False
    """A step has trained several modules (``shapes.several``)."""
    too_large: Prediction | None = None
    """What ran out of memory."""
