"""Which files a save writes, who writes each, and how large it is.

Sources: DeepSpeed 0.19 (``runtime/engine.py``: ``save_checkpoint``, ``save_16bit_model``;
``runtime/state_dict_factory.py``; ``runtime/pipe/module.py``; ``state_dict`` of each optimizer),
torch 2.13 (``torch.distributed.checkpoint``; FSDP's state dicts), Megatron-core
(``dist_checkpointing/strategies``, ``megatron/training/checkpointing.py``). Sizes are those of
tensors, and equal to DeepSpeed's files to the byte (``validation/data/checkpoints``); pickle, zip
records and Adam's ``step`` come on top: 1-5 KB a file, 0.3 KB a tensor that has a record.

What the code does, and its documentation does not say: a stage-3 model-states file holds no
weights, which are read back from the fp32 master.

Simplifications: one parameter group; buffers are not counted; the moments of 8-bit and factored
optimizers count as their bytes per element.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from raysim.hardware.topology import Member
from raysim.models.table import COMPUTE_DTYPE_BYTES, Body, Parameter
from raysim.training.checkpoint.experts import mixture_files, partitioned
from raysim.training.checkpoint.stored import CheckpointFile, Kind, Stored, master_and_states
from raysim.training.engines.choice import uses_bf16_optimizer
from raysim.training.layers.sections import tp_numel
from raysim.training.pipeline.partition import partition_uniform, stage_bounds
from raysim.training.plan import TrainingPlan
from raysim.training.settings.parallel import Coordinate
from raysim.training.stages import pipeline_of
from raysim.training.states.zero import flat_partition_numel, shard_numel


def stored_by(plan: TrainingPlan, rank_of_pipeline: int) -> Stored:
    """Parameters on one rank of a pipeline; those tied to another one there are stored once."""
    layers = plan.model.layers
    layout = pipeline_of(plan).layout
    bounds = stage_bounds(layers, plan.pipeline, plan.mesh.pp, layout.depth // plan.mesh.pp)
    parts = [layout.of_model(s) for s in layout.stages_of(rank_of_pipeline)]
    numbers = [i for part in parts for i in range(bounds[part], bounds[part + 1])]
    names = {layers[i].full(p.name)
             for i in numbers for p in layers[i].body.parameters if p.tied_to is None}  # fmt: skip
    found = []
    for i in numbers:
        own = [p for p in layers[i].body.parameters if p.tied_to not in names]
        found.append((i, tuple((p, _numel(plan, p)) for p in own)))
    return Stored(tuple(found))


def _numel(plan: TrainingPlan, parameter: Parameter) -> int:
    numel, ep = tp_numel(parameter, plan.mesh.tp), plan.sharding.ep
    return -(-numel // ep) if parameter.expert and ep else numel


def checkpoint_files(
    plan: TrainingPlan, kind: Kind, placement: Sequence[Member]
) -> tuple[CheckpointFile, ...]:
    """Files of one save.

    Parameters
    ----------
    kind
        ``full``: what training can go on from; ``model``: low-precision weights only.
    placement
        Node and place of every rank.
    """
    if plan.saving.exclude_frozen:
        plan = replace(plan, model=plan.model.with_bodies(_trained))
    if plan.engine == "deepspeed":
        return tuple(_deepspeed(plan, kind, placement))
    if plan.engine == "megatron":
        return tuple(_megatron(plan, kind))
    if plan.engine == "fsdp" and plan.fsdp.shards and not plan.fsdp.full_state_dict:
        return tuple(_sharded(plan, kind))
    return tuple(_whole(plan, kind))


def _trained(body: Body) -> Body:
    """What of a layer is trained."""
    modules = (
        replace(m, parameters=tuple(p for p in m.parameters if p.trainable)) for m in body.modules
    )
    return replace(body, modules=tuple(modules))


def replicas(plan: TrainingPlan) -> Iterator[tuple[int, int, int, tuple[int, ...]]]:
    """Pipeline rank, tensor-parallel rank, number among the model-parallel ranks, who holds it."""
    mesh = plan.mesh
    for pp in range(mesh.pp):
        for tp in range(mesh.tp):
            yield pp, tp, pp * mesh.tp + tp, mesh.dp_group(Coordinate(pp=pp, dp=0, tp=tp))


# ---- DeepSpeed -----------------------------------------------------------------------------------


def _deepspeed(
    plan: TrainingPlan, kind: Kind, placement: Sequence[Member]
) -> Iterator[CheckpointFile]:
    stage3, pipeline = plan.zero.stage == 3, plan.mesh.pp > 1
    low = COMPUTE_DTYPE_BYTES[plan.precision]
    if stage3 and kind == "model" and plan.zero.stage3_gather_16bit_weights_on_model_save:
        size = sum(stored_by(plan, 0).numel for _ in range(plan.mesh.tp)) * low
        yield CheckpointFile(
            name="pytorch_model.bin", rank=0, size_bytes=size, staged_bytes=size, gathered=True
        )
        return
    for pp, tp, mp, ranks in replicas(plan):
        held = stored_by(plan, pp)
        if stage3:
            yield from _stage3(plan, kind, held, mp, ranks)
            continue
        if pipeline:
            yield from _layer_files(plan, held, tp, ranks, low)
        if plan.moe_groups:
            yield from mixture_files(plan, kind, held, ranks)
        else:
            yield from _model_states(plan, kind, held, mp, ranks, placement)
        if kind == "full" and partitions(plan):
            yield from _optim_states(plan, held, mp, ranks)


def partitions(plan: TrainingPlan) -> bool:
    """Whether each data-parallel rank writes optimizer states of its own."""
    if plan.engine != "deepspeed":
        return False
    return plan.zero.stage > 0 or uses_bf16_optimizer(plan, plan.zero)


def _model_states(
    plan: TrainingPlan, kind: Kind, held: Stored, mp: int, ranks: Sequence[int],
    placement: Sequence[Member],
) -> Iterator[CheckpointFile]:  # fmt: skip
    """Weights as ZeRO-1/2 have flattened them, and without ZeRO the optimizer beside them.

    By the first data-parallel rank, or the first rank of each node (``use_node_local_storage``).
    """
    low = COMPUTE_DTYPE_BYTES[plan.precision]
    trained, frozen = (sum(held.sizes(trainable=t)) for t in (True, False))
    flat = flat_partition_numel(trained, len(ranks)) * len(ranks)
    size, largest = 0, held.largest * low
    if plan.mesh.pp == 1:
        padded = flat if plan.zero.stage else trained
        # Stage 2 and up writes frozen weights once more, as fragments.
        size = (padded + frozen * (2 if plan.zero.stage > 1 else 1)) * low
        largest = padded * low if plan.zero.stage else largest
    if kind == "full" and plan.zero.stage == 0:
        master, states = master_and_states(plan)
        count = flat // len(ranks) if partitions(plan) else trained
        size += round(count * (master + states))
        largest = max(largest, round(count * 4.0) if master else held.largest * 4)
    writers = [ranks[0]]
    if plan.saving.use_node_local_storage and plan.mesh.pp == 1:
        writers = [r for r in ranks if placement[r][1] == 0] or writers
    if not size and kind == "model":
        return
    for rank in writers:
        yield CheckpointFile(
            name=f"mp_rank_{mp:02d}_model_states.pt", rank=rank, size_bytes=size,
            staged_bytes=min(size, largest),
        )  # fmt: skip


def _optim_states(
    plan: TrainingPlan, held: Stored, mp: int, ranks: Sequence[int]
) -> Iterator[CheckpointFile]:
    """A slice of the flat group each, padding included.

    ZeRO-1/2 narrow the last rank's master to what is not padding, but ``torch.save`` writes the
    storage behind a view.
    """
    own = sum(g.own for g in partitioned(plan, held, len(ranks)))
    master, states = master_and_states(plan)
    for d, rank in enumerate(ranks):
        yield _optimizer_file(plan, mp, d, rank, round(own * (master + states)), own)


def _optimizer_file(
    plan: TrainingPlan, mp: int, d: int, rank: int, size_bytes: int, largest: int
) -> CheckpointFile:
    host = plan.zero.stage > 0 and plan.zero.offload_optimizer.device != "none"
    prefix = "bf16_" if plan.precision == "bf16" else ""
    return CheckpointFile(
        name=f"{prefix}zero_pp_rank_{d}_mp_rank_{mp:02d}_optim_states.pt", rank=rank,
        size_bytes=size_bytes, staged_bytes=0 if host else min(size_bytes, largest * 4),
        on_host=host,
    )  # fmt: skip


def _stage3(
    plan: TrainingPlan, kind: Kind, held: Stored, mp: int, ranks: Sequence[int]
) -> Iterator[CheckpointFile]:
    """Placeholders of weights, fragments of frozen ones; the master and the moments.

    Weights alone, not gathered, are what ``torch.distributed.checkpoint`` would write: DeepSpeed
    writes nothing then ("stage3_gather_16bit_weights_on_model_save is False").
    """
    low, n = COMPUTE_DTYPE_BYTES[plan.precision], len(ranks)
    own, frozen = (
        sum(shard_numel(x, n) for x in held.sizes(trainable=t)) for t in (True, False)
    )  # fmt: skip
    master, states = master_and_states(plan)
    for d, rank in enumerate(ranks):
        if kind == "model":
            size = round(held.numel * low * (d + 1) / n) - round(held.numel * low * d / n)
            yield CheckpointFile(
                name=f"__{rank}_0.distcp", rank=rank, size_bytes=size,
                staged_bytes=min(size, held.largest * low),
            )  # fmt: skip
            continue
        yield CheckpointFile(
            name=f"zero_pp_rank_{d}_mp_rank_{mp:02d}_model_states.pt", rank=rank,
            size_bytes=frozen * low, staged_bytes=frozen * low,
        )  # fmt: skip
        group = min(own, plan.zero.sub_group_size)
        yield _optimizer_file(plan, mp, d, rank, round(own * (master + states)), group)


def _layer_files(
    plan: TrainingPlan, held: Stored, tp: int, ranks: Sequence[int], low: int
) -> Iterator[CheckpointFile]:
    """One file per layer and tensor-parallel rank, whose tensors are copied to main memory first.

    A tied layer is saved where it is first: its second place (``TiedLayerSpec.forward_fn``) is a
    function to ``PipelineModule``, without a state. By the first data-parallel rank, or evenly by
    all (``parallel_write.pipeline_stage``).
    """
    among = len(ranks) if plan.saving.pipeline_stage else 1
    offsets = partition_uniform(len(held.layers), among)
    suffix = f"-model_{tp:02d}" if plan.mesh.tp > 1 else ""
    for d in range(among):
        for number, parameters in held.layers[offsets[d] : offsets[d + 1]]:
            own = [n for p, n in parameters if p.tied_to is None]
            if parameters and not own:
                continue
            size = sum(own) * low
            yield CheckpointFile(
                name=f"layer_{number:02d}{suffix}-model_states.pt", rank=ranks[d],
                size_bytes=size, staged_bytes=size,
            )  # fmt: skip


# ---- torch and Megatron --------------------------------------------------------------------------


def _whole(plan: TrainingPlan, kind: Kind) -> Iterator[CheckpointFile]:
    """Everything in one file per model-parallel rank, by its first rank.

    DDP, and FSDP's ``FULL_STATE_DICT`` with ``offload_to_cpu`` and ``rank0_only``, which collects
    every parameter and state in main memory.
    """
    low = COMPUTE_DTYPE_BYTES[plan.precision]
    gathered = plan.engine == "fsdp" and plan.fsdp.shards
    _, states = master_and_states(plan)
    for pp, _, mp, ranks in replicas(plan):
        held, n = stored_by(plan, pp), len(ranks) if gathered and plan.fsdp.version == 2 else 1
        each = [(_padded(p, x, n), p.trainable) for _, ps in held.layers for p, x in ps]
        more = states if kind == "full" else 0.0
        size = round(sum(x * (low + more * trained) for x, trained in each))
        yield CheckpointFile(
            name=f"checkpoint_{mp:02d}.pt",
            rank=ranks[0], size_bytes=size,
            staged_bytes=size if gathered else min(size, held.largest * 4), gathered=gathered,
        )  # fmt: skip


def _sharded(plan: TrainingPlan, kind: Kind) -> Iterator[CheckpointFile]:
    """``torch.distributed.checkpoint``: rows of each parameter and its states, replicas once."""
    low = COMPUTE_DTYPE_BYTES[plan.precision]
    _, states = master_and_states(plan)
    for pp, _, _, ranks in replicas(plan):
        held, n = stored_by(plan, pp), len(ranks)
        sizes, largest = [0.0] * n, held.largest * 4 // n
        for p, numel in (each for _, parameters in held.layers for each in parameters):
            width = low + (states if kind == "full" and p.trainable else 0.0)
            for d, count in _shares(plan, p, numel, n):
                sizes[d] += count * width
        for rank, size in zip(ranks, sizes, strict=True):
            yield CheckpointFile(
                name=f"__{rank}_0.distcp", rank=rank, size_bytes=round(size),
                staged_bytes=0 if plan.fsdp.cpu_offload else min(round(size), largest),
                on_host=plan.fsdp.cpu_offload,
            )  # fmt: skip


def _padded(parameter: Parameter, numel: int, n: int) -> int:
    """Elements of a whole parameter as FSDP2 gathers it: every rank gives equally many rows."""
    rows = parameter.shape[0] if parameter.shape else 1
    return -(-rows // n) * n * (numel // rows)


def _shares(
    plan: TrainingPlan, parameter: Parameter, numel: int, n: int
) -> Iterator[tuple[int, float]]:
    """Elements of each rank that has any: whole rows, as ``torch.chunk`` deals them (FSDP2).

    Replicas divide what they all have, and FSDP1's flat parameter has no rows.
    """
    if plan.fsdp.replicas > 1 or plan.fsdp.version == 1:
        yield from ((d, numel / n) for d in range(n))
        return
    rows = parameter.shape[0] if parameter.shape else 1
    chunk = -(-rows // n)
    for d in range(-(-rows // chunk)):
        yield d, min(chunk, rows - d * chunk) * (numel / rows)


def _megatron(plan: TrainingPlan, kind: Kind) -> Iterator[CheckpointFile]:
    """``torch_dist``: replicas share the work; ``torch``: the first rank writes everything.

    The parallel save copies all of a rank's tensors to main memory before it writes
    (``FileSystemWriterAsync``); the old format collects a distributed optimizer on the writer.
    """
    low = COMPUTE_DTYPE_BYTES[plan.precision]
    master, states = master_and_states(plan)
    more = master + states if kind == "full" else 0.0
    for pp, tp, _mp, ranks in replicas(plan):
        held = stored_by(plan, pp)
        if plan.saving.ckpt_format == "torch":
            size = round(held.numel * (low + more))
            collected = plan.megatron.use_distributed_optimizer and kind == "full"
            name = f"mp_rank_{tp:02d}" + (f"_{pp:03d}" if plan.mesh.pp > 1 else "")
            yield CheckpointFile(
                name=f"{name}/model_optim_rng.pt", rank=ranks[0], size_bytes=size,
                staged_bytes=round(held.numel * more) if collected else held.largest * 4,
            )  # fmt: skip
            continue
        dense, experts = (
            sum(n for _, ps in held.layers for p, n in ps if p.expert == e) for e in (False, True)
        )
        share = dense / len(ranks) + experts / plan.mesh.expert_ranks
        for rank in ranks:
            size = round(share * (low + more))
            yield CheckpointFile(
                name=f"__{rank}_0.distcp", rank=rank, size_bytes=size, staged_bytes=size
            )
