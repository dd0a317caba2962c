"""``deepspeed.utils.groups``: which ranks share experts, and which hold the same ones.

Real counterpart: ``deepspeed/utils/groups.py`` (``_create_expert_and_data_parallel``): neighbours
share a layer's experts, every ``ep_size``-th rank holds the same ones; so too AutoTP's layers.

Not modelled: ``use_data_before_expert_parallelism``, experts of an ``mpu``, sequence parallelism.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from raysim.rayapi.deepspeed import parallel_state
from raysim.rayapi.shapes.here import worker_here
from raysim.rayapi.unsupported import NotEmulatedError

mpu = None
expert_tensor_parallel_world_size = 1
_alone: dict[Any, Any] = {}
"""Groups outside of a worker: there are none."""


def _own(kind: str) -> dict[str, Any]:
    """Groups of the worker that asks, by name."""
    worker = worker_here()
    known: dict[Any, Any] = _alone if worker is None else worker.globals
    found: dict[str, Any] = known.setdefault((__name__, kind), {})
    return found


def _get_expert_parallel_group_dict() -> dict[str, Any]:
    """Groups that share a layer's experts, by name."""
    return _own("ep")


def _get_expert_data_parallel_group_dict() -> dict[str, Any]:
    """Groups that hold the same experts, by name."""
    return _own("edp")


def _create_expert_and_data_parallel(expert_parallel_size_: int, **_more: Any) -> None:
    """Both kinds, for one ``ep_size``; every rank calls it."""
    world, rank = dist.get_world_size(), dist.get_rank()
    size = expert_parallel_size_
    assert world % size == 0, f"{world} is not divisible by {size}"
    every = {
        "edp": [list(range(i, world, size)) for i in range(size)],
        "ep": [list(range(i, i + size)) for i in range(0, world, size)],
    }
    for kind, some in every.items():
        for ranks in some:
            group = dist.new_group(ranks)
            if rank in ranks:
                _own(kind)[f"ep_size_{size}"] = group
                _own(f"{kind}_ranks")[f"ep_size_{size}"] = ranks


def _init_tp_mesh_device(tensor_model_parallel_size: int = 1, **_more: Any) -> tuple[Any, Any]:
    """Neighbours that share layers (AutoTP), and ranks that hold the same parts of them."""
    world, rank, size = dist.get_world_size(), dist.get_rank(), tensor_model_parallel_size
    assert world % size == 0, f"{world} is not divisible by {size}"
    own = _own("tensor")
    for kind, some in (
        ("data", [range(i, world, size) for i in range(size)]),
        ("model", [range(i, i + size) for i in range(0, world, size)]),
    ):
        for ranks in some:
            group = dist.new_group(list(ranks))
            if rank in ranks:
                own[kind] = group
    return own["data"], own["model"]


def get_tensor_model_parallel_group() -> Any:
    """Ranks that share layers with this one."""
    assert "model" in _own("tensor"), "intra_layer_model parallel group is not initialized"
    return _own("tensor")["model"]


def get_data_parallel_group() -> Any:
    """Ranks that hold the same parts of layers."""
    assert "data" in _own("tensor"), "data parallel group is not initialized"
    return _own("tensor")["data"]


def get_tensor_model_parallel_world_size() -> int:
    """How many share layers."""
    return dist.get_world_size(get_tensor_model_parallel_group())


def get_tensor_model_parallel_rank() -> int:
    """Place among those that share layers."""
    return dist.get_rank(get_tensor_model_parallel_group())


def get_tensor_model_parallel_src_rank() -> int:
    """The first of those that share layers."""
    size = get_tensor_model_parallel_world_size()
    return dist.get_rank() // size * size


def get_data_parallel_world_size() -> int:
    """How many hold the same parts."""
    return dist.get_world_size(get_data_parallel_group())


def get_data_parallel_rank() -> int:
    """Place among those that hold the same parts."""
    return dist.get_rank(get_data_parallel_group())


get_model_parallel_group = get_tensor_model_parallel_group
get_model_parallel_world_size = get_tensor_model_parallel_world_size
get_model_parallel_rank = get_tensor_model_parallel_rank


def tensor_parallel(mpu: Any) -> int:
    """Ranks that share each layer: ``bwc_tensor_model_parallel_world_size`` (``utils/bwc.py``)."""
    if hasattr(mpu, "initialize_sequence_parallel"):
        return 1  # its model-parallel ranks are those that share sequences
    for name in ("tensor_model", "slice", "model"):
        asked = getattr(mpu, f"get_{name}_parallel_world_size", None)
        if asked is not None:
            return int(asked())
    return 1


def sequence_parallel(mpu: Any) -> int:
    """Ranks that share each sequence; 1: none do."""
    asked = getattr(mpu, "get_sequence_parallel_world_size", None)
    return 1 if asked is None else int(asked())


def replicas_of_batch(mpu: Any, ranks: int, said: dict[str, Any]) -> int:
    """Of so many ranks with the same weights, those with samples of their own (``config.py``).

    ``said``: the JSON, whose word counts without an ``mpu``.
    """
    own = getattr(mpu, "get_data_parallel_world_size", None)
    if own is not None:
        return int(own())
    pieces = said.get("sequence_parallel_size") if mpu is None else sequence_parallel(mpu)
    return ranks // int(pieces or 1)


def _get_max_expert_size_name() -> str:
    """Of the largest ``ep_size``."""
    return f"ep_size_{max(int(name.split('_')[2]) for name in _own('ep'))}"


def _get_max_expert_parallel_group() -> Any:
    """Of the largest ``ep_size``."""
    return _get_expert_parallel_group(_get_max_expert_size_name())


def _get_expert_parallel_group(group_name: str) -> Any:
    """Ranks that share experts with this one."""
    assert group_name in _own("ep"), "expert parallel group is not initialized"
    return _own("ep")[group_name]


def _get_expert_data_parallel_group(group_name: str) -> Any:
    """Ranks that hold the experts of this one."""
    assert group_name in _own("edp"), "expert data parallel group is not initialized"
    return _own("edp")[group_name]


def _get_expert_parallel_group_ranks(group_name: str) -> list[int]:
    """Ranks of the former."""
    return list(_own("ep_ranks")[group_name])


def _get_expert_data_parallel_group_ranks(group_name: str) -> list[int]:
    """Ranks of the latter."""
    return list(_own("edp_ranks")[group_name])


def _get_expert_parallel_world_size(group_name: str) -> int:
    """How many share experts."""
    return dist.get_world_size(_get_expert_parallel_group(group_name))


def _get_expert_data_parallel_world_size(group_name: str) -> int:
    """How many hold the same ones."""
    return dist.get_world_size(_get_expert_data_parallel_group(group_name))


def _get_expert_parallel_rank(group_name: str) -> int:
    """Place among those that share experts."""
    return dist.get_rank(_get_expert_parallel_group(group_name))


def _get_expert_data_parallel_rank(group_name: str) -> int:
    """Place among those that hold the same ones."""
    return dist.get_rank(_get_expert_data_parallel_group(group_name))


def _get_data_parallel_group() -> Any:
    """All ranks."""
    return dist.group.WORLD


def _get_data_parallel_world_size() -> int:
    """All ranks."""
    return dist.get_world_size()


def _get_data_parallel_rank() -> int:
    """Of all ranks."""
    return dist.get_rank()


def _get_model_parallel_world_size() -> int:
    """A model is whole on each rank, experts aside."""
    return 1


def _get_expert_model_parallel_world_size() -> int:
    """Experts are whole on their ranks."""
    return expert_tensor_parallel_world_size


_get_sequence_parallel_group = parallel_state.get_sequence_parallel_group
_get_sequence_parallel_rank = parallel_state.get_sequence_parallel_rank


def _get_sequence_parallel_world_size() -> int:
    """How many share a sequence; 1: none do."""
    return parallel_state.get_sequence_parallel_world_size() if parallel_state.groups() else 1


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotEmulatedError(
        f"deepspeed.utils.groups.{name}", "groups of expert and of data parallelism"
    )
