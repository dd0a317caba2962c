"""What every preprocessor is: fitted to a dataset once, then applied to datasets and to batches.

Real counterpart: ``ray/data/preprocessor.py``. A program's own subclass overrides ``_fit`` (or sets
``_is_fittable = False``) and one of ``_transform_pandas``, ``_transform_numpy`` and
``_transform_arrow``.
"""

from __future__ import annotations

import base64
import pickle
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any

import cloudpickle
import numpy as np

from raysim.rayapi.clock import import_pandas
from raysim.rayapi.data.columns import from_batch, to_arrow, to_batch

_METHODS = {
    "pandas": "_transform_pandas", "numpy": "_transform_numpy", "pyarrow": "_transform_arrow",
}  # fmt: skip
"""Of every batch format."""
_MARK = b"CPKL:"
"""What a serialized preprocessor begins with."""


def _told(value: Any) -> str:
    return str(value.__name__) if callable(value) and hasattr(value, "__name__") else repr(value)


class PreprocessorNotFittedException(RuntimeError):  # noqa: N818  (Ray's name)
    """``fit`` has to come first."""


class Status(StrEnum):
    """Whether there is something to fit, and whether it is."""

    NOT_FITTABLE = "NOT_FITTABLE"
    NOT_FITTED = "NOT_FITTED"
    PARTIALLY_FITTED = "PARTIALLY_FITTED"
    FITTED = "FITTED"


Status.__name__ = Status.__qualname__ = "FitStatus"  # as it prints itself


class Preprocessor:
    """``ray.data.preprocessor.Preprocessor``."""

    FitStatus = Status
    _is_fittable = True
    _shown: tuple[str, ...] = ()
    """Attributes that ``repr`` tells."""

    def __init__(self) -> None:
        self.stats_: dict[str, Any] = {}

    def __repr__(self) -> str:
        """As it was made."""
        told = ", ".join(f"{name}={_told(getattr(self, name))}" for name in self._shown)
        return f"{type(self).__name__}({told})"

    # ---- fitting ---------------------------------------------------------------------------------

    def fit_status(self) -> Status:
        """Fitted is also what has attributes that end in ``_``."""
        if not self._is_fittable:
            return Status.NOT_FITTABLE
        made = any(value for name, value in vars(self).items() if name.endswith("_"))
        return Status.FITTED if getattr(self, "_fitted", False) or made else Status.NOT_FITTED

    def fit(self, ds: Any) -> Preprocessor:
        """Learn from a dataset; what was learnt before is forgotten."""
        status = self.fit_status()
        if status is Status.NOT_FITTABLE:
            return self
        if status is not Status.NOT_FITTED:
            warnings.warn(
                "`fit` has already been called on the preprocessor (or at least one contained "
                "preprocessors if this is a chain). All previously fitted state will be "
                "overwritten!",
                stacklevel=2,
            )
        self.stats_ = {}
        fitted = self._fit(ds)
        self._fitted = True
        return fitted

    def _fit(self, ds: Any) -> Preprocessor:
        """Of subclasses."""
        raise NotImplementedError

    def has_stats(self) -> bool:
        """Whether something was learnt."""
        return bool(getattr(self, "stats_", None))

    def _must_be_fitted(self, message: str) -> None:
        if self.fit_status() in (Status.PARTIALLY_FITTED, Status.NOT_FITTED):
            raise PreprocessorNotFittedException(message)

    # ---- applying --------------------------------------------------------------------------------

    def fit_transform(
        self,
        ds: Any,
        *,
        transform_num_cpus: float | None = None,
        transform_memory: float | None = None,
        transform_batch_size: int | None = None,
        transform_concurrency: int | None = None,
    ) -> Any:
        """``fit``, then ``transform``."""
        self.fit(ds)
        return self.transform(
            ds,
            num_cpus=transform_num_cpus,
            memory=transform_memory,
            batch_size=transform_batch_size,
            concurrency=transform_concurrency,
        )

    def transform(self, ds: Any, **options: Any) -> Any:
        """One ``map_batches``; ``batch_size``, ``num_cpus``, ``memory``, ``concurrency`` are its.

        Raises
        ------
        PreprocessorNotFittedException
            There is something to fit, and it is not.
        """
        self._must_be_fitted(
            "`fit` must be called before `transform`, "
            "or simply use fit_transform() to run both steps"
        )
        return self._transform(ds, {k: v for k, v in options.items() if v is not None})

    def _transform(self, ds: Any, options: dict[str, Any]) -> Any:
        batch_format = self._batch_format()
        asked = {**self._get_transform_config(), **options}
        return ds.map_batches(self._method(batch_format), batch_format=batch_format, **asked)

    def transform_batch(self, data: Any) -> Any:
        """Of a DataFrame, a Table, an array or a dict of arrays."""
        self._must_be_fitted("`fit` must be called before `transform_batch`.")
        return self._transform_batch(data)

    def _transform_batch(self, data: Any) -> Any:
        named = isinstance(data, Mapping) or hasattr(data, "column_names")
        if not (named or isinstance(data, np.ndarray) or hasattr(data, "iloc")):
            raise ValueError(
                "`transform_batch` is currently only implemented for Pandas DataFrames, pyarrow "
                f"Tables, NumPy ndarray and dictionary of ndarray. Got {type(data)}."
            )
        batch_format = self._batch_format()
        columns = {"__value__": data} if isinstance(data, np.ndarray) else data
        if batch_format == "pandas" or hasattr(data, "iloc"):
            frame = columns if hasattr(data, "iloc") else to_batch(from_batch(columns), "pandas")
            return self._of_frame(frame, batch_format)
        if batch_format == "numpy":
            plain = data if isinstance(data, np.ndarray) else from_batch(columns)
            return self._transform_numpy(plain)
        table = columns if hasattr(data, "column_names") else to_arrow(from_batch(columns))
        return self._transform_arrow(table)

    def _of_frame(self, frame: Any, batch_format: str) -> Any:
        """A frame stays one where Arrow is what a preprocessor works with."""
        if batch_format == "pandas":
            return self._transform_pandas(frame)
        columns = from_batch(frame)
        if batch_format == "numpy":
            return self._transform_numpy(columns)
        made = from_batch(self._transform_arrow(to_arrow(columns)))
        return to_batch(made, "pandas").set_axis(frame.index)

    def _batch_format(self) -> str:
        """What the subclass can work with; of several, what it prefers."""
        found = [
            name
            for name, method in _METHODS.items()
            if getattr(type(self), method) is not getattr(Preprocessor, method)
        ]
        if not found:
            raise NotImplementedError(
                "None of `_transform_numpy`, `_transform_pandas` or `_transform_arrow` are "
                "implemented. At least one of these transform functions must be implemented for "
                "Preprocessor transforms."
            )
        preferred = str(getattr(self.preferred_batch_format(), "value", "pandas"))
        wanted = {"arrow": "pyarrow"}.get(preferred, preferred)
        return wanted if len(found) > 1 and wanted in found else found[0]

    def _method(self, batch_format: str) -> Callable[[Any], Any]:
        method: Callable[[Any], Any] = getattr(self, _METHODS[batch_format])
        return method

    @classmethod
    def preferred_batch_format(cls) -> Any:
        """Where several are implemented."""
        return None

    def _get_transform_config(self) -> dict[str, Any]:
        """More options of ``map_batches``, of subclasses."""
        return {}

    def _transform_pandas(self, df: Any) -> Any:
        """Of subclasses."""
        raise NotImplementedError

    def _transform_numpy(self, np_data: Any) -> Any:
        """Of subclasses."""
        raise NotImplementedError

    def _transform_arrow(self, table: Any) -> Any:
        """Of subclasses."""
        raise NotImplementedError

    # ---- what it says of itself ------------------------------------------------------------------

    def get_input_columns(self) -> list[str]:
        """What it reads."""
        return list(getattr(self, "_columns", getattr(self, "columns", [])))

    def get_output_columns(self) -> list[str]:
        """What it writes."""
        return list(getattr(self, "_output_columns", getattr(self, "output_columns", [])))

    def serialize(self) -> bytes:
        """As bytes."""
        pickled: bytes = cloudpickle.dumps(self)
        return _MARK + pickled

    @staticmethod
    def deserialize(serialized: bytes | str) -> Any:
        """What ``serialize`` has written."""
        if isinstance(serialized, bytes) and serialized.startswith(_MARK):
            return pickle.loads(serialized[len(_MARK) :])  # noqa: S301  (the program's own)
        return pickle.loads(base64.b64decode(serialized))  # noqa: S301  (the program's own)


class OfColumns(Preprocessor):
    """Reads some columns and writes as many."""

    _shown: tuple[str, ...] = ("columns", "output_columns")

    def __init__(self, columns: list[str], output_columns: list[str] | None) -> None:
        super().__init__()
        if output_columns and len(columns) != len(output_columns):
            raise ValueError(
                "Invalid output_columns: Got len(columns) != len(output_columns). "
                "The length of columns and output_columns must match."
            )
        self._columns = columns
        self._output_columns = output_columns or columns

    @property
    def columns(self) -> list[str]:
        """What it reads."""
        return self._columns

    @property
    def output_columns(self) -> list[str]:
        """What it writes."""
        return self._output_columns

    def _transform_pandas(self, df: Any) -> Any:
        """Every column by itself."""
        made = {
            written: self.column(read, df[read])
            for read, written in zip(self._columns, self._output_columns, strict=True)
        }
        return df.assign(**made)

    def column(self, name: str, values: Any) -> Any:
        """Of one column's ``Series``."""
        raise NotImplementedError


# ---- counting ------------------------------------------------------------------------------------


def is_null(value: Any) -> bool:
    """None, NaN, NaT or NA."""
    pd = import_pandas()
    return value is None or value is pd.NA or value is pd.NaT or (
        isinstance(value, float | np.floating) and bool(np.isnan(value))
    )  # fmt: skip


def counted(
    ds: Any, columns: Iterable[str], of_series: Callable[[Any], Counter[Any]]
) -> dict[str, Counter[Any]]:
    """How often each value is in a column: every task counts its block, the driver adds up."""
    names = list(columns)

    def of_block(df: Any) -> dict[str, list[Counter[Any]]]:
        for name in names:
            if name not in df.columns:
                raise ValueError(
                    f"Column '{name}' does not exist in DataFrame, which has columns: "
                    f"{df.columns.tolist()}"
                )
        return {name: [of_series(df[name])] for name in names}

    total: dict[str, Counter[Any]] = {name: Counter() for name in names}
    for batch in ds.map_batches(of_block, batch_format="pandas").iter_batches(batch_size=None):
        for name in names:
            for counter in batch[name]:
                total[name].update(counter)
    return total
