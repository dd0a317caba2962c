"""Operations of a ``Dataset`` on its columns, and what is known of columns without running it.

Real counterpart: these methods of ``ray/data/dataset.py``, ``infer_schema`` of its operators.
"""

from __future__ import annotations

from typing import Any

from raysim.rayapi.calls import program_call
from raysim.rayapi.data import predicates
from raysim.rayapi.data.consuming import Consumable, with_first
from raysim.rayapi.data.projections import Projection, adding, dropping, renaming, selecting


class Columnar(Consumable):
    """What a ``Dataset`` does with columns."""

    _only: tuple[str, ...] | None = None
    """The columns there are, where a projection has said so."""

    def map_batches(self, fn: Any, **options: Any) -> Any:
        """As ``Dataset``."""
        raise NotImplementedError

    def _projected(self, made: Projection, options: dict[str, Any]) -> Any:
        """Of a function of the columns alone: those of the result are known."""
        found = self.map_batches(made, batch_format=None, **options)
        return with_first(found, self._first, made)

    def add_column(
        self, col: str, fn: Any, *, batch_format: str | None = "pandas", **options: Any
    ) -> Any:
        """``Dataset.add_column``: ``fn`` gets a batch as ``batch_format`` says."""
        known = ["pandas", "pyarrow", "numpy", "cudf"]
        if batch_format not in known:
            raise ValueError(f"batch_format argument must be on of {known}, got: {batch_format}")
        if not callable(fn):
            raise ValueError(f"`fn` must be callable, got {fn}")
        return self.map_batches(adding(col, fn, batch_format), batch_format=batch_format, **options)

    def select_columns(self, cols: Any, **options: Any) -> Any:
        """``Dataset.select_columns``.

        Raises
        ------
        KeyError
            A projection before has left none of this name; else the task that looks for it fails.
        """
        made = selecting(cols)
        names = [cols] if isinstance(cols, str) else list(cols)
        if self._only is not None and (gone := sorted(set(names) - set(self._only))):
            raise KeyError(f"Column(s) {gone} not found. Available columns: {sorted(self._only)}")
        found = self._projected(made, options)
        found._only = tuple(names)  # noqa: SLF001  (its own class)
        if not names:
            found._rows_of = self  # noqa: SLF001  (as above)
        return found

    with_column = program_call(predicates.with_column)
    with_columns = program_call(predicates.with_columns)

    def drop_columns(self, cols: list[str], **options: Any) -> Any:
        """``Dataset.drop_columns``.

        Raises
        ------
        KeyError
            It is known that there is none of this name.
        """
        if not cols:
            return self
        made, known = dropping(cols), self._first
        if known and (gone := [name for name in cols if name not in known]):
            raise KeyError(
                f"drop_columns: column(s) not found in dataset schema: {gone}. Available columns: "
                f"{list(known)}"
            )
        return self._projected(made, options)

    def rename_columns(self, names: Any, **options: Any) -> Any:
        """``Dataset.rename_columns``."""
        return self._projected(renaming(names, lambda: self.columns() or []), options)
