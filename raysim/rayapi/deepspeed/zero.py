"""``deepspeed.zero``: constructing models in parts.

Real counterpart: ``deepspeed/runtime/zero/partition_parameters.py``. Parameters have no values, so
nothing is split; what gathering takes is in the step's prediction. In actors of Ray Core (whose
programs gather to send weights elsewhere) ``GatheredParameters`` takes an all-gather.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import contextmanager
from enum import Enum
from typing import Any

from raysim.rayapi.shapes.here import worker_here
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
def GatheredParameters(  # noqa: N802  (DeepSpeed's name)
    params: Any, *_args: Any, enabled: bool = True, **_kwargs: Any
) -> Any:
    """``deepspeed.zero.GatheredParameters``: of parameters that ZeRO-3 has split."""
    worker = worker_here()
    if enabled and worker is not None:
        each = (
            params if isinstance(params, Iterable) and not hasattr(params, "nbytes") else [params]
        )
        worker.gathers(sum(p.nbytes for p in each if hasattr(p, "ds_id")))
    yield


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotEmulatedError(f"deepspeed.zero.{name}", "deepspeed.zero.Init")
