"""Numbers made comparable: scalers, norms, powers, and values for those that are missing.

Real counterpart: ``scaler.py``, ``normalizer.py``, ``transformer.py`` and ``imputer.py`` of
``ray/data/preprocessors``.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from raysim.rayapi.data.aggregate import AbsMax, ApproximateQuantile, Max, Mean, Min, Std
from raysim.rayapi.data.preprocessors.base import OfColumns, Preprocessor, counted

_EPSILON = 1e-8
"""Less than this counts as no spread; Ray's ``_EPSILON``."""


class StandardScaler(OfColumns):
    """``(x - mean) / std``."""

    def __init__(self, columns: list[str], output_columns: list[str] | None = None) -> None:
        super().__init__(columns, output_columns)

    def _fit(self, ds: Any) -> Preprocessor:
        means = [Mean(name) for name in self._columns]
        self.stats_ = ds.aggregate(*means, *(Std(name, ddof=0) for name in self._columns))
        return self

    def column(self, name: str, values: Any) -> Any:
        """As above."""
        mean, std = self.stats_[f"mean({name})"], self.stats_[f"std({name})"]
        if mean is None or std is None:
            return np.nan
        return (values - mean) / (1 if std < _EPSILON else std)


class MinMaxScaler(OfColumns):
    """``(x - min) / (max - min)``."""

    def __init__(self, columns: list[str], output_columns: list[str] | None = None) -> None:
        super().__init__(columns, output_columns)

    def _fit(self, ds: Any) -> Preprocessor:
        self.stats_ = ds.aggregate(*(agg(name) for agg in (Min, Max) for name in self._columns))
        return self

    def column(self, name: str, values: Any) -> Any:
        """As above."""
        low, high = self.stats_[f"min({name})"], self.stats_[f"max({name})"]
        if low is None or high is None:
            return np.nan
        return (values - low) / (1 if high - low < _EPSILON else high - low)


class MaxAbsScaler(OfColumns):
    """``x / max(abs(x))``."""

    def __init__(self, columns: list[str], output_columns: list[str] | None = None) -> None:
        super().__init__(columns, output_columns)

    def _fit(self, ds: Any) -> Preprocessor:
        self.stats_ = ds.aggregate(*map(AbsMax, self._columns))
        return self

    def column(self, name: str, values: Any) -> Any:
        """As above."""
        largest = self.stats_[f"abs_max({name})"]
        return np.nan if largest is None else values / (largest or 1)


class RobustScaler(OfColumns):
    """``(x - median) / (high quantile - low quantile)``; quantiles are exact, Ray's a sketch's."""

    _shown = ("columns", "quantile_range", "output_columns")
    DEFAULT_QUANTILE_PRECISION = 800

    def __init__(
        self,
        columns: list[str],
        quantile_range: tuple[float, float] = (0.25, 0.75),
        output_columns: list[str] | None = None,
        quantile_precision: int = DEFAULT_QUANTILE_PRECISION,
    ) -> None:
        super().__init__(columns, output_columns)
        self.quantile_range = quantile_range
        self.quantile_precision = quantile_precision

    def _fit(self, ds: Any) -> Preprocessor:
        low, high = self.quantile_range
        ranks_asked = [low, 0.5, high]
        found = ds.aggregate(
            *(
                ApproximateQuantile(name, ranks_asked, quantile_precision=self.quantile_precision)
                for name in self._columns
            )
        )
        for name in self._columns:
            ranks = found[f"approx_quantile({name})"] or [None, None, None]
            for title, value in zip(
                ("low_quantile", "median", "high_quantile"), ranks, strict=True
            ):
                self.stats_[f"{title}({name})"] = value
        return self

    def column(self, name: str, values: Any) -> Any:
        """As above."""
        low, high = self.stats_[f"low_quantile({name})"], self.stats_[f"high_quantile({name})"]
        if low is None or high is None:
            return np.nan
        if high == low:
            return np.zeros_like(values)
        return (values - self.stats_[f"median({name})"]) / (high - low)


class Normalizer(OfColumns):
    """Every row by its norm over the columns."""

    _shown = ("columns", "norm", "output_columns")
    _is_fittable = False
    _NORMS = ("l1", "l2", "max")

    def __init__(
        self, columns: list[str], norm: str = "l2", *, output_columns: list[str] | None = None
    ) -> None:
        super().__init__(columns, output_columns)
        if norm not in self._NORMS:
            raise ValueError(
                f"Norm {norm} is not supported.Supported values are: "
                f"{dict.fromkeys(self._NORMS).keys()}"
            )
        self.norm = norm

    def _transform_pandas(self, df: Any) -> Any:
        values = df[self._columns]
        if self.norm == "l2":
            norms = np.sqrt((values**2).sum(axis=1))
        else:
            norms = values.abs().sum(axis=1) if self.norm == "l1" else values.abs().max(axis=1)
        scaled = values.div(norms, axis=0)
        pairs = zip(self._columns, self._output_columns, strict=True)
        return df.assign(**{written: scaled[read] for read, written in pairs})


class PowerTransformer(OfColumns):
    """Yeo-Johnson's or Box and Cox's power of every value."""

    _shown = ("columns", "power", "method", "output_columns")
    _is_fittable = False
    _METHODS = ("yeo-johnson", "box-cox")

    def __init__(
        self,
        columns: list[str],
        power: float,
        method: str = "yeo-johnson",
        *,
        output_columns: list[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        if method not in self._METHODS:
            raise ValueError(
                f"Method {method} is not supported.Supported values are: {list(self._METHODS)}"
            )
        self.power = power
        self.method = method

    def column(self, name: str, values: Any) -> Any:
        """As above."""
        del name
        x = values.to_numpy(dtype=float)
        if self.method == "box-cox":
            return _power(x, self.power)
        made = np.empty_like(x)
        positive = ~(x < 0)
        made[positive] = _power(x[positive] + 1, self.power)
        made[~positive] = -_power(1 - x[~positive], 2 - self.power)
        return made


def _power(x: Any, power: float) -> Any:
    """``(x ** power - 1) / power``, and its limit at 0."""
    return np.log(x) if power == 0 else (np.power(x, power) - 1) / power


class SimpleImputer(OfColumns):
    """A value for those that are missing: the mean, the most frequent one, or one that is given."""

    _shown = ("columns", "strategy", "fill_value", "output_columns")
    _STRATEGIES = ("mean", "most_frequent", "constant")

    def __init__(
        self,
        columns: list[str],
        strategy: str = "mean",
        fill_value: Any = None,
        *,
        output_columns: list[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        if strategy not in self._STRATEGIES:
            raise ValueError(
                f"Strategy {strategy} is not supported.Supported values are: "
                f"{list(self._STRATEGIES)}"
            )
        if strategy == "constant":
            self._is_fittable = False
            if fill_value is None:
                raise ValueError('`fill_value` must be set when using "constant" strategy.')
        self.strategy = strategy
        self.fill_value = fill_value

    def _fit(self, ds: Any) -> Preprocessor:
        if self.strategy == "mean":
            self.stats_ = ds.aggregate(*map(Mean, self._columns))
            return self
        for name, counter in counted(ds, self._columns, _known).items():
            (most, *_) = counter.most_common(1) or [(None, 0)]
            self.stats_[f"most_frequent({name})"] = most[0]
        return self

    def _value(self, name: str) -> Any:
        if self.strategy == "constant":
            return self.fill_value
        found = self.stats_[f"{self.strategy}({name})"]
        if found is None:
            raise ValueError(
                f"Column {name} has no fill value. Check the data used to fit the SimpleImputer."
            )
        return found

    def _transform_pandas(self, df: Any) -> Any:
        made = {}
        for read, written in zip(self._columns, self._output_columns, strict=True):
            value = self._value(read)
            made[written] = df[read].fillna(value) if read in df.columns else value
        return df.assign(**made)


def _known(values: Any) -> Counter[Any]:
    return Counter(values.value_counts().to_dict())
