"""What all aggregations have: an accumulator of rows, one of two, and what it says in the end.

Real counterpart: ``AggregateFn``, ``AggregateFnV2`` of ``ray/data/aggregate.py``, and which of them
``hash_aggregate_v2.py`` gives to Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np

from raysim.rayapi.data.columns import Columns, missing, to_arrow, to_rows


class AggregateFn:
    """``ray.data.aggregate.AggregateFn``."""

    def __init__(
        self,
        init: Callable[[Any], Any],
        merge: Callable[[Any, Any], Any],
        name: str,
        accumulate_row: Callable[[Any, dict[str, Any]], Any] | None = None,
        accumulate_block: Callable[[Any, Any], Any] | None = None,
        finalize: Callable[[Any], Any] | None = None,
    ) -> None:
        if (accumulate_row is None) == (accumulate_block is None):
            raise ValueError("Exactly one of accumulate_row or accumulate_block must be provided.")
        if not isinstance(name, str):
            raise TypeError("`name` must be provided.")
        self.name = name
        self.init = init
        self.merge = merge
        self.accumulate_row = accumulate_row
        self.accumulate_block = accumulate_block
        self.finalize: Callable[[Any], Any] = finalize or (lambda a: a)

    def of_rows(self, key: Any, group: Columns) -> Any:
        """The accumulator of some rows of a group."""
        found = self.init(key)
        if self.accumulate_block is not None:
            return self.accumulate_block(found, to_arrow(group))
        assert self.accumulate_row is not None, "one of the two is there"
        for row in to_rows(group):
            found = self.accumulate_row(found, row)
        return found


class AggregateFnV2:
    """``ray.data.aggregate.AggregateFnV2``: of one column, by ``aggregate_block`` and ``combine``.

    A program's own gets a ``pyarrow.Table`` of the rows.
    """

    def __init__(
        self, name: str, zero_factory: Callable[[], Any], *, on: str | None, ignore_nulls: bool
    ) -> None:
        if not name:
            raise ValueError(f"Non-empty string has to be provided as name (got {name})")
        self.name = name
        self._zero_factory = zero_factory
        self._target_col_name = on
        self._ignore_nulls = ignore_nulls

    def get_target_column(self) -> str | None:
        """The column it is of."""
        return self._target_col_name

    def aggregate_block(self, block: Any) -> Any:
        """A partial result."""
        raise NotImplementedError(f"{type(self).__name__}.aggregate_block")

    def combine(self, current_accumulator: Any, new: Any) -> Any:
        """Of two partial results."""
        raise NotImplementedError(f"{type(self).__name__}.combine")

    def finalize(self, accumulator: Any) -> Any:
        """What is told."""
        return accumulator

    def of_rows(self, key: Any, group: Columns) -> Any:
        """The accumulator of some rows of a group."""
        del key
        return self.aggregate_block(to_arrow(group))


class OfColumn:
    """One of Ray's own: a function of the values, one of two results, one of the end."""

    in_arrow: Literal["", "reduction", "collection"] = ""
    """What ``ArrowAggSpec`` Ray has of it: such groups stay in the order in which they are seen."""

    def __init__(
        self, name: str, on: str | None, ignore_nulls: bool, alias_name: str | None
    ) -> None:  # fmt: skip
        self.name = alias_name or f"{name}({on if on is not None else ''})"
        self.on = on
        self.ignore_nulls = ignore_nulls

    def get_target_column(self) -> str | None:
        """The column it is of."""
        return self.on

    def of_rows(self, key: Any, group: Columns) -> Any:
        """The accumulator of some rows of a group; None: there is nothing to be said of them."""
        del key
        assert self.on is not None, "checked before it is run"
        column = group[self.on]
        gone = missing(column)
        if gone.any():
            if not self.ignore_nulls:
                return None
            column = column[~gone]
        if column.dtype == object:
            column = np.asarray(column.tolist())
        return self.of_values(column) if len(column) else None

    def of_values(self, values: Any) -> Any:
        """Of values that are all there."""
        raise NotImplementedError

    def merge(self, one: Any, other: Any) -> Any:
        """Of two accumulators."""
        if one is None or other is None:
            return (one if other is None else other) if self.ignore_nulls else None
        return self.both(one, other)

    def both(self, one: Any, other: Any) -> Any:
        """Of two that say something."""
        raise NotImplementedError

    def finalize(self, found: Any) -> Any:
        """What is told."""
        return found


def by_arrow(aggs: Iterable[Any]) -> bool:
    """Whether Arrow's ``group_by`` does them (``_is_vectorizable``): else groups are sorted."""
    kinds = {getattr(agg, "in_arrow", "") for agg in aggs}
    return len(kinds) == 1 and "" not in kinds


def columns_of(aggs: Iterable[Any]) -> list[str]:
    """That have to be there."""
    asked = (getattr(agg, "get_target_column", lambda: None)() for agg in aggs)
    return [name for name in asked if name is not None]


def merged(agg: Any, one: Any, other: Any) -> Any:
    """Of two accumulators of any kind of aggregation."""
    if not isinstance(agg, AggregateFnV2):
        return agg.merge(one, other)
    if one is None or other is None:
        return (one if other is None else other) if agg._ignore_nulls else None  # noqa: SLF001  (Ray's name)
    return agg.combine(one, other)
