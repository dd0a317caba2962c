"""Device memory of a rank: what the program allocates, and what no tensor accounts for.

PyTorch counts blocks in use (``allocated``), its caching allocator holds more (``reserved``), and
CUDA and NCCL hold memory that torch does not see. A GPU runs out of their sum, which is what
``nvidia-smi`` shows of the process. The allocator is emulated (``replay``, ``allocator``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from raysim.hardware.device import MemoryLedger
from raysim.hardware.specs import CpuRankSpec, GpuSpec, Provenance
from raysim.training.allocator.caching import Allocator
from raysim.training.allocator.config import AllocatorConfig
from raysim.training.executor import Timeline
from raysim.training.memory.replay import Failure, Replay, Trace, replay, resolve
from raysim.training.program import PROCESS, Program
from raysim.units import GIB, MIB

NCCL_FIRST_BYTES = GIB // 2
NCCL_NEXT_BYTES = 3 * GIB // 10
CUBLAS_WORKSPACE_BYTES = {"hopper": 32 * MIB, "blackwell": 32 * MIB, "cpu": 0}
CUBLAS_WORKSPACE_DEFAULT_BYTES = 8320 * 1024

PROVENANCE = {
    "allocator": Provenance(
        basis="datasheet", source="torch 2.13 c10/cuda/CUDACachingAllocator.cpp, emulated"
    ),
    "NCCL buffers per communicator": Provenance(
        basis="assumed",
        source="channel buffers and lazily loaded kernels: 0.3-0.6 GiB each",
    ),
    "cuBLAS workspace": Provenance(
        basis="datasheet",
        source="torch aten/src/ATen/cuda/CublasHandlePool.cpp: defaults, a handle per thread",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """The allocation that finds no memory; what is held then."""

    size_bytes: int
    """Of the tensor."""
    asked_bytes: int
    """Of the segment that torch asks the driver for: what its message names."""
    category: str
    label: str
    when: str
    """The operation about to run."""
    held: dict[str, int]
    """Bytes of live tensors by category."""
    allocated_bytes: int
    reserved_bytes: int
    outside_bytes: int
    """Context, kernels and NCCL: of the process, not of torch."""
    free_bytes: int
    capacity_bytes: int

    @property
    def message(self) -> str:
        """What torch prints (``CUDACachingAllocator.cpp``), of GPU 0 as a rank sees its own."""
        used = self.reserved_bytes + self.outside_bytes
        return (
            f"CUDA out of memory. Tried to allocate {_torch_size(self.asked_bytes)}. GPU 0 has a "
            f"total capacity of {_torch_size(self.capacity_bytes)} of which "
            f"{_torch_size(self.free_bytes)} is free. Including non-PyTorch memory, this process "
            f"has {_torch_size(used)} memory in use. Of the allocated memory "
            f"{_torch_size(self.allocated_bytes)} is allocated by PyTorch, and "
            f"{_torch_size(self.reserved_bytes - self.allocated_bytes)} is reserved by PyTorch but "
            f"unallocated."
        )


def _torch_size(size_bytes: int) -> str:
    """As torch's ``format_size``."""
    for unit, scale in (("GiB", GIB), ("MiB", MIB), ("KiB", 1024)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.2f} {unit}"
    return f"{size_bytes} bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Peak of one rank."""

    rank: int
    track: tuple[str, ...]
    """Where it sits, as records name it."""
    peak_bytes: int
    """Reserved, context and NCCL: what ``nvidia-smi`` shows, and what must fit."""
    requested_bytes: int
    """Tensors alone, at their peak."""
    allocated_bytes: int
    """``torch.cuda.max_memory_allocated``: tensors, rounded up to blocks."""
    reserved_bytes: int
    """``torch.cuda.max_memory_reserved``."""
    kept_bytes: int
    """Of tensors, what is left when its steps are over: ``torch.cuda.memory_allocated`` then."""
    outside_bytes: int
    """Context, loaded kernels and NCCL."""
    by_category: dict[str, int]
    """Of ``peak_bytes``, at the peak of the tensors; ``slack`` is reserved and held by none."""
    at_ns: int
    when: str
    """What the rank was doing."""
    allocating: str
    """Label of the allocation that made the peak."""
    reserved_when: str
    """Which allocation brought reserved memory to its peak."""
    largest: tuple[tuple[str, str, int], ...]
    """The largest tensors at the peak: category, label, bytes; none without ``explain``."""
    driver_calls: int
    """``cudaMalloc``: segments asked for until the allocator had settled."""
    retries: int
    """``num_alloc_retries``: times it gave its cache back to find memory, each a pause."""
    inactive_split_bytes: int
    """Cached in pieces of segments in use, when it has settled: fragmentation."""
    out_of_memory: OutOfMemory | None
    """None: it fits the capacity it was played with."""

    @property
    def states_bytes(self) -> int:
        """Of ``peak_bytes``, what stays between steps: weights and the optimizer's states."""
        return sum(self.by_category.get(name, 0) for name in ("parameter", "optimizer_state"))


def fixed_bytes(gpu: GpuSpec, communicators: int) -> int:
    """CUDA context, loaded kernels and NCCL buffers: memory outside torch's allocator.

    Gloo's, of a rank on the CPU, are no larger than its messages' pieces and left out.
    """
    nccl = 0
    if communicators and not isinstance(gpu, CpuRankSpec):
        nccl = NCCL_FIRST_BYTES + (communicators - 1) * NCCL_NEXT_BYTES
    return gpu.context_bytes + nccl


def outside_bytes(program: Program, gpu: GpuSpec) -> int:
    """What the process of a program holds outside torch's allocator."""
    groups = {op.call.group for op in program.ops if op.call is not None}
    return fixed_bytes(gpu, len(groups - {PROCESS}))


def workspaces(program: Program, gpu: GpuSpec) -> tuple[int, ...]:
    """cuBLAS workspaces, which torch takes from its own allocator: one of each thread's handle.

    Autograd runs backward in a thread of its own.
    """
    if not program.multiplies:
        return ()
    size = CUBLAS_WORKSPACE_BYTES.get(gpu.architecture, CUBLAS_WORKSPACE_DEFAULT_BYTES)
    return (size, size) if program.backward_ends else (size,)


@dataclass(frozen=True, slots=True)
class _Fullest:
    """The moment with the most bytes in tensors."""

    total_bytes: int
    index: int
    """Of the change that made it; -1: before all."""
    by_category: dict[str, int]


def rank_memory(
    program: Program,
    timeline: Timeline | None,
    gpu: GpuSpec,
    track: tuple[str, ...],
    *,
    replayed: Program | None = None,
    config: AllocatorConfig | None = None,
    slack_frac: float | None = None,
    limit_bytes: int | None = None,
    quick: bool = False,
    release: bool = True,
    explain: bool = True,
) -> RankMemory:
    """Replay a program's memory changes in program order and find the fullest moment.

    ``replayed`` stands for the program on the allocator: fewer micro-batches, of which as many are
    under way at once.
    ``timeline`` None gives the same peak without times. ``slack_frac``, of a profile, stands for
    the allocator where it is given: the share of the peak that is reserved and not allocated.
    Otherwise the allocator is emulated: first as if memory had no end; where that is more than the
    GPU has (or ``limit_bytes``), again within that, giving cached memory back as torch does. If
    that fails too, the peak is the one without end. ``quick``: where tensors alone are too much,
    they are the peak, and nothing is emulated. Without ``release`` the second replay is left out:
    a job fits only if it never has to give cached memory back. Without ``explain`` it is left out
    where tensors alone are too much, so that it could only tell which one finds no memory.
    """
    handles = workspaces(program, gpu)
    fullest = _fullest(program, sum(handles))
    outside = outside_bytes(program, gpu)
    capacity = (gpu.memory_bytes if limit_bytes is None else limit_bytes) - outside
    hopeless = quick and fullest.total_bytes > capacity
    replayed = replayed or program
    trace = resolve(replayed) if slack_frac is None and not hopeless else None
    played, failed = None, None
    if trace is not None:
        again = release and (explain or fullest.total_bytes <= capacity)
        played, failed = _played(trace, handles, config, capacity if again else None)
    allocated = fullest.total_bytes
    reserved = round(allocated * (1 + (slack_frac or 0.0)))
    if played is not None:
        # Changes count the optimizer's states from the start; a warm-up step does without them.
        allocated = max(allocated, played.allocator.peak_allocated_bytes)
        reserved = max(allocated, played.allocator.peak_reserved_bytes)
    by_category = {
        **fullest.by_category, "context": outside, "slack": reserved - fullest.total_bytes,
    }  # fmt: skip
    label, position = "cuBLAS workspaces", 0
    if fullest.index >= 0:
        label, position = program.memory[fullest.index].label, program.memory_at[fullest.index]
    return RankMemory(
        rank=program.rank,
        track=track,
        peak_bytes=reserved + outside,
        requested_bytes=fullest.total_bytes,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        kept_bytes=sum(handles) + sum(event.delta_bytes for event in program.memory),
        outside_bytes=outside,
        by_category=dict(sorted(by_category.items(), key=lambda item: -item[1])),
        at_ns=_reached_ns(program, timeline, fullest.index),
        when=_describe(program, min(position, len(program.ops) - 1), label),
        allocating=label,
        reserved_when=_reserved_when(replayed, trace, played),
        largest=_largest(program, fullest.index) if explain else (),
        driver_calls=played.allocator.driver_calls if played is not None else 0,
        retries=played.allocator.retries if played is not None else 0,
        inactive_split_bytes=played.allocator.inactive_split_bytes if played is not None else 0,
        out_of_memory=_out_of_memory(replayed, trace, failed, capacity, outside),
    )


def _fullest(program: Program, workspace: int) -> _Fullest:
    """Where tensors take most, and by category what they are there."""
    held = list(accumulate([e.delta_bytes for e in program.memory], initial=workspace))
    most = max(held)
    index = held.index(most) - 1
    by_category: dict[str, int] = defaultdict(int)
    by_category["temporary"] = workspace
    for event in program.memory[: index + 1]:
        by_category[event.category] += event.delta_bytes
    return _Fullest(most, index, {k: v for k, v in by_category.items() if v})


def _reached_ns(program: Program, timeline: Timeline | None, index: int) -> int:
    """When change ``index`` happens: 0 before all, and without times."""
    if timeline is None:
        return 0
    places = program.memory_at[: index + 1]
    return max((timeline.start_ns[at] for at in places if at < len(program.ops)), default=0)


def ledger(timeline: Timeline, track: tuple[str, ...], gpu: GpuSpec) -> MemoryLedger:
    """Every change of a rank's memory at its time."""
    entries, now, program = MemoryLedger(track), 0, timeline.program
    entries.apply(0, "temporary", sum(workspaces(program, gpu)), "cuBLAS workspaces")
    count = len(program.ops)
    for event, position in zip(program.memory, program.memory_at, strict=True):
        if position < count:
            now = max(now, timeline.start_ns[position])
        entries.apply(now, event.category, event.delta_bytes, event.label)
    return entries


def _played(
    trace: Trace,
    handles: Sequence[int],
    config: AllocatorConfig | None,
    capacity: int | None,
) -> tuple[Replay, Replay | None]:
    """The replay whose figures count, and the one that ran out of memory."""
    share = config.per_process_memory_fraction if config is not None else 1.0
    endless = replay(trace, Allocator(config), workspaces=handles)
    if capacity is None or endless.allocator.peak_reserved_bytes <= share * capacity:
        return endless, None
    capped = replay(trace, Allocator(config, capacity_bytes=capacity), workspaces=handles)
    return (capped, None) if capped.failure is None else (endless, capped)


def _out_of_memory(
    program: Program, trace: Trace | None, failed: Replay | None, capacity: int, outside: int
) -> OutOfMemory | None:
    if failed is None or failed.failure is None or trace is None:
        return None
    failure, allocator = failed.failure, failed.allocator
    return OutOfMemory(
        size_bytes=failure.size_bytes,
        asked_bytes=failure.asked_bytes,
        category=failure.event.category,
        label=failure.event.label,
        when=_failing(program, trace, failure),
        held=failure.held,
        allocated_bytes=allocator.allocated_bytes,
        reserved_bytes=allocator.reserved_bytes,
        outside_bytes=outside,
        free_bytes=max(0, failure.free_bytes),
        capacity_bytes=capacity + outside,
    )


def _failing(program: Program, trace: Trace, failure: Failure) -> str:
    if failure.setting_up:
        return "setting up, before the first step"
    position = trace.states_made if failure.event.lazy else failure.position
    return _describe(program, min(max(position, 0), len(program.ops) - 1), failure.event.label)


def _reserved_when(program: Program, trace: Trace | None, played: Replay | None) -> str:
    """What was being done when reserved memory reached its peak."""
    at = played.reserved_at if played is not None else None
    if at is None or trace is None or not program.ops:
        return ""
    if at < len(program.initial):
        return "setting up"
    position = min(trace.positions[at], len(program.ops) - 1)
    return _describe(program, position, trace.events[at].label)


LARGEST_ROWS = 6


def _largest(program: Program, index: int) -> tuple[tuple[str, str, int], ...]:
    """The allocations that hold most at the peak, by category and label."""
    held: dict[tuple[str, str], int] = defaultdict(int)
    for event in program.memory[: index + 1]:
        held[event.category, event.label] += event.delta_bytes
    rows = sorted(
        ((category, label, size) for (category, label), size in held.items() if size > 0),
        key=lambda row: -row[2],
    )
    return tuple(rows[:LARGEST_ROWS])


def _describe(program: Program, position: int, label: str) -> str:
    """``backward of model.layers.3.mlp``: the operation about to run, and what was allocated."""
    op = program.ops[position]
    doing = f"{op.category} of {op.name}" if op.category != "optimizer" else op.name
    if op.category == "optimizer":
        doing = "optimizer step"
    return doing if label in {"", op.name} else f"{doing} (allocating {label})"
