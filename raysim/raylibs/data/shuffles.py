"""How an all-to-all operation is played: its stages, by the strategy of the context.

Real counterpart: ``_internal/planner/plan_all_to_all_op.py``, ``planner/exchange`` and
``operators/hash_shuffle.py`` of ray 2.60.

- pull: all input first; a map of every block; when all have ended, a reduce of every partition.
  The executor's budgets do not count in it. A map in front of a random shuffle, or of a repartition
  that shuffles, runs in the shuffle's maps.
- push: maps in rounds, and merges that fetch a round's parts while the next round runs, so that
  reduces find few and large objects, on their own node.
- SHUFFLE_V2: maps as input comes, of up to 1 GiB of one node's blocks. Random shuffles and unkeyed
  repartitions stay with pull or push.
- A sort, and an aggregation by pull or push, first has a task look at every block as it comes, and
  keeps all of them until the boundaries are known. A repartition without shuffle is ``regroup.py``.
- hash: a map of every block as it comes; aggregators (at most 128) hold the partitions.
- A join is a shuffle of two inputs by hash: maps of each side, one reduce for a partition of both.

Not modelled: the heap of aggregators (theirs is the store here, which
spills), labels.
"""

from __future__ import annotations

import math
from dataclasses import replace

from raysim.raylibs.data.defaults import DataContext, ShuffleStrategy
from raysim.raylibs.data.specs import AllToAll, Hook, Join, Map
from raysim.raylibs.data.stages import Collect, ExchangeStage, MapStage, Regrouped, Stage

SLICES = 8
"""Objects that stand for all of a map's parts: reduces free the store in so many strokes."""


def strategy_of(operation: AllToAll, context: DataContext) -> ShuffleStrategy:
    """What an operation runs as."""
    keyed = operation.kind in ("sort", "aggregate")
    strategy = context.shuffle_strategy
    if keyed or strategy == "sort_shuffle_push_based":
        return strategy
    return "sort_shuffle_pull_based"


def partitions_of(operation: AllToAll, context: DataContext, blocks: int) -> int:
    """Partitions of its output, of so many blocks of input."""
    if operation.partitions is not None:
        return operation.partitions
    hashes = strategy_of(operation, context) in ("shuffle_v2", "hash_shuffle")
    if operation.kind == "aggregate" and hashes:
        return context.default_hash_shuffle_parallelism
    return max(blocks, 1)


def stages_of(
    operation: AllToAll, context: DataContext, *, cpus: float, blocks: int, read: MapStage | None
) -> list[Stage]:
    """What runs one after the other; ``read`` is a stage to be fused with its maps."""
    strategy = strategy_of(operation, context)
    partitions = partitions_of(operation, context, blocks)
    if operation.kind == "repartition" and not operation.shuffle:
        put_together = replace(_reduce(operation), name="repartition")
        return [
            Regrouped(partitions=partitions),
            MapStage(name="repartition", steps=(put_together,), merges=True, fuses=False),
        ]
    slices = min(SLICES, partitions)
    before = () if read is None else read.steps
    before = tuple(replace(step, num_cpus=operation.map_cpus) for step in before)
    push = strategy == "sort_shuffle_push_based"
    maps = MapStage(
        name=f"{operation.kind}-map",
        steps=(*before, _map(operation)),
        reads=None if read is None else read.reads,
        splits=1 if push else slices,
        cuts=True,
        gather_bytes=context.shuffle_input_batch_bytes if strategy == "shuffle_v2" else 0,
        bulk=_in_bulk(strategy, context),
    )
    reduces = MapStage(
        name=f"{operation.kind}-reduce",
        steps=(_reduce(operation),),
        fetches=True,
        drops_empty=operation.drops_empty and strategy == "shuffle_v2",
        fuses=operation.fused or strategy == "shuffle_v2",
        bulk=_in_bulk(strategy, context),
    )
    found: list[Stage] = []
    if read is None and not operation.fused and strategy.startswith("sort_"):
        found.append(Collect())
    if _samples(operation, strategy, partitions):
        found.append(_sampling(operation))
    found.append(maps)
    if push:
        mergers = merges_per_round(cpus, blocks, context.push_based_merge_factor)
        round_maps = max(1, min(int(cpus) - mergers, blocks))
        merge = Map(name="merge", core_s_per_byte=operation.merge_core_s_per_byte)
        found += [
            ExchangeStage(partitions=mergers, round_maps=round_maps),
            MapStage(
                name=f"{operation.kind}-merge", steps=(merge,), fetches=True,
                splits=slices, cuts=True,
            ),
            ExchangeStage(partitions=partitions, local=True),
        ]  # fmt: skip
    else:
        found.append(ExchangeStage(partitions=partitions))
    return [*found, reduces]


def join_stages(
    operation: Join, context: DataContext
) -> tuple[MapStage, MapStage, ExchangeStage, MapStage]:
    """Maps of this side and of the other, where their parts meet, and reduces."""
    gather_bytes = 0
    if context.shuffle_strategy == "shuffle_v2":
        gather_bytes = context.shuffle_input_batch_bytes

    def maps(side: str, hook: Hook | None) -> MapStage:
        step = Map(name=f"join-map-{side}", hook=hook)
        return MapStage(
            name=step.name, steps=(step,), cuts=True, gather_bytes=gather_bytes,
            splits=min(SLICES, operation.partitions),
        )  # fmt: skip

    reduce = Map(name="join-reduce", hook=operation.reduce_hook)
    return (
        maps("left", operation.left_hook),
        maps("right", operation.right_hook),
        ExchangeStage(partitions=operation.partitions),
        MapStage(name=reduce.name, steps=(reduce,), fetches=True),
    )


def takes_in_maps(operation: AllToAll, context: DataContext) -> bool:
    """Whether a map in front of it runs in its maps."""
    if operation.kind not in ("random_shuffle", "repartition") or not operation.shuffle:
        return operation.fused
    return operation.fused or _in_bulk(strategy_of(operation, context), context)


def _in_bulk(strategy: ShuffleStrategy, context: DataContext) -> bool:
    return context.streaming and strategy == "sort_shuffle_pull_based"


def merges_per_round(cpus: float, blocks: int, merge_factor: int) -> int:
    """One beside ``merge_factor`` maps, on all CPUs (``_compute_shuffle_schedule``)."""
    slots = min(int(cpus), blocks)
    return max(1, min(round(slots / (merge_factor + 1)), math.ceil(blocks / merge_factor)))


def _samples(operation: AllToAll, strategy: ShuffleStrategy, partitions: int) -> bool:
    """Whether boundaries of partitions have to be found in the data."""
    if operation.fused or not operation.samples or partitions == 1:
        return False
    by_range = operation.kind == "aggregate" and strategy.startswith("sort_")
    return operation.kind == "sort" or by_range


def _sampling(operation: AllToAll) -> MapStage:
    name = f"{operation.kind}-sample"
    step = Map(name=name, rows_out_per_row=0.0, hook=operation.sample_hook)
    return MapStage(name=name, steps=(step,), samples=True, fuses=False)


def _map(operation: AllToAll) -> Map:
    return Map(
        name=f"{operation.kind}-map",
        core_s_per_byte=operation.map_core_s_per_byte,
        hook=operation.map_hook,
        hook_of=operation.map_hook_of,
        bytes_out_frac=operation.compressed_frac,
        num_cpus=operation.map_cpus,
    )


def _reduce(operation: AllToAll) -> Map:
    return Map(
        name=f"{operation.kind}-reduce",
        core_s_per_byte=operation.reduce_core_s_per_byte / operation.compressed_frac,
        rows_out_per_row=operation.rows_out_frac,
        bytes_out_frac=operation.bytes_out_frac
        / (operation.compressed_frac * (operation.rows_out_frac or 1.0)),
        num_cpus=operation.reduce_cpus,
        hook=operation.reduce_hook,
    )
