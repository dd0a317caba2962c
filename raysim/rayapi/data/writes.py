"""``Dataset.write_*``: a file of every block, written by the task that has it.

Real counterpart: ``_internal/datasource/*_datasink.py``, ``datasource/file_datasink.py``. Files are
real ones in a folder of this machine; virtual time pays for their bytes on the node's disk.

Not modelled: formats' own arguments, names of files of one's own but for pictures.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from raysim.rayapi.calls import program_call
from raysim.rayapi.clock import import_unpatched, real_datetime
from raysim.rayapi.data import executions, webdataset
from raysim.rayapi.data.columns import (
    Columns,
    arrow,
    joined,
    rows_of,
    sliced,
    taken,
    to_arrow,
    to_batch,
)
from raysim.rayapi.data.exchanges import Task
from raysim.rayapi.data.storage import local, pay_for_writing
from raysim.rayapi.library_code import session_here
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.raylibs.data import specs

if TYPE_CHECKING:
    from raysim.rayapi.data.dataset import Dataset

_IGNORED = ("try_create_dir", "concurrency", "ray_remote_args", "filesystem", "compression")

_PARQUET = (
    "partition_cols", "min_rows_per_file", "max_rows_per_file", "mode", "arrow_parquet_args_fn",
    "num_rows_per_file", "filename_provider", "arrow_open_stream_args",
)  # fmt: skip
"""Arguments of ``write_parquet`` that are not for Arrow's writer."""


class SaveMode(str, Enum):  # noqa: UP042  (printed as Ray prints it)
    """``ray.data.SaveMode``: what becomes of what is there."""

    CREATE = "create"
    APPEND = "append"
    OVERWRITE = "overwrite"
    IGNORE = "ignore"
    ERROR = "error"
    UPSERT = "upsert"


@program_call
def write(dataset: Dataset, kind: str, path: Any, options: dict[str, Any]) -> None:
    """Run a dataset into files of a folder."""
    of = f"write_{'webdataset' if kind == 'tar' else kind}"
    asked = {k: v for k, v in options.items() if k not in _IGNORED and v is not None}
    column, by = asked.pop("column", ""), asked.pop("partition_cols", [])
    store_in = asked.pop("writer", None) or _WRITERS[kind]
    rows, mode = asked.pop("min_rows_per_file", None), SaveMode(asked.pop("mode", "append"))
    most = asked.pop("max_rows_per_file", None) if kind == "parquet" else None
    if most is not None and rows is not None and rows > most:
        raise ValueError(
            f"min_rows_per_file ({rows}) cannot be greater than max_rows_per_file ({most})"
        )
    if asked or (by and kind != "parquet"):
        named = next(iter(asked), "partition_cols")
        raise NotEmulatedError(f"ray.data.Dataset.{of}({named}=)", "the path")
    folder = local(path, of)
    skips = _prepared(folder, mode)
    numbers = itertools.count()
    prefix = _unused(folder, executions.number_of(dataset))

    def store(blocks: list[Columns]) -> list[Columns]:
        whole = joined(blocks)
        if rows_of(whole) and not skips:
            name = f"{prefix}_{next(numbers):06}"
            for inside, part in _parted(whole, by):
                (folder / inside).mkdir(parents=True, exist_ok=True)
                step = most or rows_of(part)
                for number, begin in enumerate(range(0, rows_of(part), step)):
                    file = folder / inside / f"{name}_{number:06}.{kind}"
                    with real_datetime():
                        store_in(sliced(part, begin, begin + step), file, column)
                    pay_for_writing(file.stat().st_size)
        return [whole]

    hook = Task(session=session_here(), name="Write", work=store)
    wanted = specs.Map(name="Write", hook=hook, batch_size=rows)
    executions.drained(dataset, None, wanted)


def _prepared(folder: Path, mode: SaveMode) -> bool:
    """The folder is there; whether nothing is to be written into it.

    Raises
    ------
    ValueError
        It was there, and was not to be.
    """
    if folder.exists():
        if mode in (SaveMode.ERROR, SaveMode.CREATE):
            raise ValueError(
                f"Path {folder} already exists. "
                "If this is unexpected, use mode='ignore' to ignore those files"
            )
        if mode == SaveMode.OVERWRITE:
            shutil.rmtree(folder)
    skips = mode == SaveMode.IGNORE and folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    return skips


def _unused(folder: Path, number: int) -> str:
    """What names of this write's files begin with, as no others there do: Ray draws an id."""
    tries = itertools.count()
    return next(f"{number}_{n}" for n in tries if not any(folder.rglob(f"{number}_{n}_*")))


def _parted(columns: Columns, by: list[str]) -> Iterator[tuple[str, Columns]]:
    """Rows of equal values in a folder called after these, without their columns."""
    if not by:
        yield "", columns
        return
    groups: dict[tuple[Any, ...], list[int]] = {}
    for number, values in enumerate(zip(*(columns[name].tolist() for name in by), strict=True)):
        groups.setdefault(values, []).append(number)
    others = {name: column for name, column in columns.items() if name not in by}
    for values, rows in groups.items():
        inside = "/".join(f"{name}={value}" for name, value in zip(by, values, strict=True))
        yield inside, taken(others, np.asarray(rows))


def write_parquet(self: Dataset, path: Any, **options: Any) -> None:
    """``Dataset.write_parquet``: a file of every block; Arrow's arguments of writing are its."""
    said = {k: options.pop(k) for k in list(options) if k not in _PARQUET and k not in _IGNORED}
    if "compression" in options:
        said["compression"] = options.pop("compression")
    made = options.pop("arrow_parquet_args_fn", None)

    def store(columns: Columns, file: Path, _: str) -> None:
        pq = import_unpatched("pyarrow.parquet")
        pq.write_table(to_arrow(columns), file, **({} if made is None else made()), **said)

    arrow("write_parquet")
    write(self, "parquet", path, {**options, "writer": store})


def write_csv(self: Dataset, path: Any, **options: Any) -> None:
    """``Dataset.write_csv``."""
    write(self, "csv", path, options)


def write_json(
    self: Dataset, path: Any, *, pandas_json_args_fn: Callable[[], dict[str, Any]] | None = None,
    **options: Any,
) -> None:  # fmt: skip
    """``Dataset.write_json``: a line of every row, or what the arguments say pandas is to write."""

    def store(columns: Columns, file: Path, _: str) -> None:
        said = {} if pandas_json_args_fn is None else dict(pandas_json_args_fn())
        orient = said.pop("orient", "records")
        lines = said.pop("lines", orient == "records")
        to_batch(columns, "pandas").to_json(file, orient=orient, lines=lines, **said)

    write(self, "json", path, {**options, "writer": store})


def write_numpy(self: Dataset, path: Any, *, column: str, **options: Any) -> None:
    """``Dataset.write_numpy`` of one column."""
    write(self, "npy", path, {**options, "column": column})


def write_webdataset(self: Dataset, path: Any, *, encoder: Any = True, **options: Any) -> None:
    """``Dataset.write_webdataset``: samples in a tar of every block."""
    keys = (f"{number:032x}" for number in itertools.count())
    store = lambda columns, file, _: webdataset.store(columns, file, encoder, keys)  # noqa: E731
    write(self, "tar", path, {**options, "writer": store})


def write_images(
    self: Dataset, path: Any, column: str, file_format: str = "png", *,
    filename_provider: Any = None, concurrency: int | None = None, **options: Any,
) -> None:  # fmt: skip
    """``Dataset.write_images``: a file of every row."""
    from raysim.rayapi.data.sinks import ImageDatasink  # it imports what imports this

    if unknown := [n for n, v in options.items() if v is not None and n not in _IGNORED]:
        raise NotEmulatedError(f"ray.data.Dataset.write_images({unknown[0]}=)", "the path")
    sink = ImageDatasink(path, column, file_format, filename_provider=filename_provider)
    self.write_datasink(sink, concurrency=concurrency)


def write_sql(
    self: Dataset, sql: str, connection_factory: Callable[[], Any], **options: Any
) -> None:
    """``Dataset.write_sql``: rows as arguments of a statement."""
    from raysim.rayapi.data.sinks import SQLDatasink  # it imports what imports this

    self.write_datasink(SQLDatasink(sql, connection_factory), **options)


def write_orc(self: Dataset, path: Any, **options: Any) -> None:
    """``Dataset.write_orc``."""
    write(self, "orc", path, options)


def _orc(columns: Columns, file: Path, _column: str) -> None:
    arrow("write_orc")
    import_unpatched("pyarrow.orc").write_table(to_arrow(columns), file)


def _csv(columns: Columns, file: Path, _column: str) -> None:
    arrow("write_csv")
    import_unpatched("pyarrow.csv").write_csv(to_arrow(columns), file)


def _npy(columns: Columns, file: Path, column: str) -> None:
    np.save(file, columns[column])


_WRITERS: dict[str, Callable[[Columns, Path, str], None]] = {
    "csv": _csv, "npy": _npy,
    "orc": _orc,
}  # fmt: skip
