"""DeepSpeed's JSON, unmodified, into the typed settings that raysim honours.

Steps: keys DeepSpeed has removed; ``"auto"`` (``deepspeed_auto``); DeepSpeed's own validation
(``deepspeed_schema``); combinations its engine refuses (``deepspeed_rules``); the batch triple;
what of the rest is not modelled yet (``deepspeed_keys``). Release followed: 0.19.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel, ValidationError

from raysim.errors import CalibrationError, Location, Problem, ScenarioError
from raysim.perf.optimizer import optimizer_key
from raysim.scenario.deepspeed_auto import Filled, ScriptSettings, fill
from raysim.scenario.deepspeed_keys import (
    REMOVED,
    REMOVED_FROM,
    STATUS,
    TOP_LEVEL,
    matters,
    status,
)
from raysim.scenario.deepspeed_release import (
    CLIPS_FROM,
    COALESCES_FROM,
    as_read,
    left_out,
    removed,
)
from raysim.scenario.deepspeed_rules import Parsed, autocast_type, dtype_name, refusals
from raysim.scenario.deepspeed_schema import (
    BLOCKS,
    AioBlock,
    Bf16Block,
    Fp16Block,
    OffloadOptimizerBlock,
    OffloadParamBlock,
    OldZeroBlock,
    ZeroBlock,
)
from raysim.scenario.deepspeed_template import unfilled
from raysim.scenario.documents import Document, KeyPath, did_you_mean, dotted, shorten, value_at
from raysim.scenario.problems import problems_of
from raysim.training.settings.deepspeed import (
    Aio,
    BatchTriple,
    CheckpointBlock,
    DeepSpeedConfig,
    OffloadOptimizer,
    OffloadParam,
    Optimizer,
    PipelineSettings,
    Precision,
    ZeroConfig,
    complete_batch_triple,
)
from raysim.training.settings.loss_scale import LossScale

__all__ = ["Reading", "ScriptSettings", "read_deepspeed"]

_TRIPLE = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_DICTS = (
    "zero_optimization", "fp16", "bf16", "bfloat16", "optimizer", "scheduler", "data_types", "aio",
    "activation_checkpointing", "pipeline", "checkpoint", "tensor_parallel", "comms_logger",
    "tensorboard", "wandb", "csv_monitor", "comet", "compile", "hybrid_engine", "timers",
    "flops_profiler", "torch_autocast",
)  # fmt: skip
_ONLY_12 = ("allgather_bucket_size", "use_multi_rank_bucket_allreduce", "round_robin_gradients")
_ONLY_3 = ("sub_group_size", "memory_efficient_linear")
_OFF = (
    "zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_gradients",
    "mics_shard_size", "mics_hierarchical_params_gather", *_ONLY_12[1:],
)  # fmt: skip
"""Features that nobody expects to be other than by default."""
_DEPRECATED = ("stage3_gather_fp16_weights_on_model_save",)
_BOOLS = (
    ("wall_clock_breakdown",), ("prescale_gradients",), ("zero_allow_untested_optimizer",),
    ("zero_force_ds_cpu_optimizer",), ("pipeline", "pipe_partitioned"),
    ("pipeline", "grad_partitioned"), ("activation_checkpointing", "partition_activations"),
    ("activation_checkpointing", "cpu_checkpointing"), ("optimizer", "params", "torch_adam"),
)  # fmt: skip


@dataclass(slots=True)
class Reading:
    """A configuration with what a careful reader would say about it."""

    config: DeepSpeedConfig
    notes: list[Problem] = field(default_factory=list)
    """Values taken where the file left a choice."""
    warnings: list[Problem] = field(default_factory=list)
    silent: list[Problem] = field(default_factory=list)
    """Keys that change the real run but not the prediction."""


def read_deepspeed(document: Document, script: ScriptSettings) -> Reading:
    """The configuration DeepSpeed would run with.

    Raises
    ------
    ScenarioError
        DeepSpeed itself would refuse it (each problem says why), or it contradicts the scenario.
    """
    if not isinstance(document.data, dict):
        message = f"expected a mapping of DeepSpeed's keys, got {shorten(document.data)}"
        raise ScenarioError(document.problem((), message))
    old = script.release < REMOVED_FROM
    if (template := unfilled(document)) is not None:
        raise ScenarioError(template)
    shapes = [*removed(document, script.release), *_wrong_shapes(document)]
    if shapes:
        raise ScenarioError(shapes)
    filled = fill(document, script)
    filled.data = as_read(filled.data, script.release)
    if isinstance(filled.data.get("zero_optimization"), bool):
        filled.data["zero_optimization"] = _old_zero_format(filled.data)
    errors = [*filled.errors, *_scalars(document, filled.data)]
    blocks = _blocks(document, filled, errors, OldZeroBlock if old else ZeroBlock)
    if errors:
        raise ScenarioError(errors)
    zero = _replace_deprecated(document, blocks.zero, errors)
    parsed = Parsed(
        data=filled.data, zero=zero, fp16=blocks.fp16, bf16=blocks.bf16, aio=blocks.aio,
        script=script,
    )  # fmt: skip
    errors += [document.problem(path, reason) for path, reason in refusals(parsed)]
    triple = _triple(document, filled.data, script, errors)
    optimizer = _optimizer(document, parsed, errors)
    if errors or triple is None:
        raise ScenarioError(errors)
    silent = list(_silent_changes(document, parsed))
    notes = [*filled.notes, *silent, *_defaults(document, parsed)]
    config = _typed(parsed, triple, optimizer)
    warnings = [*_not_modelled(document), *left_out(document, script.release)]
    return Reading(config=config, notes=notes, warnings=warnings, silent=silent)


def _wrong_shapes(document: Document) -> Iterator[Problem]:
    """Blocks that are not mappings."""
    for key in _DICTS:
        value = document.data.get(key)
        if key == "zero_optimization" and isinstance(value, bool):
            continue
        if key in document.data and not isinstance(value, dict):
            yield document.problem((key,), f"expected a mapping, got {shorten(value)}")
    inner = (("optimizer", "params"), ("timers", "throughput"), ("checkpoint", "parallel_write"))
    for key, name in inner:
        block = document.data.get(key)
        if isinstance(block, dict) and name in block and not isinstance(block[name], dict):
            yield document.problem((key, name), f"expected a mapping, got {shorten(block[name])}")


def _old_zero_format(data: dict[str, Any]) -> dict[str, Any]:
    """``"zero_optimization": true``, the format of 2020 (``read_zero_config_deprecated``)."""
    if not data["zero_optimization"]:
        return {"stage": 0}
    return {"stage": 1, "allgather_bucket_size": data.get("allgather_size", 500_000_000)}


def _scalars(document: Document, data: dict[str, Any]) -> Iterator[Problem]:
    """Top-level values that DeepSpeed reads unchecked and trips over later."""
    for key in _TRIPLE:
        value = data.get(key)
        if value is not None and (isinstance(value, bool) or not _whole(value)):
            yield document.problem((key,), f"expected a whole number, got {shorten(value)}")
    clipping = data.get("gradient_clipping", 1.0)
    if not isinstance(clipping, (int, float)) or not 0 <= clipping < float("inf"):
        message = f"expected a number of at least 0, got {shorten(clipping)}"
        yield document.problem(("gradient_clipping",), message)
    factor = data.get("gradient_predivide_factor", 1.0)
    if isinstance(factor, bool) or not isinstance(factor, (int, float)):
        message = f"expected a number, got {shorten(factor)}"
        yield document.problem(("gradient_predivide_factor",), message)
    for path in _BOOLS:
        flag = value_at(data, path)
        if flag is not None and not isinstance(flag, bool):
            yield document.problem(path, f"expected true or false, got {shorten(flag)}")
    momentum = value_at(data, ("optimizer", "params", "momentum")) or 0.0
    if isinstance(momentum, bool) or not isinstance(momentum, (int, float)):
        message = f"expected a number, got {shorten(momentum)}"
        yield document.problem(("optimizer", "params", "momentum"), message)


def _whole(value: Any) -> bool:
    """Whether a batch size is a whole number that int64 arithmetic can hold."""
    if isinstance(value, int):
        return abs(value) < 10**15
    return isinstance(value, float) and abs(value) < 1e15 and value == int(value)


@dataclass(slots=True)
class _Blocks:
    zero: ZeroBlock
    fp16: Fp16Block
    bf16: Bf16Block
    aio: AioBlock


def _blocks(
    document: Document, filled: Filled, errors: list[Problem], zero_block: type[ZeroBlock]
) -> _Blocks:
    """All strict blocks, checked; those the prediction needs are returned."""
    found: dict[str, BaseModel] = {}
    for path, model in {**BLOCKS, ("zero_optimization",): zero_block}.items():
        data = value_at(filled.data, path)
        if data is not None:
            here = replace(document, data=filled.data)
            try:
                found[path[-1]] = model.model_validate(data)
            except ValidationError as error:
                errors += problems_of(error, here, model, prefix=path)
    zero, fp16, aio = (found.get(key) for key in ("zero_optimization", "fp16", "aio"))
    bf16 = found.get("bf16", found.get("bfloat16"))
    return _Blocks(
        zero=zero if isinstance(zero, ZeroBlock) else ZeroBlock(),
        fp16=fp16 if isinstance(fp16, Fp16Block) else Fp16Block(),
        bf16=bf16 if isinstance(bf16, Bf16Block) else Bf16Block(),
        aio=aio if isinstance(aio, AioBlock) else AioBlock(),
    )


def _replace_deprecated(document: Document, zero: ZeroBlock, errors: list[Problem]) -> ZeroBlock:
    """Old spellings in terms of the new ones; giving both is an error, as in DeepSpeed."""
    given, update = zero.model_fields_set, dict[str, Any]()
    renames = {
        "cpu_offload": ("offload_optimizer", OffloadOptimizerBlock(device="cpu")),
        "cpu_offload_param": ("offload_param", OffloadParamBlock(device="cpu")),
        "stage3_gather_fp16_weights_on_model_save": ("gather_16bit_weights_on_model_save", True),
    }
    for old, (new, value) in renames.items():
        if old not in given:
            continue
        if new in given:
            path: KeyPath = ("zero_optimization", old)
            message = f"deprecated, and given together with {new}, which replaces it"
            errors.append(document.problem(path, message, key=True))
        elif getattr(zero, old):
            update[new] = value
    return zero.model_copy(update=update)


def _triple(
    document: Document, data: dict[str, Any], script: ScriptSettings, errors: list[Problem]
) -> BatchTriple | None:
    """The three batch sizes, or a problem that shows the numbers."""
    train, micro, accumulation = (None if data.get(k) is None else int(data[k]) for k in _TRIPLE)
    if errors and (train is None and micro is None):
        return None
    try:
        return complete_batch_triple(train, micro, accumulation, script.data_parallel)
    except ScenarioError as error:
        path = next(((k,) for k in _TRIPLE if data.get(k) is not None), ())
        hint = ""
        if train is None and micro is None:
            hint = ' (the scenario\'s "micro_batch" or "auto:" can)'
        errors.append(document.problem(path, str(error) + hint))
        return None


def _optimizer(document: Document, p: Parsed, errors: list[Problem]) -> Optimizer | None:
    """The optimizer DeepSpeed builds; None when the script brings its own."""
    name = p.json_optimizer
    if name is None or p.script.optimizer_type is not None:
        return None
    momentum = float(p.optimizer_params.get("momentum", 0.0))
    try:
        optimizer_key(name, momentum=momentum)
    except CalibrationError as error:
        if not errors:
            errors.append(document.problem(("optimizer", "type"), str(error)))
    built_fused = name.lower() in ("adam", "adamw", "lamb", "lion")
    lr = p.optimizer_params.get("lr", 1e-3)
    return Optimizer(
        type=name,
        lr=float(lr) if isinstance(lr, (int, float)) else 1e-3,
        fused=built_fused and not p.optimizer_params.get("torch_adam", False),
        momentum=momentum,
    )


def _silent_changes(document: Document, p: Parsed) -> Iterator[Problem]:
    """What DeepSpeed does differently from what the file says, without an error."""
    zero = p.zero
    if isinstance(p.data.get("gradient_clipping"), bool):
        value = float(p.data["gradient_clipping"])
        message = f"a boolean; DeepSpeed clips to float({p.data['gradient_clipping']}) = {value}"
        yield document.problem(("gradient_clipping",), message)
    for name, least in (("offload_param", 3), ("offload_optimizer", 1)):
        block = getattr(zero, name)
        if block is not None and block.device != "none" and p.stage < least:
            message = f"DeepSpeed ignores it at stage {p.stage}; it needs stage {least}"
            yield document.problem(("zero_optimization", name), message)
    for name in _OFF[:3] if p.stage < 3 else ():
        if getattr(zero, name) > type(zero).model_fields[name].default:
            message = f"DeepSpeed ignores it at stage {p.stage}; ZeRO++ needs stage 3"
            yield document.problem(("zero_optimization", name), message)
    if p.script.pipeline_stages > 1 and zero.overlap_comm:
        message = "the pipeline engine turns it off"
        yield document.problem(("zero_optimization", "overlap_comm"), message)
    if p.script.optimizer_type is not None and p.json_optimizer is not None:
        message = f"the script's {p.script.optimizer_type} is used instead"
        yield document.problem(("optimizer",), message, key=True)
    recompute = p.data.get("activation_checkpointing", {})
    if recompute.get("contiguous_memory_optimization") and not _checkpoint_buffers(recompute):
        message = "the script has to say num_checkpoints; kept inputs are taken as tensors each"
        yield document.problem(("activation_checkpointing",), message)
    if "activation_checkpointing" in p.data:
        message = "does not switch recomputation on; the scenario's activation_checkpointing does"
        yield document.problem(("activation_checkpointing",), message, key=True)


def _defaults(document: Document, p: Parsed) -> Iterator[Problem]:
    """DeepSpeed's defaults that act at this stage and that the file leaves to it."""
    where = Location(file=document.file)
    given = p.zero.model_fields_set
    for name, info in type(p.zero).model_fields.items() if p.stage else ():
        key = f"zero_optimization.{info.alias or name}"
        plain = isinstance(info.default, (bool, int)) and name != "stage"
        acts = name not in (*(_ONLY_12 if p.stage == 3 else _ONLY_3), *_DEPRECATED, *_OFF)
        acts = acts and (p.stage == 3 or info.alias is None)
        if plain and acts and name not in given and STATUS[key] == "modelled":
            message = f"DeepSpeed's default {_shown(info.default)}"
            yield Problem(key=key, message=message, where=where)
    if "gradient_clipping" not in document.data:
        clips = p.script.release >= CLIPS_FROM
        message = "DeepSpeed's default " + ("1.0 (0.0 before 0.19.3)" if clips else "0.0")
        yield Problem(key="gradient_clipping", message=message, where=where)


def _shown(value: bool | int) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:,}"


def _not_modelled(document: Document) -> Iterator[Problem]:
    """One line per key that would change the real run and is not simulated, or not known at all."""
    for path, value in _leaves(document.data, ()):
        kind = status(path)
        if kind == "unknown" and path[0] not in REMOVED:
            near = did_you_mean(path[0], TOP_LEVEL) if len(path) == 1 else ""
            message = f"unknown key; DeepSpeed ignores it{near}"
            yield document.problem(path, message, key=True)
        elif kind == "not modelled" and matters(path, value):
            yield document.problem(path, "not modelled yet; the prediction is without it", key=True)


def _leaves(data: dict[str, Any], path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Keys one by one; a block with one status as a whole counts as one key."""
    for key, value in data.items():
        here = (*path, key)
        if isinstance(value, dict) and _known_below(here):
            yield from _leaves(value, here)
        else:
            yield here, value


def _known_below(path: KeyPath) -> bool:
    """Whether the table of keys looks inside this block."""
    prefix = dotted(path) + "."
    return any(name.startswith(prefix) for name in STATUS)


def _typed(p: Parsed, triple: BatchTriple, optimizer: Optimizer | None) -> DeepSpeedConfig:
    """The settings the training tower reads."""
    recompute = p.data.get("activation_checkpointing", {})
    pipeline, saved = p.data.get("pipeline", {}), p.data.get("checkpoint", {})
    wire = _wire(p)
    tensor_parallel = p.data.get("tensor_parallel", {}).get("autotp_size", 0)
    timer = p.data.get("timers", {}).get("throughput", {})
    return DeepSpeedConfig(
        train_batch_size=triple.train,
        train_micro_batch_size_per_gpu=triple.micro,
        gradient_accumulation_steps=triple.accumulation,
        precision=p.precision,  # type: ignore[arg-type]
        zero=_zero_config(p),
        optimizer=optimizer,
        gradient_clipping=float(p.data.get("gradient_clipping", 1.0)),
        torch_autocast=autocast_type(p.data),  # type: ignore[arg-type]
        communication_data_type=wire,
        grad_accum_dtype=dtype_name(p.data.get("data_types", {}).get("grad_accum_dtype")),  # type: ignore[arg-type]
        bf16_master_weights_and_grads=p.bf16.bf16_master_weights_and_grads,
        bf16_optimizer_states=p.bf16.bf16_optimizer_states,
        check_grad_overflow=p.bf16.check_grad_overflow,
        loss_scale=_loss_scale(p.fp16),
        partition_activations=bool(recompute.get("partition_activations", False)),
        cpu_checkpointing=bool(recompute.get("cpu_checkpointing", False)),
        checkpoint_buffers=_checkpoint_buffers(recompute),
        separate_gathers=p.stage == 3 and p.script.release < COALESCES_FROM,
        synchronize_checkpoint_boundary=bool(recompute.get("synchronize_checkpoint_boundary")),
        throughput_timer=all(timer.get(key, True) for key in ("enabled", "synchronized")),
        checkpoint=CheckpointBlock(
            pipeline_stage=bool(saved.get("parallel_write", {}).get("pipeline_stage", False)),
            use_node_local_storage=bool(saved.get("use_node_local_storage", False)),
            load_universal=bool(saved.get("load_universal", False)),
        ),
        wall_clock_breakdown=bool(p.data.get("wall_clock_breakdown", False)),
        tensor_parallel=max(1, int(tensor_parallel)),
        pipeline=PipelineSettings(
            pipe_partitioned=pipeline.get("pipe_partitioned", True),
            grad_partitioned=pipeline.get("grad_partitioned", True),
        ),
    )


def _checkpoint_buffers(recompute: dict[str, Any]) -> int:
    number = recompute.get("number_checkpoints")
    contiguous = recompute.get("contiguous_memory_optimization", False)
    return number if contiguous and isinstance(number, int) else 0


def _loss_scale(fp16: Fp16Block) -> LossScale | None:
    if not fp16.enabled or fp16.loss_scale != 0:
        return None
    return LossScale(
        initial_power=fp16.initial_scale_power,
        window=fp16.loss_scale_window,
        hysteresis=max(1, fp16.hysteresis),
    )


def _wire(p: Parsed) -> Precision | None:
    """Type of gradients on the wire; sequence parallelism has a key of its own, fp32 by default.

    ZeRO-1/2 do not look at it: ``allreduce_bucket`` sends fp32 then, whatever either key says.
    """
    name = p.data.get("communication_data_type")
    if (p.data.get("sequence_parallel_size") or 1) > 1:
        name = p.data.get("seq_parallel_communication_data_type") or "fp32"
        name = "fp32" if p.stage in (1, 2) else name
    return name.lower() if name else None


def _zero_config(p: Parsed) -> ZeroConfig:
    """``zero_optimization``; offloading that DeepSpeed would ignore at this stage is left out."""
    z = p.zero
    optimizer = z.offload_optimizer if p.stage > 0 else None
    param = z.offload_param if p.stage == 3 else None
    return ZeroConfig(
        stage=p.stage,  # type: ignore[arg-type]
        contiguous_gradients=z.contiguous_gradients,
        reduce_scatter=z.reduce_scatter,
        reduce_bucket_size=z.reduce_bucket_size,
        use_multi_rank_bucket_allreduce=z.use_multi_rank_bucket_allreduce,
        allgather_bucket_size=z.allgather_bucket_size,
        overlap_comm=z.overlap_comm,
        round_robin_gradients=z.round_robin_gradients,
        sub_group_size=z.sub_group_size,
        stage3_prefetch_bucket_size=z.prefetch_bucket_size,
        stage3_param_persistence_threshold=z.param_persistence_threshold,
        stage3_model_persistence_threshold=z.model_persistence_threshold,
        stage3_max_live_parameters=z.max_live_parameters,
        stage3_max_reuse_distance=z.max_reuse_distance,
        stage3_gather_16bit_weights_on_model_save=z.gather_16bit_weights_on_model_save,
        stage3_allgather_sequential=z.allgather_sequential,
        stage3_module_granularity_threshold=z.module_granularity_threshold,
        memory_efficient_linear=z.memory_efficient_linear,
        offload_optimizer=_offload_optimizer(optimizer),
        offload_param=_offload_param(param),
        aio=Aio(
            block_size=p.aio.block_size,
            queue_depth=p.aio.queue_depth,
            intra_op_parallelism=p.aio.intra_op_parallelism,
            use_gds=p.aio.use_gds,
        ),
        zero_hpz_partition_size=z.zero_hpz_partition_size if p.stage == 3 else 1,
        zero_quantized_weights=z.zero_quantized_weights and p.stage == 3,
        zero_quantized_gradients=z.zero_quantized_gradients and p.stage == 3,
        mics_shard_size=p.mics_shard_size,
        mics_hierarchical_params_gather=p.mics_hierarchical,
    )


def _offload_optimizer(block: OffloadOptimizerBlock | None) -> OffloadOptimizer:
    block = block or OffloadOptimizerBlock()
    return OffloadOptimizer(
        device=block.device,
        pin_memory=block.pin_memory,
        ratio=block.ratio,
        buffer_count=block.buffer_count,
        pipeline_read=block.pipeline_read,
        pipeline_write=block.pipeline_write,
        fast_init=block.fast_init,
        super_offload=block.super_offload,
        cpuadam_cores_perc=block.cpuadam_cores_perc,
    )


def _offload_param(block: OffloadParamBlock | None) -> OffloadParam:
    block = block or OffloadParamBlock()
    return OffloadParam(
        device=block.device,
        pin_memory=block.pin_memory,
        buffer_count=block.buffer_count,
        buffer_size=block.buffer_size,
        max_in_cpu=block.max_in_cpu,
    )
