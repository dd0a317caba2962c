"""Several preprocessors as one, and several columns as one.

Real counterpart: ``chain.py`` and ``concatenator.py`` of ``ray/data/preprocessors``.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from raysim.rayapi.data.preprocessors.base import Preprocessor, Status

_log = logging.getLogger(__name__)


class Chain(Preprocessor):
    """One after the other; each is fitted to what those before it have made."""

    def __init__(self, *preprocessors: Preprocessor) -> None:
        super().__init__()
        self.preprocessors = preprocessors

    def __repr__(self) -> str:
        """Of all."""
        return f"Chain({', '.join(map(repr, self.preprocessors))})"

    def fit_status(self) -> Status:
        """Of all that can be fitted."""
        states = [p.fit_status() for p in self.preprocessors]
        to_fit = [s for s in states if s is not Status.NOT_FITTABLE]
        if not to_fit:
            return Status.NOT_FITTABLE
        fitted = [s for s in to_fit if s is Status.FITTED]
        if len(fitted) == len(to_fit):
            return Status.FITTED
        return Status.PARTIALLY_FITTED if fitted else Status.NOT_FITTED

    def _fit(self, ds: Any) -> Preprocessor:
        *before, last = self.preprocessors
        for preprocessor in before:
            ds = preprocessor.fit_transform(ds)
        last.fit(ds)
        return self

    def fit_transform(self, ds: Any, **options: Any) -> Any:
        """Each once."""
        for preprocessor in self.preprocessors:
            ds = preprocessor.fit_transform(ds, **options)
        return ds

    def _transform(self, ds: Any, options: dict[str, Any]) -> Any:
        for preprocessor in self.preprocessors:
            ds = preprocessor.transform(ds, **options)
        return ds

    def _transform_batch(self, data: Any) -> Any:
        for preprocessor in self.preprocessors:
            data = preprocessor.transform_batch(data)
        return data


class Concatenator(Preprocessor):
    """Columns as one column of vectors; they themselves are dropped."""

    _is_fittable = False
    _DEFAULTS = {  # noqa: RUF012  (read only)
        "output_column_name": "concat_out", "columns": None, "dtype": None,
        "raise_if_missing": False, "flatten": False,
    }  # fmt: skip

    def __init__(
        self,
        columns: list[str],
        output_column_name: str = "concat_out",
        dtype: Any = None,
        raise_if_missing: bool = False,
        flatten: bool = False,
    ) -> None:
        super().__init__()
        self.columns = columns
        self.output_column_name = output_column_name
        self.dtype = dtype
        self.raise_if_missing = raise_if_missing
        self.flatten = flatten

    def __repr__(self) -> str:
        """What was said."""
        told = ((name, getattr(self, name)) for name in self._DEFAULTS)
        said = (f"{name}={value}" for name, value in told if value != self._DEFAULTS[name])
        return f"Concatenator({', '.join(said)})"

    def _transform_pandas(self, df: Any) -> Any:
        gone = [name for name in self.columns if name not in df.columns]
        if gone:
            message = f"Missing columns specified in '{self.columns}': {set(gone)}"
            if self.raise_if_missing:
                raise ValueError(message)
            _log.warning(message)
        kind = None if self.flatten else self.dtype
        rows = list(np.column_stack([df[name].to_numpy(dtype=kind) for name in self.columns]))
        if self.flatten:
            rows = [np.concatenate([np.atleast_1d(v) for v in row]) for row in rows]
            rows = rows if self.dtype is None else [row.astype(self.dtype) for row in rows]
        return df.drop(columns=self.columns).assign(**{self.output_column_name: rows})

    def get_output_columns(self) -> list[str]:
        """One."""
        return [self.output_column_name]
