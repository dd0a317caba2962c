"""The module ``ray.data.aggregate``: what is made of the rows of a group.

Real counterpart: ``ray/data/aggregate.py`` (2.60). Blocks are accumulated by the tasks that have
them, accumulators merged by whoever gets those of a group.

Not modelled: summaries.
"""

from __future__ import annotations

import collections
import math
from typing import Any

import numpy as np

from raysim.rayapi.data.accumulators import AggregateFn, AggregateFnV2, OfColumn
from raysim.rayapi.data.columns import Columns, missing, rows_of
from raysim.rayapi.data.sketches import ApproximateQuantile, ApproximateTopK
from raysim.rayapi.unsupported import getattr_of


def _plain(total: Any) -> Any:
    """Python's own number; a sum of decimals is one."""
    return total.tolist() if hasattr(total, "tolist") else total


class Sum(OfColumn):
    """``Sum``."""

    in_arrow = "reduction"

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

    in_arrow = "reduction"

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

    in_arrow = "reduction"

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

    in_arrow = "reduction"

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


class Unique(OfColumn):
    """``Unique``: each value once, missing ones too unless they are ignored."""

    in_arrow = "collection"

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

    in_arrow = "reduction"

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

    in_arrow = "reduction"

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


__all__ = [
    "AbsMax",
    "AggregateFn",
    "AggregateFnV2",
    "ApproximateQuantile",
    "ApproximateTopK",
    "AsList",
    "Count",
    "CountDistinct",
    "Max",
    "Mean",
    "Min",
    "MissingValuePercentage",
    "Quantile",
    "Std",
    "Sum",
    "Unique",
    "ValueCounter",
    "ZeroPercentage",
]
__getattr__ = getattr_of("ray.data.aggregate")
