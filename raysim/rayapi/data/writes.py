"""``Dataset.write_*``: a file of every block, written by the task that has it.

Real counterpart: ``_internal/datasource/*_datasink.py``, ``datasource/file_datasink.py``. Files are
real ones in a folder of this machine; virtual time pays for their bytes on the node's disk.

Not modelled: partition columns, rows per file, other modes than appending.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from raysim.rayapi.calls import program_call
from raysim.rayapi.clock import import_unpatched, real_datetime
from raysim.rayapi.data import executions
from raysim.rayapi.data.columns import Columns, arrow, joined, rows_of, to_arrow, to_batch, to_rows
from raysim.rayapi.data.exchanges import Task
from raysim.rayapi.data.storage import local, pay_for_writing
from raysim.rayapi.library_code import session_here
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.raylibs.data import specs

if TYPE_CHECKING:
    from raysim.rayapi.data.dataset import Dataset

_IGNORED = ("try_create_dir", "concurrency", "ray_remote_args", "filesystem", "compression")


@program_call
def write(dataset: Dataset, kind: str, path: Any, options: dict[str, Any]) -> None:
    """Run a dataset into files of a folder."""
    asked = {k: v for k, v in options.items() if k not in _IGNORED and v is not None}
    column = asked.pop("column", "")
    if asked:
        raise NotEmulatedError(f"ray.data.Dataset.write_{kind}({next(iter(asked))}=)", "the path")
    folder = local(path, f"write_{kind}")
    folder.mkdir(parents=True, exist_ok=True)
    numbers = itertools.count()

    def store(blocks: list[Columns]) -> list[Columns]:
        whole = joined(blocks)
        if rows_of(whole):
            file = folder / f"{executions.number_of(dataset)}_{next(numbers):06}_000000.{kind}"
            with real_datetime():
                _WRITERS[kind](whole, file, column)
            pay_for_writing(file.stat().st_size)
        return [whole]

    hook = Task(session=session_here(), name="Write", work=store)
    executions.drained(dataset._spec.then(specs.Map(name="Write", hook=hook)), None)  # noqa: SLF001  (its own)


def write_parquet(self: Dataset, path: Any, **options: Any) -> None:
    """``Dataset.write_parquet``: a file of every block."""
    write(self, "parquet", path, options)


def write_csv(self: Dataset, path: Any, **options: Any) -> None:
    """``Dataset.write_csv``."""
    write(self, "csv", path, options)


def write_json(self: Dataset, path: Any, **options: Any) -> None:
    """``Dataset.write_json``: a line of every row."""
    write(self, "json", path, options)


def write_numpy(self: Dataset, path: Any, *, column: str, **options: Any) -> None:
    """``Dataset.write_numpy`` of one column."""
    write(self, "npy", path, {**options, "column": column})


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


def _parquet(columns: Columns, file: Path, _column: str) -> None:
    arrow("write_parquet")
    import_unpatched("pyarrow.parquet").write_table(to_arrow(columns), file)


def _csv(columns: Columns, file: Path, _column: str) -> None:
    to_batch(columns, "pandas").to_csv(file, index=False)


def _json(columns: Columns, file: Path, _column: str) -> None:
    lines = [json.dumps(row, default=_plain) for row in to_rows(columns)]
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else str(value)


def _npy(columns: Columns, file: Path, column: str) -> None:
    np.save(file, columns[column])


_WRITERS: dict[str, Callable[[Columns, Path, str], None]] = {
    "parquet": _parquet, "csv": _csv, "json": _json, "npy": _npy,
    "orc": _orc,
}  # fmt: skip
