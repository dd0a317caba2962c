"""``EngineArgs`` and what engines are told beside ``serving.settings``.

Real counterpart: ``vllm/engine/arg_utils.py``, ``vllm/config``.
"""

from __future__ import annotations

from typing import Any

from raysim.rayapi.standins.said import say

WITHOUT_EFFECT = {
    "disable_custom_all_reduce": "all-reduces are vLLM's own where it would take them",
    "compilation_config": "full graphs of every batch size",
    "full_determinism": "kernels are the usual ones",
    "attention_backend": "the GPU's default",
    "hf_overrides": "the model's own config",
    "kv_transfer_config": "nothing is sent to other engines",
    "weight_transfer_config": "weights come by collective_rpc",
}  # fmt: skip
"""Arguments that serving's engines refuse and scripts of this kind pass; what is played instead."""
_OF_EXECUTORS = (
    "distributed_executor_backend", "worker_cls", "worker_extension_cls", "enable_sleep_mode",
    "logits_processors", "disable_mm_preprocessor_cache", "enable_return_routed_experts",
    "profiler_config", "scheduler_cls", "model_impl",
)  # fmt: skip


class EngineArgs:
    """``vllm.EngineArgs``: all that it is given."""

    def __init__(self, model: str = "", **given: Any) -> None:
        self.model = model
        self.given = given
        vars(self).update(given)


class AsyncEngineArgs(EngineArgs):
    """``vllm.AsyncEngineArgs``."""


class WeightTransferConfig:
    """``vllm.config.WeightTransferConfig``."""

    def __init__(self, backend: str = "nccl", **more: Any) -> None:
        del more
        self.backend = backend


def split(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What an engine of ``serving`` is told, and what is of its executor; the rest is said."""
    engine, executor = dict(given), {}
    for name in _OF_EXECUTORS:
        if name in engine:
            executor[name] = engine.pop(name)
    for name, instead in WITHOUT_EFFECT.items():
        if engine.pop(name, None):
            say(f"vLLM's {name} changes nothing: {instead}")
    return {k: v for k, v in engine.items() if v is not None}, executor
