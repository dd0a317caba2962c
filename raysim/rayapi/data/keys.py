"""Orders and groups of rows by their keys: sorting, ranges, hashes, where groups begin.

Real counterpart: ``_internal/planner/exchange/sort_task_spec.py``, ``_internal/table_block.py``,
``_internal/arrow_ops/transform_pyarrow.py``. Missing values come last, in either direction.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from raysim.rayapi.clock import import_pandas, import_unpatched
from raysim.rayapi.data import categories
from raysim.rayapi.data.columns import (
    Array,
    Columns,
    arrow,
    joined,
    missing,
    rows_of,
    taken,
    to_arrow,
)

SAMPLES_PER_PARTITION = 10
"""``SortTaskSpec.SORT_SAMPLE_POINTS_PER_PARTITION``."""


@dataclass(frozen=True, slots=True)
class SortKey:
    """Columns, and of each whether it goes down."""

    columns: tuple[str, ...]
    descending: tuple[bool, ...]
    boundaries: tuple[float, ...] = ()
    """Of the first column, if the program says them."""

    @classmethod
    def of(cls, key: Any, descending: Any = False, boundaries: Any = None) -> SortKey:
        """As ``SortKey`` checks them."""
        columns = [key] if isinstance(key, str) else key or []
        if not (isinstance(columns, list) and all(isinstance(k, str) for k in columns)):
            raise ValueError(f"Key must be a string or a list of strings, but got {columns}.")
        down = [descending] * len(columns) if isinstance(descending, bool) else list(descending)
        if len(down) != len(columns):
            raise ValueError("Length of `descending` does not match the length of the key.")
        if not all(isinstance(b, int | float) for b in boundaries or ()):
            raise ValueError("The type of items in boundaries must be int or float.")
        return cls(tuple(columns), tuple(down), tuple(sorted(set(boundaries or ()))))

    def check(self, names: list[str]) -> None:
        """As ``validate_schema``; of nothing, no complaint."""
        for column in self.columns:
            if names and column not in names:
                raise ValueError(
                    f"You specified the column '{column}', but there's no such column in the "
                    f"dataset. The dataset has columns: {names}"
                )


def ranks(columns: Columns, key: SortKey) -> Array:
    """Of each row, its place among the different keys."""
    codes = [
        _codes(columns[name], down=down)
        for name, down in zip(key.columns, key.descending, strict=True)
    ]
    if len(codes) == 1:
        return np.unique(codes[0], return_inverse=True)[1]
    return np.unique(np.stack(codes, axis=1), axis=0, return_inverse=True)[1].reshape(-1)


def _codes(column: Array, *, down: bool) -> Array:
    gone = missing(column)
    codes = np.full(len(column), len(column), dtype=np.int64)
    known = column[~gone]
    if known.dtype == object:
        known = np.asarray(known.tolist())
    found = np.unique(known, return_inverse=True)[1]
    codes[~gone] = -found if down else found
    return codes


def sort(columns: Columns, key: SortKey) -> Columns:
    """All rows in order, as Arrow has them; those alike stay as they were."""
    if not rows_of(columns):
        return columns
    key.check(list(columns))
    for name in key.columns:
        categories.check_sorted(columns[name])
    return dict(taken(columns, np.argsort(ranks(columns, key), kind="stable")))


def met(columns: Columns, key: SortKey) -> Columns:
    """Rows of a key side by side, keys in the order in which they are first seen."""
    if not rows_of(columns):
        return columns
    found = ranks(columns, key)
    first = np.unique(found, return_index=True)[1]
    return taken(columns, np.argsort(first[found], kind="stable"))


def sample(columns: Columns, key: SortKey, count: int, rng: Any) -> Columns:
    """Keys of rows drawn at random."""
    key.check(list(columns))
    rows = rows_of(columns)
    drawn = rng.permutation(rows)[: min(count, rows)]
    return {name: columns[name][drawn] for name in key.columns if columns}


def boundaries(samples: list[Columns], key: SortKey, partitions: int) -> Columns:
    """Keys at which partitions begin: quantiles of the samples."""
    known = sort(joined(samples), key)
    last = rows_of(known) - 1
    if last < 0:
        return {}
    at = [int(q * last) for q in np.linspace(0, 1, partitions + 1)]
    return taken(known, np.asarray(at[1:-1], dtype=np.int64))


def by_range(columns: Columns, key: SortKey, bounds: Columns) -> Array:
    """Of each row, its partition between boundaries."""
    rows = rows_of(columns)
    if not bounds or not rows:
        return np.zeros(rows, dtype=np.int64)
    own = SortKey(tuple(bounds), key.descending[: len(bounds)])
    found = ranks(joined([{n: part[n] for n in bounds} for part in (bounds, columns)]), own)
    begin = rows_of(bounds)
    return np.searchsorted(found[:begin], found[begin:], side="right")


def by_hash(columns: Columns, names: tuple[str, ...], partitions: int) -> Array:
    """Of each row, its partition by the hash of its keys (``_hash_partition_vectorized``).

    Keys that Arrow or the hash does not take are told apart by what they print.
    """
    pa = arrow("a hash of keys")
    try:
        table = to_arrow({name: columns[name].view(np.ndarray) for name in names})
        return (_hashes(table) % np.uint64(partitions)).astype(np.int64)
    except (pa.ArrowException, TypeError, ValueError):
        rows = zip(*(columns[name].tolist() for name in names), strict=True)
        return np.asarray([mark_of(row) % partitions for row in rows], dtype=np.int64)


def _hashes(table: Any) -> Array:
    """By Polars if it is there, else by pandas, as Ray does."""
    try:
        found: Array = import_unpatched("polars").from_arrow(table).hash_rows(seed=0).to_numpy()
    except ImportError:
        pd = import_pandas()
        frame = table.to_pandas(types_mapper=pd.ArrowDtype)
        found = pd.util.hash_pandas_object(frame, index=False).to_numpy()
    return found


def mark_of(value: Any) -> int:
    """What tells one value from others, the same in every run."""
    return zlib.crc32(repr(value).encode())


def group_starts(columns: Columns, key: SortKey) -> list[int]:
    """Where groups begin in sorted rows, and where the last ends."""
    rows = rows_of(columns)
    if not rows:
        return []
    if not key.columns:
        return [0, rows]
    found = ranks(columns, key)
    return [0, *(np.flatnonzero(np.diff(found)) + 1).tolist(), rows]


def parted(columns: Columns, numbers: Array, partitions: int) -> list[Columns]:
    """Rows by the number of their partition, in their order."""
    if not rows_of(columns):
        return [columns] * partitions
    order = np.argsort(numbers, kind="stable")
    ends = np.searchsorted(numbers[order], np.arange(1, partitions))
    return [taken(columns, rows) for rows in np.split(order, ends)]
