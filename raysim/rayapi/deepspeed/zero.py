"""``deepspeed.zero``: constructing models in parts.

Real counterpart: ``deepspeed/runtime/zero/partition_parameters.py``. Parameters have no values, so
nothing is gathered and nothing is split; what that takes is in the step's prediction.
"""

from __future__ import annotations

from contextlib import contextmanager
from enum import Enum
from typing import Any

from raysim.rayapi.unsupported import NotEmulatedError


class ZeroParamStatus(Enum):
    """``partition_parameters.ZeroParamStatus``: of ZeRO-3's parameters."""

    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3


def zero_wrapper_for_fp_tensor_constructor(fn: Any, *_args: Any, **_kwargs: Any) -> Any:
    """Of ``partition_parameters``; transformers puts another in its place: ``fn`` itself."""
    return fn


@contextmanager
def Init(*_args: Any, **_kwargs: Any) -> Any:  # noqa: N802  (DeepSpeed's name)
    """``deepspeed.zero.Init``."""
    yield


@contextmanager
def GatheredParameters(*_args: Any, **_kwargs: Any) -> Any:  # noqa: N802  (DeepSpeed's name)
    """``deepspeed.zero.GatheredParameters``."""
    yield


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotEmulatedError(f"deepspeed.zero.{name}", "deepspeed.zero.Init")
