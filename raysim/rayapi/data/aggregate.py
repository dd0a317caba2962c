"""The module ``ray.data.aggregate``: what is made of the rows of a group.

Real counterpart: ``ray/data/aggregate.py`` (2.60). Blocks are accumulated by the tasks that have
them, accumulators merged by whoever gets those of a group.

Not modelled: ``ApproximateTopK``, summaries, and the error of ``ApproximateQuantile``'s sketch.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from raysim.rayapi.data.columns import Columns, missing, rows_of, to_arrow, to_rows
from raysim.rayapi.unsupported import getattr_of


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


def _plain(total: Any) -> Any:
    """Python's own number; a sum of decimals is one."""
    return total.tolist() if hasattr(total, "tolist") else total


class Sum(OfColumn):
    """``Sum``."""

    def __init__(
        self, on: str | None = None, ignore_nulls: bool = True, alias_name: str | None = None
    ) -> None:
        super().__init__("sum", on, ignore_nulls, alias_name)

    def of_values(self, values: Any) -> Any:
        """As above."""
        return _plain(values.sum(axis=0))

    def both(self, one: Any, other: Any) -> Any:
        """As above."""
        return one + other


class Min(OfColumn):
    """``Min``."""

    def __init__(
        self, on: str | None = None, ignore_nulls: bool = True, alias_name: str | None = None,
        zero_factory: Any = None,
    ) -> None:  # fmt: skip
        del zero_factory
        super().__init__("min", on, ignore_nulls, alias_name)

    def of_values(self, values: Any) -> Any:
        """As above."""
        return min(values.tolist())

    def both(self, one: Any, other: Any) -> Any:
        """As above."""
        return min(one, other)


class Max(OfColumn):
    """``Max``."""

    def __init__(
        self, on: str | None = None, ignore_nulls: bool = True, alias_name: str | None = None,
        zero_factory: Any = None,
    ) -> None:  # fmt: skip
        del zero_factory
        super().__init__("max", on, ignore_nulls, alias_name)

    def of_values(self, values: Any) -> Any:
        """As above."""
        return max(values.tolist())

    def both(self, one: Any, other: Any) -> Any:
        """As above."""
        return max(one, other)


class AbsMax(OfColumn):
    """``AbsMax``."""

    def __init__(
        self, on: str | None = None, ignore_nulls: bool = True, alias_name: str | None = None,
        zero_factory: Any = None,
    ) -> None:  # fmt: skip
        del zero_factory
        super().__init__("abs_max", on, ignore_nulls, alias_name)

    def of_values(self, values: Any) -> Any:
        """As above."""
        return max(abs(v) for v in values.tolist())

    def both(self, one: Any, other: Any) -> Any:
        """As above."""
        return max(one, other)


class Mean(OfColumn):
    """``Mean``."""

    def __init__(
        self, on: str | None = None, ignore_nulls: bool = True, alias_name: str | None = None
    ) -> None:
        super().__init__("mean", on, ignore_nulls, alias_name)

    def of_values(self, values: Any) -> Any:
        """Sum and count."""
        return _plain(values.sum(axis=0)), len(values)

    def both(self, one: Any, other: Any) -> Any:
        """As above."""
        return one[0] + other[0], one[1] + other[1]

    def finalize(self, found: Any) -> Any:
        """As above."""
        return None if found is None else found[0] / found[1]


class Std(OfColumn):
    """``Std``: Welford's, as Ray merges it."""

    def __init__(
        self, on: str | None = None, ddof: int = 1, ignore_nulls: bool = True,
        alias_name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__("std", on, ignore_nulls, alias_name)
        self._ddof = ddof

    def of_values(self, values: Any) -> Any:
        """Sum of squared differences, mean, count."""
        mean = float(values.sum() / len(values))
        return float(((values - mean) ** 2).sum()), mean, len(values)

    def both(self, one: Any, other: Any) -> Any:
        """As above."""
        (m2, mean, n), (other_m2, other_mean, other_n) = one, other
        count = n + other_n
        m2 += other_m2 + (other_mean - mean) ** 2 * n * other_n / count
        return m2, (mean * n + other_mean * other_n) / count, count

    def finalize(self, found: Any) -> Any:
        """As above."""
        if found is None:
            return None
        m2, _, count = found
        return math.sqrt(m2 / (count - self._ddof)) if count > self._ddof else math.nan


class Quantile(OfColumn):
    """``Quantile``."""

    def __init__(
        self, on: str | None = None, q: float = 0.5, ignore_nulls: bool = True,
        alias_name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__("quantile", on, ignore_nulls, alias_name)
        self._q = q

    def of_values(self, values: Any) -> Any:
        """All of them."""
        return values.tolist()

    def both(self, one: Any, other: Any) -> Any:
        """As above."""
        return one + other

    def finalize(self, found: Any) -> Any:
        """As above."""
        return None if found is None else float(np.quantile(found, self._q))


class ApproximateQuantile(OfColumn):
    """``ApproximateQuantile``: of the sorted values, those at some ranks.

    Ray asks a KLL sketch, which is exact up to some ``quantile_precision`` values; this always is.
    """

    def __init__(
        self, on: str, quantiles: list[float], quantile_precision: int = 800,
        ignore_nulls: bool = True, alias_name: str | None = None,
    ) -> None:  # fmt: skip
        del quantile_precision
        super().__init__("approx_quantile", on, ignore_nulls, alias_name)
        self._quantiles = quantiles

    def of_values(self, values: Any) -> Any:
        """All of them."""
        return values.tolist()

    def both(self, one: Any, other: Any) -> Any:
        """As above."""
        return one + other

    def finalize(self, found: Any) -> Any:
        """As above."""
        if found is None:
            return []
        ordered = sorted(found)
        last = len(ordered) - 1
        return [float(ordered[min(int(q * len(ordered)), last)]) for q in self._quantiles]


class Unique(OfColumn):
    """``Unique``: each value once, missing ones too unless they are ignored."""

    def __init__(
        self, on: str | None = None, ignore_nulls: bool = False, alias_name: str | None = None,
        encode_lists: Any = None,
    ) -> None:  # fmt: skip
        del encode_lists
        super().__init__("unique", on, ignore_nulls, alias_name)

    def of_rows(self, key: Any, group: Columns) -> Any:
        """As above."""
        del key
        assert self.on is not None, "checked before it is run"
        column = group[self.on]
        gone = missing(column)
        found = list(dict.fromkeys(column[~gone].tolist()))
        return [*found, None] if gone.any() and not self.ignore_nulls else found

    def both(self, one: Any, other: Any) -> Any:
        """As above."""
        return list(dict.fromkeys([*one, *other]))


class CountDistinct(Unique):
    """``CountDistinct``: how many values there are."""

    def __init__(self, on: str, ignore_nulls: bool = True, alias_name: str | None = None) -> None:
        super().__init__(on, ignore_nulls, alias_name or f"count_distinct({on})")

    def finalize(self, found: Any) -> Any:
        """As above."""
        return len(found)


class ValueCounter(OfColumn):
    """``ValueCounter``: each value, and how often it is there."""

    def __init__(self, on: str, alias_name: str | None = None) -> None:
        super().__init__("value_counter", on, True, alias_name)

    def of_rows(self, key: Any, group: Columns) -> Any:
        """Nulls are counted, too."""
        del key
        assert self.on is not None, "checked before it is run"
        return collections.Counter(group[self.on].tolist())

    def both(self, one: Any, other: Any) -> Any:
        """As above."""
        return one + other

    def finalize(self, found: Any) -> Any:
        """As above."""
        found = found or {}
        return {"values": list(found), "counts": list(found.values())}


class _Percentage(OfColumn):
    """Of two counts."""

    def both(self, one: Any, other: Any) -> Any:
        """As above."""
        return one[0] + other[0], one[1] + other[1]

    def finalize(self, found: Any) -> Any:
        """As above."""
        return found[0] / found[1] * 100.0 if found is not None and found[1] else None


class MissingValuePercentage(_Percentage):
    """``MissingValuePercentage``: None and NaN."""

    def __init__(self, on: str, alias_name: str | None = None) -> None:
        super().__init__("missing_pct", on, False, alias_name)

    def of_rows(self, key: Any, group: Columns) -> Any:
        """As above."""
        del key
        assert self.on is not None, "it has to be given"
        return int(missing(group[self.on]).sum()), rows_of(group)


class ZeroPercentage(_Percentage):
    """``ZeroPercentage``: of the values that are there, or of all."""

    def __init__(self, on: str, ignore_nulls: bool = True, alias_name: str | None = None) -> None:
        super().__init__("zero_pct", on, ignore_nulls, alias_name)

    def of_rows(self, key: Any, group: Columns) -> Any:
        """As above."""
        del key
        assert self.on is not None, "it has to be given"
        column = group[self.on]
        known = column[~missing(column)]
        zeros = sum(value == 0 for value in known.tolist())
        return zeros, len(known) if self.ignore_nulls else len(column)


class AsList(OfColumn):
    """``AsList``."""

    def __init__(
        self, on: str, alias_name: str | None = None, ignore_nulls: bool = False
    ) -> None:  # fmt: skip
        super().__init__("list", on, ignore_nulls, alias_name)

    def of_rows(self, key: Any, group: Columns) -> Any:
        """As above."""
        del key
        assert self.on is not None, "it has to be given"
        column = group[self.on]
        return (column[~missing(column)] if self.ignore_nulls else column).tolist()

    def both(self, one: Any, other: Any) -> Any:
        """As above."""
        return one + other


class Count(OfColumn):
    """``Count``: of rows, or of a column's values."""

    def __init__(
        self, on: str | None = None, ignore_nulls: bool = False, alias_name: str | None = None
    ) -> None:
        super().__init__("count", on, ignore_nulls, alias_name)

    def of_rows(self, key: Any, group: Columns) -> Any:
        """As above."""
        del key
        if self.on is None or not self.ignore_nulls:
            return rows_of(group)
        return rows_of(group) - int(missing(group[self.on]).sum())

    def both(self, one: Any, other: Any) -> Any:
        """As above."""
        return one + other


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


__getattr__ = getattr_of("ray.data.aggregate")
