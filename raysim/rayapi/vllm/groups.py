"""``vllm.distributed``: groups between trainers and workers, and a worker's place.

Real counterparts: ``vllm/distributed/{utils,parallel_state}.py``, ``pynccl.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from raysim.rayapi.shapes.here import worker_here
from raysim.rayapi.shapes.links import Link
from raysim.rayapi.vllm.workers import local_rank


@dataclass
class StatelessProcessGroup:
    """Where ranks meet."""

    host: str
    port: int
    rank: int
    world_size: int

    @staticmethod
    def create(
        host: str, port: int, rank: int, world_size: int, **_more: Any
    ) -> StatelessProcessGroup:
        """One rank's end."""
        return StatelessProcessGroup(host, port, rank, world_size)


class PyNcclCommunicator:
    """``PyNcclCommunicator``."""

    def __init__(self, group: StatelessProcessGroup, device: Any = None, **_more: Any) -> None:
        self.rank, self.world_size, self.device = group.rank, group.world_size, device
        self.disabled, self.available = False, True
        name = f"tcp://{group.host}:{group.port}"
        self._link = Link(name, group.world_size, group.rank, local_rank())

    def broadcast(self, tensor: Any, src: int, stream: Any = None) -> None:
        """One rank's to all."""
        del src, stream
        self._link.collective("broadcast", tensor)

    def all_reduce(self, in_tensor: Any, *_args: Any, **_kwargs: Any) -> Any:
        """A sum of all."""
        self._link.collective("all_reduce", in_tensor)
        return in_tensor

    def group_start(self) -> None:
        """What follows goes together; each is waited for here."""

    group_end = group_start


def get_world_group() -> Any:
    """Of the engine whose worker calls."""
    worker: Any = worker_here()
    several = len(worker.places) > 1
    rank = local_rank() if several else worker.context.rank
    size = len(worker.places) if several else worker.context.world_size
    return SimpleNamespace(
        rank=rank, rank_in_group=rank, local_rank=rank, world_size=size,
        device_group=None, cpu_group=None,
    )  # fmt: skip


get_tp_group = get_world_group


def get_tensor_model_parallel_rank() -> int:
    """Of the worker that calls."""
    return int(get_world_group().rank)


def get_tensor_model_parallel_world_size() -> int:
    """Of its engine."""
    return int(get_world_group().world_size)
