"""Tables of a database, and a file of every image: a program's reader and Ray's own sinks.

Real counterpart: ``_internal/datasource/{sql,image}_*.py``. The database is one of this machine's,
which the program connects to; what it takes to answer is what its calls take.

Not modelled: reads in shards by a hash of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from raysim.rayapi.clock import import_unpatched
from raysim.rayapi.data.block import BlockAccessor, BlockMetadata
from raysim.rayapi.data.columns import Columns, column_of
from raysim.rayapi.data.datasource import (
    Datasink,
    Datasource,
    ReadTask,
    RowBasedFileDatasink,
    read_datasource,
)
from raysim.rayapi.unsupported import NotEmulatedError

if TYPE_CHECKING:
    from raysim.rayapi.data.dataset import Dataset

ROWS_PER_WRITE = 128
"""Of one ``executemany``: ``_MAX_ROWS_PER_WRITE`` of ``sql_datasink.py``."""


@contextmanager
def _connected(connection_factory: Callable[[], Any]) -> Iterator[Any]:
    """A cursor, whose changes are kept if nothing fails."""
    connection = connection_factory()
    for method in ("close", "commit", "cursor"):
        if not hasattr(connection, method):
            raise ValueError(
                "Your `connection_factory` created a `Connection` object without a "
                f"{method!r} method, but this method is required by the Python DB API2 "
                "specification. Check that your database connector is DB API2-"
                "compliant. To learn more, read https://peps.python.org/pep-0249/."
            )
    try:
        yield connection.cursor()
        connection.commit()
    except Exception:
        if hasattr(connection, "rollback"):
            connection.rollback()
        raise
    finally:
        connection.close()


class SQLDatasource(Datasource):
    """What a query answers, in one task."""

    def __init__(self, sql: str, connection_factory: Callable[[], Any], params: Any) -> None:
        self._sql, self._connect, self._params = sql, connection_factory, params

    def get_name(self) -> str:
        """In the operator's name."""
        return "SQL"

    def estimate_inmemory_data_size(self) -> int | None:
        """Nobody knows before it is asked."""
        return None

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """One."""
        del parallelism, per_task_row_limit, data_context
        return [ReadTask(self._read, BlockMetadata())]

    def _read(self) -> list[Columns]:
        with _connected(self._connect) as cursor:
            cursor.execute(self._sql, *(() if self._params is None else (self._params,)))
            names = [column[0] for column in cursor.description]
            columns = zip(*cursor.fetchall(), strict=True)
            return [{n: column_of(list(c)) for n, c in zip(names, columns, strict=False)}]


def read_sql(
    sql: str, connection_factory: Callable[[], Any], *, sql_params: Any = None,
    shard_keys: list[str] | None = None, shard_hash_fn: str = "MD5", **options: Any,
) -> Dataset:  # fmt: skip
    """``ray.data.read_sql``."""
    del shard_hash_fn
    if shard_keys:
        raise NotEmulatedError("ray.data.read_sql(shard_keys=)", "a query in one task")
    return read_datasource(SQLDatasource(sql, connection_factory, sql_params), **options)


class SQLDatasink(Datasink):
    """Rows as arguments of a statement."""

    def __init__(self, sql: str, connection_factory: Callable[[], Any]) -> None:
        self._sql, self._connect = sql, connection_factory

    def write(self, blocks: Iterable[Any], ctx: Any) -> None:
        """Some rows at a time."""
        del ctx
        with _connected(self._connect) as cursor:
            for block in blocks:
                rows = [tuple(row.values()) for row in BlockAccessor.for_block(block).iter_rows()]
                for begin in range(0, len(rows), ROWS_PER_WRITE):
                    cursor.executemany(self._sql, rows[begin : begin + ROWS_PER_WRITE])


class ImageDatasink(RowBasedFileDatasink):
    """A picture of every row."""

    def __init__(self, path: str, column: str, file_format: str, **more: Any) -> None:
        super().__init__(path, file_format=file_format, **more)
        self._column = column

    def write_row_to_file(self, row: dict[str, Any], file: Any) -> None:
        """By Pillow."""
        try:
            image_of = import_unpatched("PIL.Image")
        except ImportError as error:
            raise ImportError("write_images needs Pillow: pip install Pillow") from error
        buffer = BytesIO()
        pixels = np.asarray(row[self._column], dtype=np.uint8)
        image_of.fromarray(pixels).save(buffer, format=self.file_format)
        file.write(buffer.getvalue())
