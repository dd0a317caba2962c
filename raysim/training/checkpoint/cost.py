"""Saving and loading a checkpoint: files, seconds, what training stands still, memory it takes.

``checkpoint_files`` says who writes what, ``checkpoint_reads`` who reads what to go on, and
``checkpoint_traffic`` how long that takes where links, disks and stores are shared.

Saved synchronously, training stands still until the last rank has written. Saved asynchronously
(``saving.asynchronous``; ``torch.distributed.checkpoint.async_save``, Megatron's ``--async-save``)
it stands still while all copy to pinned memory; the rest is written beside the steps that follow,
and must have ended before the next save begins. What is collected on one rank first is collected
before anyone goes on.

Not modelled: DeepSpeed's own writers (``checkpoint.writer``), which bypass ``torch.save``; that
writing takes main memory's bandwidth and cores from the steps beside it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from raysim.models.table import COMPUTE_DTYPE_BYTES
from raysim.perf.host import COPY_FIXED_S, pageable_bytes_per_s
from raysim.training.checkpoint.files import checkpoint_files
from raysim.training.checkpoint.reads import Read, checkpoint_reads
from raysim.training.checkpoint.stored import CheckpointFile, Kind, master_and_states
from raysim.training.checkpoint.traffic import Haul, Traffic
from raysim.training.communicators import Communicators
from raysim.training.plan import TrainingPlan
from raysim.training.program import Call

__all__ = ["CheckpointCost", "CheckpointFile", "checkpoint_cost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCost:
    """One save, and one load of what it wrote."""

    total_bytes: int
    fullest_node_bytes: int
    """Written by the node that writes most."""
    seconds: float
    """Until it is on storage."""
    stall_seconds: float
    """Of them, those that training stands still; all when it is saved synchronously."""
    collect_seconds: float
    """Of them, until what one rank writes for all has come to it."""
    load_seconds: float
    read_bytes: int
    """By all ranks together to go on from it."""
    host_bytes: int
    """Extra main memory of the fullest node while it saves."""
    files: tuple[CheckpointFile, ...]

    @property
    def background_seconds(self) -> float:
        """Written beside later steps."""
        return self.seconds - self.stall_seconds


def checkpoint_cost(plan: TrainingPlan, comms: Communicators, kind: Kind) -> CheckpointCost:
    """Files and times of one save: ``model`` keeps weights only, ``full`` optimizer state too."""
    files = checkpoint_files(plan, kind, comms.placement)
    traffic = Traffic(comms, plan.saving.storage)
    collect_s = _collect_s(plan, comms, kind) if any(f.gathered for f in files) else 0.0
    background = plan.saving.asynchronous
    hauls = _hauls(files)
    if background:
        stall_s = collect_s + traffic.seconds(hauls, "copy")
        total_s = stall_s + traffic.seconds(hauls, "write")
    else:
        total_s = stall_s = collect_s + traffic.seconds(hauls, "save")
    reads = checkpoint_reads(plan, kind, files)
    load_s = traffic.seconds(_load_hauls(plan, comms, reads), "load")
    if plan.engine == "fsdp" and collect_s:
        load_s += comms.traffic(
            Call("broadcast", "dp", sum(f.size_bytes for f in files)), 0
        ).cost.seconds
    return CheckpointCost(
        total_bytes=sum(f.size_bytes for f in files),
        fullest_node_bytes=_fullest(comms, ((f.rank, f.size_bytes) for f in files)),
        seconds=total_s,
        stall_seconds=stall_s,
        collect_seconds=collect_s,
        load_seconds=load_s,
        read_bytes=sum(r.size_bytes * r.times for r in reads),
        host_bytes=_fullest(comms, _staged(files, background=background)),
        files=files,
    )


def _fullest(comms: Communicators, held: Iterable[tuple[int, int]]) -> int:
    """Bytes of the node that has most, of (rank, bytes)."""
    by_node: defaultdict[int, int] = defaultdict(int)
    for rank, size_bytes in held:
        by_node[comms.placement[rank][0]] += size_bytes
    return max(by_node.values(), default=0)


def _staged(files: Sequence[CheckpointFile], *, background: bool) -> Iterator[tuple[int, int]]:
    """Main memory per rank: files follow one another, but all are held to be written later."""
    most: defaultdict[int, int] = defaultdict(int)
    for f in files:
        if background:
            most[f.rank] += f.size_bytes
        else:
            most[f.rank] = max(most[f.rank], f.staged_bytes)
    return iter(most.items())


def _hauls(files: Sequence[CheckpointFile]) -> list[Haul]:
    """What each rank writes."""
    found: dict[int, Haul] = {}
    for f in files:
        haul = found.setdefault(f.rank, Haul(f.rank))
        haul.thread_bytes += f.size_bytes
        haul.stored_bytes += f.size_bytes
        haul.device_bytes += 0 if f.on_host or f.gathered else f.size_bytes
    return list(found.values())


def _load_hauls(plan: TrainingPlan, comms: Communicators, reads: Sequence[Read]) -> list[Haul]:
    """What each rank reads; a node fetches from storage once what several of its ranks read."""
    sharers: defaultdict[tuple[int, str], set[int]] = defaultdict(set)
    for read in reads:
        sharers[comms.placement[read.rank][0], read.what].add(read.rank)
    found: dict[int, Haul] = {}
    on_host = plan.zero.offload_optimizer.device != "none"
    for read in reads:
        haul = found.setdefault(read.rank, Haul(read.rank))
        haul.thread_bytes += read.size_bytes * read.times
        together = sharers[comms.placement[read.rank][0], read.what]
        haul.stored_bytes += read.size_bytes / len(together)
        if read.kept and not (on_host and "optim" in read.what):
            haul.device_bytes += read.size_bytes
    return list(found.values())


def _collect_s(plan: TrainingPlan, comms: Communicators, kind: Kind) -> float:
    """Every module gathered by all and copied to main memory by rank 0, one after another.

    ``_zero3_consolidated_16bit_state_dict``; FSDP's ``_full_state_dict`` takes each parameter, and
    each of its states, by itself.
    """
    gpu = comms.topology.specs[comms.placement[0][0]].gpu
    assert gpu is not None, "a rank has no GPU"
    low = COMPUTE_DTYPE_BYTES[plan.precision]
    alone = plan.engine == "fsdp"
    copies = 1
    if alone and kind == "full":
        copies += round(master_and_states(plan)[1] / low)
    group = "dp"
    if alone and plan.fsdp.replicas > 1:
        group = f"dp_shard:{plan.fsdp.shard_ranks(plan.mesh.dp)}"
    seconds = 0.0
    for layer in plan.model.layers:
        for module in layer.body.modules:
            sizes = [p.numel * low for p in module.parameters]
            for gathered in sizes if alone else ([sum(sizes)] if sizes else []):
                call = Call("all_gather", group, gathered)
                gather_s = (
                    comms.traffic(call, 0).cost.seconds if plan.mesh.weight_ranks > 1 else 0.0
                )
                copy_s = COPY_FIXED_S + gathered / pageable_bytes_per_s(gpu)
                seconds += copies * (gather_s + copy_s)
    return seconds
