"""``deepspeed.compression.helper``: the two functions that scripts of LoRA take from it.

Real counterpart: ``deepspeed/compression/helper.py``. Compressing itself is refused by name.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from raysim.rayapi.unsupported import NotEmulatedError


def recursive_getattr(model: Any, module_name: str) -> Any:
    """The module of a dotted name."""
    return attrgetter(module_name)(model)


def recursive_setattr(model: Any, module_name: str, module: Any) -> None:
    """Another in its place."""
    parent, _, name = module_name.rpartition(".")
    setattr(recursive_getattr(model, parent) if parent else model, name, module)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotEmulatedError(f"deepspeed.compression.{name}", "training without compression")
