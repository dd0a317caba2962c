"""A model under torch's FSDP on real ranks: ``fully_shard``, or ``FullyShardedDataParallel``.

Options are a case's ``fsdp``: names and meanings of ``raysim.training.settings.fsdp.FsdpSettings``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def device() -> str:
    """Kind of device the ranks compute on."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def layers(model: Any) -> Any:
    """The decoder layers of a causal language model."""
    return model.transformer.h if hasattr(model, "transformer") else model.model.layers


def mesh(replicas: int) -> Any:
    """One dimension of all ranks, or replicas of equal groups of neighbours."""
    world = dist.get_world_size()
    if replicas == 1:
        return init_device_mesh(device(), (world,))
    shape = (replicas, world // replicas)
    return init_device_mesh(device(), shape, mesh_dim_names=("replicate", "shard"))


def fully_sharded(model: Any, options: Mapping[str, Any], over: Any = None) -> Any:
    """``fully_shard`` on every decoder layer and on the root, or on the ends as well.

    ``over`` is the device mesh; None: of ``options``.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(
        param_dtype=_dtype(options, "param_dtype"), reduce_dtype=_dtype(options, "reduce_dtype")
    )
    over = over if over is not None else mesh(options.get("replicas", 1))
    after = options.get("reshard_after_forward", True)
    for layer in layers(model):
        fully_shard(layer, mesh=over, mp_policy=policy, reshard_after_forward=after)
    if options.get("wrap_ends"):
        fully_shard(
            model.get_input_embeddings(), mesh=over, mp_policy=policy, reshard_after_forward=after
        )
        tail = [model.model.norm, model.lm_head]
        fully_shard(tail, mesh=over, mp_policy=policy, reshard_after_forward=False)
    root = True if options.get("root_reshard_after_forward") else None
    if after is False:
        root = False
    return fully_shard(model, mesh=over, mp_policy=policy, reshard_after_forward=root)


def flat_sharded(model: Any, options: Mapping[str, Any]) -> Any:
    """``FullyShardedDataParallel`` around every decoder layer, or by size, and the root."""
    from torch.distributed.fsdp import (
        BackwardPrefetch,
        FullyShardedDataParallel,
        MixedPrecision,
        ShardingStrategy,
    )
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy, size_based_auto_wrap_policy

    policy: Any = ModuleWrapPolicy({type(layers(model)[0])})
    if "min_num_params" in options:
        least = options["min_num_params"]
        policy = partial(size_based_auto_wrap_policy, min_num_params=least)
    prefetch = options.get("backward_prefetch", "BACKWARD_PRE")
    strategy = options.get("sharding_strategy", "FULL_SHARD")
    replicas = options.get("replicas", 1)
    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=policy if options.get("wrap", True) else None,
        sharding_strategy=ShardingStrategy[strategy],
        device_mesh=mesh(replicas) if replicas > 1 else None,
        device_id=torch.device(device()) if device() == "cpu" else torch.cuda.current_device(),
        mixed_precision=MixedPrecision(
            param_dtype=_dtype(options, "param_dtype"), reduce_dtype=_dtype(options, "reduce_dtype")
        ),
        backward_prefetch=BackwardPrefetch[prefetch] if prefetch else None,
        forward_prefetch=options.get("forward_prefetch", False),
        limit_all_gathers=options.get("limit_all_gathers", True),
        use_orig_params=options.get("use_orig_params", False),
    )


def _dtype(options: Mapping[str, Any], key: str) -> Any:
    return DTYPES[options[key]] if key in options else None
