"""From a dataset to the operators that run: read parallelism, fusion, splits of outputs.

Real counterpart: ``_internal/logical/rules/operator_fusion.py``, ``set_read_parallelism.py``,
``_internal/util.py`` (``_autodetect_parallelism``) and ``_internal/planner`` of ray 2.60.

Not modelled: limit, projection and predicate pushdown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from raysim.raylibs.data.blocks import Block, Made, shared_out, stepped
from raysim.raylibs.data.defaults import DataContext
from raysim.raylibs.data.shuffles import join_stages, partitions_of, stages_of, takes_in_maps
from raysim.raylibs.data.specs import AllToAll, Dataset, Join, Map, Reorder, Source, Union, Zip
from raysim.raylibs.data.stages import Collect, Inputs, MapStage, Regrouped, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A stage and the stages it takes its input from, by index in the plan."""

    stage: Stage
    inputs: tuple[int, ...] = ()


Plan = tuple[Node, ...]
"""In topological order; the last is the output."""


def read_parallelism(source: Source, context: DataContext, cpus: float) -> tuple[int, int]:
    """Read tasks, and the blocks each one's output is cut into.

    ``max(min(200, bytes / 1 MiB), bytes / 128 MiB, 2 x CPUs)``, at most one a file; or those that
    the source says.
    """
    if source.task_rows:
        return len(source.task_rows), 1
    estimated = source.rows * source.row_bytes
    wanted = source.override_num_blocks
    if wanted is None:
        few = min(
            context.read_op_min_num_blocks, math.ceil(estimated / context.target_min_block_size)
        )
        wanted = max(few, math.ceil(estimated / context.target_max_block_size), int(cpus * 2), 1)
    wanted = max(1, min(wanted, source.rows))
    tasks = min(wanted, source.files) if source.files else wanted
    return tasks, math.ceil(wanted / tasks) if tasks < wanted else 1


def plan_of(dataset: Dataset, context: DataContext, cpus: float) -> Plan:
    """The operators of a dataset on a cluster of so many CPUs."""
    nodes: list[Node] = []
    _add(dataset, context, cpus, nodes)
    return tuple(nodes)


def _add(dataset: Dataset, context: DataContext, cpus: float, nodes: list[Node]) -> int:
    """Append a dataset's nodes; the index of its last."""
    pending, blocks = _begun(dataset.source, context, cpus, nodes)
    last = len(nodes) - 1
    for operation in dataset.operations:
        if isinstance(operation, Map):
            step = MapStage(name=operation.name, steps=(operation,))
            fused = _fused(pending, step, context)
            if fused is not None:
                pending = fused
                continue
            last, pending = _flushed(nodes, last, pending), step
            continue
        if isinstance(operation, AllToAll):
            fused = pending if takes_in_maps(operation, context) and _plain(pending) else None
            if fused is None:
                last = _flushed(nodes, last, pending)
            stages = stages_of(operation, context, cpus=cpus, blocks=blocks, read=fused)
            for stage in stages[:-1]:
                nodes.append(Node(stage=stage, inputs=(last,)))
                last = len(nodes) - 1
            last_stage = stages[-1]
            assert isinstance(last_stage, MapStage), "a shuffle ends in reduces"
            pending = last_stage
            blocks = partitions_of(operation, context, blocks)
            continue
        last, pending = _flushed(nodes, last, pending), None
        if isinstance(operation, Union):
            others = tuple(_add(other, context, cpus, nodes) for other in operation.others)
            nodes.append(Node(stage=operation, inputs=(last, *others)))
        elif isinstance(operation, Zip):
            beside = _add(operation.other, context, cpus, nodes)
            nodes.append(Node(stage=Regrouped(name="Zip"), inputs=(last, beside)))
            nodes.append(Node(stage=_zipping(operation), inputs=(len(nodes) - 1,)))
        elif isinstance(operation, Join):
            pending = _joined(operation, context, cpus, nodes)
            blocks = operation.partitions
        elif isinstance(operation, Reorder):
            stage = Collect(name="RandomizeBlockOrder", order=operation.order)
            nodes.append(Node(stage=stage, inputs=(last,)))
        else:
            nodes.append(Node(stage=operation, inputs=(last,)))
        last = len(nodes) - 1
    return _flushed(nodes, last, pending)


def _begun(
    source: Source, context: DataContext, cpus: float, nodes: list[Node]
) -> tuple[MapStage | None, int]:
    """Append what a dataset starts with; the stage that reads it, and about how many blocks."""
    if source.blocks:
        nodes.append(Node(stage=Inputs(blocks=source.blocks)))
        return None, len(source.blocks)
    tasks, splits = read_parallelism(source, context, cpus)
    stored = round(source.rows * source.row_bytes)
    reads, start = [], 0
    for made in _shares(source, stored, tasks):
        reads.append(Block(made.rows, made.size_bytes, start=start))
        start += made.rows
    nodes.append(Node(stage=Inputs(blocks=tuple(reads))))
    blocks = max(tasks * splits, math.ceil(stored / context.target_max_block_size))
    reading = MapStage(name=source.name, steps=(_reading(source),), reads=source, splits=splits)
    return reading, blocks


def _joined(operation: Join, context: DataContext, cpus: float, nodes: list[Node]) -> MapStage:
    """Append what meets in a join, this side of which is the last node; its reduces."""
    this = len(nodes) - 1
    beside = _add(operation.other, context, cpus, nodes)
    left, right, exchange, reduces = join_stages(operation, context)
    nodes.append(Node(stage=left, inputs=(this,)))
    nodes.append(Node(stage=right, inputs=(beside,)))
    nodes.append(Node(stage=exchange, inputs=(len(nodes) - 2, len(nodes) - 1)))
    return reduces


def _shares(source: Source, stored_bytes: int, tasks: int) -> list[Made]:
    """What each read task reads: equal shares of rows, whole files, or what the source says."""
    if source.task_rows:
        whole = max(source.rows, 1)
        return [Made(rows, round(stored_bytes * rows / whole)) for rows in source.task_rows]
    if not source.file_rows:
        return (stepped if source.stepped else shared_out)(source.rows, stored_bytes, tasks)
    shares, at = [], 0
    for files in shared_out(len(source.file_rows), 0, tasks):
        rows = sum(source.file_rows[at : at + files.rows])
        at += files.rows
        shares.append(Made(rows, round(stored_bytes * rows / max(source.rows, 1))))
    return shares


def _flushed(nodes: list[Node], last: int, pending: MapStage | None) -> int:
    if pending is None:
        return last
    nodes.append(Node(stage=pending, inputs=(last,)))
    return len(nodes) - 1


def _zipping(operation: Zip) -> MapStage:
    """Half as many rows as go in, twice as long."""
    step = Map(
        name="zip", core_s_per_byte=operation.core_s_per_byte, hook=operation.hook,
        rows_out_per_row=0.5, bytes_out_frac=2.0,
    )  # fmt: skip
    return MapStage(name="zip", steps=(step,), merges=True, fuses=False)


def _reading(source: Source) -> Map:
    return Map(
        name=source.name, core_s_per_row=source.core_s_per_row, io_s_per_row=source.io_s_per_row,
        stored_row_bytes=source.stored_row_bytes, hook=source.hook, slices=source.slices,
    )  # fmt: skip


def _fused(up: MapStage | None, down: MapStage, context: DataContext) -> MapStage | None:
    """Both as one operator, if Ray fuses them.

    Tasks fuse with tasks of the same concurrency and into an actor pool behind them, if they ask
    for the same resources and no output of the first is to be cut; a pool fuses with nothing
    behind it. Batches of a size of their own are not cut where rows are read, filtered or made.
    """
    if up is None or not up.fuses or up.splits > 1:
        return None
    if (
        up.changes_rows
        and down.first.batch_size is not None
        and not context.fuses_reads_and_batches
    ):
        return None
    if up.first.actors or _args(up.first) != _args(down.first):
        return None
    if up.steps[-1].block_rows or (down.first.block_rows and not _may_cut(up, down.first)):
        return None
    size, below = up.first.concurrency, down.first.concurrency
    if down.first.actors:
        if size is not None and size != (below[1] if isinstance(below, tuple) else below):
            return None
    elif size != below:
        return None
    return replace(up, name=f"{up.name}->{down.name}", steps=(*up.steps, *down.steps))


def _may_cut(up: MapStage, down: Map) -> bool:
    """Whether blocks are cut by the tasks that make them: of ``map_batches``, unless exactly."""
    return up.steps[-1].name.startswith("MapBatches") and not down.exact


def _plain(stage: MapStage | None) -> bool:
    """Tasks of one CPU each, as those of shuffles are, whose output is not to be cut."""
    if stage is None or not stage.fuses or stage.splits > 1 or stage.fetches:
        return False
    first = stage.first
    return not first.actors and first.concurrency is None and _args(first) == (1.0, 0.0, {})


def _args(step: Map) -> tuple[float, float, dict[str, float]]:
    """Remote arguments as ``_canonicalize`` leaves them."""
    return (1.0 if step.num_cpus is None else step.num_cpus, step.num_gpus, dict(step.remote_args))
