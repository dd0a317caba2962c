"""Where datasets of a program come from: ranges, objects of Python, numpy, pandas, torch, Arrow.

Real counterpart: ``ray/data/read_api.py``. Files are those of ``files.py``.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from raysim.rayapi.calls import program_call
from raysim.rayapi.data.columns import (
    Columns,
    bytes_of,
    column_of,
    from_batch,
    from_rows,
    joined,
    objects_of,
    rows_of,
)
from raysim.rayapi.data.columns import from_arrow as columns_of_arrow
from raysim.rayapi.data.columns import sliced as sliced_columns
from raysim.rayapi.data.dataset import Dataset
from raysim.rayapi.data.functions import Reads
from raysim.rayapi.library_code import session_here
from raysim.raylibs.data import specs


def dataset_of(
    name: str, rows: int, row_bytes: float, make: Callable[[int, int], Columns],
    override_num_blocks: int | None, first: Columns, file_rows: tuple[int, ...] = (),
) -> Dataset:  # fmt: skip
    """Rows that ``make(begin, end)`` makes in the tasks that read them; ``first`` is one."""
    source = specs.Source(
        name=name, rows=rows, row_bytes=row_bytes, override_num_blocks=override_num_blocks,
        files=len(file_rows), file_rows=file_rows, slices=sliced_columns,
        hook=Reads(session=session_here(), make=make, name=name),
    )  # fmt: skip
    return Dataset(specs.Dataset(source=source), first=first)


@program_call
def range(  # noqa: A001  (Ray's name)
    n: int, *, parallelism: int = -1, concurrency: int | None = None,
    override_num_blocks: int | None = None,
) -> Dataset:  # fmt: skip
    """``ray.data.range``: a column ``id``."""
    del concurrency
    blocks = override_num_blocks or (parallelism if parallelism > 0 else None)
    return dataset_of(
        "ReadRange", n, 8.0, lambda a, b: {"id": np.arange(a, b)}, blocks, {"id": np.zeros(1, int)}
    )


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
    return dataset_of("ReadRange", n, 8.0 * math.prod(shape), make, blocks, make(0, 1))


def _in_memory(name: str, columns: Columns, blocks: int | None) -> Dataset:
    rows = rows_of(columns)
    row_bytes = bytes_of(columns) / max(rows, 1)
    return dataset_of(
        name, rows, row_bytes, lambda a, b: sliced_columns(columns, a, b), blocks,
        sliced_columns(columns, 0, 1),
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


@program_call
def from_arrow(tables: Any, *, override_num_blocks: int | None = None) -> Dataset:
    """``ray.data.from_arrow``."""
    given = tables if isinstance(tables, list) else [tables]
    columns = joined([columns_of_arrow(table) for table in given])
    return _in_memory("FromArrow", columns, override_num_blocks or len(given))


@program_call
def from_torch(dataset: Any, local_read: bool = False) -> Dataset:
    """``ray.data.from_torch``: a column ``item``, in one block."""
    del local_read
    items = [dataset[i] for i in builtins.range(len(dataset))]
    return _in_memory("ReadTorch", {"item": objects_of(items)}, 1)


@program_call
def from_huggingface(dataset: Any, *, override_num_blocks: int | None = None, **_: Any) -> Dataset:
    """``ray.data.from_huggingface`` of a map-style dataset."""
    if not hasattr(dataset, "with_format") or hasattr(dataset, "keys"):
        raise TypeError(f"`dataset` must be a `datasets.Dataset`, but got {type(dataset)}")
    table = dataset.with_format("arrow")[:]
    return _in_memory("FromArrow", columns_of_arrow(table), override_num_blocks or 1)
