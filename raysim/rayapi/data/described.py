"""Files that a scenario describes: rows as many and as large as it says, and zeros in them.

Real counterpart: what a read task finds in a bucket (``raylibs.data.stored``). Their contents take
no memory of this machine until somebody computes with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from raysim.rayapi.calls import this_core, this_fiber
from raysim.rayapi.compute import use_cores
from raysim.rayapi.data.columns import Columns
from raysim.rayapi.data.columns import sliced as sliced_columns
from raysim.rayapi.data.dataset import Dataset
from raysim.rayapi.data.functions import Reads
from raysim.rayapi.data.storage import read_from_disk
from raysim.rayapi.library_code import play, session_here
from raysim.raycore.scripts import Ask, Script
from raysim.raylibs.data import specs
from raysim.raylibs.data.storage import Bucket
from raysim.raylibs.data.stored import StoredFiles


def described(path: Any) -> StoredFiles | None:
    """What the scenario says of a path; the longest beginning counts."""
    text = str(path)
    known: list[StoredFiles] = session_here().env.files
    found = [files for files in known if text.startswith(files.at)]
    return max(found, key=lambda files: len(files.at), default=None)


def how_to_describe(path: Any) -> str:
    """What to say on the command line, or in a scenario, of rows that are not here."""
    said = f'{{at: "{path}", rows: 1000000, row: 2kB, columns: {{x: float32}}}}'
    return (
        f"a folder of this machine, or rows that are described: --set 'files=[{said}]', or "
        "`files:` in a scenario; of one row the bytes (row) and the names of columns with their "
        "types, `raysim check --explain files` has the rest"
    )


def dataset_of(files: StoredFiles, name: str, override_num_blocks: int | None) -> Dataset:
    """Its rows."""
    source = replace(
        files.source, name=name, slices=sliced_columns,
        override_num_blocks=override_num_blocks or files.source.override_num_blocks,
        stored_row_bytes=0.0, core_s_per_row=0.0, io_s_per_row=0.0,
        hook=Reads(
            session=session_here(), name=name, make=lambda begin, end: _read(files, end - begin)
        ),
    )  # fmt: skip
    return Dataset(specs.Dataset(source=source), first=_rows(files, 1))


def _read(files: StoredFiles, rows: int) -> Columns:
    """In a read task: its bytes come, then it works on them."""
    said, fiber = files.source, this_fiber()
    size_bytes = rows * (said.stored_row_bytes or said.row_bytes)
    if files.bucket is None:
        read_from_disk(size_bytes)
    else:
        bucket = _bucket(files)
        play(lambda _: _once(bucket.fetch(size_bytes)))
    if said.io_s_per_row:
        fiber.sleep(fiber.take_lead() + round(said.io_s_per_row * rows * 1e9))
    if said.core_s_per_row:
        use_cores(fiber, said.core_s_per_row * rows, 1.0)
    return _rows(files, rows)


def _rows(files: StoredFiles, rows: int) -> Columns:
    return {name: _zeros(rows, kind, shape) for name, kind, shape in _columns(files)}


def _columns(files: StoredFiles) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    if files.columns:
        yield from files.columns
    else:
        yield "bytes", "uint8", (round(files.source.row_bytes),)


def _zeros(rows: int, kind: str, shape: tuple[int, ...]) -> Any:
    return np.broadcast_to(np.zeros((), dtype=kind), (rows, *shape))


def _bucket(files: StoredFiles) -> Bucket:
    known: dict[str, Bucket] = session_here().libraries.setdefault("buckets", {})
    if files.at not in known:
        assert files.bucket is not None, "asked of files in a bucket"
        core = this_core(this_fiber())
        known[files.at] = Bucket(core, files.bucket, connections=files.connections)
    return known[files.at]


def _once(ask: Ask) -> Script:
    yield ask
