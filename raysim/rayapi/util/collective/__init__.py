"""``ray.util.collective``: collectives between actors, with their values and their time.

Real counterpart: ``python/ray/util/collective/collective.py`` of ray 2.60. Tensors are numpy's or
torch's; those of an NCCL group lie on this machine's CPU and stand for ones on the GPU that their
actor holds. The calls of several GPUs per process, which need cupy, are refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from raysim.rayapi.calls import program_call, this_fiber
from raysim.rayapi.unsupported import NotEmulatedError, getattr_of
from raysim.rayapi.util.collective.groups import Brought, Group, groups_here
from raysim.rayapi.util.collective.types import Backend, ReduceOp, reduced

_ENV = "collective_"
"""What Ray's variables of a group begin with."""
_ONE_GPU = "the same call without _multigpu, in an actor of each GPU"


def nccl_available() -> bool:
    """Ranks that hold a GPU have it."""
    return True


def gloo_available() -> bool:
    """Always."""
    return True


def is_backend_available(backend: str) -> bool:
    """Whether it is one of the two."""
    return backend.upper() in ("NCCL", "GLOO")


def register_collective_backend(name: str, group_cls: type) -> None:
    """``register_collective_backend``: not emulated."""
    del group_cls
    raise NotEmulatedError(f"ray.util.collective's backend {name!r}", "NCCL and GLOO")


# ---- groups --------------------------------------------------------------------------------------


class Info:
    """The named actor that knows a declared group."""

    def set_info(self, ids: Any, world_size: int, ranks: Any, backend: str, timeout: int) -> None:
        """By the driver."""
        self.info = ids, world_size, ranks, backend, timeout

    def get_info(self) -> Any:
        """To an actor of the group."""
        return self.info


@program_call
def is_group_initialized(group_name: str) -> bool:
    """Whether this process is in it."""
    return group_name in groups_here()


@program_call
def init_collective_group(
    world_size: int,
    rank: int,
    backend: str = Backend.NCCL,
    group_name: str = "default",
    gloo_timeout: int = 30000,
) -> None:
    """Join a group; returns when all ranks have."""
    del gloo_timeout
    _inside()
    if not group_name:
        raise ValueError(f"group_name '{group_name}' needs to be a string.")
    if group_name in groups_here():
        raise RuntimeError("Trying to initialize a group a second time.")
    assert world_size > 0
    assert 0 <= rank < world_size
    _join(backend, world_size, rank, group_name)


@program_call
def create_collective_group(
    actors: Sequence[Any],
    world_size: int,
    ranks: Sequence[int],
    backend: str = Backend.NCCL,
    group_name: str = "default",
    gloo_timeout: int = 30000,
) -> None:
    """Declare actors a group, from a driver; they join at their first collective."""
    from raysim.rayapi import api

    try:
        api.get_actor(f"info_{group_name}")
    except ValueError:
        pass
    else:
        raise RuntimeError("Trying to initialize a group twice.")
    _check(actors, world_size, ranks)
    _known(backend)
    info = api.remote(Info).options(name=f"info_{group_name}", lifetime="detached").remote()
    ids = [a._ray_actor_id for a in actors]  # noqa: SLF001  (as Ray does)
    api.get([info.set_info.remote(ids, world_size, list(ranks), backend, gloo_timeout)])


def _check(actors: Sequence[Any], world_size: int, ranks: Sequence[int]) -> None:
    if len(ranks) != len(actors):
        raise RuntimeError(
            f"Each actor should correspond to one rank. Got '{len(ranks)}' ranks but "
            f"'{len(actors)}' actors"
        )
    if set(ranks) != set(range(len(ranks))):
        said = "".join(map(str, ranks))
        raise RuntimeError(f"Ranks must be a permutation from 0 to '{len(ranks)}'. Got '{said}'.")
    if world_size <= 0:
        raise RuntimeError(f"World size must be greater than zero. Got '{world_size}'.")


@program_call
def destroy_collective_group(group_name: str = "default") -> None:
    """Leave it."""
    from raysim.rayapi import api

    _inside()
    group = groups_here().pop(group_name, None)
    if group is None:
        return
    group.leave()
    with suppress(ValueError):
        api.kill(api.get_actor(f"info_{group_name}"))


@program_call
def get_rank(group_name: str = "default") -> int:
    """Of the process that calls; -1 outside the group."""
    _inside()
    group = groups_here().get(group_name)
    return -1 if group is None else group.rank


@program_call
def get_collective_group_size(group_name: str = "default") -> int:
    """How many ranks; -1 outside the group."""
    _inside()
    group = groups_here().get(group_name)
    return -1 if group is None else group.world_size


@program_call
def get_group_handle(group_name: str = "default") -> Group:
    """The group, which this process joins if it has been declared.

    Raises
    ------
    RuntimeError
        Nobody has initialized or declared it.
    """
    from raysim.rayapi import api

    _inside()
    if group_name in groups_here():
        return groups_here()[group_name]
    try:
        info = api.get_actor(f"info_{group_name}")
        ids, world_size, ranks, backend, _ = api.get(info.get_info.remote())
        rank = ranks[ids.index(api.get_runtime_context().actor_id)]
    except ValueError as error:
        if os.environ.get(_ENV + "group_name") != group_name:
            raise RuntimeError(
                f"The collective group '{group_name}' is not initialized in the process."
            ) from error
        rank = int(os.environ[_ENV + "rank"])
        world_size = int(os.environ[_ENV + "world_size"])
        backend = os.environ[_ENV + "backend"]
    return _join(backend, world_size, rank, group_name)


def _join(backend: str, world_size: int, rank: int, name: str) -> Group:
    group = Group(name, _known(backend), world_size, rank)
    groups_here()[name] = group
    return group


def _known(backend: str) -> str:
    upper = backend.upper()
    if upper not in ("NCCL", "GLOO"):
        raise ValueError(f"Backend {upper} not registered")
    return upper


def _inside() -> None:
    if this_fiber().process.is_driver:
        raise RuntimeError("The collective APIs shall be only used inside a Ray actor or task.")


# ---- collectives ---------------------------------------------------------------------------------


@program_call
def allreduce(tensor: Any, group_name: str = "default", op: ReduceOp = ReduceOp.SUM) -> None:
    """In place, in all ranks."""
    group = _group_for(group_name, tensor)
    found = group.meet("all_reduce", _copied(tensor))
    _put(tensor, _reduced(op, found))
    group.pay("all_reduce", tensor.nbytes)


@program_call
def barrier(group_name: str = "default") -> None:
    """All ranks wait for the last one."""
    group = get_group_handle(group_name)
    group.meet("barrier", None)
    group.pay("all_reduce", 4)


@program_call
def reduce(
    tensor: Any, dst_rank: int = 0, group_name: str = "default", op: ReduceOp = ReduceOp.SUM
) -> None:
    """In place, in one rank."""
    group = _group_for(group_name, tensor)
    _is_rank(group, dst_rank)
    found = group.meet("reduce", _copied(tensor))
    if group.rank == dst_rank:
        _put(tensor, _reduced(op, found))
    group.pay("reduce", tensor.nbytes)


@program_call
def broadcast(tensor: Any, src_rank: int = 0, group_name: str = "default") -> None:
    """One rank's, in all."""
    group = _group_for(group_name, tensor)
    _is_rank(group, src_rank)
    found = group.meet("broadcast", _copied(tensor) if group.rank == src_rank else None)
    _put(tensor, found[src_rank])
    group.pay("broadcast", tensor.nbytes)


@program_call
def allgather(tensor_list: list[Any], tensor: Any, group_name: str = "default") -> None:
    """Each rank's, in a list of all."""
    group = _group_for(group_name, tensor, *tensor_list)
    if len(tensor_list) != group.world_size:
        raise RuntimeError(
            "The length of the tensor list operands to allgather must be equal to world_size."
        )
    found = group.meet("all_gather", _copied(tensor))
    for rank, each in enumerate(tensor_list):
        _put(each, found[rank])
    group.pay("all_gather", tensor.nbytes * group.world_size)


@program_call
def reducescatter(
    tensor: Any, tensor_list: list[Any], group_name: str = "default", op: ReduceOp = ReduceOp.SUM
) -> None:
    """Each rank's part of the sum of all lists."""
    group = _group_for(group_name, tensor, *tensor_list)
    if len(tensor_list) != group.world_size:
        raise RuntimeError(
            "The length of the tensor list operands to reducescatter must not be equal to "
            "world_size."
        )
    found = group.meet("reduce_scatter", [_copied(each) for each in tensor_list])
    if found.made is None:
        found.made = [reduced(op, parts) for parts in zip(*_in_order(found), strict=True)]
    sums = found.made
    if group.backend == "GLOO":  # all-reduces of the list's tensors, one after the other
        for each, total in zip(tensor_list, sums, strict=True):
            _put(each, total)
            group.pay("all_reduce", each.nbytes)
    else:
        group.pay("reduce_scatter", sum(each.nbytes for each in tensor_list))
    _put(tensor, sums[group.rank])


@program_call
def send(tensor: Any, dst_rank: int, group_name: str = "default") -> None:
    """To another rank, which receives it."""
    group = _group_for(group_name, tensor)
    _is_other(group, dst_rank)
    group.meet(("send", group.rank, dst_rank), _copied(tensor), 2)
    group.pay("send_recv", tensor.nbytes, dst_rank)


@program_call
def recv(tensor: Any, src_rank: int, group_name: str = "default") -> None:
    """From another rank, which sends it."""
    group = _group_for(group_name, tensor)
    _is_other(group, src_rank)
    _put(tensor, group.meet(("send", src_rank, group.rank), None, 2)[src_rank])
    group.pay("send_recv", tensor.nbytes, src_rank)


def _several_gpus(name: str) -> Callable[..., None]:
    def refused(*args: Any, **kwargs: Any) -> None:
        del args, kwargs
        raise NotEmulatedError(f"ray.util.collective.{name}", _ONE_GPU)

    return refused


allreduce_multigpu = _several_gpus("allreduce_multigpu")
reduce_multigpu = _several_gpus("reduce_multigpu")
broadcast_multigpu = _several_gpus("broadcast_multigpu")
allgather_multigpu = _several_gpus("allgather_multigpu")
reducescatter_multigpu = _several_gpus("reducescatter_multigpu")
send_multigpu = _several_gpus("send_multigpu")
recv_multigpu = _several_gpus("recv_multigpu")
synchronize = _several_gpus("synchronize")


# ---- tensors -------------------------------------------------------------------------------------


def _group_for(name: str, *tensors: Any) -> Group:
    for tensor in tensors:
        kind = type(tensor)
        if not isinstance(tensor, np.ndarray) and not (
            kind.__module__.startswith("torch") and hasattr(tensor, "numpy")
        ):
            raise RuntimeError(
                f"Unrecognized tensor type '{kind}'. Supported types are: np.ndarray, "
                "torch.Tensor, cupy.ndarray."
            )
    return get_group_handle(name)


def _array(tensor: Any) -> Any:
    """Its memory, as numpy's."""
    return tensor if isinstance(tensor, np.ndarray) else tensor.detach().numpy()


def _copied(tensor: Any) -> Any:
    return None if getattr(tensor, "is_meta", False) else np.array(_array(tensor))


def _put(tensor: Any, value: Any) -> None:
    if value is not None and not getattr(tensor, "is_meta", False):  # else values nobody knows
        _array(tensor)[...] = value


def _reduced(op: ReduceOp, found: Brought) -> Any:
    if found.made is None and not any(value is None for value in found.values()):
        found.made = reduced(op, _in_order(found))
    return found.made


def _in_order(found: dict[int, Any]) -> list[Any]:
    return [found[rank] for rank in sorted(found)]


def _is_rank(group: Group, rank: int) -> None:
    if rank < 0:
        raise ValueError(f"rank '{rank}' is negative.")
    if rank >= group.world_size:
        raise ValueError(f"rank '{rank}' must be less than world size '{group.world_size}'")


def _is_other(group: Group, rank: int) -> None:
    _is_rank(group, rank)
    if rank == group.rank:
        raise RuntimeError(f"The destination rank '{rank}' is self.")


__getattr__ = getattr_of("ray.util.collective")

__all__ = [
    "Backend", "ReduceOp", "allgather", "allgather_multigpu", "allreduce", "allreduce_multigpu",
    "barrier", "broadcast", "broadcast_multigpu", "create_collective_group",
    "destroy_collective_group", "get_collective_group_size", "get_group_handle", "get_rank",
    "gloo_available", "init_collective_group", "is_backend_available", "is_group_initialized",
    "nccl_available", "recv", "recv_multigpu", "reduce", "reduce_multigpu", "reducescatter",
    "reducescatter_multigpu", "register_collective_backend", "send", "send_multigpu",
    "synchronize",
]  # fmt: skip
