"""Stages of a pipeline that data-parallel ranks share: what wraps them, as one plan has it.

Real counterpart: ``torch/distributed/fsdp`` and ``torch/distributed/pipelining/stage.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch.distributed.fsdp import FSDPModule

from raysim.rayapi.shapes.plans import INSIDE, Wrapping, describe
from raysim.rayapi.unsupported import NotEmulatedError

Groups = tuple[tuple[tuple[str, ...], bool], ...]
_INSTEAD = "fully_shard of its blocks and of every stage, or DistributedDataParallel around each"


def sharded_stages(stages: Sequence[Any]) -> Wrapping:
    """How all of a pipeline's stages are trained: as the first is, in groups of their own.

    Raises
    ------
    NotEmulatedError
        They are not wrapped alike, or not as ``torch.distributed.pipelining`` looks for it.
    """
    wrappings = [describe(stage.submod) for stage in stages]
    first = wrappings[0]
    if first.fsdp.version == 1 and first.engine == "fsdp":
        raise NotEmulatedError("FullyShardedDataParallel around a stage of a pipeline", _INSTEAD)
    if len({(w.engine, w.meets, w.among) for w in wrappings}) > 1:
        raise NotEmulatedError("stages of a pipeline that are wrapped differently", _INSTEAD)
    for stage in stages:
        inner = any(isinstance(m, FSDPModule) for m in stage.submod.modules())
        if inner and not isinstance(stage.submod, FSDPModule):
            raise NotEmulatedError("a stage of a pipeline whose blocks alone are sharded", _INSTEAD)
    if first.engine != "fsdp":
        return first
    sharding = next((w for w in wrappings if w.fsdp.frees), first)
    groups = tuple(
        g for i, stage in enumerate(stages) for g in groups_of(stage.submod, f"stage_{i}")
    )
    of_stages = [(f"stage_{i}.", w.fsdp) for i, w in enumerate(wrappings)]
    fsdp = replace(
        sharding.fsdp, groups=groups, wrap=True,
        ignored=frozenset(stage + name for stage, said in of_stages for name in said.ignored),
        shard_dims=tuple((s + name, dim) for s, said in of_stages for name, dim in said.shard_dims),
    )  # fmt: skip
    return replace(first, among=first.module.raysim_mesh.size(), fsdp=fsdp)


def groups_of(module: Any, stage: str = "") -> Iterator[tuple[tuple[str, ...], bool]]:
    """Of a model or a stage, itself first: what is wrapped together, and whether it is freed."""
    together: dict[int, list[str]] = {}
    frees: dict[int, bool] = {}
    parts = [(name, m) for name, m in module.named_modules() if isinstance(m, FSDPModule)]
    for name, part in parts:
        key, after = vars(part)["raysim_group"]
        path = [p for p in (stage, *name.split(".")) if p and p != INSIDE]
        together.setdefault(key, []).append(".".join(path))
        frees[key] = part is not module if after is None else bool(after)
    for key, names in together.items():
        yield tuple(names), frees[key]
