"""Device and host memory of a rank: what the program allocates, and what no tensor accounts for.

PyTorch counts tensors (``allocated``), its caching allocator holds more (``reserved``), and CUDA
and NCCL hold memory that torch does not see. All three are categories here, because a GPU runs out
of their sum.

Simplification: the allocator's slack is one measured share of the peak, not an emulation of blocks
and segments.
"""

from __future__ import annotations

from dataclasses import dataclass

from raysim.hardware.device import MemoryLedger
from raysim.hardware.specs import CpuRankSpec, GpuSpec, NodeSpec, Provenance
from raysim.models.table import COMPUTE_DTYPE_BYTES
from raysim.perf.constants import ALLOCATOR_SLACK
from raysim.training.executor import Timeline
from raysim.training.plan import TrainingPlan
from raysim.training.program import Program
from raysim.training.zero import flat_partition_numel, optimizer_state_bytes
from raysim.units import GIB, MIB

NCCL_FIRST_BYTES = GIB // 2
NCCL_NEXT_BYTES = 3 * GIB // 10
CUBLAS_WORKSPACE_BYTES = {"hopper": 32 * MIB, "blackwell": 32 * MIB, "cpu": 0}
CUBLAS_WORKSPACE_DEFAULT_BYTES = 8320 * 1024
HOST_PROCESS_BYTES = 3 * GIB

PROVENANCE = {
    "allocator slack": Provenance(
        basis="measured",
        source="reserved/allocated 1.06-1.20 in BigScience's pipeline logs, 1.08 for ZeRO-3",
    ),
    "NCCL buffers per communicator": Provenance(
        basis="assumed",
        source="channel buffers and lazily loaded kernels: 0.3-0.6 GiB each",
    ),
    "cuBLAS workspace": Provenance(
        basis="datasheet", source="torch aten/src/ATen/cuda/CublasHandlePool.cpp defaults"
    ),
    "host process": Provenance(
        basis="measured", source="BigScience chronicles: about 3 GB of host memory per GPU process"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Peak of one rank."""

    rank: int
    peak_bytes: int
    """All categories together, context and slack included: what must fit."""
    allocated_bytes: int
    """``torch.cuda.max_memory_allocated``."""
    by_category: dict[str, int]
    at_ns: int
    when: str
    """What the rank was doing."""
    allocating: str
    """Label of the allocation that made the peak."""
    ledger: MemoryLedger


def fixed_bytes(gpu: GpuSpec, communicators: int) -> int:
    """CUDA context, loaded kernels and NCCL buffers: memory outside torch's allocator.

    Gloo's, of a rank on the CPU, are no larger than its messages' pieces and left out.
    """
    nccl = 0
    if communicators and not isinstance(gpu, CpuRankSpec):
        nccl = NCCL_FIRST_BYTES + (communicators - 1) * NCCL_NEXT_BYTES
    return gpu.context_bytes + nccl


def workspace_bytes(gpu: GpuSpec) -> int:
    """cuBLAS workspace, which torch takes from its own allocator."""
    return CUBLAS_WORKSPACE_BYTES.get(gpu.architecture, CUBLAS_WORKSPACE_DEFAULT_BYTES)


def rank_memory(
    program: Program,
    timeline: Timeline | None,
    gpu: GpuSpec,
    track: tuple[str, ...],
    *,
    slack_frac: float = ALLOCATOR_SLACK,
) -> RankMemory:
    """Replay a program's memory changes in program order and find the fullest moment.

    ``timeline`` None gives the same peak without times; ``slack_frac`` is the allocator's share of
    the peak that is reserved and not allocated.
    """
    ledger = MemoryLedger(track)
    ledger.apply(0, "temporary", workspace_bytes(gpu), "cuBLAS workspace")
    now, count = 0, len(program.ops)
    fullest, held, position = 0, workspace_bytes(gpu), 0
    for event in program.memory:
        if timeline is not None and event.position < count:
            now = max(now, timeline.start_ns[event.position])
        ledger.apply(now, event.category, event.delta_bytes, event.label)
        held += event.delta_bytes
        if held > fullest:
            fullest, position = held, event.position
    peak = ledger.peak()
    communicators = len({op.call.group for op in program.ops if op.call is not None})
    outside = fixed_bytes(gpu, communicators)
    slack = round(peak.total_bytes * slack_frac)
    by_category = {**peak.by_category, "context": outside, "slack": slack}
    when = _describe(program, min(position, count - 1), peak.label)
    return RankMemory(
        rank=program.rank,
        peak_bytes=peak.total_bytes + outside + slack,
        allocated_bytes=peak.total_bytes,
        by_category=dict(sorted(by_category.items(), key=lambda item: -item[1])),
        at_ns=peak.t_ns,
        when=when,
        allocating=peak.label,
        ledger=ledger,
    )


def _describe(program: Program, position: int, label: str) -> str:
    """``backward of model.layers.3.mlp``: the operation about to run, and what was allocated."""
    op = program.ops[position]
    doing = f"{op.category} of {op.name}" if op.category != "optimizer" else op.name
    if op.category == "optimizer":
        doing = "optimizer step"
    return doing if label in {"", op.name} else f"{doing} (allocating {label})"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Peak of the fullest node's main memory."""

    peak_bytes: int
    capacity_bytes: int
    by_category: dict[str, int]


def _pinned(size_bytes: float) -> int:
    """Torch rounds each pinned allocation up to a power of two."""
    size = round(size_bytes)
    return 1 << (size - 1).bit_length() if size > 1 else size


def _fsdp_host(plan: TrainingPlan, numel: int, ranks_per_node: int) -> dict[str, int]:
    """Shards, their gradients and the optimizer's states, which torch's offload keeps together.

    Simplification: shards of parameters are pinned one by one; rounding each up is left out.
    """
    stored = COMPUTE_DTYPE_BYTES[plan.precision]
    own = -(-numel // plan.fsdp.shard_ranks(plan.mesh.dp)) * ranks_per_node
    states = optimizer_state_bytes(plan.optimizer) * stored / 4
    return {
        "parameter": own * stored, "gradient": own * stored, "optimizer_state": round(own * states),
    }  # fmt: skip


def host_memory(
    plan: TrainingPlan, numel: int, stored: int, node: NodeSpec, ranks_per_node: int
) -> HostMemory:
    """Main memory per node: processes, and what offload keeps there.

    Master weights, gradients and low-precision staging are pinned, one allocation per sub-group
    under ZeRO-3 and one in all under ZeRO-1/2; DeepSpeedCPUAdam's moments are pageable.
    Sources: ``stage_1_and_2.py``, ``stage3.py``, ``ops/adam/cpu_adam.py`` of DeepSpeed 0.19.

    Parameters
    ----------
    numel, stored
        Trainable and stored parameter elements of one pipeline stage's shard.
    """
    zero, n = plan.zero, plan.mesh.weight_ranks
    own = flat_partition_numel(numel, n)
    by_category = {"process": HOST_PROCESS_BYTES * ranks_per_node}
    low = COMPUTE_DTYPE_BYTES[plan.precision]
    group = min(own, zero.sub_group_size) if zero.stage == 3 else own

    def pinned(bytes_per_element: float) -> float:
        """Bytes of a buffer of ``own`` elements, allocated sub-group by sub-group."""
        if not zero.offload_optimizer.pin_memory:
            return own * bytes_per_element
        whole, rest = divmod(own, group)
        return whole * _pinned(group * bytes_per_element) + _pinned(rest * bytes_per_element)

    if plan.engine == "fsdp" and plan.fsdp.cpu_offload:
        by_category |= _fsdp_host(plan, numel, ranks_per_node)
    if zero.stage and zero.offload_optimizer.device == "cpu" and own:
        staging = pinned(low) if plan.precision != "fp32" else 0.0
        moments = own * optimizer_state_bytes(plan.optimizer)
        total = 2 * pinned(4.0) + staging + moments
        by_category["optimizer_state"] = round(total) * ranks_per_node
    if zero.stage == 3 and zero.offload_param.device == "cpu" and own:
        shard = -(-stored // n) * float(low)
        # Shards are pinned parameter by parameter; powers of two in themselves for most shapes.
        by_category["parameter"] = round(shard) * ranks_per_node
    return HostMemory(
        peak_bytes=sum(by_category.values()),
        capacity_bytes=node.memory_bytes,
        by_category=by_category,
    )
