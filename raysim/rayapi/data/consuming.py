"""What a program takes out of a dataset: rows, batches, how many there are, and of what kind.

Real counterpart: the consumption APIs of ``ray/data/dataset.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from raysim.rayapi.calls import program_call
from raysim.rayapi.data import executions
from raysim.rayapi.data.columns import Columns
from raysim.rayapi.data.iterator import DataIterator
from raysim.rayapi.data.schema import Schema

if TYPE_CHECKING:
    from raysim.raylibs.data import specs


class Consumable:
    """Methods of a ``Dataset`` that run it for what comes out."""

    _spec: specs.Dataset
    _files: tuple[str, ...]
    _first: Columns | None
    """A row of it, where one is known."""
    _rows_of: Consumable | None = None
    """Of a dataset without columns: one that has as many rows."""

    def limit(self, limit: int) -> Any:
        """As ``Dataset``."""
        raise NotImplementedError

    @property
    def _plain(self) -> bool:
        """Of something that says its columns without being run."""
        return not self._spec.operations and not self._files

    def iterator(self) -> DataIterator:
        """``Dataset.iterator``."""
        return DataIterator(executions.Whole(self))

    def iter_batches(self, **options: Any) -> Iterable[Any]:
        """``Dataset.iter_batches``."""
        return self.iterator().iter_batches(**options)

    def iter_torch_batches(self, **options: Any) -> Iterable[Any]:
        """``Dataset.iter_torch_batches``."""
        return self.iterator().iter_torch_batches(**options)

    def iter_rows(self) -> Iterable[dict[str, Any]]:
        """``Dataset.iter_rows``."""
        return self.iterator().iter_rows()

    @program_call
    def count(self) -> int:
        """``Dataset.count``; known of what is only read."""
        if not self._spec.operations:
            return self._spec.source.rows
        if self._rows_of is not None:
            return int(self._rows_of.count())
        return int(executions.drained(self, None)[0].rows)

    def take(self, limit: int = 20) -> list[dict[str, Any]]:
        """``Dataset.take``."""
        return list(self.limit(limit).iter_rows())

    def take_all(self, limit: int | None = None) -> list[dict[str, Any]]:
        """``Dataset.take_all``."""
        rows = list(self.iter_rows())
        if limit is not None and len(rows) > limit:
            raise ValueError(f"The dataset has more than the given limit of {limit} records.")
        return rows

    def __len__(self) -> int:
        raise AttributeError(
            "Use `ds.count()` to compute the length of a distributed Dataset. This may be an "
            "expensive operation."
        )

    def __bool__(self) -> bool:
        return True  # else ``len`` is asked

    def __iter__(self) -> Any:
        raise TypeError(
            "`Dataset` objects aren't iterable. To iterate records, call `ds.iter_rows()` or "
            "`ds.iter_batches()`. For more information, read "
            "https://docs.ray.io/en/latest/data/iterating-over-data.html."
        )

    def take_batch(self, batch_size: int = 20, *, batch_format: str | None = "default") -> Any:
        """``Dataset.take_batch``."""
        few = self.limit(batch_size)
        for batch in few.iter_batches(
            batch_size=batch_size, prefetch_batches=0, batch_format=batch_format
        ):
            return batch
        raise ValueError("The dataset is empty.")

    def show(self, limit: int = 20) -> None:
        """``Dataset.show``."""
        for row in self.take(limit):
            sys.stdout.write(f"{row}\n")

    def to_pandas(self, limit: int | None = None) -> Any:
        """``Dataset.to_pandas``."""
        if limit is not None and (count := self.count()) > limit:
            raise ValueError(
                f"the dataset has more than the given limit of {limit} rows: {count}. If you are "
                f"sure that a DataFrame with {count} rows will fit in local memory, set "
                "ds.to_pandas(limit=None) to disable limits."
            )
        return executions.frame(self)

    def schema(self, fetch_if_missing: bool = True) -> Schema | None:
        """``Dataset.schema``: of what is not known, the first row is made."""
        if self._first is None and (fetch_if_missing or self._plain):
            self._first = next(
                iter(self.limit(1).iter_batches(batch_size=1, batch_format=None)), {}
            )
        return Schema(self._first) if self._first else None

    def columns(self, fetch_if_missing: bool = True) -> list[str] | None:
        """``Dataset.columns``."""
        found = self.schema(fetch_if_missing)
        return None if found is None else found.names


def with_first(
    dataset: Any, first: Columns | None, made: Callable[[Any], Any] | None = None
) -> Any:
    """``dataset``, of which a row is known: ``first``, or what ``made`` makes of it."""
    if first:
        with suppress(Exception):  # then the tasks will fail, when it is run
            dataset._first = first if made is None else made(first)  # noqa: SLF001  (its room's)
    return dataset
