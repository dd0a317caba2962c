"""Pipeline stages: which layers each has, how they are cut and priced, what ties them together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from raysim.errors import ScenarioError
from raysim.models.autocast import autocasted
from raysim.models.compiled import compiled
from raysim.models.table import COMPUTE_DTYPE_BYTES, Layer, Model
from raysim.perf.compute import ComputeModel
from raysim.perf.contention import hides_exchanges
from raysim.training.layers.pricing import Pricer
from raysim.training.layers.recompute import Checkpointing
from raysim.training.layers.sections import Cut, Section, Unit, tp_numel
from raysim.training.pipeline.layout import Layout
from raysim.training.pipeline.partition import stage_bounds
from raysim.training.pipeline.pipelines import Pipeline, misfits
from raysim.training.plan import TrainingPlan
from raysim.training.settings.fp8 import quantized_model


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """One pipeline stage: its layers and how they are cut and priced."""

    index: int
    rank: int
    """Which rank of the pipeline holds it."""
    sections: tuple[Section, ...]
    input_bytes: int
    output_bytes: int
    tied_bytes: int
    """Gradient bytes of weights shared with another stage; 0: none."""

    @property
    def units(self) -> tuple[Unit, ...]:
        """All units in forward order."""
        return tuple(u for s in self.sections for u in s.units)

    def like(self, other: StageSpec) -> bool:
        """Whether it has the layers of another stage, but for their names."""
        return self.tied_bytes == other.tied_bytes and [
            (s.checkpointed, s.input_bytes, s.output_bytes, *(id(u.modules) for u in s.units))
            for s in self.sections
        ] == [
            (s.checkpointed, s.input_bytes, s.output_bytes, *(id(u.modules) for u in s.units))
            for s in other.sections
        ]

    def visits(self) -> Iterator[Unit]:
        """Units of one micro-batch in execution order: forward, then recompute and backward."""
        yield from self.units
        for section in reversed(self.sections):
            if section.checkpointed:
                yield from section.units
            yield from section.reached


def gradient_cut(plan: TrainingPlan) -> Cut:
    """How finely the program must be cut: where hooks act, per module; elsewhere coarser."""
    zero = plan.zero
    zero_hooks = zero.stage > 1 or (zero.stage == 1 and zero.overlaps)
    hooked = plan.engine in {"ddp", "fsdp", "internevo"} or (
        plan.engine == "deepspeed" and zero_hooks
    )
    return "module" if hooked and (plan.mesh.pp == 1 or plan.engine == "fsdp") else "collective"


def build_stages(plan: TrainingPlan, costs: ComputeModel) -> tuple[StageSpec, ...]:
    """Partition the model into stages and price every layer once.

    Raises
    ------
    ScenarioError
        The model cannot be cut as asked.
    """
    mesh = plan.mesh
    layers = _as_run(plan, costs.gpu.architecture).layers
    for key, value in plan.model.divisible:
        if value % mesh.tp:
            raise ScenarioError(f"tensor parallelism {mesh.tp} does not divide {key} {value}")
    layout = pipeline_of(plan).layout
    bounds = stage_bounds(layers, plan.pipeline, mesh.pp, layout.depth // mesh.pp)
    owners = {
        layer.full(p.name): part
        for part in range(layout.depth)
        for layer in layers[bounds[part] : bounds[part + 1]]
        for p in layer.body.parameters
        if p.tied_to is None
    }
    tied = _tied_bytes(plan, layout, bounds, owners)
    shared = {p.tied_to for layer in layers for p in layer.body.parameters if p.tied_to}
    pricers: dict[frozenset[str], Pricer] = {}
    stages = []
    for stage in range(layout.stages):
        part, rank = layout.of_model(stage), layout.rank_of(stage)
        start, end = bounds[part], bounds[part + 1]
        parts = {layout.of_model(s) for s in layout.stages_of(rank)}
        resident = frozenset(name for name in shared if owners.get(name) in parts)
        if resident not in pricers:
            pricers[resident] = _pricer(plan, costs, resident)
        sections = build_sections(
            layers[start:end],
            pricers[resident],
            input_numel=layers[start - 1].output if start else 0.0,
            checkpoint=plan.activation_checkpointing,
            limit=plan.recompute_layers,
            interval=plan.pipeline.activation_checkpoint_interval if mesh.pp > 1 else 0,
        )
        stages.append(
            StageSpec(
                index=stage,
                rank=rank,
                sections=sections,
                input_bytes=sections[0].input_bytes,
                output_bytes=sections[-1].output_bytes,
                tied_bytes=tied[part],
            )
        )
    return tuple(stages)


def _pricer(plan: TrainingPlan, costs: ComputeModel, resident: frozenset[str]) -> Pricer:
    """Prices layers of the stages that store these of the shared weights."""
    hides, sharding = hides_exchanges(costs.gpu.architecture), plan.sharding
    return Pricer(
        costs,
        batch=plan.micro_batch,
        dtype=plan.compute_dtype,
        # With user buffers products leave room for what runs beside them.
        sharding=replace(sharding, overlaps=sharding.overlaps and (hides or sharding.user_buffers)),
        cut=gradient_cut(plan),
        checkpointing=plan.activation_checkpointing,
        modules=plan.megatron.recompute_modules,
        reentrant=plan.reentrant,
        resident=resident,
        holds_logits=plan.holds_logits,
        output_lasts=plan.output_lasts,
    )


def build_sections(
    layers: Sequence[Layer],
    pricer: Pricer,
    *,
    input_numel: float,
    checkpoint: Checkpointing,
    interval: int = 0,
    limit: int | None = None,
) -> tuple[Section, ...]:
    """Cut a stage's layers into sections.

    Parameters
    ----------
    layers
        The stage's layers.
    input_numel
        Elements per sample handed in by the previous stage.
    checkpoint
        ``full``, ``op``: every layer of kind ``block`` is its own checkpoint.
    interval
        PipelineModule's ``activation_checkpoint_interval``: groups of that many layers; 0: none.
    limit
        Of those: only so many blocks, from the first (Megatron's ``--recompute-method block``).
    """
    width = COMPUTE_DTYPE_BYTES[pricer.dtype]

    def size(numel: float) -> int:
        return round(numel * pricer.batch * width / pricer.sharding.hidden)

    groups: list[tuple[list[int], bool]] = []
    if interval > 0:
        for start in range(0, len(layers), interval):
            run = list(range(start, min(start + interval, len(layers))))
            # A group without parameters has nothing to recompute for (module.py,
            # _is_checkpointable).
            groups.append((run, any(layers[i].body.numel for i in run)))
    else:
        blocks = [i for i, layer in enumerate(layers) if layer.kind == "block"][:limit]
        again = checkpoint in ("full", "op")
        groups = [
            ([i], again and i in blocks and layers[i].body.has_backward) for i in range(len(layers))
        ]
    sections = []
    for run, checkpointed in groups:
        before = layers[run[0] - 1].output if run[0] else input_numel
        sections.append(
            Section(
                units=tuple(u for i in run for u in pricer.layer(layers[i])),
                checkpointed=checkpointed,
                input_bytes=size(before),
                output_bytes=size(layers[run[-1]].output),
            )
        )
    return tuple(sections)


def _as_run(plan: TrainingPlan, architecture: str) -> Model:
    """The plan's model compiled or under autocast, and with the products that run in fp8.

    What the compiler keeps beside checkpoints was not looked at: as in eager. Transformer Engine's
    modules stay out of its graphs.
    """
    within = plan.fp8 is None or plan.fp8.library == "torchao"
    compiles = plan.torch_compile and within and plan.activation_checkpointing == "none"
    model = quantized_model(
        autocasted(plan.model) if plan.autocasts and not compiles else plan.model,
        plan.fp8,
        architecture,
        fsdp_version=plan.fsdp.version if plan.engine == "fsdp" else 0,
        gathered=plan.mesh.tp if plan.sharding.sequence_parallel else 1,
        compiled=plan.torch_compile,
    )
    return compiled(model) if compiles else model


def check_pipeline(plan: TrainingPlan) -> None:
    """Refuse what the plan's schedule does not take.

    Raises
    ------
    ScenarioError
        With the first of it.
    """
    if plan.mesh.pp == 1:
        return
    ranks, micro_batches = plan.mesh.pp, plan.gradient_accumulation_steps
    for misfit in misfits(plan.pipeline, ranks, micro_batches):
        raise ScenarioError(f"pipeline.{misfit.key}: {misfit.message}")


def pipeline_of(plan: TrainingPlan) -> Pipeline:
    """The plan's schedule on its ranks."""
    return Pipeline.of(plan.pipeline, plan.mesh.pp, plan.gradient_accumulation_steps)


def _tied_bytes(
    plan: TrainingPlan, layout: Layout, bounds: Sequence[int], owners: dict[str, int]
) -> Counter[int]:
    """Bytes of gradients a part of the model must sum with another that stores the same weight.

    Nothing where both are on the same ranks: they share the weight.
    """
    total: Counter[int] = Counter()
    for part in range(layout.depth):
        for layer in plan.model.layers[bounds[part] : bounds[part + 1]]:
            for p in layer.body.parameters:
                if p.tied_to is None:
                    continue
                owner = owners.get(p.tied_to, part)
                if layout.homes(owner) != layout.homes(part):
                    size = tp_numel(p, plan.mesh.tp) * COMPUTE_DTYPE_BYTES[plan.precision]
                    total[owner] += size
                    total[part] += size
    return total
