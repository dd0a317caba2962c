"""Where datasets of a program come from: ranges, objects of Python, numpy, pandas, torch, Arrow.

Real counterpart: ``ray/data/read_api.py``. Files are those of ``files.py``.
"""

from __future__ import annotations

import builtins
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from raysim.rayapi.calls import program_call, this_fiber
from raysim.rayapi.data import executions
from raysim.rayapi.data.columns import (
    Columns,
    bytes_of,
    framed,
    from_batch,
    from_rows,
    joined,
    objects_of,
    rows_of,
)
from raysim.rayapi.data.columns import from_arrow as columns_of_arrow
from raysim.rayapi.data.columns import sliced as sliced_columns
from raysim.rayapi.data.dataset import Dataset, MaterializedDataset
from raysim.rayapi.data.functions import Reads
from raysim.rayapi.library_code import play, session_here
from raysim.rayapi.submission import put_payload
from raysim.raycore.tasks import Payload
from raysim.raylibs.data import specs
from raysim.raylibs.data.blocks import Block, shared_out
from raysim.raylibs.data.executor import available_cpus


def dataset_of(
    name: str, rows: int, row_bytes: float, make: Callable[[int, int], Columns],
    override_num_blocks: int | None, first: Columns, *, stepped: bool = False,
) -> Dataset:  # fmt: skip
    """Rows that ``make(begin, end)`` makes in the tasks that read them; ``first`` is one."""
    source = specs.Source(
        name=name, rows=rows, row_bytes=row_bytes, override_num_blocks=override_num_blocks,
        slices=sliced_columns, stepped=stepped,
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
    if override_num_blocks == 0:
        raise ZeroDivisionError("integer division or modulo by zero")
    blocks = override_num_blocks or (parallelism if parallelism > 0 else None)
    return dataset_of(
        "ReadRange",
        max(n, 0),
        8.0,
        lambda a, b: {"id": np.arange(a, b)},
        blocks,
        {"id": np.zeros(1, int)},
        stepped=True,
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
    row_bytes = 8.0 * math.prod(shape)
    return dataset_of("ReadRange", n, row_bytes, make, blocks, make(0, 1), stepped=True)


ROWS_OF_SCHEMA = 100
"""Of each block, by which types of columns are known (assumed: enough to see one that is there)."""


def put_blocks(parts: list[Columns]) -> MaterializedDataset:
    """A dataset of these blocks, which the caller puts into the store."""
    refs = [put_payload(this_fiber(), Payload(bytes_of(part), part)) for part in parts]
    blocks = tuple(
        Block(rows_of(part), bytes_of(part), ref._ref, owned=False)  # noqa: SLF001  (the same API)
        for part, ref in zip(parts, refs, strict=True)
    )
    some = joined([sliced_columns(part, 0, ROWS_OF_SCHEMA) for part in parts])
    return MaterializedDataset(
        specs.Dataset(source=executions.source_of(blocks)), tuple(refs), first=some or None
    )


def _in_memory(columns: Columns, blocks: int) -> MaterializedDataset:
    """Equal blocks, which the caller puts into the store."""
    shares = _shares(rows_of(columns), blocks)
    return put_blocks([sliced_columns(columns, begin, end) for begin, end in shares])


def _shares(rows: int, blocks: int) -> list[tuple[int, int]]:
    """Where each of equal blocks begins and ends."""
    parts = shared_out(rows, 0, blocks) if rows else []
    ends = itertools.accumulate(part.rows for part in parts)
    return [(end - part.rows, end) for part, end in zip(parts, ends, strict=True)]


@program_call
def from_items(
    items: Sequence[Any], *, parallelism: int = -1, override_num_blocks: int | None = None
) -> MaterializedDataset:
    """``ray.data.from_items``: no block is empty, and each has the columns of its own items."""
    blocks = override_num_blocks or (parallelism if parallelism > 0 else None)
    if blocks is None:
        cpus = play(lambda _: available_cpus())
        blocks = max(executions.settings().read_op_min_num_blocks, int(2 * cpus))
    shares = _shares(len(items), min(blocks, len(items) or 1))
    return put_blocks([from_rows(items[begin:end]) for begin, end in shares])


@program_call
def from_numpy(ndarrays: Any) -> MaterializedDataset:
    """``ray.data.from_numpy``: a column ``data``."""
    arrays = ndarrays if isinstance(ndarrays, list) else [ndarrays]
    return put_blocks([{"data": array} for array in arrays])


@program_call
def from_pandas(dfs: Any, override_num_blocks: int | None = None) -> MaterializedDataset:
    """``ray.data.from_pandas``: a block of each, or of all together as many as are asked for."""
    frames = dfs if isinstance(dfs, list) else [dfs]
    parts = [framed(frame) for frame in frames]
    if override_num_blocks is not None:
        whole = joined(parts)
        shares = _shares(rows_of(whole), override_num_blocks)
        parts = [sliced_columns(whole, begin, end) for begin, end in shares]
    return put_blocks(parts)


@program_call
def from_arrow(tables: Any, *, override_num_blocks: int | None = None) -> MaterializedDataset:
    """``ray.data.from_arrow``."""
    given = tables if isinstance(tables, list) else [tables]
    parts = [columns_of_arrow(table) for table in given]
    return (
        put_blocks(parts)
        if override_num_blocks is None
        else _in_memory(joined(parts), override_num_blocks)
    )


@program_call
def from_blocks(blocks: list[Any]) -> MaterializedDataset:
    """``ray.data.from_blocks``: tables of Arrow or pandas, each a block."""
    return put_blocks([from_batch(block) for block in blocks])


@program_call
def from_torch(dataset: Any, local_read: bool = False) -> Dataset:
    """``ray.data.from_torch``: a column ``item``, in one block."""
    del local_read
    items = [dataset[i] for i in builtins.range(len(dataset))]
    columns: Columns = {"item": objects_of(items)}
    row_bytes = bytes_of(columns) / max(len(items), 1)
    return dataset_of(
        "ReadTorch", len(items), row_bytes, lambda a, b: sliced_columns(columns, a, b), 1,
        sliced_columns(columns, 0, 1),
    )  # fmt: skip


@program_call
def from_huggingface(dataset: Any, *, override_num_blocks: int | None = None, **_: Any) -> Dataset:
    """``ray.data.from_huggingface`` of a map-style dataset."""
    if not hasattr(dataset, "with_format") or hasattr(dataset, "keys"):
        raise TypeError(f"`dataset` must be a `datasets.Dataset`, but got {type(dataset)}")
    table = dataset.with_format("arrow")[:]
    columns = columns_of_arrow(table) if hasattr(table, "schema") else from_batch(table)
    return _in_memory(columns, override_num_blocks or 1)
