"""How an engine is started: vLLM's settings by vLLM's names, with its defaults.

Real counterpart: ``vllm/config/{scheduler,cache,parallel}.py`` and ``vllm/engine/arg_utils.py``;
Ray Serve hands them over as ``LLMConfig(engine_kwargs=...)``. Defaults that depend on the GPU are
``None`` here and filled by ``for_gpu``: 8,192 tokens and 1,024 sequences on GPUs with 70 GiB and
more but the A100, else 2,048 and 256 (``arg_utils.py``, API server).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

from raysim.errors import Problem, ScenarioError
from raysim.hardware.specs import GpuSpec

BLOCK_TOKENS = 16
LARGE_GPU_BYTES = 70 * 2**30
KV_BYTES = {"auto": 2, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""``MaxLoRARanks`` of ``vllm/config/lora.py``."""
MAY_BE_NONE = (
    "max_model_len", "max_num_seqs", "max_num_batched_tokens", "max_cpu_loras", "quantization",
)  # fmt: skip
_NO_EFFECT = """
model tokenizer served_model_name trust_remote_code seed revision download_dir load_format
disable_log_stats disable_log_requests enable_log_requests distributed_executor_backend
enable_auto_tool_choice tool_call_parser reasoning_parser chat_template dtype
guided_decoding_backend generation_config accelerator_type tokenizer_mode tokenizer_revision
code_revision config_format hf_config_path hf_token skip_tokenizer_init max_logprobs
logprobs_mode override_generation_config model_loader_extra_config ignore_patterns
use_tqdm_on_load structured_outputs_config guided_decoding_disable_fallback
max_parallel_loading_workers ray_workers_use_nsight worker_cls worker_extension_cls
collect_detailed_traces otlp_traces_endpoint show_hidden_metrics_for_version
kv_events_config limit_mm_per_prompt mm_processor_kwargs mm_processor_cache_gb
skip_mm_profiling interleave_mm_strings media_io_kwargs allowed_local_media_path
allowed_media_domains swap_space runner task stream_interval async_scheduling
use_v2_block_manager lora_dtype lora_extra_vocab_size
"""
NO_EFFECT = frozenset(_NO_EFFECT.split())
"""Of vLLM's arguments, those that change neither time nor memory here."""
NOT_MODELLED = {
    "speculative_config": "leave it out: no tokens are guessed ahead",
    "all2all_backend": "leave it out: allgather_reducescatter",
    "enable_eplb": "leave it out: tokens choose experts evenly",
    "enable_dbo": "leave it out",
    "cpu_offload_gb": "leave it out, with weights that fit",
    "kv_transfer_config": "use build_pd_openai_app",
    "fully_sharded_loras": "leave it out",
    "num_gpu_blocks_override": "lower gpu_memory_utilization",
    "hf_overrides": "change config.json",
    "rope_scaling": "change config.json",
    "compilation_config": "leave it out: full graphs of every batch size",
    "disable_custom_all_reduce": "leave it out",
    "scheduling_policy": "leave it out: first come first served",
    "long_prefill_token_threshold": "leave it out",
    "max_num_partial_prefills": "leave it out",
    "enable_sleep_mode": "leave it out",
    "attention_backend": "leave it out: the GPU's default",
}
"""Of vLLM's arguments, those that would change something, and the way out."""
QUANTIZATIONS = {
    "fp8": "fp8", "awq": "awq", "awq_marlin": "awq", "gptq": "gptq", "gptq_marlin": "gptq",
    "mxfp4": "mxfp4", "compressed-tensors": "compressed-tensors", "modelopt": "modelopt",
}  # fmt: skip
"""``quantization``, and the ``quant_method`` of checkpoints that it reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """One engine's arguments."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    """Engines that each have attention, a cache and requests of their own, and share experts."""
    enable_expert_parallel: bool = False
    """Whole experts on each rank, not a slice of each."""
    max_model_len: int | None = None
    """Tokens of the longest sequence; None: the model's own."""
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float = 0.92
    """0.90 before 2026."""
    block_size: int = BLOCK_TOKENS
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    """None: as the checkpoint says."""
    enforce_eager: bool = False
    """No CUDA graphs: the host dispatches every kernel."""
    enable_lora: bool = False
    max_loras: int = 1
    """Adapters in one batch, and places for them on the GPUs."""
    max_lora_rank: int = 16
    max_cpu_loras: int | None = None
    """Adapters in main memory; None: as many as ``max_loras``."""

    @property
    def gpus(self) -> int:
        """Of one engine."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def expert_ranks(self) -> int:
        """That share the experts of a layer: tensor-parallel ranks of all data-parallel ones."""
        return self.tensor_parallel_size * self.data_parallel_size

    @property
    def kv_bytes(self) -> int:
        """Per element of a kept key or value."""
        return KV_BYTES[self.kv_cache_dtype]

    def for_gpu(self, gpu: GpuSpec) -> EngineSettings:
        """With the defaults that depend on the GPU."""
        large = gpu.memory_bytes >= LARGE_GPU_BYTES and gpu.architecture != "ampere"
        return replace(
            self,
            max_num_seqs=self.max_num_seqs or (1024 if large else 256),
            max_num_batched_tokens=self.max_num_batched_tokens or (8192 if large else 2048),
        )


def engine_settings(kwargs: Mapping[str, Any]) -> tuple[EngineSettings, tuple[str, ...]]:
    """Settings from ``engine_kwargs``, and the keys that have no effect here.

    Raises
    ------
    ScenarioError
        A key is unknown or not modelled, or a value is of the wrong type or out of range.
    """
    types = {f.name: f for f in fields(EngineSettings)}
    given: dict[str, Any] = {}
    ignored: list[str] = []
    problems: list[str] = []
    for name, value in kwargs.items():
        if name in types:
            wrong = _wrong(name, value)
            if wrong:
                problems.append(f"engine_kwargs.{name}: {wrong}")
            given[name] = value
        elif name in NO_EFFECT:
            ignored.append(name)
        else:
            problems.append(f"engine_kwargs.{name}: {_unknown(name, types)}")
    least, most = given.get("max_loras", 1), given.get("max_cpu_loras")
    if not problems and most is not None and most < least:
        problems.append(f"engine_kwargs.max_cpu_loras: {most} must be >= max_loras, {least}")
    if problems:
        raise ScenarioError([Problem(message=message) for message in problems])
    return EngineSettings(**given), tuple(ignored)


def _unknown(name: str, types: Iterable[str]) -> str:
    """Why it is refused, and what to do."""
    if name in NOT_MODELLED:
        return f"not modelled; {NOT_MODELLED[name]}"
    close = get_close_matches(name, [*types, *NO_EFFECT, *NOT_MODELLED], n=1)
    return "unknown or not modelled" + (f"; did you mean {close[0]!r}?" if close else "")


def _wrong(name: str, value: Any) -> str:
    """What is wrong with a value; empty if nothing."""
    if value is None and name in MAY_BE_NONE:
        return ""
    if name == "quantization":
        known = value in QUANTIZATIONS
        return "" if known else f"expected one of {', '.join(QUANTIZATIONS)}, got {value!r}"
    if name == "gpu_memory_utilization":
        good = isinstance(value, int | float) and 0 < value <= 1
        return "" if good else f"expected a share of the memory in (0, 1], got {value!r}"
    if name == "kv_cache_dtype":
        return "" if value in KV_BYTES else f"expected one of {', '.join(KV_BYTES)}, got {value!r}"
    if name.startswith("enable") or name == "enforce_eager":
        return "" if isinstance(value, bool) else f"expected true or false, got {value!r}"
    if name == "max_lora_rank":
        return "" if value in LORA_RANKS else f"expected one of {LORA_RANKS}, got {value!r}"
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    return "" if whole else f"expected a whole number of at least 1, got {value!r}"
