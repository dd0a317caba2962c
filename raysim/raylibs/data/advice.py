"""What a planner should know of a data job: traps, with their numbers and the fix.

Real counterparts: issues of ray-project/ray beside each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raysim.raylibs.data.balance import Balance
from raysim.raylibs.data.defaults import DataContext
from raysim.raylibs.data.specs import AllToAll, Dataset, Map
from raysim.raylibs.data.stats import ExecutionStats
from raysim.raylibs.warnings import PlannerWarning
from raysim.units import GIB, MIB

STALLED_FRAC = 0.05
"""Trainers that wait longer are bound by their data."""
DROPPED_FRAC = 0.01
"""Of all rows: worth a word."""
EXPANSION = 5.0
"""A map that makes rows so many times larger fills heaps that no budget knows."""
HEAP_FACTOR = 3.0
"""Heap of a running task over its block: input, batches, output (ray#65544: 2 to 5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A job and where it runs."""

    dataset: Dataset
    context: DataContext
    limits: Balance
    trains: bool
    equal: bool
    """Shares of the trainers are made equal."""
    node_memory_bytes: float
    """Of the smallest node, beside its object store."""
    node_cpus: float


def warnings_of(
    executions: Sequence[ExecutionStats], stall_frac: float, first_frac: float, at: Situation
) -> tuple[PlannerWarning, ...]:
    """All that this job walks into."""
    trains, limits = at.trains, at.limits
    found: list[PlannerWarning] = []
    if trains and stall_frac - first_frac > STALLED_FRAC:
        found.append(
            PlannerWarning(
                code="data-starves-trainers",
                cause=f"Trainers wait {stall_frac:.0%} of their time for data.",
                fix=_feeding(limits),
            )
        )
    elif trains and first_frac > STALLED_FRAC:
        found.append(
            PlannerWarning(
                code="data-first-batch-late",
                cause=f"Trainers wait {first_frac:.0%} of their time for the first batch of an "
                "epoch: a block is handed over when all its rows are made.",
                fix="Use smaller blocks: override_num_blocks or target_max_block_size.",
            )
        )
    found += _store(executions, limits, at.context)
    found += _heap(at)
    barriers = [op for op in at.dataset.operations if isinstance(op, AllToAll) and op.shuffle]
    if trains and barriers:
        found.append(
            PlannerWarning(
                code="data-barrier-in-stream",
                cause=f"{barriers[0].kind} takes in all rows before it gives the first, "
                "in every epoch: trainers begin only then.",
                fix="Shuffle files and use local_shuffle_buffer_size, or do it once and "
                "materialize().",
            )
        )
    if trains and at.equal:
        dropped = sum(e.dropped_rows for e in executions)
        if dropped > DROPPED_FRAC * sum(e.rows for e in executions):
            found.append(
                PlannerWarning(
                    code="data-equal-split-drops",
                    cause=f"Equal shares drop {dropped:,} rows, and the slowest rank holds all "
                    "others back.",
                    fix="Use smaller blocks, or equal=False where ranks may take different steps.",
                )
            )
    return tuple(found)


def _feeding(limits: Balance) -> str:
    """What would keep trainers fed: CPUs only where these are what is short."""
    cheaper = "or make rows cheaper: materialize() what does not change between epochs."
    wanted = limits.cpus_to_keep_up
    if wanted > limits.cpus:
        return f"Give data {wanted:,.0f} CPUs (it has {limits.cpus:g}), {cheaper}"
    enough = f"CPUs are not short (data has {limits.cpus:g}"
    slowest = min(limits.stages, key=lambda s: s.rows_per_s, default=None)
    if slowest is not None and slowest.rows_per_s < limits.consumers_per_s:
        return (
            f"{enough}): {slowest.name} makes {slowest.rows_per_s:,.0f} rows/s, with "
            f"{slowest.slots:g} at once at most, and trainers take "
            f"{limits.consumers_per_s:,.0f}. Raise its concurrency, {cheaper}"
        )
    gpu_s = sum(s.gpu_s for s in limits.stages)
    if gpu_s and limits.gpus / gpu_s < limits.consumers_per_s:
        return f"{enough}): its GPU stages are. Give them more than {limits.gpus:g} GPUs, {cheaper}"
    return (
        f"{enough}, and {wanted:,.0f} would keep up): blocks come late. Use smaller ones "
        f"(override_num_blocks), a larger prefetch_batches, {cheaper}"
    )


def _store(
    executions: Sequence[ExecutionStats], limits: Balance, context: DataContext
) -> list[PlannerWarning]:
    """Room for two blocks of every task that could run, in half of the store."""
    limit = max((e.store_limit_bytes for e in executions), default=0.0)
    blocks = [
        op.bytes_out / op.blocks_out for e in executions for op in e.operators
        if op.tasks and op.blocks_out
    ]  # fmt: skip
    if not blocks or not limit:
        return []
    each = max(blocks)
    tasks = sum(min(s.slots, limits.cpus) for s in limits.stages)
    wanted = tasks * context.max_num_blocks_in_streaming_gen_buffer * each
    if wanted <= limit:
        return []
    return [
        PlannerWarning(
            code="data-store-too-small",
            cause=f"{tasks:,.0f} tasks at once hold two blocks of {each / MIB:,.0f} MiB each, "
            f"{wanted / GIB:,.1f} GiB; data may use {limit / GIB:,.1f} GiB of the object store, "
            "so fewer tasks run than CPUs would allow.",
            fix="Use smaller blocks (target_max_block_size), fewer operators, or a larger "
            "object_store_memory.",
        )
    ]


def _heap(at: Situation) -> list[PlannerWarning]:
    """Rows that grow, and heaps of all tasks of a node against its memory."""
    dataset, context = at.dataset, at.context
    row_bytes, worst = dataset.source.stored_row_bytes or dataset.source.row_bytes, 1.0
    steps = [(dataset.source.name, dataset.source.row_bytes)]
    steps += [
        (op.name, op.row_bytes_out) for op in dataset.operations
        if isinstance(op, Map) and op.row_bytes_out is not None
    ]  # fmt: skip
    named = ""
    for name, after in steps:
        if row_bytes and after / row_bytes > worst:
            worst, named = after / row_bytes, name
        row_bytes = after
    heap = HEAP_FACTOR * context.target_max_block_size * worst * at.node_cpus
    if worst < EXPANSION or heap <= at.node_memory_bytes:
        return []
    return [
        PlannerWarning(
            code="data-decode-expands",
            cause=f"{named} makes rows {worst:.0f} times larger: a block of "
            f"{context.target_max_block_size / MIB:.0f} MiB becomes {worst:.0f} in a task's heap, "
            f"which no budget counts; {at.node_cpus:g} tasks may need {heap / GIB:,.0f} GiB of the "
            f"{at.node_memory_bytes / GIB:,.0f} GiB beside the object store.",
            fix="Read smaller blocks (override_num_blocks), or give the map more num_cpus.",
        )
    ]
