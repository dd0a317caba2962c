"""Contents of blocks: columns of numpy arrays, and what programs see of them.

Real counterpart: ``ray/data/_internal/{arrow,pandas}_block.py`` and ``numpy_support.py``. Bytes of
a block are those of its arrays; Arrow's validity maps and offsets are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from raysim.rayapi.clock import import_pandas
from raysim.rayapi.unsupported import NotEmulatedError

Columns = dict[str, np.ndarray[Any, Any]]
_SCALARS = (int, float, bool, str, bytes, np.generic)


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


def column_of(values: Sequence[Any]) -> np.ndarray[Any, Any]:
    """An array of a column's values; of objects where they do not agree."""
    first = values[0] if len(values) else 0
    if isinstance(first, np.ndarray):
        if all(isinstance(v, np.ndarray) and v.shape == first.shape for v in values):
            return np.stack(values)
    elif isinstance(first, _SCALARS) and all(isinstance(v, _SCALARS) for v in values):
        return np.asarray(values)
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def from_rows(rows: Sequence[Any]) -> Columns:
    """Of mappings; anything else is a column ``item``."""
    if not rows:
        return {}
    if not isinstance(rows[0], Mapping):
        return {"item": column_of(rows)}
    return {name: column_of([row[name] for row in rows]) for name in rows[0]}


def to_rows(columns: Columns) -> Iterator[dict[str, Any]]:
    """One mapping a row, scalars as Python's."""
    plain = {
        name: array.tolist() if array.ndim == 1 else list(array) for name, array in columns.items()
    }
    for values in zip(*plain.values(), strict=True):
        yield dict(zip(plain, values, strict=True))


def sliced(columns: Columns, begin: int, end: int) -> Columns:
    """Rows from ``begin`` to ``end``."""
    return {name: array[begin:end] for name, array in columns.items()}


def joined(parts: Iterable[Columns]) -> Columns:
    """All of them; those without rows do not count."""
    found = [part for part in parts if rows_of(part)]
    if len(found) <= 1:
        return found[0] if found else {}
    return {name: np.concatenate([part[name] for part in found]) for name in found[0]}


def to_batch(columns: Columns, batch_format: str | None) -> Any:
    """What ``map_batches`` and ``iter_batches`` hand out."""
    if batch_format in ("default", "numpy", None):
        return dict(columns)
    if batch_format == "pandas":
        return import_pandas().DataFrame(
            {n: list(a) if a.ndim > 1 else a for n, a in columns.items()}
        )
    raise NotEmulatedError(f"ray.data batch_format={batch_format!r}", "numpy, pandas")


def from_batch(batch: Any) -> Columns:
    """What a function has returned.

    Raises
    ------
    ValueError
        It is none of the kinds that Ray takes.
    """
    if isinstance(batch, Mapping):
        return {
            str(n): v if isinstance(v, np.ndarray) else column_of(list(v)) for n, v in batch.items()
        }
    if hasattr(batch, "columns") and hasattr(batch, "to_dict"):
        return {str(n): column_of(batch[n].to_list()) for n in batch.columns}
    raise ValueError(
        f"The return type of the user defined function is not of a supported type: {type(batch)}. "
        "Expected: dict of numpy arrays, pandas.DataFrame."
    )
