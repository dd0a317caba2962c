"""Sections of ``train.fsdp``: raysim's own, and Hugging Face Accelerate's config file.

Accelerate's keys are those of release 1.14: ``commands/config/config_args.py`` (top level),
``commands/launch.py`` (``--fsdp_*``), where ``fsdp_config.x`` is read as ``fsdp_x``.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from raysim.scenario.quantities import PositiveCount
from raysim.scenario.section import Section

Dtype = Literal["fp32", "fp16", "bf16"]


class MixedPrecisionSection(Section):
    """``MixedPrecisionPolicy``, or version 1's ``MixedPrecision``."""

    param_dtype: Dtype | None = Field(
        None, description="All-gathers, forward and backward; by default as stored."
    )
    reduce_dtype: Dtype | None = Field(
        None, description="Gradient reduction; by default the gradients' own type."
    )
    output_dtype: Dtype | None = Field(
        None, description="Outputs are cast to it; no effect on the prediction."
    )


class FsdpSection(Section):
    """Arguments of ``fully_shard`` or ``FullyShardedDataParallel``."""

    version: Literal[1, 2] = Field(2, description="1: FullyShardedDataParallel; 2: fully_shard.")
    sharding_strategy: (
        Literal["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"]
        | None
    ) = Field(None, description="Of version 1; by default FULL_SHARD.")
    reshard_after_forward: bool | PositiveCount | None = Field(
        None,
        description="Of version 2: free parameters after forward (true), keep them, or reshard to "
        "so many ranks.",
    )
    root_reshard_after_forward: bool = Field(
        False, description="Of version 2: the root frees its parameters after forward too."
    )
    replicate: PositiveCount | None = Field(
        None, description="Hybrid sharding: replicas of the sharded model."
    )
    mixed_precision: MixedPrecisionSection = Field(
        default_factory=MixedPrecisionSection, description="Types beside the stored parameters'."
    )
    transformer_layer_cls: tuple[str, ...] = Field(
        (), description="Classes to wrap; by default the model's blocks."
    )
    min_num_params: PositiveCount | None = Field(
        None, description="Wrap by size instead: size_based_auto_wrap_policy."
    )
    wrap: bool = Field(True, description="false: nothing but the root is wrapped.")
    wrap_ends: bool = Field(
        False, description="Of version 2: embedding apart, final norm and head together."
    )
    cpu_offload: bool = Field(False, description="Shards, gradients and optimizer on the CPU.")
    pin_memory: bool = Field(True, description="Of version 2's CPUOffloadPolicy.")
    backward_prefetch: Literal["BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"] | None = Field(
        None, description="Of version 1; by default BACKWARD_PRE."
    )
    forward_prefetch: bool = Field(False, description="Gather the next group before this one runs.")
    limit_all_gathers: bool | None = Field(None, description="Of version 1; by default true.")
    use_orig_params: bool | None = Field(None, description="Of version 1; by default false.")
    trained_apart: bool | None = Field(
        None,
        description="Of version 1, beside frozen weights: trained modules are wrapped alone, as by "
        "PEFT's policy; by default true.",
    )
    sync_every_micro_batch: bool = Field(
        False, description="Reduce gradients in every micro-batch: no no_sync()."
    )

    @field_validator("mixed_precision", mode="before")
    @classmethod
    def _one_type(cls, value: Any) -> Any:
        return {"param_dtype": value, "reduce_dtype": value} if isinstance(value, str) else value

    @field_validator("transformer_layer_cls", mode="before")
    @classmethod
    def _one_class(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _of_one_version(self) -> FsdpSection:
        first = (
            "sharding_strategy", "backward_prefetch", "limit_all_gathers", "use_orig_params",
            "trained_apart",
        )  # fmt: skip
        second = ("reshard_after_forward", "root_reshard_after_forward", "wrap_ends")
        for name in first if self.version == 2 else second:
            if getattr(self, name) not in (None, False):
                other = 3 - self.version
                raise ValueError(f"{name} belongs to version {other}; remove it or set version")
        hybrid = self.version == 2 or "HYBRID" in (self.sharding_strategy or "")
        if self.replicate is not None and self.replicate > 1 and not hybrid:
            raise ValueError("replicate needs sharding_strategy: HYBRID_SHARD in version 1")
        if not self.wrap and (self.transformer_layer_cls or self.min_num_params):
            raise ValueError("wrap: false leaves nothing for the classes or the size to wrap")
        if self.transformer_layer_cls and self.min_num_params:
            raise ValueError("give transformer_layer_cls or min_num_params, not both")
        return self


Switch = bool | None
"""Accelerate also takes the words true and false, which YAML reads as such."""


class AccelerateFsdpBlock(Section):
    """``fsdp_config``."""

    fsdp_version: Literal[1, 2] = 1
    fsdp_sharding_strategy: Any = None
    fsdp_reshard_after_forward: Any = None
    fsdp_backward_prefetch: Any = None
    fsdp_auto_wrap_policy: Any = None
    fsdp_transformer_layer_cls_to_wrap: str | list[str] | None = None
    fsdp_min_num_params: int = Field(100_000_000, ge=0)
    fsdp_offload_params: Switch = False
    fsdp_forward_prefetch: Switch = False
    fsdp_use_orig_params: Switch = True
    fsdp_activation_checkpointing: Switch = False
    fsdp_cpu_ram_efficient_loading: Switch = True
    fsdp_sync_module_states: Switch = True
    fsdp_state_dict_type: str | None = None
    fsdp_ignored_modules: Any = None

    @field_validator("fsdp_version", mode="before")
    @classmethod
    def _digits(cls, value: Any) -> Any:
        return int(value) if isinstance(value, str) and value in {"1", "2"} else value


class AccelerateParallelismBlock(Section):
    """``parallelism_config``."""

    parallelism_config_dp_replicate_size: PositiveCount = 1
    parallelism_config_dp_shard_size: PositiveCount = 1
    parallelism_config_tp_size: PositiveCount = 1
    parallelism_config_cp_size: PositiveCount = 1
    parallelism_config_cp_comm_strategy: str | None = None


class AccelerateFile(Section):
    """What ``accelerate config`` writes."""

    compute_environment: str = "LOCAL_MACHINE"
    distributed_type: str
    mixed_precision: Any = "no"
    fsdp_config: AccelerateFsdpBlock
    parallelism_config: AccelerateParallelismBlock | None = None
    num_processes: int | None = None
    num_machines: int | None = None
    machine_rank: Any = None
    gpu_ids: Any = None
    main_process_ip: Any = None
    main_process_port: Any = None
    rdzv_backend: Any = None
    same_network: Any = None
    main_training_function: Any = None
    enable_cpu_affinity: Any = None
    use_cpu: Any = None
    debug: Any = None
    downcast_bf16: Any = None
    dynamo_config: Any = None
    fp8_config: Any = None
    deepspeed_config: Any = None
    megatron_lm_config: Any = None
    mpirun_config: Any = None
    tpu_name: Any = None
    tpu_zone: Any = None
    tpu_use_cluster: Any = None
    tpu_use_sudo: Any = None
    tpu_vm: Any = None
    tpu_env: Any = None
    command_file: Any = None
    commands: Any = None
