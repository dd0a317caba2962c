"""What each key of DeepSpeed's JSON means to a prediction: modelled, no effect, not modelled yet.

A pattern names a key or a whole block. Sources: ``deepspeed/runtime/constants.py``,
``zero/config.py`` and the configuration page of the documentation, release 0.19.
"""

from __future__ import annotations

from typing import Any, Literal

Status = Literal["modelled", "no effect", "not modelled", "unknown"]

_MODELLED = """
train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps gradient_clipping
communication_data_type data_types.grad_accum_dtype data_types.param_dtype
fp16.enabled bf16.enabled bf16.check_grad_overflow
bf16.bf16_master_weights_and_grads bf16.bf16_optimizer_states
bfloat16.enabled bfloat16.check_grad_overflow bfloat16.bf16_master_weights_and_grads
bfloat16.bf16_optimizer_states
optimizer.type optimizer.params.torch_adam optimizer.params.momentum
zero_allow_untested_optimizer zero_force_ds_cpu_optimizer
zero_optimization.stage zero_optimization.contiguous_gradients zero_optimization.reduce_scatter
zero_optimization.reduce_bucket_size
zero_optimization.use_multi_rank_bucket_allreduce zero_optimization.round_robin_gradients
zero_optimization.overlap_comm
zero_optimization.sub_group_size
zero_optimization.stage3_prefetch_bucket_size zero_optimization.prefetch_bucket_size
zero_optimization.stage3_param_persistence_threshold zero_optimization.param_persistence_threshold
zero_optimization.stage3_model_persistence_threshold zero_optimization.model_persistence_threshold
zero_optimization.stage3_max_live_parameters zero_optimization.max_live_parameters
zero_optimization.stage3_max_reuse_distance zero_optimization.max_reuse_distance
zero_optimization.stage3_gather_16bit_weights_on_model_save
zero_optimization.gather_16bit_weights_on_model_save
zero_optimization.stage3_gather_fp16_weights_on_model_save
zero_optimization.stage3_allgather_sequential zero_optimization.allgather_sequential
zero_optimization.memory_efficient_linear
zero_optimization.cpu_offload zero_optimization.cpu_offload_param
zero_optimization.offload_optimizer zero_optimization.offload_param
zero_optimization.offload_optimizer.device zero_optimization.offload_optimizer.pin_memory
zero_optimization.offload_optimizer.ratio zero_optimization.offload_optimizer.buffer_count
zero_optimization.offload_optimizer.pipeline_read zero_optimization.offload_optimizer.pipeline_write
zero_optimization.offload_param.device zero_optimization.offload_param.pin_memory
zero_optimization.offload_param.buffer_count zero_optimization.offload_param.buffer_size
zero_optimization.offload_param.max_in_cpu
aio.block_size aio.queue_depth aio.intra_op_parallelism
zero_optimization.zero_hpz_partition_size zero_optimization.zero_quantized_weights
zero_optimization.zero_quantized_gradients
zero_optimization.mics_shard_size zero_optimization.mics_hierarchical_params_gather
activation_checkpointing.partition_activations activation_checkpointing.cpu_checkpointing
activation_checkpointing.number_checkpoints activation_checkpointing.contiguous_memory_optimization
activation_checkpointing.synchronize_checkpoint_boundary
pipeline.pipe_partitioned pipeline.grad_partitioned
checkpoint.parallel_write.pipeline_stage checkpoint.use_node_local_storage
checkpoint.load_universal
tensor_parallel.autotp_size
fp16.loss_scale fp16.initial_scale_power fp16.loss_scale_window fp16.hysteresis
sequence_parallel_size data_parallel_size seq_parallel_communication_data_type
wall_clock_breakdown torch_autocast.enabled torch_autocast.dtype
timers.throughput.enabled timers.throughput.synchronized
zero_optimization.offload_optimizer.super_offload
zero_optimization.offload_optimizer.cpuadam_cores_perc
"""
_NO_EFFECT = """
steps_per_print dump_state memory_breakdown log_level disable_python_gc
tensorboard wandb csv_monitor comet comms_logger vocabulary_size dataloader_drop_last
scheduler optimizer.params optimizer.legacy_fusion
fp16.min_loss_scale
fp16.consecutive_hysteresis fp16.auto_cast
gradient_predivide_factor prescale_gradients gradient_allreduce_op
zero_optimization.load_from_fp32_weights zero_optimization.elastic_checkpoint
zero_optimization.ignore_unused_parameters zero_optimization.log_trace_cache_warnings
zero_optimization.enable_sanity_checks zero_optimization.cpu_offload_use_pin_memory
zero_optimization.allgather_partitions zero_optimization.override_module_apply
zero_optimization.pipeline_loading_checkpoint zero_optimization.legacy_stage1
zero_optimization.offload_optimizer.nvme_path zero_optimization.offload_param.nvme_path
zero_optimization.offload_optimizer.fast_init
activation_checkpointing.profile
checkpoint.tag_validation pipeline.seed_layers pipeline.use_reentrant
pipeline.stages pipeline.partition pipeline.activation_checkpoint_interval
data_types.keep_in_fp32_modules autotuning managed_gradient_accumulation
zero_optimization.allgather_bucket_size
aio.single_submit aio.overlap_events
"""
_NOT_MODELLED = """
torch_autocast.lower_precision_safe_modules
bf16.immediate_grad_update bfloat16.immediate_grad_update
fp16.fp16_master_weights_and_grads disable_allgather
zero_optimization.zero_quantized_nontrainable_weights zero_optimization.zeropp_loco_param
zero_optimization.zenflow zero_optimization.stage3_use_all_reduce_for_fetch_params
zero_optimization.use_all_reduce_for_fetch_params zero_optimization.parameter_alignment
zero_optimization.leaf_module zero_optimization.save_muon_momentum_buffer_in_memory
zero_optimization.compute_grad_norm
aio.use_gds checkpoint data_efficiency compile hybrid_engine weight_quantization datastates timers
expert_parallel use_data_before_expert_parallelism flops_profiler data_types tensor_parallel
zero_optimization.stage3_module_granularity_threshold
zero_optimization.module_granularity_threshold
"""

_GROUPS: tuple[tuple[Status, str], ...] = (
    ("modelled", _MODELLED),
    ("no effect", _NO_EFFECT),
    ("not modelled", _NOT_MODELLED),
)
STATUS: dict[str, Status] = {name: kind for kind, names in _GROUPS for name in names.split()}
TOP_LEVEL = tuple(dict.fromkeys(name.split(".")[0] for name in STATUS))

REMOVED = {
    "nebula": "Nebula checkpointing",
    "compression_training": "the compression library",
    "amp": "NVIDIA Apex AMP (use fp16, bf16 or torch_autocast)",
    "quantize_training": "Mixture-of-Quantization",
    "sparse_gradients": "sparse compression of embedding gradients",
    "eigenvalue": "eigenvalue-based quantization",
    "sparse_attention": "sparse attention",
    "elasticity": "elastic training (set the batch sizes directly)",
    "graph_harvesting": "graph harvesting",
    "curriculum_learning": "top-level curriculum learning (use data_efficiency)",
    "progressive_layer_drop": "progressive layer dropping",
}
"""Top-level keys that current DeepSpeed refuses, whatever their value (``runtime/config.py``)."""
REMOVED_ZERO = {
    "mics_shard_size": "MiCS sharding",
    "mics_hierarchical_params_gather": "MiCS sharding",
    "zeropp_loco_param": "LoCo-ZeRO++",
}
"""Of ``zero_optimization``, refused from ``REMOVED_FROM`` on."""
REMOVED_FROM = (0, 19, 7)

_DEFAULTS: dict[str, Any] = {
    "zero_optimization.compute_grad_norm": True,
    "zero_optimization.stage3_module_granularity_threshold": 0,
    "zero_optimization.module_granularity_threshold": 0,
    "zero_optimization.offload_optimizer.cpuadam_cores_perc": 0.8,
}


def status(path: tuple[str | int, ...]) -> Status:
    """Status of the key at ``path``, by its longest known prefix."""
    for length in range(len(path), 0, -1):
        found = STATUS.get(".".join(str(step) for step in path[:length]))
        if found is not None:
            return found
    return "unknown"


def matters(path: tuple[str | int, ...], value: Any) -> bool:
    """Whether a key that is not modelled is switched on, so that a prediction misses something."""
    name = ".".join(str(step) for step in path)
    if name in _DEFAULTS:
        return bool(value != _DEFAULTS[name])
    if isinstance(value, dict):
        if "enabled" in value:
            return value["enabled"] is not False
        return any(matters((*path, key), inner) for key, inner in value.items())
    return value not in (None, False, 0, "", "auto", [])
