"""Aggregations that Ray asks a sketch of ``datasketches`` for; here they are exact.

Real counterpart: ``ApproximateQuantile``, ``ApproximateTopK`` of ``ray/data/aggregate.py``.
"""

from __future__ import annotations

import collections
from typing import Any

from raysim.rayapi.data.accumulators import OfColumn
from raysim.rayapi.data.columns import Columns


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


class ApproximateTopK(OfColumn):
    """``ApproximateTopK``: what is there most often, and how often.

    Ray's sketch is exact up to some ``2 ** log_capacity`` values; of those that are there equally
    often it has an order of its own, here they are as they were seen.
    """

    def __init__(
        self, on: str, k: int, log_capacity: int = 15, alias_name: str | None = None,
        encode_lists: bool = False,
    ) -> None:  # fmt: skip
        del log_capacity
        super().__init__("approx_topk", on, True, alias_name)
        self.k = k
        self._encode_lists = encode_lists

    def of_rows(self, key: Any, group: Columns) -> Any:
        """A pair of every value and its count: a value need not be hashable."""
        del key
        assert self.on is not None, "it has to be given"
        values = group[self.on].tolist()
        if self._encode_lists:
            values = [v for some in values for v in (some if isinstance(some, list) else [some])]
        found: collections.Counter[str] = collections.Counter()
        known = {repr(v): v for v in values if v is not None}
        found.update(repr(v) for v in values if v is not None)
        return [(known[name], count) for name, count in found.items()]

    def both(self, one: Any, other: Any) -> Any:
        """As above."""
        total = {repr(value): [value, count] for value, count in one}
        for value, count in other:
            total.setdefault(repr(value), [value, 0])[1] += count
        return [(value, count) for value, count in total.values()]

    def finalize(self, found: Any) -> Any:
        """As above."""
        ordered = sorted(found or (), key=lambda pair: -pair[1])
        return [{self.on: value, "count": count} for value, count in ordered[: self.k]]
