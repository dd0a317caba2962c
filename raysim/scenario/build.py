"""From a checked scenario to the things a simulation is made of: cluster, model, job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from raysim.errors import Problem, ScenarioError
from raysim.hardware.cluster import ClusterSpec
from raysim.models.four_bit import in_four_bits
from raysim.models.lora import adapted
from raysim.models.sequential import build as build_sequential
from raysim.models.table import Model, Parameter
from raysim.perf.constants import TrainingConstants
from raysim.scenario.allocator import allocator_config
from raysim.scenario.documents import Document
from raysim.scenario.environment import host_pool, launch_blocking
from raysim.scenario.load import Scenario
from raysim.scenario.loss_scale import loss_scale
from raysim.scenario.machines import failures_of, machines_of
from raysim.scenario.overrides import TRAIN
from raysim.scenario.peft import peft_misfits, read_peft
from raysim.scenario.saving import fsdp_saving, saving_settings
from raysim.scenario.sequence import unswapped
from raysim.scenario.sources import MODEL, PEFT, hf_config
from raysim.training.layers.recompute import Checkpointing
from raysim.training.pipeline.partition import stage_bounds
from raysim.training.pipeline.pipelines import Pipeline
from raysim.training.plan import DdpSettings, MegatronSettings, TrainingPlan, plan_fields
from raysim.training.states.wrapping import wrapped_modules
from raysim.workloads.train_job import CheckpointSettings, DataSettings, TrainJob

if TYPE_CHECKING:
    from raysim.models.config import HfConfig
    from raysim.models.request import Library

CLASSES = {
    "ddp": DdpSettings,
    "data": DataSettings,
    "checkpoint": CheckpointSettings,
    "train": TrainJob,
}
"""YAML names of sections and the classes that a simulation knows them by."""
DEFAULT_STEPS = 100
_TOKEN_INPUT_BYTES = 24
"""input_ids, attention_mask and labels, int64 each, per token (a Hugging Face collator's batch)."""
_PIXEL_BYTES = 4
_LABEL_BYTES = 8


def build_cluster(scenario: Scenario) -> ClusterSpec:
    """The cluster the job runs on."""
    return scenario.cluster


def build_model(scenario: Scenario) -> Model:
    """The layer table of the scenario's model, with what is trained of it.

    Raises
    ------
    ScenarioError
        As `_untuned`, or adapters do not fit the model or its engine.
    """
    model = _untuned(scenario)
    train = scenario.spec.train
    return model if train.peft is None and train.quantization is None else _tuned(model, scenario)


def _untuned(scenario: Scenario) -> Model:
    """The layer table of the config.

    Raises
    ------
    ScenarioError
        The config's family is unknown, or keys have impossible values.
    """
    section = scenario.spec.model
    megatron = scenario.strategy.megatron
    own: dict[str, Any] = {}
    if megatron is not None:
        said, mesh = megatron.section, scenario.strategy.mesh
        own = {
            "library": "megatron_core",
            "vocab_multiple": said.make_vocab_size_divisible_by * mesh.tp,
        }
    where = scenario.document.child(("model",), "model")
    try:
        if section.sequential is not None:
            layers = [x if isinstance(x, str) else x.linear for x in section.sequential]
            return build_sequential(layers, name=section.name or "sequential")
        from raysim.models import huggingface

        source = scenario.sources[MODEL]
        config = hf_config(source)
        builder = _builder(config, own.get("library", "transformers"))
        if builder is not huggingface.build:  # a table is rewritten later, a trace is not
            own["autocast"] = _autocast(scenario)
        return builder(
            config,
            seq_len=_seq_len(scenario),
            attention=section.attention,
            architecture=section.architecture,
            fused_loss=section.fused_loss
            or (megatron is not None and said.cross_entropy_loss_fusion),
            target_len=section.target_len,
            name=section.name,
            file=source.documents[0].file,
            **own,
        )
    except ValueError as error:
        raise ScenarioError(where.problem(("sequential",), str(error))) from None
    except ScenarioError as error:
        raise ScenarioError(_placed(p, scenario, where) for p in error.problems) from None


def check_family(scenario: Scenario) -> None:
    """Refuse a model of no known family at once; tables of known ones are built, traces are not.

    Raises
    ------
    ScenarioError
        As `build_model` does.
    """
    source = scenario.sources.get(MODEL)
    if source is not None and scenario.strategy.megatron is None:
        from raysim.models import huggingface

        config = hf_config(source)
        if _builder(config, "transformers") is not huggingface.build:
            from raysim.tracing.huggingface import refuse_loops

            refuse_loops(config, source.documents[0].file)
            return
    build_model(scenario)


def _builder(config: HfConfig, library: Library) -> Callable[..., Model]:
    """The family's own table, or what traces transformers' class, if that is installed."""
    from raysim.models import huggingface

    family = config.get("model_type")
    if huggingface.reads(family, library) or not all(map(find_spec, ("torch", "transformers"))):
        return huggingface.build
    from raysim.tracing import huggingface as traced

    return traced.build if traced.known(family) else huggingface.build


def _autocast(scenario: Scenario) -> Any:
    """What ``torch.autocast`` casts fp32 weights' products to, if it does."""
    strategy = scenario.strategy
    casts = strategy.engine == "ddp" and strategy.precision == "fp32"
    return scenario.spec.train.ddp.autocast if casts else None


def _seq_len(scenario: Scenario) -> int | None:
    """Tokens per sample: the scenario's, else Megatron's ``seq_length``."""
    megatron, said = scenario.strategy.megatron, scenario.spec.train.seq_len
    return megatron.section.seq_length if said is None and megatron is not None else said


def _placed(problem: Problem, scenario: Scenario, where: Document) -> Problem:
    """A position for problems that have none, or only a file."""
    if problem.where is not None and problem.where.line is not None:
        return problem
    source = scenario.sources.get(MODEL)
    if source is not None and problem.key is not None:
        return replace(problem, where=source.documents[0].where(tuple(problem.key.split("."))))
    if problem.message.startswith("seq_len"):
        return replace(problem, where=scenario.document.where((*TRAIN, "seq_len")))
    return replace(problem, where=where.where(("from",)))


def build_job(scenario: Scenario, *, worker_cpus: float = 0.0) -> TrainJob:
    """The training job.

    Parameters
    ----------
    worker_cpus
        CPUs that each of Ray Train's workers holds beside its GPU.

    Raises
    ------
    ScenarioError
        The layout does not fit the model: heads not divisible, more stages than layers.
    """
    model = build_model(scenario)
    train, strategy = scenario.spec.train, scenario.strategy
    document = scenario.document.child(TRAIN, "train")
    problems = list(_misfits(scenario, model, document))
    if problems:
        raise ScenarioError(problems)
    deepspeed, megatron = strategy.deepspeed, strategy.megatron
    fields = {} if deepspeed is None else plan_fields(deepspeed)
    plan = TrainingPlan(
        model=model,
        mesh=strategy.mesh,
        engine=strategy.engine,
        micro_batch=strategy.batch.micro,
        gradient_accumulation_steps=strategy.batch.accumulation,
        precision=strategy.precision,
        optimizer=strategy.optimizer,
        ddp=CLASSES["ddp"](**train.ddp.model_dump()),
        fsdp=fsdp_saving(scenario),
        fp8=strategy.fp8,
        pipeline=strategy.pipeline,
        activation_checkpointing=_recomputed(scenario),
        recompute_layers=None if megatron is None else megatron.recompute_layers,
        megatron=MegatronSettings() if megatron is None else megatron.settings,
        gradient_clipping=strategy.gradient_clipping,
        torch_compile=train.torch_compile,
        cuda_graphs=train.cuda_graphs,
        launch_blocking=launch_blocking(scenario),
        host_pool=host_pool(scenario, worker_cpus),
        loss_scale=loss_scale(scenario),
        saving=saving_settings(scenario),
        expert_imbalance=train.expert_imbalance,
        allocator=allocator_config(scenario),
        constants=_constants(scenario),
        **fields,
    )
    return TrainJob(
        name=scenario.spec.jobs[0].name,
        plan=plan,
        data=_data(scenario, model),
        checkpoint=_checkpoint(scenario),
        machines=machines_of(train),
        failures=failures_of(train),
        resume=train.resume,
        exact=train.exact,
        **_length(scenario, plan),
    )


def _recomputed(scenario: Scenario) -> Checkpointing:
    """What Megatron's arguments or FSDP's file say of checkpointing, else the scenario."""
    strategy = scenario.strategy
    if strategy.megatron is not None:
        return strategy.megatron.recompute
    return "full" if strategy.checkpoints else scenario.spec.train.activation_checkpointing


def _tuned(model: Model, scenario: Scenario) -> Model:
    """With adapters and 4-bit weights, where the scenario says so."""
    train, strategy = scenario.spec.train, scenario.strategy
    document = scenario.document.child(TRAIN, "train")
    stage = 0 if strategy.deepspeed is None else strategy.deepspeed.zero.stage
    problems = list(
        peft_misfits(
            train, document, engine=strategy.engine, stage=stage, tensor_parallel=strategy.mesh.tp
        )
    )
    if problems:
        raise ScenarioError(problems)
    if train.quantization is not None:
        said = train.quantization
        model = in_four_bits(
            model, double=said.bnb_4bit_use_double_quant, skipped=said.llm_int8_skip_modules
        )
    source = scenario.sources.get(PEFT)
    if source is None:
        return model
    found = source.documents[0]
    found = replace(found, prefix="train.peft") if source.path is None else found
    # DeepSpeed casts the whole module, FSDP takes one type.
    fp32 = strategy.engine == "ddp" and strategy.precision != "fp32"
    config = read_peft(found, fp32=fp32)
    try:
        return adapted(model, config, checkpointed=_recomputed(scenario) != "none")
    except ValueError as error:
        raise ScenarioError(found.problem(("target_modules",), str(error))) from None


def _constants(scenario: Scenario) -> TrainingConstants:
    profile = scenario.profile
    return TrainingConstants() if profile is None else profile.training_constants()


def _misfits(scenario: Scenario, model: Model, document: Document) -> Iterator[Problem]:
    """Parallel degrees that this model cannot be split into."""
    mesh = scenario.strategy.mesh
    for key, value in model.divisible:
        if value % mesh.tp:
            message = f"{mesh.tp} does not divide {key}: {value}"
            yield document.problem(("tensor_parallel",), message)
    experts = min((p.shape[0] for p in _experts(model)), default=0)
    if mesh.ep > 1 and (not experts or experts % mesh.ep):
        # Megatron's arguments.py: a multiple of the degree, and some, or it ends there.
        has = f"the {experts} experts of a layer" if experts else "a model without experts"
        message = f"expert_model_parallel_size {mesh.ep} does not divide {has}"
        yield document.problem(("megatron",), message)
    if scenario.strategy.engine == "deepspeed" and mesh.cp > 1:
        yield from unswapped(model, mesh.cp, document)
    if scenario.strategy.engine == "fsdp":
        try:
            wrapped_modules(model, scenario.strategy.fsdp)
        except ScenarioError as error:
            yield document.problem(("fsdp",), str(error))
    if mesh.pp > len(model.layers):
        message = f"{mesh.pp} stages, but the model has {len(model.layers)} layers"
        yield document.problem(("pipeline", "stages"), message)
    elif mesh.pp > 1 and scenario.strategy.deepspeed is None:
        yield from _uncut(scenario, model, document)
    if scenario.spec.train.tokens is not None and model.sample_unit != "tokens":
        message = f"this model trains on {model.sample_unit}; give steps or epochs"
        yield document.problem(("tokens",), message)


def _experts(model: Model) -> Iterator[Parameter]:
    """Weights of routed experts, stacked."""
    for layer in model.layers:
        yield from (p for p in layer.body.parameters if p.expert)


def _uncut(scenario: Scenario, model: Model, document: Document) -> Iterator[Problem]:
    """Why the model's layers do not divide over the stages."""
    settings, mesh = scenario.strategy.pipeline, scenario.strategy.mesh
    depth = Pipeline.of(settings, mesh.pp, scenario.strategy.batch.accumulation).layout.depth
    try:
        stage_bounds(model.layers, settings, mesh.pp, depth // mesh.pp)
    except ScenarioError as error:
        key = "layers_per_stage" if settings.layers_per_stage else "stages"
        message = error.problems[0].message.removeprefix("pipeline: ")
        yield document.problem(("pipeline", key), message)


def _length(scenario: Scenario, plan: TrainingPlan) -> dict[str, int]:
    """Exactly one of steps and epochs."""
    train = scenario.spec.train
    if train.epochs is not None:
        return {"epochs": train.epochs}
    if train.steps is not None:
        return {"steps": train.steps}
    if train.tokens is not None:
        return {"steps": -(-train.tokens // (plan.samples_per_step * plan.model.seq_len))}
    return {"epochs": 1} if train.data.train_samples is not None else {"steps": DEFAULT_STEPS}


def _data(scenario: Scenario, model: Model) -> DataSettings:
    """The data section; bytes to copy per sample by default from the model's input."""
    said = scenario.spec.train.data
    size = said.bytes_per_sample
    return DataSettings(
        train_samples=said.train_samples,
        eval_samples=said.eval_samples,
        eval_batch_per_gpu=said.eval_batch_per_gpu,
        cpu_seconds_per_sample=said.cpu_time_per_sample,
        loader_workers=said.loader_workers,
        bytes_per_sample=size if size is not None else _input_bytes(scenario, model),
    )


def _input_bytes(scenario: Scenario, model: Model) -> float:
    """What a collator hands over per sample."""
    if model.sample_unit == "tokens":
        return float(_TOKEN_INPUT_BYTES * model.seq_len)
    if scenario.spec.model.sequential is not None:
        first = scenario.spec.model.sequential[0]
        width = 0 if isinstance(first, str) else first.linear[0]
        return float(_PIXEL_BYTES * width + _LABEL_BYTES)
    config = hf_config(scenario.sources[MODEL])
    side, channels = config.get("image_size", 224), config.get("num_channels", 3)
    sides = side if isinstance(side, list) and len(side) == 2 else (side, side)
    return float(_PIXEL_BYTES * sides[0] * sides[1] * channels + _LABEL_BYTES)


def _checkpoint(scenario: Scenario) -> CheckpointSettings:
    said = scenario.spec.train.checkpoint
    every = said.every if said.every is not None else scenario.spec.train.checkpoint_every
    return CheckpointSettings(
        every_epoch=said.every_epoch,
        every_s=None if every == "optimal" else every,
        every_steps=said.every_steps,
        optimal=every == "optimal",
        kind=said.kind,
    )
