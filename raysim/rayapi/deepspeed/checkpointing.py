"""``deepspeed.checkpointing``: blocks whose activations are computed again.

Real counterpart: ``deepspeed/runtime/activation_checkpointing/checkpointing.py``. How they are kept
is what the JSON's ``activation_checkpointing`` says; not modelled: ``configure`` of another.
"""

from __future__ import annotations

from typing import Any

import torch.utils.checkpoint

from raysim.rayapi.unsupported import NotEmulatedError


def configure(*_args: Any, **_kwargs: Any) -> None:
    """``deepspeed.checkpointing.configure``: what the engine's JSON says too."""


def is_configured() -> bool:
    """``deepspeed.checkpointing.is_configured``."""
    return True


def checkpoint(function: Any, *args: Any) -> Any:
    """``deepspeed.checkpointing.checkpoint``."""
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=True)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotEmulatedError(f"deepspeed.checkpointing.{name}", "deepspeed.checkpointing.checkpoint")
