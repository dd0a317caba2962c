"""DeepSpeed's own validation of its JSON, block by block: same types, bounds and forbidden extras.

A value that DeepSpeed 0.19's pydantic models accept is accepted here with the same result, and
refused here if refused there (``tests/real`` compares the two). Blocks that DeepSpeed reads without
checks (``optimizer``, ``scheduler``, ``activation_checkpointing``) are checked in
``deepspeed_rules.py``.

Source: ``zero/config.py``, ``zero/offload_config.py``, ``precision_config.py``, ``comm/config.py``,
``compile/config.py``, ``monitor/config.py``, ``tensor_parallel/config.py``, ``utils/config.py``.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

MAX_INT = 2**63 - 1


class Block(BaseModel):
    """``DeepSpeedConfigModel``: extra keys are errors, a field goes by its name or its alias."""

    model_config = ConfigDict(
        extra="forbid", populate_by_name=True, protected_namespaces=(), defer_build=True
    )


class Stage(int, Enum):
    """``ZeroStageEnum``."""

    disabled = 0
    optimizer_states = 1
    gradients = 2
    weights = 3


class OffloadParamBlock(Block):
    """``zero_optimization.offload_param``."""

    device: Literal["none", "cpu", "nvme"] = "none"
    nvme_path: str | None = None
    buffer_count: int = Field(5, ge=0)
    buffer_size: int = Field(100_000_000, ge=0)
    max_in_cpu: int = Field(1_000_000_000, ge=0)
    pin_memory: bool = True


class OffloadOptimizerBlock(Block):
    """``zero_optimization.offload_optimizer``."""

    device: Literal["none", "cpu", "nvme"] = "none"
    nvme_path: str | None = None
    buffer_count: int = Field(4, ge=0)
    pin_memory: bool = True
    pipeline_read: bool = False
    pipeline_write: bool = False
    fast_init: bool = False
    ratio: float = Field(1.0, ge=0.0, le=1.0)
    super_offload: bool = False
    cpuadam_cores_perc: float = Field(0.8, ge=0.0, le=1.0)


class ZenFlowBlock(Block):
    """``zero_optimization.zenflow``."""

    topk_ratio: float = Field(0.1, gt=0.0, lt=1.0)
    select_strategy: Literal["auto", "step", "epoch"] = "auto"
    select_interval: Literal["auto"] | int = "auto"
    update_interval: Literal["auto"] | int = "auto"
    overlap_step: bool = False
    offload: bool = False
    auto_ratio: float = Field(0.99, ge=0.0, le=1.0)
    full_warm_up_rounds: int = 0
    pt_reserved_cores_perc: float = Field(0.5, ge=0.0, le=1.0)
    steps_per_epoch: int | None = None

    @field_validator("update_interval")
    @classmethod
    def _positive(cls, value: int | str) -> int | str:
        if isinstance(value, int) and value < 1:
            raise ValueError("must be at least 1")
        return value


class LeafModuleBlock(Block):
    """``zero_optimization.leaf_module``."""

    classes: list[str] = Field(default_factory=list)
    names: list[str] = Field(default_factory=list)
    name_suffixes: list[str] = Field(default_factory=list)


class ZeroBlock(Block):
    """``zero_optimization``; sizes count elements."""

    stage: Stage = Stage.disabled
    contiguous_gradients: bool = True
    reduce_scatter: bool = True
    reduce_bucket_size: int = Field(500_000_000, gt=0)
    use_multi_rank_bucket_allreduce: bool = True
    allgather_partitions: bool = True
    allgather_bucket_size: int = Field(500_000_000, ge=0)
    overlap_comm: bool | None = None
    compute_grad_norm: bool = True
    load_from_fp32_weights: bool = True
    elastic_checkpoint: bool = False
    offload_param: OffloadParamBlock | None = None
    offload_optimizer: OffloadOptimizerBlock | None = None
    zenflow: ZenFlowBlock | None = None
    sub_group_size: int = Field(1_000_000_000, ge=0)
    cpu_offload_param: bool | None = None
    cpu_offload_use_pin_memory: bool | None = None
    cpu_offload: bool | None = None
    prefetch_bucket_size: int = Field(50_000_000, ge=0, alias="stage3_prefetch_bucket_size")
    param_persistence_threshold: int = Field(
        100_000, ge=0, alias="stage3_param_persistence_threshold"
    )
    model_persistence_threshold: int = Field(
        MAX_INT, ge=0, alias="stage3_model_persistence_threshold"
    )
    max_live_parameters: int = Field(1_000_000_000, ge=0, alias="stage3_max_live_parameters")
    max_reuse_distance: int = Field(1_000_000_000, ge=0, alias="stage3_max_reuse_distance")
    gather_16bit_weights_on_model_save: bool = Field(
        False, alias="stage3_gather_16bit_weights_on_model_save"
    )
    module_granularity_threshold: int = Field(0, alias="stage3_module_granularity_threshold")
    use_all_reduce_for_fetch_params: bool = Field(
        False, alias="stage3_use_all_reduce_for_fetch_params"
    )
    allgather_sequential: bool = Field(False, alias="stage3_allgather_sequential")
    stage3_gather_fp16_weights_on_model_save: bool = False
    ignore_unused_parameters: bool = True
    legacy_stage1: bool = False
    round_robin_gradients: bool = False
    parameter_alignment: bool = False
    zero_hpz_partition_size: int = Field(1, ge=0)
    zero_quantized_weights: bool = False
    zero_quantized_nontrainable_weights: bool = False
    zero_quantized_gradients: bool = False
    memory_efficient_linear: bool = True
    pipeline_loading_checkpoint: bool = False
    override_module_apply: bool = True
    log_trace_cache_warnings: bool = False
    enable_sanity_checks: bool = False
    save_muon_momentum_buffer_in_memory: bool = False
    leaf_module: LeafModuleBlock = Field(default_factory=LeafModuleBlock)


class OldZeroBlock(ZeroBlock):
    """``zero_optimization`` before release 0.19.7."""

    mics_shard_size: int = -1
    mics_hierarchical_params_gather: bool = False
    zeropp_loco_param: dict[str, Any] | None = None


class AioBlock(BaseModel):
    """``aio``, which DeepSpeed itself reads without checks."""

    model_config = ConfigDict(defer_build=True)

    block_size: int = Field(1_048_576, gt=0)
    queue_depth: int = Field(8, gt=0)
    intra_op_parallelism: int = Field(1, gt=0)
    single_submit: bool = False
    overlap_events: bool = True
    use_gds: bool = False


class Bf16Block(Block):
    """``bf16`` (or its old name ``bfloat16``)."""

    enabled: bool = False
    immediate_grad_update: bool = False
    check_grad_overflow: bool = True
    bf16_master_weights_and_grads: bool = False
    bf16_optimizer_states: bool = False


class Fp16Block(Block):
    """``fp16``."""

    enabled: bool = False
    auto_cast: bool = False
    loss_scale: float = 0
    initial_scale_power: int = 16
    loss_scale_window: int = 1000
    hysteresis: int = 2
    consecutive_hysteresis: bool = False
    min_loss_scale: int = 1
    fp16_master_weights_and_grads: bool = False

    @field_validator("loss_scale", mode="before")
    @classmethod
    def _finite(cls, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError("must be a number")
        try:
            number = float(value)
        except (ValueError, OverflowError):
            raise ValueError("must be a number") from None
        if not math.isfinite(number):
            raise ValueError("must be a finite number (not inf/-inf/nan)")
        if number < 0:
            raise ValueError("must be >= 0 (0 enables dynamic loss scaling)")
        return number

    @field_validator("loss_scale_window", "min_loss_scale", mode="before")
    @classmethod
    def _not_bool(cls, value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError("must be an integer, not bool")
        return value

    @model_validator(mode="after")
    def _dynamic(self) -> Fp16Block:
        if self.enabled and self.loss_scale == 0:
            if self.loss_scale_window <= 0:
                raise ValueError("loss_scale_window must be > 0 when loss scaling is dynamic")
            if self.min_loss_scale <= 0:
                raise ValueError("min_loss_scale must be > 0 when loss scaling is dynamic")
        return self


class CommsLoggerBlock(Block):
    """``comms_logger``."""

    enabled: bool = False
    prof_all: bool = True
    prof_ops: list[Any] = Field(default_factory=list)
    verbose: bool = False
    debug: bool = False


class TensorBoardBlock(Block):
    """``tensorboard`` and ``csv_monitor``."""

    enabled: bool = False
    output_path: str = ""
    job_name: str = "DeepSpeedJobName"


class WandbBlock(Block):
    """``wandb``."""

    enabled: bool = False
    group: str | None = None
    team: str | None = None
    project: str = "deepspeed"


class CometBlock(Block):
    """``comet``."""

    enabled: bool = False
    samples_log_interval: int = 100
    project: str | None = None
    workspace: str | None = None
    api_key: str | None = None
    experiment_name: str | None = None
    experiment_key: str | None = None
    online: bool | None = None
    mode: str | None = None


class HybridEngineBlock(Block):
    """``hybrid_engine``."""

    enabled: bool = False
    max_out_tokens: int = Field(512, gt=0)
    inference_tp_size: int = 1
    release_inference_cache: bool = False
    pin_parameters: bool = True
    tp_gather_partition_size: int = 8
    enable_cuda_graph: bool = False


class CompileBlock(Block):
    """``compile``."""

    deepcompile: bool = False
    autoep_non_moe: bool = False
    free_activation: bool = False
    free_activation_threshold: int = 10 * 1024 * 1024
    offload_activation: bool = False
    offload_activation_pin_memory: bool = True
    offload_opt_states: bool = False
    double_buffer: bool = True
    symmetric_memory: bool = False
    debug_log: bool = False
    offload_parameters: bool = False
    sync_before_reduce: bool = False
    sync_after_reduce: bool = False
    sync_before_allgather: bool = False
    sync_after_allgather: bool = False
    keep_int_input_tensors: bool = True
    keep_all_input_tensors: bool = False
    passes: list[Literal["z1", "z3", "autosp", "autotp"]] | None = None


class TensorParallelBlock(Block):
    """``tensor_parallel`` (AutoTP training)."""

    dtype: Any = None
    autotp_size: int = 0
    tp_overlap_comm: bool = False
    vocab_parallel_lm_head: bool | None = None
    vocab_parallel_ce_backend: Literal["torch", "liger"] = "torch"
    tensor_parallel: dict[str, Any] = Field(default_factory=dict, alias="tp")
    injection_policy_tuple: list[Any] | None = None
    partition_config: dict[str, Any] | None = None
    preset_model: str | None = None
    keep_module_on_host: bool = False
    replace_with_kernel_inject: bool = Field(False, alias="kernel_inject")


class ThroughputTimerBlock(Block):
    """``timers.throughput``."""

    enabled: bool = True
    synchronized: bool = True


BLOCKS: dict[tuple[str, ...], type[BaseModel]] = {
    ("zero_optimization",): ZeroBlock,
    ("bf16",): Bf16Block,
    ("bfloat16",): Bf16Block,
    ("fp16",): Fp16Block,
    ("comms_logger",): CommsLoggerBlock,
    ("tensorboard",): TensorBoardBlock,
    ("csv_monitor",): TensorBoardBlock,
    ("wandb",): WandbBlock,
    ("comet",): CometBlock,
    ("hybrid_engine",): HybridEngineBlock,
    ("compile",): CompileBlock,
    ("tensor_parallel",): TensorParallelBlock,
    ("timers", "throughput"): ThroughputTimerBlock,
    ("aio",): AioBlock,
}
"""Blocks that are checked, all but ``aio`` by DeepSpeed with as strict a model."""
