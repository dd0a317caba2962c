"""Combinations that DeepSpeed refuses once its engine starts, each with DeepSpeed's reason.

Source: ``runtime/config.py`` (``_do_error_check``), ``runtime/engine.py`` (``_do_sanity_check``,
``_do_optimizer_sanity_check``, ``_configure_optimizer``), ``zero/stage_1_and_2.py``,
``zero/stage3.py``, ``runtime/pipe/engine.py`` of release 0.19.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from raysim.scenario.deepspeed_auto import ScriptSettings
from raysim.scenario.deepspeed_keys import REMOVED_FROM
from raysim.scenario.deepspeed_release import ONE_BIT
from raysim.scenario.deepspeed_schema import (
    AioBlock,
    Bf16Block,
    Fp16Block,
    OldZeroBlock,
    ZeroBlock,
)
from raysim.scenario.documents import KeyPath, did_you_mean, shorten

Refusal = tuple[KeyPath, str]
ZERO: KeyPath = ("zero_optimization",)

DEEPSPEED_OPTIMIZERS = (
    "adagrad", "adam", "adamw", "lamb", "muadam", "muadamw", "musgd", "lion", "muon",
)  # fmt: skip
TORCH_OPTIMIZERS = (
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon", "NAdam",
    "RAdam", "RMSprop", "Rprop", "SGD", "SparseAdam",
)  # fmt: skip
CPU_OPTIMIZERS = ("deepspeedcpuadam", "deepspeedcpulion")
ZERO_TESTED = (
    "adam", "adamw", "fusedadam", "adagrad", "lion", "fusedlion", "deepspeedcpuadagrad", "muon",
    *CPU_OPTIMIZERS,
)  # fmt: skip
SCHEDULERS = (
    "LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR",
    "LambdaLR", "MultiplicativeLR", "StepLR", "MultiStepLR", "ConstantLR", "LinearLR",
    "ExponentialLR", "SequentialLR", "CosineAnnealingLR", "ChainedScheduler", "ReduceLROnPlateau",
    "CyclicLR", "CosineAnnealingWarmRestarts", "OneCycleLR", "PolynomialLR",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """The JSON after its blocks have passed their own checks."""

    data: dict[str, Any]
    zero: ZeroBlock
    fp16: Fp16Block
    bf16: Bf16Block
    aio: AioBlock
    script: ScriptSettings

    @property
    def stage(self) -> int:
        """ZeRO stage as a plain number."""
        return int(self.zero.stage)

    @property
    def precision(self) -> str:
        """Type of weights and activations."""
        return "fp16" if self.fp16.enabled else "bf16" if self.bf16.enabled else "fp32"

    @property
    def json_optimizer(self) -> str | None:
        """``optimizer.type``."""
        name = self.data.get("optimizer", {}).get("type")
        return None if name is None else str(name)

    @property
    def optimizer_params(self) -> dict[str, Any]:
        """``optimizer.params``."""
        params: dict[str, Any] = self.data.get("optimizer", {}).get("params") or {}
        return params

    @property
    def mics_shard_size(self) -> int:
        """Ranks that share one copy of the states under MiCS; -1: all, plain ZeRO."""
        zero = self.zero
        return zero.mics_shard_size if isinstance(zero, OldZeroBlock) and self.stage == 3 else -1

    @property
    def mics_hierarchical(self) -> bool:
        """``mics_hierarchical_params_gather``."""
        zero = self.zero
        return isinstance(zero, OldZeroBlock) and zero.mics_hierarchical_params_gather

    @property
    def tensor_parallel(self) -> int:
        """Of the scenario, or AutoTP's."""
        return max(self.script.tensor_parallel or 1, self.autotp)

    @property
    def autotp(self) -> int:
        """``tensor_parallel.autotp_size``."""
        return int(self.data.get("tensor_parallel", {}).get("autotp_size", 0))

    @property
    def offloads_optimizer(self) -> bool:
        """Whether the optimizer step runs on the CPU."""
        offload = self.zero.offload_optimizer
        return self.stage > 0 and offload is not None and offload.device != "none"


def refusals(p: Parsed) -> Iterator[Refusal]:
    """Every rule the configuration breaks."""
    yield from _precision(p)
    yield from _gradients(p)
    yield from _zero(p)
    yield from _groups(p)
    yield from _offload(p)
    yield from _twin_flow(p)
    yield from _optimizer(p)
    yield from _master_weights(p)
    yield from _parallelism(p)
    yield from _other_blocks(p)


def _precision(p: Parsed) -> Iterator[Refusal]:
    if p.fp16.enabled and p.bf16.enabled:
        yield ("bf16", "enabled"), "bfloat16 and fp16 modes cannot be simultaneously enabled"
    wanted = p.script.precision
    if wanted is not None and wanted != p.precision:
        message = f"the JSON trains in {p.precision}, the scenario says precision: {wanted}"
        yield (("bf16",) if p.bf16.enabled else ("fp16",)), message
    declared = dtype_name(p.data.get("data_types", {}).get("param_dtype"))
    if declared is not None and declared != p.precision:
        message = f"{declared} conflicts with the enabled precision mode ({p.precision})"
        yield ("data_types", "param_dtype"), message


def dtype_name(value: Any) -> str | None:
    """``fp32``, ``fp16`` or ``bf16`` of any spelling that DeepSpeed's ``DtypeEnum`` takes."""
    spellings = {
        "torch.float16": "fp16", "fp16": "fp16", "float16": "fp16", "half": "fp16",
        "torch.float32": "fp32", "fp32": "fp32", "float32": "fp32", "float": "fp32",
        "torch.bfloat16": "bf16", "bf16": "bf16", "bfloat16": "bf16",
    }  # fmt: skip
    return spellings.get(value) if isinstance(value, str) else None


def autocast_type(data: dict[str, Any]) -> str | None:
    """Of ``torch_autocast``, if it is on; without a ``dtype`` it is torch's own default on CUDA."""
    said = data.get("torch_autocast") or {}
    return dtype_name(said.get("dtype", "fp16")) if said.get("enabled") else None


def _gradients(p: Parsed) -> Iterator[Refusal]:
    wire = p.data.get("communication_data_type")
    if wire is not None and (not isinstance(wire, str) or wire.lower() not in _WIRE_TYPES):
        message = f"must be one of fp16, bf16, fp32 (got {shorten(wire)})"
        yield ("communication_data_type",), message
    op = p.data.get("gradient_allreduce_op", "mean")
    if not isinstance(op, str) or op.lower() not in ("mean", "sum"):
        yield ("gradient_allreduce_op",), f"must be mean or sum (got {shorten(op)})"
    elif op.lower() == "sum" and p.stage == 3:
        yield ("gradient_allreduce_op",), "'sum' is not supported with ZeRO stage 3"
    elif op.lower() == "sum" and p.zero.zenflow is not None:
        yield ("gradient_allreduce_op",), "'sum' is not supported with ZenFlow"
    if p.stage >= 2 and p.zero.reduce_scatter:
        suffix = f"is not supported with ZeRO-{p.stage} with reduce_scatter enabled"
        if p.data.get("gradient_predivide_factor", 1.0) != 1.0:
            yield ("gradient_predivide_factor",), f"!= 1.0 {suffix}"
        if p.data.get("prescale_gradients", False) is not False:
            yield ("prescale_gradients",), suffix
    grads = p.data.get("data_types", {}).get("grad_accum_dtype")
    if grads is not None and dtype_name(grads) is None:
        message = f"must be fp32, fp16 or bf16 (got {shorten(grads)})"
        yield ("data_types", "grad_accum_dtype"), message
    elif p.stage == 0 and grads is not None and dtype_name(grads) != p.precision:
        message = (
            f"{dtype_name(grads)} with a {p.precision} model needs ZeRO (stage 0: unsupported mix)"
        )
        yield ("data_types", "grad_accum_dtype"), message


_WIRE_TYPES = ("fp32", "fp16", "bf16")


def _zero(p: Parsed) -> Iterator[Refusal]:
    zero = p.zero
    if zero.allgather_bucket_size % 2 and p.stage in (1, 2):
        yield (*ZERO, "allgather_bucket_size"), "must be a multiple of 2"
    if zero.legacy_stage1:
        yield (*ZERO, "legacy_stage1"), "the old ZeRO stage 1 is no longer supported"
    if not zero.compute_grad_norm:
        key = (*ZERO, "compute_grad_norm")
        if p.stage not in (1, 2):
            yield key, "false is supported only with ZeRO stage 1 or 2"
        elif p.data.get("gradient_clipping", 1.0):
            yield key, "false requires gradient_clipping: 0 (its default is 1.0)"
        elif p.offloads_optimizer:
            yield key, "false does not support optimizer offload"


def _groups(p: Parsed) -> Iterator[Refusal]:
    """ZeRO++'s and MiCS's groups of ranks (``utils/groups.py``, ``zero/mics_utils.py``)."""
    if p.stage < 3:
        return
    zero, world = p.zero, p.script.world
    hpz, mics = zero.zero_hpz_partition_size, p.mics_shard_size
    key = (*ZERO, "zero_hpz_partition_size")
    if hpz > 1 and world % min(hpz, world):
        yield key, f"{hpz} does not divide the world size {world}"
    if hpz > 1 and zero.offload_param is not None and zero.offload_param.device == "nvme":
        yield key, "the second shards have no place on nvme: offload_param must be cpu or none"
    if zero.zero_quantized_gradients and not zero.reduce_scatter:
        message = "needs reduce_scatter: when enabling all_to_all_reduce, it must be on"
        yield (*ZERO, "zero_quantized_gradients"), message
    if mics > 0 and world % mics:
        yield (*ZERO, "mics_shard_size"), f"{mics} does not divide the world size {world}"
    if 0 < mics < world and p.offloads_optimizer:
        message = "MiCS has no support for CPU offloading of the optimizer"
        yield (*ZERO, "mics_shard_size"), message
    cut = {
        "zero_hpz_partition_size": hpz > 1,
        "zero_quantized_gradients": zero.zero_quantized_gradients,
        "mics_shard_size": mics > 0,
    }
    for name, on in cut.items() if p.tensor_parallel > 1 else ():
        if on:
            message = "cuts groups from all ranks, tensor-parallel peers among them, which mixes "
            yield (*ZERO, name), f"{message}their weights; use tensor_parallel: 1"


def _twin_flow(p: Parsed) -> Iterator[Refusal]:
    offload, name = p.zero.offload_optimizer, p.script.optimizer_type or p.json_optimizer
    if offload is None or not p.offloads_optimizer or offload.ratio == 1.0 or p.stage != 3:
        return
    own = p.script.optimizer_type is None and not p.optimizer_params.get("torch_adam", False)
    on_cpu = ("adam", "adamw") if own else ()
    if name is not None and name.lower() not in (*on_cpu, "deepspeedcpuadam"):
        message = f"the hybrid optimizer of Twin-Flow only supports DeepSpeedCPUAdam, not {name}"
        yield (*ZERO, "offload_optimizer", "ratio"), message


def _offload(p: Parsed) -> Iterator[Refusal]:
    offload, param = p.zero.offload_optimizer, p.zero.offload_param
    if offload is not None and offload.ratio < 1.0 and p.stage != 3:
        message = "partial offloading is only supported for ZeRO stage 3"
        yield (*ZERO, "offload_optimizer", "ratio"), message
    if offload is not None and offload.super_offload and p.stage == 3:
        if offload.device == "nvme":
            yield (
                (*ZERO, "offload_optimizer", "super_offload"),
                "with nvme is not simulated; use cpu",
            )
        if not offload.cpuadam_cores_perc:
            message = "must be between 0 and 1"
            yield (*ZERO, "offload_optimizer", "cpuadam_cores_perc"), message
    if offload is not None and offload.device == "nvme":
        if p.stage != 3:
            yield (*ZERO, "offload_optimizer", "device"), "nvme needs ZeRO stage 3"
        elif offload.nvme_path is None:
            yield (*ZERO, "offload_optimizer"), "device nvme needs nvme_path"
    if param is not None and param.device == "nvme" and p.stage == 3 and param.nvme_path is None:
        yield (*ZERO, "offload_param"), "device nvme needs nvme_path"


def _optimizer(p: Parsed) -> Iterator[Refusal]:
    name, client = p.json_optimizer, p.script.optimizer_type
    if name is not None and client is None:
        refused = list(_json_optimizer(p, name))
        yield from refused
        if refused:
            return
    used = client or name
    if used is None:
        return
    low = used.lower()
    if p.stage > 0 and low in ONE_BIT:
        yield ("optimizer", "type"), f"{used} does not work with ZeRO"
    allowed = p.data.get("zero_allow_untested_optimizer") or (p.script.hf_trainer and name is None)
    if p.stage > 0 and low not in (*ONE_BIT, *ZERO_TESTED) and not allowed:
        message = f"{used} is untested with ZeRO; zero_allow_untested_optimizer: true allows it"
        yield ("optimizer", "type"), message
    force = p.data.get("zero_force_ds_cpu_optimizer", True)
    on_gpu = client is not None and low not in CPU_OPTIMIZERS and not p.script.hf_trainer
    if on_gpu and p.offloads_optimizer and force:
        message = (
            f"with ZeRO-Offload the script's {used} must be DeepSpeedCPUAdam; use it, put the "
            "optimizer into the JSON, or set zero_force_ds_cpu_optimizer: false"
        )
        yield (*ZERO, "offload_optimizer"), message


def _json_optimizer(p: Parsed, name: str) -> Iterator[Refusal]:
    """Rules on the optimizer that DeepSpeed builds itself."""
    built = DEEPSPEED_OPTIMIZERS + (ONE_BIT if p.script.release < REMOVED_FROM else ())
    if name.lower() not in built and name not in TORCH_OPTIMIZERS:
        hint = did_you_mean(name, [*TORCH_OPTIMIZERS, *DEEPSPEED_OPTIMIZERS])
        if name.lower().removeprefix("fused") in DEEPSPEED_OPTIMIZERS:
            hint = f"; {name[len('fused') :]!r} is, and runs as {name} on GPUs"
        if name.lower() in ONE_BIT:
            hint = "; 1-bit optimizers have been removed (deepspeed_version: 0.19.6 has them)"
        yield ("optimizer", "type"), f"{shorten(name)} is not a supported DeepSpeed optimizer{hint}"
    if "max_grad_norm" in p.optimizer_params:
        message = "is not supported as an optimizer parameter; use gradient_clipping"
        yield ("optimizer", "params", "max_grad_norm"), message
    elif name.lower() in ("adam", "adamw"):
        yield from _adam_arguments(p)
    if name.lower() == "lamb" and p.precision == "fp16" and p.fp16.loss_scale != 0:
        yield ("fp16", "loss_scale"), "the lamb optimizer requires dynamic loss scaling (0)"
    if name.lower() == "muon" and p.stage == 3 and p.zero.reduce_scatter:
        yield (*ZERO, "reduce_scatter"), "Muon and reduce scatter cannot be used together"


_ADAM_ARGUMENTS = (
    "lr", "betas", "eps", "weight_decay", "bias_correction", "amsgrad", "set_grad_none",
    "adam_w_mode", "adamw_mode", "torch_adam", "fp32_optimizer_states", "foreach", "maximize",
    "capturable", "differentiable", "fused",
)  # fmt: skip
"""Of FusedAdam, DeepSpeedCPUAdam and, for ``torch_adam``, torch's; two are the engine's own."""


def _adam_arguments(p: Parsed) -> Iterator[Refusal]:
    """What no Adam's constructor takes (a TypeError), and numbers in quotes (its kernels')."""
    at = ("optimizer", "params")
    for key, value in p.optimizer_params.items():
        if key not in _ADAM_ARGUMENTS:
            hint = did_you_mean(key, _ADAM_ARGUMENTS)
            yield (*at, key), f"{p.json_optimizer} has no such argument{hint}"
        elif key in ("lr", "eps", "weight_decay") and isinstance(value, str):
            yield (*at, key), f"expected a number, got {shorten(value)}"


def _master_weights(p: Parsed) -> Iterator[Refusal]:
    bf16, fp16 = p.bf16, p.fp16
    for block, key, on in (
        ("fp16", "fp16_master_weights_and_grads", fp16.fp16_master_weights_and_grads),
        ("bf16", "bf16_master_weights_and_grads", bf16.bf16_master_weights_and_grads),
        ("bf16", "bf16_optimizer_states", bf16.bf16_optimizer_states),
    ):
        if on and p.stage == 0:
            yield (block, key), "is only supported with ZeRO stage 1, 2 or 3"
    if bf16.bf16_optimizer_states and not bf16.bf16_master_weights_and_grads:
        yield ("bf16", "bf16_optimizer_states"), "requires bf16_master_weights_and_grads"
    low = (p.script.optimizer_type or p.json_optimizer or "deepspeedcpuadam").lower()
    on_cpu = p.offloads_optimizer and low in ("adam", "adamw", "deepspeedcpuadam")
    if fp16.fp16_master_weights_and_grads and p.stage > 0 and not on_cpu:
        message = "requires ZeRO-Offload with DeepSpeedCPUAdam"
        yield ("fp16", "fp16_master_weights_and_grads"), message
    needs_cpu = not bf16.bf16_optimizer_states or p.offloads_optimizer
    if bf16.bf16_master_weights_and_grads and p.stage > 0 and needs_cpu and not on_cpu:
        message = "requires ZeRO-Offload with DeepSpeedCPUAdam, or bf16_optimizer_states"
        yield ("bf16", "bf16_master_weights_and_grads"), message


def _parallelism(p: Parsed) -> Iterator[Refusal]:
    if p.script.pipeline_stages > 1 and p.stage >= 2:
        message = (
            f"ZeRO-{p.stage} is incompatible with pipeline parallelism (stages 0 and 1 are not)"
        )
        yield (*ZERO, "stage"), message
    yield from _sequence(p)
    wanted = p.script.tensor_parallel
    if wanted is not None and p.autotp > 1 and p.autotp != wanted:
        message = f"{p.autotp} differs from the scenario's tensor_parallel: {wanted}"
        yield ("tensor_parallel", "autotp_size"), message


def _sequence(p: Parsed) -> Iterator[Refusal]:
    """Ulysses has groups of its own (``sequence_parallel/parallel_state_sp.py``) in mpu's place."""
    key: KeyPath = ("sequence_parallel_size",)
    size = p.data.get("sequence_parallel_size", 1)
    if size is None:
        return
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        yield key, f"expected a whole number of at least 1, got {shorten(size)}"
        return
    wire = p.data.get("seq_parallel_communication_data_type")
    if wire is not None and (not isinstance(wire, str) or wire.lower() not in _WIRE_TYPES):
        message = f"must be one of fp16, bf16, fp32 (got {shorten(wire)})"
        yield ("seq_parallel_communication_data_type",), message
    replicas = p.data.get("data_parallel_size")
    if size == 1:
        return
    if p.script.pipeline_stages > 1:
        yield key, "PipelineModule takes no sequence-parallel groups; use one or the other"
    if (p.script.tensor_parallel or 1) > 1 or p.autotp > 1:
        yield key, "with tensor parallelism is not simulated; use one or the other"
    if replicas is not None and replicas != p.script.data_parallel:
        message = f"{shorten(replicas)} x sequence_parallel_size {size} is not {p.script.world}"
        yield ("data_parallel_size",), f"{message}, the number of ranks"


def _other_blocks(p: Parsed) -> Iterator[Refusal]:
    scheduler = p.data.get("scheduler", {}).get("type")
    if scheduler is not None and scheduler not in SCHEDULERS:
        hint = did_you_mean(scheduler, SCHEDULERS)
        yield ("scheduler", "type"), f"DeepSpeed does not recognize {shorten(scheduler)}{hint}"
    recompute = p.data.get("activation_checkpointing", {})
    if recompute.get("contiguous_memory_optimization"):
        key = ("activation_checkpointing", "contiguous_memory_optimization")
        if not recompute.get("partition_activations"):
            yield key, "requires partition_activations"
    tag = p.data.get("checkpoint", {}).get("tag_validation", "Warn")
    if not isinstance(tag, str) or tag.upper() not in ("WARN", "IGNORE", "FAIL"):
        message = f"must be Warn, Ignore or Fail (got {shorten(tag)})"
        yield ("checkpoint", "tag_validation"), message
    stage = p.data.get("checkpoint", {}).get("parallel_write", {}).get("pipeline_stage", False)
    if stage not in (True, False):
        message = f"must be true or false (got {shorten(stage)})"
        yield ("checkpoint", "parallel_write", "pipeline_stage"), message
