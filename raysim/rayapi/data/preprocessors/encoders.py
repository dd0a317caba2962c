"""Categories as numbers.

Real counterpart: ``ray/data/preprocessors/encoder.py``. What a column's values are is counted by
the tasks that have its blocks, and sorted by the driver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from raysim.rayapi.clock import import_pandas
from raysim.rayapi.data.columns import objects_of
from raysim.rayapi.data.preprocessors.base import (
    OfColumns,
    Preprocessor,
    counted,
    is_null,
)


def _lists(values: Any) -> bool:
    first = next((v for v in values if not is_null(v)), None)
    return isinstance(first, list | np.ndarray)


def _occurring(values: Any, *, each_item: bool) -> Counter[Any]:
    """A column's values; of lists, their items or the lists as tuples."""
    if not _lists(values):
        return Counter(values.value_counts(dropna=False).to_dict())
    known = [v for v in values if not is_null(v)]
    if each_item:
        return Counter(item for v in known for item in _plain(v))
    return Counter(tuple(_plain(v)) for v in known)


def _plain(value: Any) -> list[Any]:
    found: list[Any] = value.tolist() if isinstance(value, np.ndarray) else list(value)
    return found


def _numbered(
    ds: Any,
    columns: list[str],
    *,
    each_item: bool = True,
    most: dict[str, int] | None = None,
    drop_null: bool = False,
) -> dict[str, dict[Any, int]]:
    """Every column's values in order, with their numbers; of some, only the most frequent."""
    for name in most or {}:
        if name not in columns:
            raise ValueError(
                f"You set `max_categories` for {name}, which is not present in {columns}."
            )
    found = counted(ds, columns, lambda values: _occurring(values, each_item=each_item))
    made: dict[str, dict[Any, int]] = {}
    for name, counter in found.items():
        kept = [v for v, _ in counter.most_common((most or {}).get(name)) if v is not None]
        if not drop_null and any(is_null(v) for v in kept):
            raise ValueError(
                "Unable to fit column because it contains null values. Consider imputing missing "
                "values first."
            )
        made[name] = {v: i for i, v in enumerate(sorted(v for v in kept if not is_null(v)))}
    return made


def _check(df: Any, columns: Iterable[str]) -> None:
    empty = [name for name in columns if df[name].isna().to_numpy().any()]
    if empty:
        raise ValueError(
            f"Unable to transform columns {empty} because they contain null values. Consider "
            "imputing missing values first."
        )


class _Numbering(OfColumns):
    """Those that know each column's values as ``stats_["unique_values(NAME)"]``."""

    def _keep(self, found: dict[str, dict[Any, int]]) -> Preprocessor:
        self.stats_ = {f"unique_values({name})": numbers for name, numbers in found.items()}
        return self

    def numbers(self, name: str) -> dict[Any, int]:
        """Of a column's values."""
        found: dict[Any, int] = self.stats_[f"unique_values({name})"]
        return found

    def _transform_pandas(self, df: Any) -> Any:
        _check(df, self._columns)
        return super()._transform_pandas(df)


class OrdinalEncoder(_Numbering):
    """Every value by its number; of lists, every item or the list as a whole."""

    _shown = ("columns", "encode_lists", "output_columns")

    def __init__(
        self,
        columns: list[str],
        *,
        encode_lists: bool = True,
        output_columns: list[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        self.encode_lists = encode_lists

    def _fit(self, ds: Any) -> Preprocessor:
        return self._keep(_numbered(ds, self._columns, each_item=self.encode_lists))

    def column(self, name: str, values: Any) -> Any:
        """As above."""
        known = self.numbers(name)
        if not _lists(values):
            return values.map(known)
        if self.encode_lists:
            return objects_of([[known.get(item) for item in _plain(v)] for v in values])
        return [known.get(tuple(_plain(v))) for v in values]


class _OfMostFrequent(_Numbering):
    """Of some columns only the most frequent values have numbers."""

    _shown = ("columns", "max_categories", "output_columns")

    def __init__(
        self,
        columns: list[str],
        *,
        max_categories: dict[str, int] | None = None,
        output_columns: list[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        self.max_categories = max_categories or {}


class OneHotEncoder(_OfMostFrequent):
    """A vector with a one where the value's number is; all zeros for one not seen."""

    def _fit(self, ds: Any) -> Preprocessor:
        found = _numbered(ds, self._columns, each_item=False, most=self.max_categories)
        return self._keep(found)

    def column(self, name: str, values: Any) -> Any:
        """As above."""
        known = self.numbers(name)
        made = np.zeros((len(values), len(known)), dtype=np.uint8)
        for row, value in enumerate(values):
            number = known.get(_key(value))
            if number is not None:
                made[row, number] = 1
        return made.tolist()


def _key(value: Any) -> Hashable:
    return tuple(value) if isinstance(value, list | np.ndarray) else value


class MultiHotEncoder(_OfMostFrequent):
    """How often each of the values is in a list."""

    def _fit(self, ds: Any) -> Preprocessor:
        return self._keep(_numbered(ds, self._columns, most=self.max_categories))

    def column(self, name: str, values: Any) -> Any:
        """As above."""
        known = self.numbers(name)
        made = []
        for value in values:
            counts = Counter(_plain(value) if isinstance(value, list | np.ndarray) else [value])
            made.append([counts.get(item, 0) for item in known])
        return made


class LabelEncoder(_Numbering):
    """One column's values by their numbers, and back."""

    _shown = ("label_column", "output_column")

    def __init__(self, label_column: str, *, output_column: str | None = None) -> None:
        super().__init__([label_column], [output_column] if output_column else None)
        self.label_column = label_column
        self.output_column = output_column or label_column

    def _fit(self, ds: Any) -> Preprocessor:
        return self._keep(_numbered(ds, self._columns))

    def column(self, name: str, values: Any) -> Any:
        """As above."""
        return values.map(self.numbers(name))

    def inverse_transform(self, ds: Any) -> Any:
        """Values of numbers.

        Raises
        ------
        PreprocessorNotFittedException
            It is not fitted.
        """
        self._must_be_fitted("`fit` must be called before `inverse_transform`, ")
        config = self._get_transform_config()
        return ds.map_batches(self._values, batch_format="pandas", **config)

    def _values(self, df: Any) -> Any:
        known = {number: value for value, number in self.numbers(self.label_column).items()}
        return df.assign(**{self.label_column: df[self.output_column].map(known)})


class Categorizer(OfColumns):
    """Columns as pandas' categoricals."""

    _shown = ("columns", "dtypes", "output_columns")

    def __init__(
        self,
        columns: list[str],
        dtypes: dict[str, Any] | None = None,
        output_columns: list[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        self.dtypes = dtypes or {}

    def _fit(self, ds: Any) -> Preprocessor:
        self.stats_ = dict(self.dtypes)
        unknown = [name for name in self._columns if name not in self.dtypes]
        if unknown:
            pd = import_pandas()
            for name, numbers in _numbered(ds, unknown, drop_null=True).items():
                self.stats_[name] = pd.CategoricalDtype(list(numbers))
        return self

    def column(self, name: str, values: Any) -> Any:
        """As above."""
        return values.astype(self.stats_[name])
