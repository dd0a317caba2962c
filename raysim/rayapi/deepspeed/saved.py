"""``deepspeed.checkpoint.utils``: what others take from it to save models.

Real counterpart: ``deepspeed/checkpoint/utils.py``.
"""

from __future__ import annotations

from typing import Any

from raysim.rayapi.unsupported import NotEmulatedError


def clone_tensors_for_torch_save(item: Any, device: Any = None) -> Any:
    """The same: shapes share no buffer that a file would have in full."""
    del device
    return item


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotEmulatedError(f"deepspeed.checkpoint.{name}", "engine.save_checkpoint")
