"""``deepspeed.comm``: ``init_distributed``, and the calls of ``torch.distributed`` that only ask.

Real counterpart: ``deepspeed/comm/comm.py``.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch.distributed as dist

from raysim.rayapi.shapes.here import worker_here
from raysim.rayapi.unsupported import NotEmulatedError


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if hasattr(dist, name):  # DeepSpeed's have torch's parameters, and some for its own log
        return _unlogged(getattr(dist, name))
    raise NotEmulatedError(f"deepspeed.comm.{name}", "the functions that torch.distributed has too")


def _unlogged(torchs: Any) -> Any:
    """Without what only DeepSpeed's log of collectives is told."""
    if not callable(torchs) or isinstance(torchs, type):
        return torchs

    @wraps(torchs)
    def call(
        *args: Any, prof: Any = None, log_name: Any = None, debug: Any = None, **more: Any
    ) -> Any:
        del prof, log_name, debug
        return torchs(*args, **more)

    return call


def get_world_group() -> Any:
    """Of all ranks."""
    return dist.group.WORLD


def get_all_ranks_from_group(group: Any = None) -> list[int]:
    """By their numbers in the world."""
    return list(dist.get_process_group_ranks(group))


def has_all_gather_into_tensor() -> bool:
    """torch's version has."""
    return True


def has_reduce_scatter_tensor() -> bool:
    """And this."""
    return True


def log_summary(*_args: Any, **_kwargs: Any) -> None:
    """Of DeepSpeed's log, which nobody writes: raysim's report has collectives."""


def init_distributed(*_args: Any, **_kwargs: Any) -> None:
    """``deepspeed.init_distributed``: once; Ray Train has done it."""
    worker = worker_here()
    if worker is not None and not worker.in_group:
        worker.join_group()


def get_local_rank() -> int:
    """On its node."""
    return int(dist.get_node_local_rank())
