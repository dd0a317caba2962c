"""``deepspeed.runtime.sequence_parallel.parallel_state_sp``: ranks that share sequences.

Real counterpart: the module of that name (0.19), which is itself the ``mpu`` that
``deepspeed.initialize`` is given: neighbours have a piece of a sequence each, ZeRO's states are
divided over all ranks.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from raysim.rayapi.shapes.here import worker_here


def groups() -> dict[str, Any]:
    """Of the worker that asks; none before they are made."""
    worker = worker_here()
    found: dict[str, Any] = {} if worker is None else worker.globals.setdefault(__name__, {})
    return found


def initialize_sequence_parallel(sequence_parallel_size: int) -> None:
    """Neighbours' groups, and that of all ranks; every rank calls it.

    Raises
    ------
    RuntimeError, ValueError
        A size that does not divide the ranks, in DeepSpeed's words.
    """
    world, rank, size = dist.get_world_size(), dist.get_rank(), sequence_parallel_size
    if world < size:
        raise RuntimeError(f"world_size ({world}) is less than sequence_parallel_size {size}")
    if size <= 1:
        raise ValueError(f"sequence_parallel_size must be greater than 1, got {size}")
    if world % size:
        raise RuntimeError(
            f"world_size ({world}) is not divisible by sequence_parallel_size {size})"
        )
    own = groups()
    assert "pieces" not in own, "sequence parallel group is already initialized"
    for first in range(0, world, size):
        ranks = list(range(first, first + size))
        group = dist.new_group(ranks)
        if rank in ranks:
            own["pieces"] = group
    own["all"] = dist.new_group(list(range(world)))


def get_sequence_parallel_group() -> Any:
    """Ranks that share sequences with this one."""
    assert "pieces" in groups(), "sequence parallel group is not initialized"
    return groups()["pieces"]


def get_sequence_data_parallel_group() -> Any:
    """All ranks."""
    assert "all" in groups(), "sequence data parallel group is not initialized"
    return groups()["all"]


def get_sequence_parallel_world_size() -> int:
    """How many share a sequence."""
    return dist.get_world_size(get_sequence_parallel_group())


def get_sequence_data_parallel_world_size() -> int:
    """All ranks."""
    return dist.get_world_size(get_sequence_data_parallel_group())


def get_sequence_parallel_rank() -> int:
    """Place among those that share a sequence."""
    return dist.get_rank(get_sequence_parallel_group())


def get_sequence_data_parallel_rank() -> int:
    """Place among all."""
    return dist.get_rank(get_sequence_data_parallel_group())


get_model_parallel_rank = get_sequence_parallel_rank
get_model_parallel_world_size = get_sequence_parallel_world_size
get_model_parallel_group = get_sequence_parallel_group
