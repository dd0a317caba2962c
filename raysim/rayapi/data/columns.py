"""Contents of blocks: columns of numpy arrays, and what programs see of them.

Real counterpart: ``ray/data/_internal/{arrow,pandas}_block.py`` and ``numpy_support.py``. Bytes of
a block are those of its arrays; Arrow's validity maps and offsets are left out. A column with
missing values is one of objects, with None for them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import numpy as np

from raysim.rayapi.clock import import_pandas, import_unpatched, real_datetime
from raysim.rayapi.data import categories
from raysim.rayapi.data.categories import Categories
from raysim.rayapi.unsupported import NotEmulatedError

Array = np.ndarray[Any, Any]
Columns = dict[str, Array]
_SCALARS = (int, float, bool, str, bytes, np.generic)
_IS_TENSOR = b"tensor"
_TENSOR = {_IS_TENSOR: b"1"}
"""In the metadata of a field of Arrow's whose lists are tensors."""
_TIMES = {"date": "datetime64[D]", "timedelta": "timedelta64[us]"}
"""Those that numpy has, by the name of Python's."""
_NUMPY_HAS = ("int", "uint", "float", "double", "halffloat", "time", "duration")
"""How Arrow's types begin that numpy has."""
FORMATS = ("pandas", "pyarrow", "numpy", "cudf", None)
"""``VALID_BATCH_FORMATS``; ``default`` stands for ``numpy``."""


class Framed(dict[str, Array]):
    """Columns of a block that is a DataFrame: it came as one, and no function has had it since."""

    def __init__(self, columns: Columns, dtypes: Mapping[str, Any]) -> None:
        super().__init__(columns)
        self.dtypes = dtypes
        """Of pandas, by column."""


def framed(frame: Any) -> Columns:
    """Of a DataFrame that keeps its dtypes."""
    return Framed(from_batch(frame), {str(n): frame[n].dtype for n in frame.columns})


def like(columns: Columns, made: Columns) -> Columns:
    """``made`` of some columns is a frame where these were one."""
    return Framed(made, columns.dtypes) if isinstance(columns, Framed) else made


def rows_of(columns: Columns) -> int:
    """How many."""
    return len(next(iter(columns.values()))) if columns else 0


def bytes_of(columns: Columns) -> int:
    """As blocks count them: arrays, and of objects what each takes."""
    size = 0
    for array in columns.values():
        if array.dtype == object:
            size += sum(_bytes_of(value) for value in array)
        elif array.dtype.kind in "US":
            size += sum(len(value) for value in array.tolist()) + 4 * len(array)
        else:
            size += array.nbytes
    return size


def _bytes_of(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    return len(value) if isinstance(value, str | bytes) else sys.getsizeof(value)


def column_of(values: Sequence[Any]) -> Array:
    """An array of a column's values; of objects where they do not agree."""
    first = values[0] if len(values) else 0
    if _is_tensor(first):
        return column_of([np.asarray(v.detach().cpu()) if _is_tensor(v) else v for v in values])
    if isinstance(first, np.ndarray):
        if all(isinstance(v, np.ndarray) and v.shape == first.shape for v in values):
            return np.stack(values)
    elif isinstance(first, _SCALARS) and all(isinstance(v, _SCALARS) for v in values):
        found = np.asarray(values)
        texts = found.dtype.kind == "U" and all(isinstance(v, str) for v in values)
        mixed = found.dtype.kind in "US" and not texts
        return np.asarray(values, dtype=object) if mixed else found
    elif all(isinstance(v, datetime) and v.tzinfo is None for v in values):
        return _instants(values)
    return objects_of([list(v) if type(v) is tuple else v for v in values])


def _instants(values: Sequence[datetime]) -> Array:
    """In the coarsest unit that holds them all."""
    micros = [v.microsecond for v in values]
    if any(getattr(v, "nanosecond", 0) for v in values):
        return np.asarray([v.to_datetime64() for v in values], dtype="datetime64[ns]")  # type: ignore[attr-defined]
    unit = "us" if any(m % 1000 for m in micros) else "ms" if any(micros) else "s"
    return np.asarray([np.datetime64(v) for v in values]).astype(f"datetime64[{unit}]")


def is_map(value: Any) -> bool:
    """As Arrow gives a map: a list of pairs."""
    return isinstance(value, list) and bool(value) and type(value[0]) is tuple


def _of_series(series: Any) -> Array:
    """Of pandas: what it takes for missing is missing."""
    if series.dtype == object:
        gone = series.isna()
        values = zip(series.to_list(), gone, strict=True)
        return column_of([None if g else v for v, g in values])
    return _of_arrow(arrow("a DataFrame").array(series, from_pandas=True))


def _of_arrays(column: Array) -> bool:
    return column.dtype == object and len(column) > 0 and isinstance(column[0], np.ndarray)


def _is_tensor(value: Any) -> bool:
    """One of torch, which need not be there."""
    return hasattr(value, "detach") and hasattr(value, "cpu")


def objects_of(values: Sequence[Any]) -> Array:
    """An array of whatever."""
    column = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):
        column[index] = value
    return column


def missing(column: Array) -> Array:
    """Which of its values are None or NaN."""
    if column.dtype == object and column.ndim == 1:
        return np.fromiter((v is None or _is_nan(v) for v in column), bool, len(column))
    if column.dtype.kind == "f" and column.ndim == 1:
        return np.isnan(column)
    return np.zeros(len(column), dtype=bool)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def from_rows(rows: Sequence[Any]) -> Columns:
    """Of mappings, what one of them lacks being None; anything else is a column ``item``."""
    if not rows:
        return {}
    if not isinstance(rows[0], Mapping):
        return {"item": column_of(rows)}
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: column_of([row.get(name) for row in rows]) for name in names}


def to_rows(columns: Columns) -> Iterator[dict[str, Any]]:
    """One mapping a row, scalars as Python's."""
    plain = {
        name: array.tolist() if array.ndim == 1 else list(array) for name, array in columns.items()
    }
    for values in zip(*plain.values(), strict=True):
        yield dict(zip(plain, values, strict=True))


def sliced(columns: Columns, begin: int, end: int) -> Columns:
    """Rows from ``begin`` to ``end``."""
    return like(columns, {name: array[begin:end] for name, array in columns.items()})


def taken(columns: Columns, rows: Any) -> Columns:
    """Rows by their numbers, or by a mask."""
    return like(columns, {name: array[rows] for name, array in columns.items()})


def joined(parts: Iterable[Columns]) -> Columns:
    """All of them; those without rows do not count, and a column that one lacks is None there."""
    found = [part for part in parts if rows_of(part)]
    if len(found) <= 1:
        return found[0] if found else {}
    names = dict.fromkeys(name for part in found for name in part)
    made = {name: _joined([_of_part(part, name) for part in found]) for name in names}
    frames = [part.dtypes for part in found if isinstance(part, Framed)]
    if len(frames) < len(found):
        return made
    said = {name: {str(dtypes.get(name)): dtypes.get(name) for dtypes in frames} for name in names}
    return Framed(
        made, {n: next(iter(d.values())) if len(d) == 1 else None for n, d in said.items()}
    )


def _of_part(part: Columns, name: str) -> Array:
    return part[name] if name in part else objects_of([None] * rows_of(part))


def _joined(arrays: list[Array]) -> Array:
    """Arrays that do not agree in kind or shape become objects."""
    if (found := categories.joined(arrays)) is not None:
        return found
    kinds = {"n" if a.dtype.kind in "biuf" else a.dtype.kind for a in arrays}
    if len(kinds) == 1 and len({a.shape[1:] for a in arrays}) == 1:
        return np.concatenate(arrays)
    return column_of([v for a in arrays for v in (a.tolist() if a.ndim == 1 else a)])


def to_batch(columns: Columns, batch_format: str | None) -> Any:
    """What ``map_batches`` and ``iter_batches`` hand out; of no format: as blocks are.

    Raises
    ------
    ValueError
        Ray has no such format.
    """
    if batch_format not in FORMATS and batch_format != "default":
        raise ValueError(
            f"The given batch format {batch_format} isn't allowed (must be one of {list(FORMATS)})."
        )
    if batch_format == "pandas":
        return _frame_of(columns)
    if batch_format == "pyarrow":
        return to_arrow(columns)
    if batch_format == "cudf":
        raise NotEmulatedError("ray.data batch_format='cudf'", "numpy, pandas, pyarrow")
    if batch_format is None:
        return columns
    if isinstance(columns, Framed):  # what pandas has as objects stays that
        return {n: _numbers(a) if _is_object(columns, n) else _plain(a) for n, a in columns.items()}
    return {name: _plain(array) for name, array in columns.items()}


def _is_object(columns: Framed, name: str) -> bool:
    return columns[name].dtype == object and str(columns.dtypes[name]) == "object"


def _frame_of(columns: Columns) -> Any:
    """A DataFrame: of one as it was, else with Arrow's dtypes but for tensors and nulls."""
    pd, pa = import_pandas(), arrow("a DataFrame")
    if isinstance(columns, Framed):
        return pd.DataFrame({
            n: pd.Series(list(a) if a.ndim > 1 else _numbers(a), dtype=columns.dtypes[n])
            for n, a in columns.items()
        })  # fmt: skip

    def of(array: Array) -> Any:
        if array.ndim > 1 or _of_arrays(array):
            return pd.Series(list(array), dtype=object)
        try:
            made = _arrow_array(pa, array)
        except pa.ArrowException:
            return pd.Series(array, dtype=object)
        if pa.types.is_null(made.type):
            return pd.Series(array, dtype=object)
        if isinstance(array, Categories):
            return made.to_pandas()
        return pd.Series(pd.arrays.ArrowExtensionArray(made), copy=False)

    return pd.DataFrame({name: of(array) for name, array in columns.items()}, copy=False)


def _plain(array: Array) -> Array:
    """As Arrow's columns come out as numpy's: texts are objects, lists are arrays."""
    if isinstance(array, Categories):
        return array.view(np.ndarray)
    first = next((v for v in array if v is not None), None) if array.dtype == object else None
    kind = type(first).__name__  # a program's classes of dates are its own
    if kind in _TIMES:
        return array.astype(_TIMES[kind])
    if kind == "Decimal":
        return objects_of(_arrow_array(arrow("a decimal"), array).to_pylist())
    if isinstance(first, list):
        return objects_of([np.asarray(v) if isinstance(v, list) else v for v in array])
    if array.dtype.kind in "iuf":  # Arrow's own memory: nobody may write into it
        array = array.view()
        array.flags.writeable = False
        return array
    return array.astype(object) if array.dtype.kind == "U" else _numbers(array)


def _numbers(array: Array) -> Array:
    """Numbers of which some are missing: those are NaN outside of Arrow."""
    if array.dtype == object and array.ndim == 1:
        known = [v for v in array if v is not None]
        if known and len(known) < len(array) and all(type(v) in (int, float) for v in known):
            return np.asarray([np.nan if v is None else v for v in array], dtype=float)
    return array


def to_arrow(columns: Columns) -> Any:
    """A ``pyarrow.Table``; tensors are lists, of which their fields say what they were."""
    pa = arrow("a pyarrow.Table")
    fields, arrays = [], []
    for name, column in columns.items():
        array = _arrow_array(pa, column)
        tensors = column.ndim > 1 or any(isinstance(v, np.ndarray) for v in column[:1])
        fields.append(pa.field(name, array.type, metadata=_TENSOR if tensors else None))
        arrays.append(array)
    return pa.table(arrays, schema=pa.schema(fields))


def _arrow_array(pa: Any, column: Array) -> Any:
    if column.ndim > 1:
        kind = pa.from_numpy_dtype(column.dtype)
        for _ in column.shape[1:]:
            kind = pa.list_(kind)
        return pa.array(column.tolist(), type=kind)
    if isinstance(column, Categories):
        return categories.to_arrow(column)
    if column.dtype == object:
        maps = [value for value in column if is_map(value)]
        if maps:
            keys, items = (pa.infer_type([p[i] for m in maps for p in m]) for i in (0, 1))
            return pa.array(list(column), type=pa.map_(keys, items))
        return pa.array([v.tolist() if isinstance(v, np.ndarray) else v for v in column])
    return pa.array(column.tolist() if column.dtype.kind == "U" else column)


def from_arrow(table: Any) -> Columns:
    """Of a ``pyarrow.Table``."""
    found: Columns = {}
    for field, column in zip(table.schema, table.columns, strict=True):
        if (field.metadata or {}).get(_IS_TENSOR):
            dtype = _item_dtype(column.type)
            values = [None if v is None else np.asarray(v, dtype=dtype) for v in column.to_pylist()]
            found[field.name] = column_of(values)
        else:
            found[field.name] = _of_arrow(column)
    return found


def _of_arrow(column: Any) -> Array:
    """Of an Arrow's array, or of one in chunks."""
    kind = str(column.type)
    if kind.startswith("dictionary"):
        return categories.of_arrow(column)
    plain = kind.startswith(_NUMPY_HAS) and "tz=" not in kind
    if column.null_count or not plain:
        with real_datetime():
            return column_of(column.to_pylist())
    found: Array = column.to_numpy(zero_copy_only=False)
    return found


def _item_dtype(kind: Any) -> Any:
    while hasattr(kind, "value_type"):
        kind = kind.value_type
    return kind.to_pandas_dtype()


def arrow(what: str) -> Any:
    """pyarrow, which comes with ray[data].

    Raises
    ------
    ImportError
        It is not installed.
    """
    try:
        with suppress(ImportError):  # pyarrow loads it when it sees fit
            import_pandas()
        return import_unpatched("pyarrow")
    except ImportError as error:
        raise ImportError(f"{what} needs pyarrow: pip install pyarrow") from error


def from_batch(batch: Any) -> Columns:
    """What a function has returned.

    Raises
    ------
    ValueError
        It is none of the kinds that Ray takes.
    """
    if isinstance(batch, Framed):
        return batch
    if isinstance(batch, Mapping):
        return {
            str(n): v if isinstance(v, np.ndarray) and not _of_arrays(v) else column_of(list(v))
            for n, v in batch.items()
        }
    if hasattr(batch, "column_names") and hasattr(batch, "to_pylist"):
        return from_arrow(batch)
    if hasattr(batch, "columns") and hasattr(batch, "to_dict"):
        return {str(n): _of_series(batch[n]) for n in batch.columns}
    raise ValueError(
        f"The return type of the user defined function is not of a supported type: {type(batch)}. "
        "Expected: dict of numpy arrays, pandas.DataFrame, pyarrow.Table."
    )
