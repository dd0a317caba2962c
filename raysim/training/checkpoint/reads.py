"""Who reads what of a checkpoint, at the start of a job or after a failure.

Sources: as ``checkpoint_files``. Every replica reads the weights for itself, so a checkpoint is
read more often than it was written; DeepSpeed's loader besides opens the first model-states file
(of a pipeline, the first of each layer) to compare versions before it opens its own.

``zero_optimization.elastic_checkpoint`` is not modelled (stage 3 refuses it): the job goes on with
as many ranks as it had, or from a universal checkpoint (``checkpoint.load_universal``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from raysim.models.table import COMPUTE_DTYPE_BYTES
from raysim.training.checkpoint.experts import holders
from raysim.training.checkpoint.files import replicas, stored_by
from raysim.training.checkpoint.stored import CheckpointFile, Kind, master_and_states
from raysim.training.plan import TrainingPlan


class Read(NamedTuple):
    """What one rank reads; ranks of a node that read the same share it in the page cache."""

    rank: int
    what: str
    size_bytes: int
    times: int = 1
    kept: bool = True
    """Copied to the GPU, not only looked at."""


def checkpoint_reads(
    plan: TrainingPlan, kind: Kind, files: Sequence[CheckpointFile]
) -> tuple[Read, ...]:
    """Every rank's reads of a checkpoint of these files."""
    if any(f.gathered for f in files):
        # Accelerate: rank 0 alone under FSDP, and broadcasts; into ZeRO-3 every rank reads it all.
        readers = [0] if plan.engine == "fsdp" else range(plan.mesh.world)
        return tuple(Read(r, f.name, f.size_bytes) for r in readers for f in files)
    if plan.engine == "deepspeed":
        if plan.saving.load_universal and kind == "full":
            return tuple(_universal(plan))
        return tuple(_deepspeed(plan, files))
    if plan.engine == "megatron":
        return tuple(_megatron(plan, kind, files))
    return tuple(_torch(plan, files))


def _deepspeed(plan: TrainingPlan, files: Sequence[CheckpointFile]) -> Iterator[Read]:
    """First and own model states (of a pipeline, layers too), own optimizer states."""
    first: dict[str, CheckpointFile] = {}
    own: dict[tuple[str, int], CheckpointFile] = {}
    ranks_of = {mp: ranks for _, _, mp, ranks in replicas(plan)}
    for f in files:
        if experts := holders(plan, f):
            yield from (Read(rank, f.name, f.size_bytes) for rank in experts)
        elif "zero_pp_rank" in f.name or f.name.endswith(".distcp"):
            yield Read(f.rank, f.name, f.size_bytes, times=2 if "model_states" in f.name else 1)
        else:
            group = f.name.partition("-")[0] if f.name.startswith("layer_") else "mp_rank"
            first.setdefault(group, f)
            own.setdefault((f.name, _model_parallel(plan, f.rank)), f)
    for (name, mp), f in own.items():
        group = name.partition("-")[0] if name.startswith("layer_") else "mp_rank"
        check = first[group]
        for rank in ranks_of[mp]:
            if check.name == name:
                yield Read(rank, name, f.size_bytes, times=2)
            else:
                yield Read(rank, check.name, check.size_bytes, kept=False)
                yield Read(rank, name, f.size_bytes)


def _model_parallel(plan: TrainingPlan, rank: int) -> int:
    at = plan.mesh.coordinate(rank)
    return at.pp * plan.mesh.tp + at.tp


def _universal(plan: TrainingPlan) -> Iterator[Read]:
    """One file per parameter and state, in fp32: all of them under stage 3, else one's slice.

    ``load_hp_checkpoint_state_from_checkpoint_dir_stage3`` reads each parameter whole and keeps
    a slice; stages 1 and 2 read those that their slice touches (counted as the slice).
    """
    _, states = master_and_states(plan)
    for pp, _, mp, ranks in replicas(plan):
        whole = round(sum(stored_by(plan, pp).sizes(trainable=True)) * (4.0 + states))
        for d, rank in enumerate(ranks):
            own = whole // len(ranks)
            if plan.zero.stage == 3:
                yield Read(rank, f"zero/{mp}", whole - own, kept=False)
            yield Read(rank, f"zero/{mp}/{d}", own)


def _megatron(plan: TrainingPlan, kind: Kind, files: Sequence[CheckpointFile]) -> Iterator[Read]:
    """Weights by every replica; optimizer states by every replica too unless distributed."""
    if plan.saving.ckpt_format == "torch":
        by_model = {_model_parallel(plan, f.rank): f for f in files}
        for _, _, mp, ranks in replicas(plan):
            yield from (Read(r, by_model[mp].name, by_model[mp].size_bytes) for r in ranks)
        return
    master, states = master_and_states(plan)
    shared = plan.megatron.use_distributed_optimizer
    for pp, _, mp, ranks in replicas(plan):
        held = stored_by(plan, pp)
        weights = held.numel * COMPUTE_DTYPE_BYTES[plan.precision]
        more = round(sum(held.sizes(trainable=True)) * (master + states)) if kind == "full" else 0
        for d, rank in enumerate(ranks):
            yield Read(rank, f"model/{mp}", weights)
            if more:
                own = more // len(ranks) if shared else more
                yield Read(rank, f"optimizer/{mp}" + (f"/{d}" if shared else ""), own)


def _torch(plan: TrainingPlan, files: Sequence[CheckpointFile]) -> Iterator[Read]:
    """Own shards (those of all replicas together hold one); whole files by every replica."""
    if any(f.name.endswith(".distcp") for f in files):
        yield from (Read(f.rank, f.name, f.size_bytes * plan.fsdp.replicas) for f in files)
        return
    by_model = {_model_parallel(plan, f.rank): f for f in files}
    for _, _, mp, ranks in replicas(plan):
        yield from (Read(r, by_model[mp].name, by_model[mp].size_bytes) for r in ranks)
