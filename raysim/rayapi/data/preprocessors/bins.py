"""Numbers by the interval they are in.

Real counterpart: ``ray/data/preprocessors/discretizer.py``; both cut with ``pandas.cut``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raysim.rayapi.clock import import_pandas
from raysim.rayapi.data.aggregate import Max, Min
from raysim.rayapi.data.preprocessors.base import OfColumns, Preprocessor

_WIDENED = 0.001
"""How much of the range the first bin begins before it, as ``pandas.cut`` has it."""


class CustomKBinsDiscretizer(OfColumns):
    """Intervals that are given, for all columns or by column."""

    _shown = (
        "columns", "bins", "right", "include_lowest", "duplicates", "dtypes", "output_columns"
    )  # fmt: skip
    _is_fittable = False

    def __init__(
        self,
        columns: list[str],
        bins: Any,
        *,
        right: bool = True,
        include_lowest: bool = False,
        duplicates: str = "raise",
        dtypes: dict[str, Any] | None = None,
        output_columns: list[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        self.bins = bins
        if not self._is_fittable:
            self._check()
        self.right = right
        self.include_lowest = include_lowest
        self.duplicates = duplicates
        self.dtypes = dtypes

    def _check(self) -> None:
        if isinstance(self.bins, dict) and any(name not in self.bins for name in self._columns):
            raise ValueError(
                "If `bins` is a dictionary, all elements of `columns` must be present in it."
            )

    def edges(self, name: str) -> Any:
        """Of a column's intervals."""
        return self.bins[name] if isinstance(self.bins, dict) else self.bins

    def column(self, name: str, values: Any) -> Any:
        """As above."""
        pd = import_pandas()
        dtype: Any = (self.dtypes or {}).get(name)
        named = isinstance(dtype, pd.CategoricalDtype)
        return pd.cut(
            values, self.edges(name), right=self.right,
            labels=list(dtype.categories) if named else False,
            ordered=dtype.ordered if named else True, include_lowest=self.include_lowest,
            duplicates=self.duplicates,
        )  # fmt: skip


class UniformKBinsDiscretizer(CustomKBinsDiscretizer):
    """As many intervals as are asked for, all of one width, from the least to the largest value."""

    _is_fittable = True

    def _fit(self, ds: Any) -> Preprocessor:
        self._check()
        counts = (
            self.bins if isinstance(self.bins, dict) else dict.fromkeys(self._columns, self.bins)
        )
        for count in counts.values():
            if not isinstance(count, int):
                raise TypeError(f"`bins` must be an integer or a dict of integers, got {count}")
        found = ds.aggregate(*(agg(name) for agg in (Min, Max) for name in counts))
        for name, count in counts.items():
            low, high = found[f"min({name})"], found[f"max({name})"]
            if low is None or high is None:
                raise ValueError(
                    f"Column {name} has no values to bin. Check the data used to fit the "
                    "discretizer."
                )
            self.stats_[name] = self._even(float(low), float(high), count)
        return self

    def _even(self, low: float, high: float, count: int) -> Any:
        if np.isinf(low) or np.isinf(high):
            raise ValueError("Cannot specify integer `bins` when input data contains infinity.")
        if low == high:
            return np.linspace(
                low - _WIDENED * (abs(low) or 1), high + _WIDENED * (abs(high) or 1), count + 1
            )
        edges = np.linspace(low, high, count + 1)
        edges[0 if self.right else -1] += (-1 if self.right else 1) * _WIDENED * (high - low)
        return edges

    def edges(self, name: str) -> Any:
        """Found by fitting."""
        return self.stats_[name]
