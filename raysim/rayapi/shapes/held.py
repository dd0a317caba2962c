"""Whether a script still has a model's output, or what it made of it, when backward begins.

Logits live as long as somebody holds them: ``loss = model(x).loss`` lets them go, as transformers'
Trainer does, ``logits, loss = model(x)`` holds them until the loop comes round and the next
forward has made others; a function that ends before that lets them go too.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import torch

from raysim.tracing.operators import tensors

OWN = "raysim."
"""Modules whose variables are the emulator's."""


def holding(outputs: Any) -> tuple[bool, bool]:
    """Whether a caller's variable is the outputs, or one of their tensors that is no number.

    And whether it is until the caller's loop comes round.
    """
    large = [t for t in tensors(outputs) if t.dim()]
    wanted = {id(t) for t in large} | ({id(outputs)} if large else set())
    found = [(f, name) for f in _callers() for name, v in f.f_locals.items() if _has(v, wanted)]
    return bool(found), any(_comes_round(frame, name) for frame, name in found)


def held_among(made: Iterable[torch.Tensor]) -> set[int]:
    """Identities of those that a caller's variable is, or has in it, but for numbers."""
    candidates = {id(t): t for t in made if t.dim()}
    values = [value for frame in _callers() for value in frame.f_locals.values()]
    return {key for key in candidates if any(_has(value, {key}) for value in values)}


def _callers() -> Iterator[FrameType]:
    """All but the emulator itself."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        if not frame.f_globals.get("__name__", "").startswith(OWN):
            yield frame
        frame = frame.f_back


def _comes_round(frame: FrameType, name: str) -> bool:
    """Whether a frame is within a loop of its own that does not delete the variable."""
    here, inside = frame.f_lasti, False
    for step in dis.get_instructions(frame.f_code):
        if step.opname.startswith("DELETE_") and step.argval == name:
            return False
        jumps = "JUMP" in step.opname and isinstance(step.argval, int)
        inside = inside or (jumps and step.argval <= here < step.offset)
    return inside


def _has(value: Any, wanted: set[int]) -> bool:
    if id(value) in wanted:
        return True
    if isinstance(value, dict):  # by what it holds: transformers' mappings load all their models
        return any(id(part) in wanted for part in dict.values(value))
    return isinstance(value, tuple | list) and any(id(part) in wanted for part in value)
