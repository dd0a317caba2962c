"""Where datasets of a program come from: ranges, Python's and numpy's objects, pandas frames.

Real counterpart: ``ray/data/read_api.py``. Files are refused by name: raysim does not read a
program's data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from raysim.rayapi.calls import program_call
from raysim.rayapi.data.columns import Columns, bytes_of, column_of, from_batch, from_rows, joined, rows_of
from raysim.rayapi.data.columns import sliced as sliced_columns
from raysim.rayapi.data.dataset import Dataset
from raysim.rayapi.data.functions import Reads
from raysim.raylibs.data import specs


def _dataset(
    name: str, rows: int, row_bytes: float, make: Callable[[int, int], Columns],
    override_num_blocks: int | None,
) -> Dataset:  # fmt: skip
    source = specs.Source(
        name=name, rows=rows, row_bytes=row_bytes, override_num_blocks=override_num_blocks,
        hook=Reads(make=make),
    )  # fmt: skip
    return Dataset(specs.Dataset(source=source))


@program_call
def range(  # noqa: A001  (Ray's name)
    n: int, *, parallelism: int = -1, concurrency: int | None = None,
    override_num_blocks: int | None = None,
) -> Dataset:  # fmt: skip
    """``ray.data.range``: a column ``id``."""
    del concurrency
    blocks = override_num_blocks or (parallelism if parallelism > 0 else None)
    return _dataset("ReadRange", n, 8.0, lambda a, b: {"id": np.arange(a, b)}, blocks)


@program_call
def range_tensor(
    n: int, *, shape: tuple[int, ...] = (1,), parallelism: int = -1,
    concurrency: int | None = None, override_num_blocks: int | None = None,
) -> Dataset:  # fmt: skip
    """``ray.data.range_tensor``: a column ``data`` of tensors."""
    del concurrency
    ones = np.ones(shape, dtype=np.int64)

    def make(begin: int, end: int) -> Columns:
        numbers = np.arange(begin, end).reshape(-1, *(1 for _ in shape))
        return {"data": numbers * ones}

    blocks = override_num_blocks or (parallelism if parallelism > 0 else None)
    return _dataset("ReadRange", n, 8.0 * math.prod(shape), make, blocks)


def _in_memory(name: str, columns: Columns, blocks: int | None) -> Dataset:
    rows = rows_of(columns)
    row_bytes = bytes_of(columns) / max(rows, 1)
    return _dataset(
        name, rows, row_bytes, lambda a, b: sliced_columns(columns, a, b), blocks
    )  # fmt: skip


def from_columns(blocks: list[Columns], name: str = "FromBlocks") -> Dataset:
    """Of blocks with contents."""
    return _in_memory(name, joined(blocks), max(1, len(blocks)))


@program_call
def from_items(
    items: Sequence[Any], *, parallelism: int = -1, override_num_blocks: int | None = None
) -> Dataset:
    """``ray.data.from_items``."""
    blocks = override_num_blocks or (parallelism if parallelism > 0 else None)
    return _in_memory("FromItems", from_rows(list(items)), blocks or min(200, len(items) or 1))


@program_call
def from_numpy(ndarrays: Any) -> Dataset:
    """``ray.data.from_numpy``: a column ``data``."""
    arrays = ndarrays if isinstance(ndarrays, list) else [ndarrays]
    return _in_memory("FromNumpy", {"data": np.concatenate(arrays)}, len(arrays))


@program_call
def from_pandas(dfs: Any) -> Dataset:
    """``ray.data.from_pandas``."""
    frames = dfs if isinstance(dfs, list) else [dfs]
    parts = [from_batch(frame) for frame in frames]
    columns = {n: column_of([v for part in parts for v in part[n]]) for n in parts[0]}
    return _in_memory("FromPandas", columns, len(frames))
