"""``deepspeed.comm``: ``init_distributed``, and the calls of ``torch.distributed`` that only ask.

Real counterpart: ``deepspeed/comm/comm.py``.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from raysim.rayapi.shapes.here import worker_here
from raysim.rayapi.unsupported import NotEmulatedError


def __getattr__(name: str) -> Any:
    if name in {"get_rank", "get_world_size", "barrier", "is_initialized", "all_reduce",
                "broadcast", "is_available"}:  # fmt: skip
        return getattr(dist, name)
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotEmulatedError(f"deepspeed.comm.{name}", "get_rank, get_world_size, barrier")


def init_distributed(*_args: Any, **_kwargs: Any) -> None:
    """``deepspeed.init_distributed``: once; Ray Train has done it."""
    worker = worker_here()
    if worker is not None and not worker.in_group:
        worker.join_group()


def get_local_rank() -> int:
    """On its node."""
    return int(dist.get_node_local_rank())
