"""How the job is laid out: workers, mesh, engine settings, batch sizes; before a model is built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from raysim.errors import CalibrationError, Problem, ScenarioError
from raysim.hardware.cluster import ClusterSpec
from raysim.perf.optimizer import optimizer_key
from raysim.scenario.deepspeed_json import ScriptSettings, read_deepspeed
from raysim.scenario.documents import Document
from raysim.scenario.fp8 import megatron_fp8, read_fp8
from raysim.scenario.fsdp import FsdpReading
from raysim.scenario.machines import misfits as machine_misfits
from raysim.scenario.megatron import (
    MegatronReading,
    MegatronSection,
    megatron_pipeline,
    read_megatron,
)
from raysim.scenario.schema_train import TrainSection
from raysim.training.pipeline.pipelines import KINDS, misfits
from raysim.training.settings.deepspeed import (
    BatchTriple,
    DeepSpeedConfig,
    Optimizer,
    PipelineSettings,
    Precision,
    complete_batch_triple,
)
from raysim.training.settings.fp8 import Fp8Settings
from raysim.training.settings.fsdp import FsdpSettings
from raysim.training.settings.parallel import Mesh

_NOT_DEEPSPEEDS = (
    "virtual_stages", "layers_per_stage", "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage", "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split", "microbatch_group_size_per_vp_stage", "overlap_p2p_comm",
)  # fmt: skip
"""Keys of `pipeline` that PipelineModule does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """Everything about the job that does not need the layer table."""

    engine: Literal["ddp", "fsdp", "deepspeed", "megatron"]
    mesh: Mesh
    batch: BatchTriple
    precision: Precision
    optimizer: Optimizer
    deepspeed: DeepSpeedConfig | None
    pipeline: PipelineSettings
    gradient_clipping: float
    megatron: MegatronReading | None = None
    fsdp: FsdpSettings = field(default_factory=FsdpSettings)
    fp8: Fp8Settings | None = None
    checkpoints: bool = False
    """FSDP's file turns activation checkpointing on."""
    notes: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()


def make_strategy(
    train: TrainSection,
    document: Document,
    cluster: ClusterSpec,
    deepspeed: Document | None,
    megatron: Document | None,
    config: Mapping[str, Any] | None,
    fsdp: FsdpReading | None = None,
) -> Strategy:
    """Mesh, engine and batch sizes.

    Parameters
    ----------
    train, document
        The job's section and the same as a document, for positions.
    deepspeed
        DeepSpeed's JSON; None for torch's own wrappers.
    megatron
        Megatron-LM's arguments.
    config
        The Hugging Face config, for the bucket sizes its Trainer derives.
    fsdp
        Settings of FSDP, where the scenario has any.

    Raises
    ------
    ScenarioError
        Sizes contradict each other or the cluster, or DeepSpeed would refuse its JSON.
    """
    errors = [*_contradictions(train, document), *_optimizer_errors(train, document)]
    reading = None if megatron is None else read_megatron(megatron)
    if reading is not None and megatron is not None:
        errors += _said_twice(train, document)
    mesh, mesh_errors = _mesh(train, document, cluster, deepspeed, reading)
    errors += [*mesh_errors, *machine_misfits(train, document, cluster)]
    if errors or mesh is None:
        raise ScenarioError(errors)
    notes: list[Problem] = []
    if train.workers is None:
        notes.append(Problem(key="train.workers", message=f"default {mesh.world}: every GPU"))
    if reading is not None and megatron is not None:
        made = _megatron(train, mesh, megatron, reading, config, notes)
        return replace(made, fp8=megatron_fp8(megatron, reading.section, config, cluster.gpu))
    if deepspeed is None:
        made = _ddp(train, document, mesh, notes)
        sharded = fsdp is not None or train.engine == "fsdp"
        settings = fsdp or FsdpReading(settings=FsdpSettings())
        made = _fsdp(made, train, document, settings, cluster) if sharded else made
    else:
        made = _deepspeed(train, document, mesh, deepspeed, config, notes)
    compute = made.fsdp.param_dtype if made.engine == "fsdp" else train.ddp.autocast
    version = made.fsdp.version if made.engine == "fsdp" else 0
    found = None if fsdp is None else fsdp.fp8
    fp8 = read_fp8(train.fp8, document, cluster.gpu, compute or made.precision, version, found)
    return replace(made, fp8=fp8)


def _contradictions(train: TrainSection, document: Document) -> Iterator[Problem]:
    """Rules that need no file."""
    for key in ("global_batch_tokens", "tokens"):
        if getattr(train, key) is not None and train.seq_len is None and key != "tokens":
            yield document.problem((key,), "needs seq_len")
    tokens, length = train.global_batch_tokens, train.seq_len
    if tokens is not None and length is not None and tokens % length:
        message = f"{tokens} is not a multiple of seq_len: {length}"
        yield document.problem(("global_batch_tokens",), message)
    yield from _pipeline_contradictions(train, document)
    if train.deepspeed is None:
        if train.ddp.autocast is not None and train.precision not in (None, "fp32"):
            message = f"autocast keeps parameters in fp32, but precision is {train.precision}"
            yield document.problem(("ddp", "autocast"), message)
    elif train.gradient_clipping is not None:
        message = "belongs into DeepSpeed's JSON when there is one"
        yield document.problem(("gradient_clipping",), message, key=True)


def _pipeline_contradictions(train: TrainSection, document: Document) -> Iterator[Problem]:
    """Schedules that what runs the job does not have."""
    said = train.pipeline
    if said is None:
        return
    name = said.schedule
    if said.stages == 1:
        if name not in (None, "1f1b"):
            message = f"{name} needs 2 or more stages"
            yield document.problem(("pipeline", "schedule"), message)
    elif train.deepspeed is None:
        others = ", ".join(other for other in KINDS if other != "1f1b")
        if name is None:
            message = f"needs DeepSpeed's engine and its JSON, or a schedule: {others}"
            yield document.problem(("pipeline",), message, key=True)
        elif name == "1f1b":
            message = f"{KINDS[name].runs} runs it and needs its JSON; without it: {others}"
            yield document.problem(("pipeline", "schedule"), message)
    elif name not in (None, "1f1b"):
        message = (
            f"DeepSpeed's PipelineModule runs 1f1b only; {KINDS[name].runs} runs {name}: remove "
            "`deepspeed` for that"
        )
        yield document.problem(("pipeline", "schedule"), message)
    else:
        for key in _NOT_DEEPSPEEDS:
            if getattr(said, key) != type(said).model_fields[key].default:
                message = "is not of DeepSpeed's PipelineModule; partition_method is"
                yield document.problem(("pipeline", key), message, key=True)


def _optimizer_errors(train: TrainSection, document: Document) -> Iterator[Problem]:
    if train.optimizer is not None:
        try:
            optimizer_key(train.optimizer.type, momentum=train.optimizer.momentum)
        except CalibrationError as error:
            path = (
                ("optimizer",)
                if isinstance(document.data["optimizer"], str)
                else ("optimizer", "type")
            )
            yield document.problem(path, str(error))


def _mesh(
    train: TrainSection,
    document: Document,
    cluster: ClusterSpec,
    deepspeed: Document | None,
    megatron: MegatronReading | None,
) -> tuple[Mesh | None, list[Problem]]:
    """Axes from workers, tensor-parallel degree and stages."""
    gpus = cluster.num_gpus
    if gpus == 0:
        message = "the cluster has no GPUs"
        if any(g.node.gpu_count and (g.max_count or 0) > g.count for g in cluster.groups):
            message += " at the start; say how many workers there are, and its autoscaler adds them"
        elif not any(g.node.gpu_count for g in cluster.groups):
            names = ", ".join(dict.fromkeys(g.node.name for g in cluster.groups))
            message += f" ({names}); say which node has them (raysim catalog nodes)"
        return None, [document.problem(("workers",), message)]
    workers = gpus if train.workers is None else train.workers
    if workers > gpus:
        message = f"{workers} workers need a GPU each, the cluster has {gpus}"
        return None, [document.problem(("workers",), message)]
    if megatron is not None:
        return _megatron_mesh(megatron.section, document, workers)
    tp, pp, sp = train.tensor_parallel or _autotp(deepspeed), 1, _sequence(deepspeed)
    if train.pipeline is not None:
        pp = train.pipeline.stages
    if workers % (tp * pp * sp):
        parts = [f"tensor_parallel {tp}"] * (tp > 1) + [f"{pp} pipeline stages"] * (pp > 1)
        parts += [f"sequence_parallel_size {sp}"] * (sp > 1)
        message = f"{workers} workers are not divisible by {' x '.join(parts)}"
        path = ("tensor_parallel",) if tp > 1 else ("pipeline", "stages")
        path = path if tp * pp > 1 else ("deepspeed",)
        return None, [document.problem(path, message)]
    return Mesh(pp=pp, dp=workers // (tp * pp * sp), cp=sp, tp=tp), []


_MEGATRON_SAYS = {
    "tensor_parallel": "tensor_model_parallel_size",
    "pipeline": "pipeline_model_parallel_size",
    "micro_batch": "micro_batch_size",
    "gradient_accumulation_steps": "global_batch_size",
    "global_batch": "global_batch_size",
    "precision": "bf16 or fp16",
    "gradient_clipping": "clip_grad",
    "fp8": "fp8_format",
}


def _said_twice(train: TrainSection, document: Document) -> Iterator[Problem]:
    """Keys that Megatron's arguments have names of their own for."""
    for key, name in _MEGATRON_SAYS.items():
        if getattr(train, key) is not None:
            message = f"belongs into Megatron's arguments, as {name}"
            yield document.problem((key,), message, key=True)


def _megatron_mesh(
    said: MegatronSection, document: Document, workers: int
) -> tuple[Mesh | None, list[Problem]]:
    """Axes from Megatron's degrees; what is left is data parallelism."""
    tp, pp, cp = (
        said.tensor_model_parallel_size, said.pipeline_model_parallel_size,
        said.context_parallel_size,
    )  # fmt: skip
    ep = said.expert_model_parallel_size
    if workers % (tp * pp * cp):
        message = f"{workers} workers are not divisible by tp {tp} x pp {pp} x cp {cp}"
        return None, [document.problem(("megatron",), message)]
    mesh = Mesh(pp=pp, dp=workers // (tp * pp * cp), cp=cp, tp=tp, ep=ep)
    if mesh.weight_ranks % ep:
        message = f"expert_model_parallel_size {ep} does not divide dp x cp: {mesh.weight_ranks}"
        return None, [document.problem(("megatron",), message)]
    return mesh, []


def _megatron(
    train: TrainSection,
    mesh: Mesh,
    arguments: Document,
    reading: MegatronReading,
    config: Mapping[str, Any] | None,
    notes: list[Problem],
) -> Strategy:
    """Megatron-core's engine with what its arguments say."""
    said = reading.section
    micro = said.micro_batch_size
    if micro is None:
        raise ScenarioError(arguments.problem((), "micro_batch_size is required"))
    total = said.global_batch_size or micro * mesh.dp  # Megatron's default
    if total % (micro * mesh.dp):
        message = f"{total} is not a multiple of micro_batch_size {micro} x {mesh.dp} replicas"
        raise ScenarioError(arguments.problem(("global_batch_size",), message))
    client = _client_optimizer(train)
    if client is None:
        client = Optimizer(type="AdamW" if said.optimizer == "adam" else said.optimizer)
    try:
        optimizer_key(client.type, momentum=client.momentum)
    except CalibrationError as error:
        raise ScenarioError(arguments.problem(("optimizer",), str(error))) from None
    return Strategy(
        engine="megatron",
        mesh=mesh,
        batch=BatchTriple(train=total, micro=micro, accumulation=total // (micro * mesh.dp)),
        precision=reading.precision,
        optimizer=client,
        deepspeed=None,
        pipeline=megatron_pipeline(arguments, said, config, total // (micro * mesh.dp)),
        gradient_clipping=said.clip_grad,
        megatron=reading,
        notes=tuple(notes),
        warnings=tuple(reading.warnings),
    )  # fmt: skip


def _autotp(deepspeed: Document | None) -> int:
    """``tensor_parallel.autotp_size`` of the JSON, before it is checked."""
    data = deepspeed.data if deepspeed is not None else None
    block = data.get("tensor_parallel") if isinstance(data, dict) else None
    size = block.get("autotp_size") if isinstance(block, dict) else None
    if isinstance(size, str) and size.isascii() and size.isdecimal() and len(size) < 7:
        size = int(size)
    return max(1, min(size, 10**6)) if isinstance(size, int) else 1


def _sequence(deepspeed: Document | None) -> int:
    """``sequence_parallel_size`` of the JSON, before it is checked."""
    data = deepspeed.data if deepspeed is not None else None
    size = data.get("sequence_parallel_size") if isinstance(data, dict) else None
    if not isinstance(size, int) or isinstance(size, bool):
        return 1
    return max(1, min(size, 10**6))


def _global_batch(train: TrainSection) -> int | None:
    """Samples per optimizer step, when the scenario fixes them."""
    if train.global_batch_tokens is not None and train.seq_len is not None:
        return train.global_batch_tokens // train.seq_len
    return train.global_batch


def _client_optimizer(train: TrainSection) -> Optimizer | None:
    said = train.optimizer
    if said is None:
        return None
    return Optimizer(type=said.type, lr=said.lr, fused=said.fused, momentum=said.momentum)


def _pipeline(train: TrainSection) -> PipelineSettings:
    """What the section says; without DeepSpeed, ranks send whole tensors to their peers."""
    said, deepspeed = train.pipeline, train.deepspeed is not None
    if said is None or said.stages == 1:
        return PipelineSettings()
    others: dict[str, Any] = {key: getattr(said, key) for key in _NOT_DEEPSPEEDS}
    return PipelineSettings(
        stages=said.stages,
        partition_method=said.partition_method or ("parameters" if deepspeed else "blocks"),
        activation_checkpoint_interval=said.activation_checkpoint_interval,
        pipe_partitioned=deepspeed,
        grad_partitioned=deepspeed,
        schedule=said.schedule or "1f1b",
        **others | {"layers_per_stage": tuple(said.layers_per_stage or ())},
    )


def _ddp(train: TrainSection, document: Document, mesh: Mesh, notes: list[Problem]) -> Strategy:
    """Plain DistributedDataParallel."""
    total = _global_batch(train)
    key = "global_batch_tokens" if train.global_batch is None else "global_batch"
    try:
        batch = complete_batch_triple(
            total, train.micro_batch, train.gradient_accumulation_steps, mesh.dp
        )
    except ScenarioError:
        if total is None:
            message = "needs micro_batch (samples per GPU) or global_batch"
            raise ScenarioError(document.problem((), message)) from None
        micro = train.micro_batch or "?"
        message = (
            f"{total} samples per step cannot be split into {mesh.dp} replicas x micro_batch "
            f"{micro} x {train.gradient_accumulation_steps or 'any'} accumulation steps"
        )
        raise ScenarioError(document.problem((key,), message)) from None
    pipeline = _pipeline(train)
    wrong = misfits(pipeline, mesh.pp, batch.accumulation) if mesh.pp > 1 else ()
    problems = [document.problem(("pipeline", key), message) for key, message in wrong]
    if problems:
        raise ScenarioError(problems)
    optimizer = _client_optimizer(train)
    if optimizer is None:
        optimizer = Optimizer()
        notes.append(Problem(key="train.optimizer", message="default AdamW"))
    return Strategy(
        engine="ddp",
        mesh=mesh,
        batch=batch,
        precision=train.precision or "fp32",
        optimizer=optimizer,
        deepspeed=None,
        pipeline=pipeline,
        gradient_clipping=train.gradient_clipping or 0.0,
        notes=tuple(notes),
    )


def _fsdp(
    made: Strategy,
    train: TrainSection,
    document: Document,
    reading: FsdpReading,
    cluster: ClusterSpec,
) -> Strategy:
    """FSDP in DDP's place: replicas of hybrid sharding, and what its file says of precision."""
    path = ("fsdp",) if train.fsdp is not None else ("engine",)
    warnings = [*reading.warnings]
    if reading.hybrid:
        per_node = max(group.node.gpu_count for group in cluster.groups)
        reading = reading.with_replicas(max(1, made.mesh.world // per_node))
    try:
        reading.settings.shard_ranks(made.mesh.dp)
    except ScenarioError as error:
        raise ScenarioError(document.problem(path, str(error))) from None
    precision = made.precision
    if reading.upcast and precision != "fp32":
        message = f"Accelerate stores parameters in fp32 under mixed precision, not {precision}"
        warnings.append(document.problem(("precision",), message))
        precision = "fp32"
    return replace(
        made,
        engine="fsdp",
        fsdp=reading.settings,
        precision=precision,
        checkpoints=reading.activation_checkpointing,
        warnings=tuple(warnings),
    )


def _release(train: TrainSection) -> dict[str, tuple[int, ...]]:
    """DeepSpeed's, where the scenario says it."""
    said = train.deepspeed_version
    return {} if said is None else {"release": tuple(int(part) for part in said.split("."))}


def _deepspeed(
    train: TrainSection,
    document: Document,
    mesh: Mesh,
    deepspeed: Document,
    config: Mapping[str, Any] | None,
    notes: list[Problem],
) -> Strategy:
    """DeepSpeed's engine with what its JSON says."""
    client, alike = _client_optimizer(train), _autotp(deepspeed)
    total = _global_batch(train)  # of different samples
    script = ScriptSettings(
        # AutoTP's groups are made behind DeepSpeedConfig, which counts all ranks without an mpu.
        data_parallel=mesh.dp * alike,
        world=mesh.world,
        pipeline_stages=mesh.pp,
        tensor_parallel=train.tensor_parallel,
        micro_batch=train.micro_batch,
        gradient_accumulation_steps=train.gradient_accumulation_steps,
        global_batch=None if total is None else total * alike,
        precision=train.precision,
        optimizer_type=client.type if client is not None else None,
        hidden_size=_hidden_size(config),
        hf_trainer=train.launcher == "hf_trainer",
        **_release(train),
        auto=train.auto,
        scenario=document,
    )
    reading = read_deepspeed(deepspeed, script)
    read = reading.config
    optimizer = client or read.optimizer
    if optimizer is None:
        optimizer = Optimizer()
        message = "default AdamW: neither the JSON nor the scenario names one"
        notes.append(Problem(key="train.optimizer", message=message))
    pipeline = replace(
        _pipeline(train),
        pipe_partitioned=read.pipeline.pipe_partitioned,
        grad_partitioned=read.pipeline.grad_partitioned,
    )
    return Strategy(
        engine="deepspeed",
        mesh=mesh,
        batch=BatchTriple(
            train=read.train_batch_size // alike,
            micro=read.train_micro_batch_size_per_gpu,
            accumulation=read.gradient_accumulation_steps,
        ),
        precision=read.precision,
        optimizer=optimizer,
        deepspeed=replace(read, optimizer=optimizer, pipeline=pipeline, tensor_parallel=mesh.tp),
        pipeline=pipeline,
        gradient_clipping=read.gradient_clipping,
        notes=(*notes, *reading.notes),
        warnings=tuple(reading.warnings),
    )


def _hidden_size(config: Mapping[str, Any] | None) -> int | None:
    """``hidden_size`` as ``trainer_config_finalize`` finds it, by the names families give it."""
    for section in (config, (config or {}).get("text_config")):
        if not isinstance(section, Mapping):
            continue
        sizes = section.get("hidden_sizes")
        for key in ("hidden_size", "n_embd", "d_model", "dim", "emb_dim"):
            value = section.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**24:
                return value
        if isinstance(sizes, list) and sizes and all(isinstance(s, int) for s in sizes):
            return int(max(sizes))
    return None
