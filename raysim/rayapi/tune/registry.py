"""The module ``ray.tune.registry``: trainables and environments by name (ray 2.60)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raysim.rayapi.tune.tuner import REGISTERED, registered


def register_trainable(name: str, trainable: Any) -> None:
    """``tune.register_trainable``."""
    REGISTERED[name] = trainable


def register_env(name: str, env_creator: Callable[[Any], Any]) -> None:
    """``tune.register_env``: what makes an environment of this name, for RLlib."""
    from raysim.rayapi.rllib import environments

    environments.register_env(name, env_creator)


def get_trainable_cls(trainable_name: str) -> Any:
    """The trainable of a name.

    Raises
    ------
    ValueError
        There is none.
    """
    found = registered(trainable_name)
    if isinstance(found, str):
        raise ValueError(f"Unknown trainable: {trainable_name}")
    return found
