"""Whether a script still has a model's output, or what it made of it, when backward begins.

Logits live as long as somebody holds them: ``loss = model(x).loss`` lets them go, as transformers'
Trainer does, ``logits, loss = model(x)`` holds them until the loop comes round.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

import torch

from raysim.tracing.operators import tensors

OWN = "raysim."
"""Modules whose variables are the emulator's."""


def is_held(outputs: Any) -> bool:
    """Whether a caller's variable is the outputs, or one of their tensors that is no number."""
    large = [t for t in tensors(outputs) if t.dim()]
    wanted = {id(t) for t in large} | ({id(outputs)} if large else set())
    return any(_has(value, wanted) for value in _variables())


def held_among(made: Iterable[torch.Tensor]) -> set[int]:
    """Identities of those that a caller's variable is, or has in it, but for numbers."""
    candidates = {id(t): t for t in made if t.dim()}
    values = list(_variables())
    return {key for key in candidates if any(_has(value, {key}) for value in values)}


def _variables() -> Iterator[Any]:
    """Of all callers but the emulator itself."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        if not frame.f_globals.get("__name__", "").startswith(OWN):
            yield from tuple(frame.f_locals.values())
        frame = frame.f_back


def _has(value: Any, wanted: set[int]) -> bool:
    if id(value) in wanted:
        return True
    parts = value.values() if isinstance(value, Mapping) else value
    return isinstance(value, (tuple, list, dict)) and any(id(part) in wanted for part in parts)
