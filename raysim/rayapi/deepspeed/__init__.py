"""The module ``deepspeed`` (0.19) in training workers on virtual time.

Real counterpart: ``deepspeed/__init__.py``. Whether the real one is installed does not matter.
"""

from __future__ import annotations

from typing import Any

from raysim.rayapi.deepspeed import accelerator, checkpointing, comm, ops, pipe, utils, zero
from raysim.rayapi.deepspeed.accelerator import get_accelerator
from raysim.rayapi.deepspeed.autotp import tp_model_init
from raysim.rayapi.deepspeed.comm import init_distributed
from raysim.rayapi.deepspeed.engine import (
    DeepSpeedEngine,
    add_config_arguments,
    initialize,
)
from raysim.rayapi.deepspeed.pipe import LayerSpec, PipelineEngine, PipelineModule, TiedLayerSpec
from raysim.rayapi.unsupported import NotEmulatedError

__version__ = "0.19.8"

_INSTEAD = "deepspeed.initialize, its engine, and PipelineModule"


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotEmulatedError(f"deepspeed.{name}", _INSTEAD)


__all__ = [
    "DeepSpeedEngine",
    "LayerSpec",
    "PipelineEngine",
    "PipelineModule",
    "TiedLayerSpec",
    "accelerator",
    "add_config_arguments",
    "checkpointing",
    "comm",
    "get_accelerator",
    "init_distributed",
    "initialize",
    "ops",
    "pipe",
    "tp_model_init",
    "utils",
    "zero",
]
