"""Parameters that FSDP leaves whole, or cuts otherwise than along their first dimension.

Real counterparts: ``ignored_params`` and ``shard_placement_fn`` of ``fully_shard``,
``ignored_modules`` and ``ignored_states`` of ``FullyShardedDataParallel`` (torch 2.13). What an
inner call has left out or cut is so in the outer ones, which do not manage it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.distributed.fsdp._common_utils import FSDP_PREFIX
from torch.distributed.tensor import Shard

from raysim.rayapi.unsupported import NotEmulatedError

_IGNORED, _DIMS = "raysim_ignored", "raysim_shard_dims"


def left_out(module: Any, given: Iterable[Any]) -> frozenset[str]:
    """Names of parameters among those given, or in modules that are."""
    those = set[int]()
    for each in given:
        tensors = each.parameters() if isinstance(each, torch.nn.Module) else (each,)
        those.update(map(id, tensors))
    found = {name for name, p in module.named_parameters() if id(p) in those}
    found.update(name for name, _ in _of_inner(module, _IGNORED))
    vars(module)[_IGNORED] = dict.fromkeys(found)
    return frozenset(name.replace(FSDP_PREFIX, "") for name in found)


def cut_at(
    module: Any, asked: Callable[[Any], Any] | None, ranks: int
) -> tuple[tuple[str, int], ...]:
    """Names of parameters that are cut along another dimension than the first, and which.

    Raises
    ------
    NotEmulatedError
        A parameter is cut over other ranks than the rest.
    NotImplementedError
        That dimension does not divide by the ranks, in torch's words.
    """
    found = dict(_of_inner(module, _DIMS))
    inner = [name for name, m in module.named_modules() if name and hasattr(m, "raysim_sharded")]
    own = [] if asked is None else [
        (name, p) for name, p in module.named_parameters()
        if name not in vars(module)[_IGNORED] and not name.startswith(tuple(f"{i}." for i in inner))
    ]  # fmt: skip
    for name, p in own:
        said = asked(p) if asked is not None else None
        if said is not None and not isinstance(said, Shard):
            raise NotEmulatedError(
                "shard_placement_fn with a mesh of its own", "placements: Shard(0), Shard(1)"
            )
        dim = 0 if said is None else said.dim % p.ndim
        if dim and p.shape[dim] % ranks:
            raise NotImplementedError(
                f"FSDP does not support uneven sharding on dim {dim}: {p.size()} "
                f"(world size: {ranks})"
            )
        if dim:
            found[name] = dim
    vars(module)[_DIMS] = found
    return tuple(found.items())


def _of_inner(module: Any, kept: str) -> Iterator[tuple[str, Any]]:
    for prefix, inner in module.named_modules():
        for name, value in vars(inner).get(kept, {}).items():
            yield f"{prefix}.{name}" if prefix else name, value
