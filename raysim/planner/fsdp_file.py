"""``fsdp.json``: what ``fully_shard`` or ``FullyShardedDataParallel`` is given in the chosen job.

Written where the scenario says FSDP's settings by itself; of Accelerate's config, ``job_files.py``
writes that. Keywords and their values are torch 2.13's; a type is the name of a ``torch.dtype``.
"""

from __future__ import annotations

import json
from typing import Any

from raysim.scenario.load import Scenario
from raysim.training.settings.deepspeed import Precision
from raysim.training.settings.fsdp import FsdpSettings

FSDP_JSON = "fsdp.json"
_TORCH: dict[Precision | None, str | None] = {
    None: None, "fp32": "float32", "fp16": "float16", "bf16": "bfloat16",
}  # fmt: skip


def fsdp_file(chosen: Scenario) -> dict[str, str]:
    """Content by name."""
    said, batch, mesh = chosen.strategy.fsdp, chosen.strategy.batch, chosen.strategy.mesh
    wraps = "fully_shard" if said.version == 2 else "FullyShardedDataParallel"
    written = {
        wraps: _second(said) if said.version == 2 else _first(said),
        "device_mesh": {"replicate": said.replicas, "shard": said.shard_ranks(mesh.dp)},
        "wrapped": _wrapped(said),
        "your_loop": {
            "micro_batch_size": batch.micro,
            "gradient_accumulation_steps": batch.accumulation,
            "no_sync": batch.accumulation > 1 and not said.sync_every_micro_batch,
            "activation_checkpointing": chosen.spec.train.activation_checkpointing,
        },
    }
    return {FSDP_JSON: json.dumps(written, indent=2) + "\n"}


def _second(said: FsdpSettings) -> dict[str, Any]:
    found: dict[str, Any] = {
        "reshard_after_forward": said.reshard_after_forward, "mp_policy": _types(said),
    }  # fmt: skip
    if said.cpu_offload:
        found["offload_policy"] = {"pin_memory": said.pin_memory}
    return found


def _first(said: FsdpSettings) -> dict[str, Any]:
    return {
        "sharding_strategy": said.sharding_strategy,
        "mixed_precision": _types(said),
        "cpu_offload": {"offload_params": said.cpu_offload},
        "backward_prefetch": said.backward_prefetch,
        "forward_prefetch": said.forward_prefetch,
        "limit_all_gathers": said.limit_all_gathers,
        "use_orig_params": said.use_orig_params,
    }


def _types(said: FsdpSettings) -> dict[str, str | None]:
    return {"param_dtype": _TORCH[said.param_dtype], "reduce_dtype": _TORCH[said.reduce_dtype]}


def _wrapped(said: FsdpSettings) -> dict[str, Any]:
    """Which modules are groups of their own, beside the root."""
    found: dict[str, Any] = {}
    if said.min_num_params is not None:
        found["size_based_auto_wrap_policy"] = {"min_num_params": said.min_num_params}
    elif said.wrap:
        found["classes"] = list(said.layer_classes) or "the model's blocks"
    if said.wrap_ends:
        found["ends"] = "the embedding; the final norm with the head, not resharded"
    if said.root_reshard_after_forward:
        found["root"] = {"reshard_after_forward": True}
    return found
