"""The module ``ray.data.block``: blocks as a program's own sources and sinks see them.

Real counterpart: ``ray/data/block.py`` (2.60). A block is a ``pyarrow.Table`` or a DataFrame.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from raysim.rayapi.data.columns import (
    Columns,
    bytes_of,
    from_batch,
    rows_of,
    sliced,
    to_batch,
    to_rows,
)
from raysim.rayapi.unsupported import getattr_of

Block = Any
"""As annotations name it."""


@dataclass
class BlockMetadata:
    """What a read task says of its output beforehand."""

    num_rows: int | None = None
    size_bytes: int | None = None
    exec_stats: Any = None
    input_files: list[str] | None = None


class BlockAccessor:
    """One block."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    @staticmethod
    def for_block(block: Any) -> BlockAccessor:
        """Of a table, a frame or a dict of arrays."""
        return BlockAccessor(from_batch(block))

    def num_rows(self) -> int:
        """How many."""
        return rows_of(self._columns)

    def size_bytes(self) -> int:
        """As blocks count them."""
        return bytes_of(self._columns)

    def column_names(self) -> list[str]:
        """Their names."""
        return list(self._columns)

    def slice(self, start: int, end: int, copy: bool = False) -> Any:
        """Rows from ``start`` to ``end``, as a block."""
        del copy
        return to_batch(sliced(self._columns, start, end), "pyarrow")

    def iter_rows(self, public_row_format: bool = True) -> Iterator[dict[str, Any]]:
        """One dict a row."""
        del public_row_format
        return to_rows(self._columns)

    def to_pandas(self) -> Any:
        """A DataFrame."""
        return to_batch(self._columns, "pandas")

    def to_arrow(self) -> Any:
        """A ``pyarrow.Table``."""
        return to_batch(self._columns, "pyarrow")

    def to_block(self) -> Any:
        """The same."""
        return self.to_arrow()

    def to_numpy(self, columns: Any = None) -> Any:
        """Arrays of all columns or some, or the one of a name."""
        arrays = to_batch(self._columns, "numpy")
        if isinstance(columns, str):
            return arrays[columns]
        return arrays if columns is None else {name: arrays[name] for name in columns}


__getattr__ = getattr_of("ray.data.block")
