"""What tasks of all-to-all operations do with contents: shuffles, sorts, groups, zips.

Real counterpart: the ``ExchangeTaskSpec``s of ``_internal/planner/exchange``, map and reduce
functions of ``operators/shuffle_operators``, ``_zip_one_block`` of ``operators/zip_operator.py``.
A map gives one piece for every partition, a reduce puts all pieces of one together.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

import numpy as np

from raysim.kernel.rng import Streams
from raysim.rayapi.data import keys
from raysim.rayapi.data.columns import Columns, bytes_of, joined, rows_of, sliced, taken
from raysim.rayapi.data.functions import call_of
from raysim.rayapi.data.keys import SortKey
from raysim.rayapi.data.projections import sampling
from raysim.rayapi.library_code import in_fiber, state_of
from raysim.rayapi.session import Session
from raysim.raycore.scripts import Ask, Driver
from raysim.raylibs.data import specs
from raysim.raylibs.data.blocks import Part

Work = Callable[[list[Columns]], list[Columns]]
"""From blocks to blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A hook: the library's own code on blocks, in a fiber of the task's process."""

    session: Session
    name: str
    work: Work

    def __call__(self, parts: list[Part]) -> Ask:
        """Its output blocks."""

        def main() -> Any:
            blocks = [sliced(p.content, p.start, p.start + p.rows) for p in parts]
            return [(made, rows_of(made), bytes_of(made)) for made in self.work(blocks)]

        def begin(d: Driver) -> Any:
            return in_fiber(state_of(self.session, d.process), main, self.name).begin(d)

        return Ask(begin)


def together(blocks: list[Columns]) -> list[Columns]:
    """One block of all."""
    return [joined(blocks)]


# ---- random shuffles -----------------------------------------------------------------------------


def random_shuffle(session: Session, seed: int, partitions: int) -> specs.AllToAll:
    """``Dataset.random_shuffle``."""
    return specs.AllToAll(
        kind="random_shuffle", partitions=partitions,
        map_hook=Task(
            session=session, name="random_shuffle", work=partial(_scattered, seed, partitions)
        ),
        reduce_hook=Task(session=session, name="random_shuffle", work=partial(_mixed, seed)),
    )  # fmt: skip


def _scattered(seed: int, partitions: int, blocks: list[Columns]) -> list[Columns]:
    """Every row to a random partition."""
    whole = joined(blocks)
    first = next(iter(whole.values()), np.zeros(0))
    order = _permutation(seed, keys.mark_of(first[:1].tolist()), rows_of(whole))
    return [taken(whole, chunk) for chunk in np.array_split(order, partitions)]


def _mixed(seed: int, blocks: list[Columns]) -> list[Columns]:
    """All pieces of a partition, in an order of its own."""
    whole = joined(blocks)
    rows = rows_of(whole)
    return [taken(whole, _permutation(seed, rows, rows))]


def _permutation(seed: int, mark: int, rows: int) -> Any:
    """Of one task's rows: the same again when it is tried again."""
    return Streams(seed)(f"random_shuffle/{mark}").permutation(rows)


def random_sample(session: Session, fraction: float, seed: int) -> specs.Map:
    """``Dataset.random_sample``: each row with this chance."""
    made = sampling(fraction, seed)
    hook = call_of(session, made, "map_batches", batch_format=None)
    return specs.Map(name=f"MapBatches({hook.name})", hook=hook, slices=sliced)


def block_order(seed: int) -> specs.Reorder:
    """``Dataset.randomize_block_order``."""

    def order(blocks: int) -> list[int]:
        return [int(i) for i in Streams(seed)("randomize_block_order").permutation(blocks)]

    return specs.Reorder(order=order)


# ---- repartitions and zips -----------------------------------------------------------------------


def repartition(session: Session, partitions: int, *, shuffle: bool) -> specs.AllToAll:
    """``Dataset.repartition`` without keys: equal parts, in order unless it shuffles."""
    concat = Task(session=session, name="repartition", work=together)
    spread = Task(session=session, name="repartition", work=partial(_spread, partitions))
    return specs.AllToAll(
        kind="repartition", partitions=partitions, shuffle=shuffle,
        map_hook=spread if shuffle else None, reduce_hook=concat,
    )  # fmt: skip


def check_repartition(
    blocks: int | None, rows: int | None, keys: Any, *, sort: bool, shuffle: bool, strict: bool
) -> None:
    """As ``Dataset.repartition`` checks it.

    Raises
    ------
    ValueError
        Not one of both is said, or there can be no such blocks.
    """
    if (blocks is None) == (rows is None):
        raise ValueError(
            "Either `num_blocks` or `target_num_rows_per_block` must be set"
            if rows is None
            else "Only one of `num_blocks` or `target_num_rows_per_block` must be set, but not "
            "both."
        )
    ignored = {"keys": keys is not None, "sort": sort, "shuffle": shuffle}
    for name, is_said in ignored.items():
        if rows is not None and is_said:
            warnings.warn(
                f"`{name}` is ignored when `target_num_rows_per_block` is set.", stacklevel=4
            )
    if rows is not None and shuffle:
        raise ValueError("`shuffle` must be False when `target_num_rows_per_block` is set.")
    if rows is not None and rows <= 0:
        raise ValueError(
            f"target_num_rows_per_block must be positive for streaming repartition, got {rows}"
        )
    if rows is None and strict:
        warnings.warn(
            "`strict` is ignored when `target_num_rows_per_block` is not set. "
            "Use `target_num_rows_per_block` instead of `num_blocks` to enable `strict` mode.",
            stacklevel=4,
        )


def by_rows(session: Session, rows: int, *, strict: bool) -> specs.Map:
    """``repartition(target_num_rows_per_block=)``: each task cuts what it has."""

    def cut(blocks: list[Columns]) -> list[Columns]:
        whole = joined(blocks)
        count = rows_of(whole)
        return [sliced(whole, at, min(at + rows, count)) for at in range(0, count, rows)]

    name = f"StreamingRepartition[num_rows_per_block={rows},strict={strict}]"
    hook = Task(session=session, name=name, work=cut)
    return specs.Map(name=name, hook=hook, block_rows=rows, exact=strict)


def _spread(partitions: int, blocks: list[Columns]) -> list[Columns]:
    """Equal slices to all partitions (``ShuffleTaskSpec.map``)."""
    whole = joined(blocks)
    slices = np.array_split(np.arange(rows_of(whole)), partitions)
    return [taken(whole, rows) for rows in slices]


def by_keys(
    session: Session, names: tuple[str, ...], partitions: int, *, sort: bool
) -> specs.AllToAll:
    """``repartition(keys=)``: rows of one key meet in one block."""
    key = SortKey.of(list(names))

    def scattered(blocks: list[Columns]) -> list[Columns]:
        whole = joined(blocks)
        for name in names if whole else ():
            if name not in whole:
                raise KeyError(f'Field "{name}" does not exist in schema')
        return keys.parted(whole, keys.by_hash(whole, names, partitions), partitions)

    def gathered(blocks: list[Columns]) -> list[Columns]:
        whole = joined(blocks)
        return [keys.sort(whole, key) if sort else whole]

    return specs.AllToAll(
        kind="aggregate", partitions=partitions,
        map_hook=Task(session=session, name="repartition", work=scattered),
        reduce_hook=Task(session=session, name="repartition", work=gathered),
    )  # fmt: skip


def zipped(session: Session, other: specs.Dataset) -> specs.Zip:
    """``Dataset.zip`` with one other."""
    return specs.Zip(other=other, hook=Task(session=session, name="zip", work=_side_by_side))


class MixStoppingCondition(Enum):
    """``ray.data.MixStoppingCondition``."""

    STOP_ON_SHORTEST = "stop_on_shortest"
    STOP_ON_LONGEST_DROP = "stop_on_longest_drop"


def mixed(
    datasets: tuple[Any, ...], weights: list[float] | None, until: MixStoppingCondition
) -> specs.Union:
    """``Dataset.mix`` of the first with the others.

    Raises
    ------
    ValueError
        There are not as many weights, or one is not positive.
    """
    said = tuple([1.0] * len(datasets) if weights is None else weights)
    if len(said) != len(datasets):
        raise ValueError(
            f"Number of datasets ({len(datasets)}) must match number of weights ({len(said)})."
        )
    if any(weight <= 0 for weight in said):
        raise ValueError(f"Weights must be positive. Got weights: {list(said)}")
    return specs.Union(
        others=tuple(each._spec for each in datasets[1:]), weights=said,  # noqa: SLF001  (its own)
        to_shortest=until is MixStoppingCondition.STOP_ON_SHORTEST,
    )  # fmt: skip


def _side_by_side(blocks: list[Columns]) -> list[Columns]:
    """The first half of the rows, beside the second half."""
    half = sum(map(rows_of, blocks)) // 2
    count = rows = 0
    while count < len(blocks) and rows < half:
        rows += rows_of(blocks[count])
        count += 1
    return [beside(joined(blocks[:count]), joined(blocks[count:]))]


def beside(one: Columns, other: Columns) -> Columns:
    """Columns of both; of two with one name the second gets a number."""
    made = dict(one)
    for name, column in other.items():
        own, again = name, 0
        while own in made:
            again += 1
            own = f"{name}_{again}"
        made[own] = column
    return made


# ---- sorts ---------------------------------------------------------------------------------------


def sorting(session: Session, key: SortKey, partitions: int, blocks: int) -> specs.AllToAll:
    """``Dataset.sort``: by boundaries that are sampled, or said."""
    count = max(1, -(-keys.SAMPLES_PER_PARTITION * partitions // max(blocks, 1)))

    def sampled(found: list[Columns]) -> list[Columns]:
        whole = joined(found)
        rng = Streams(0)(f"sort/{rows_of(whole)}")
        return [keys.sample(whole, key, count, rng)]

    def maps(bounds: Columns) -> Task:
        def cut(found: list[Columns]) -> list[Columns]:
            whole = keys.sort(joined(found), key)
            return keys.parted(whole, keys.by_range(whole, key, bounds), partitions)

        return Task(session=session, name="sort", work=cut)

    def merged(found: list[Columns]) -> list[Columns]:
        return [keys.sort(joined(found), key)]

    said = np.asarray(key.boundaries[:: -1 if key.descending[0] else 1])
    fixed = None
    if len(said) or partitions == 1:
        fixed = maps({key.columns[0]: said} if len(said) else {})
    return specs.AllToAll(
        kind="sort", partitions=partitions, samples=fixed is None,
        sample_hook=Task(session=session, name="sort", work=sampled), map_hook=fixed,
        map_hook_of=None if fixed is not None else lambda found: maps(
            keys.boundaries(found, key, partitions)
        ),
        reduce_hook=Task(session=session, name="sort", work=merged),
    )  # fmt: skip
