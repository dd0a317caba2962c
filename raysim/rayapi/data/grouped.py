"""``Dataset.groupby``: rows of one key meet, and become one row or whatever a function makes.

Real counterpart: ``ray/data/grouped_data.py``, ``operators/hash_aggregate_v2.py``. Tasks with a
block make one accumulator of each of its groups, and send those of a key to one partition.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from raysim.rayapi.calls import program_call
from raysim.rayapi.data import categories, keys
from raysim.rayapi.data.accumulators import OfColumn, by_arrow, columns_of, merged
from raysim.rayapi.data.aggregate import Count, Max, Mean, Min, Std, Sum
from raysim.rayapi.data.columns import (
    Columns,
    arrow,
    column_of,
    joined,
    objects_of,
    rows_of,
    sliced,
    to_arrow,
    to_batch,
)
from raysim.rayapi.data.consuming import with_first
from raysim.rayapi.data.context import DataContext
from raysim.rayapi.data.exchanges import Task, by_keys, repartition
from raysim.rayapi.data.expression_nodes import Expr
from raysim.rayapi.data.keys import SortKey
from raysim.rayapi.data.predicates import Projected
from raysim.rayapi.library_code import session_here
from raysim.rayapi.session import Session
from raysim.raylibs.data import specs

if TYPE_CHECKING:
    from raysim.rayapi.data.dataset import Dataset


class GroupedData:
    """``ray.data.grouped_data.GroupedData``."""

    def __init__(self, dataset: Dataset, key: Any, *, num_partitions: int | None) -> None:
        self._dataset = dataset
        self._names = SortKey.of(key).columns
        self._partitions = num_partitions
        self._key = key

    def __repr__(self) -> str:
        return f"GroupedData(dataset={self._dataset}, key={self._key!r})"

    @program_call
    def aggregate(self, *aggs: Any) -> Dataset:
        """``GroupedData.aggregate``."""
        partitions = self._partitions or _usual()
        if not self._names:
            partitions = 1
        made = self._dataset._then(  # noqa: SLF001  (its own module's, so to speak)
            _aggregation(session_here(), self._names, aggs, partitions)
        )
        if not all(isinstance(agg, OfColumn) for agg in aggs):
            return made  # a program's own: what it makes is seen when it is run
        key, first = SortKey.of(list(self._names)), self._dataset._first  # noqa: SLF001  (as above)
        found: Dataset = with_first(
            made,
            first,
            lambda some: _merged(_accumulated(sliced(some, 0, 1), key, aggs), key, aggs),
        )
        return found

    def _on(self, agg: Callable[..., Any], on: Any, **more: Any) -> Dataset:
        columns = self._dataset.columns_to_aggregate(on, self._names)
        return self.aggregate(*(agg(name, **more) for name in columns))

    def count(self) -> Dataset:
        """``GroupedData.count``."""
        return self.aggregate(Count())

    def sum(self, on: Any = None, ignore_nulls: bool = True) -> Dataset:
        """``GroupedData.sum``."""
        return self._on(Sum, on, ignore_nulls=ignore_nulls)

    def min(self, on: Any = None, ignore_nulls: bool = True) -> Dataset:
        """``GroupedData.min``."""
        return self._on(Min, on, ignore_nulls=ignore_nulls)

    def max(self, on: Any = None, ignore_nulls: bool = True) -> Dataset:
        """``GroupedData.max``."""
        return self._on(Max, on, ignore_nulls=ignore_nulls)

    def mean(self, on: Any = None, ignore_nulls: bool = True) -> Dataset:
        """``GroupedData.mean``."""
        return self._on(Mean, on, ignore_nulls=ignore_nulls)

    def std(self, on: Any = None, ddof: int = 1, ignore_nulls: bool = True) -> Dataset:
        """``GroupedData.std``."""
        return self._on(Std, on, ddof=ddof, ignore_nulls=ignore_nulls)

    @program_call
    def map_groups(
        self, fn: Any, *, batch_format: str | None = "default", zero_copy_batch: bool = True,
        **options: Any,
    ) -> Dataset:  # fmt: skip
        """``GroupedData.map_groups``."""
        del zero_copy_batch
        session = session_here()
        if not self._names:
            shuffle = repartition(session, 1, shuffle=False)
        else:
            partitions = self._partitions or _usual()
            shuffle = by_keys(session, self._names, partitions, sort=True)
        met = self._dataset._then(shuffle)  # noqa: SLF001  (its own module's, so to speak)
        return met.by_batches(
            by_group(fn, self._names, batch_format), batch_size=None, batch_format=None, **options
        )

    def with_column(self, column_name: str, expr: Expr, **options: Any) -> Dataset:
        """``GroupedData.with_column``: of every row of every group."""
        if not isinstance(column_name, str) or not column_name:
            raise ValueError(f"column_name must be a non-empty string, got: {column_name!r}")
        if not isinstance(expr, Expr):
            raise TypeError("expr must be a Ray Data expression created via the expression API.")
        project = Projected({column_name: expr.alias(column_name)})
        return self.map_groups(project, batch_format="pyarrow", **options)


def _usual() -> int:
    return DataContext.get_current().settings().default_hash_shuffle_parallelism


def by_group(fn: Any, names: tuple[str, ...], batch_format: str | None) -> Any:
    """``_apply_udf_to_groups``: a function, or a class, of the groups of a sorted block."""
    key = SortKey.of(list(names))

    def each(call: Callable[..., Any], block: Any, args: Any, kwargs: Any) -> Any:
        starts = keys.group_starts(block, key)
        for begin, end in pairwise(starts):
            made = call(to_batch(sliced(block, begin, end), batch_format), *args, **kwargs)
            if hasattr(made, "__next__"):
                yield from made
            else:
                yield made

    if isinstance(fn, type):
        made_by: Any = fn

        class Wrapped:
            """The program's class, called with groups."""

            def __init__(self, *args: Any, **kwargs: Any) -> None:
                self.fn = made_by(*args, **kwargs)

            def __call__(self, block: Any, *args: Any, **kwargs: Any) -> Any:
                return each(self.fn, block, args, kwargs)

        Wrapped.__name__ = fn.__name__
        return Wrapped

    def wrapped(block: Any, *args: Any, **kwargs: Any) -> Any:
        return each(fn, block, args, kwargs)

    wrapped.__name__ = getattr(fn, "__name__", type(fn).__name__)
    return wrapped


# ---- aggregations --------------------------------------------------------------------------------


def _aggregation(
    session: Session, names: tuple[str, ...], aggs: tuple[Any, ...], partitions: int
) -> specs.AllToAll:
    if not aggs:
        raise ValueError("Aggregate requires at least one aggregation")
    key = SortKey.of(list(names))
    together = keys.met if by_arrow(aggs) else keys.sort

    def accumulated(blocks: list[Columns]) -> list[Columns]:
        for name in names:
            categories.check_together([block[name] for block in blocks if name in block])
        whole = joined(blocks)
        SortKey.of(columns_of(aggs)).check(list(whole))
        _check_keys(whole, key)
        partial = _accumulated(together(whole, key) if names else whole, key, aggs)
        if not names:
            return [partial]
        return keys.parted(partial, keys.by_hash(partial, names, partitions), partitions)

    def finished(blocks: list[Columns]) -> list[Columns]:
        whole = joined(blocks)
        return [_merged(together(whole, key) if names else whole, key, aggs)] if whole else []

    return specs.AllToAll(
        kind="aggregate", partitions=partitions, drops_empty=bool(names),
        map_hook=Task(session=session, name="aggregate", work=accumulated),
        reduce_hook=Task(session=session, name="aggregate", work=finished),
    )  # fmt: skip


def _check_keys(columns: Columns, key: SortKey) -> None:
    """As Arrow's ``group_by`` looks for them."""
    for name in key.columns if columns else ():
        if name not in columns:
            schema = to_arrow(sliced(columns, 0, 1)).schema.remove_metadata()
            raise arrow("groups").ArrowInvalid(f"No match for FieldRef.Name({name}) in {schema}")


def _accumulated(columns: Columns, key: SortKey, aggs: tuple[Any, ...]) -> Columns:
    """A row of each group: its keys, and an accumulator of each aggregation."""
    groups = [sliced(columns, a, b) for a, b in _bounds(columns, key)]
    first = [_key_of(group, key) for group in groups]
    found = {name: column_of([values[i] for values in first]) for i, name in enumerate(key.columns)}
    for number, agg in enumerate(aggs):
        found[_numbered(number)] = objects_of([
            agg.of_rows(_said(values), group)
            for values, group in zip(first, groups, strict=True)
        ])  # fmt: skip
    return found


def _merged(columns: Columns, key: SortKey, aggs: tuple[Any, ...]) -> Columns:
    bounds = _bounds(columns, key)
    first = [_key_of(sliced(columns, a, b), key) for a, b in bounds]
    found = {name: column_of([values[i] for values in first]) for i, name in enumerate(key.columns)}
    for number, agg in enumerate(aggs):
        column = columns[_numbered(number)]
        answers = []
        for begin, end in bounds:
            value = column[begin]
            for other in column[begin + 1 : end]:
                value = merged(agg, value, other)
            answers.append(agg.finalize(value))
        name, again = agg.name, 1
        while name in found:
            again += 1
            name = f"{agg.name}_{again}"
        found[name] = column_of(answers)
    return found


def _bounds(columns: Columns, key: SortKey) -> list[tuple[int, int]]:
    starts = keys.group_starts(columns, key)
    return list(pairwise(starts))


def _key_of(group: Columns, key: SortKey) -> list[Any]:
    return [group[name][:1].tolist()[0] for name in key.columns] if rows_of(group) else []


def _said(values: list[Any]) -> Any:
    """A key as accumulators get it."""
    return values[0] if len(values) == 1 else tuple(values) or None


def _numbered(number: int) -> str:
    return f"\0{number}"
