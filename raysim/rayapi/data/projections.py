"""Operations on columns, as functions of batches.

Real counterpart: ``add_column`` and ``random_sample`` of ``ray/data/dataset.py``, and the
projections that Ray plans for ``select_columns``, ``rename_columns`` and ``drop_columns``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from raysim.kernel.rng import Streams
from raysim.rayapi.data.columns import Columns, like, rows_of, taken
from raysim.rayapi.data.keys import mark_of

Projection = Callable[[Any], Any]


def adding(column: str, function: Callable[[Any], Any], batch_format: str) -> Projection:
    """One column more, which may replace another."""

    def add_column(batch: Any) -> Any:
        made = function(batch)
        if batch_format == "pyarrow":
            at = batch.schema.get_field_index(column)
            if at == -1:
                return batch.append_column(column, made)
            return batch.set_column(at, column, made)
        if batch_format == "pandas":
            if hasattr(made, "index") and hasattr(made, "iloc"):
                made.index = batch.index
            batch.loc[:, column] = made
            return batch
        if not isinstance(made, np.ndarray):
            raise AssertionError(
                "For numpy batch format, the function must return a numpy.ndarray, got: "
                f"{type(made)}"
            )
        return {**batch, column: made}

    return add_column


def selecting(columns: Any) -> Projection:
    """Those columns, in that order."""
    if not isinstance(columns, str | list):
        raise TypeError("select_columns requires 'cols' to be a string or a list of strings.")
    names = [columns] if isinstance(columns, str) else columns
    if not all(isinstance(name, str) for name in names):
        raise ValueError("select_columns requires all elements of 'cols' to be strings.")
    if len(names) != len(set(names)):
        raise ValueError(
            f"select_columns expected unique column names, got duplicate column names: {names}"
        )

    def select_columns(batch: Columns) -> Columns:
        return like(batch, {name: batch[name] for name in names})

    return select_columns


def dropping(columns: list[str]) -> Projection:
    """All others."""
    if len(columns) != len(set(columns)):
        raise ValueError(f"drop_columns expects unique column names, got: {columns}")

    def drop_columns(batch: Columns) -> Columns:
        _expect(columns, batch)
        return {name: array for name, array in batch.items() if name not in columns}

    return drop_columns


def renaming(names: Any, known: Callable[[], list[str]]) -> Projection:
    """Others' names; a list names all of them."""
    if not isinstance(names, dict | list):
        raise TypeError(
            "rename_columns expected names to be either List[str] or Dict[str, str], got "
            f"{type(names)}."
        )
    if not names:
        some = "with no entries." if isinstance(names, dict) else "with at least one column name."
        verb = "received" if isinstance(names, dict) else "requires"
        raise ValueError(f"rename_columns {verb} 'names' {some}")
    new = list(names.values()) if isinstance(names, dict) else names
    if len(new) != len(set(new)):
        raise ValueError(f"rename_columns received duplicate values in the 'names': {names}")
    if not all(isinstance(name, str) for name in (*names, *new)):
        what = "both keys and values" if isinstance(names, dict) else "all elements"
        raise ValueError(f"rename_columns requires {what} in the 'names' to be strings.")
    if isinstance(names, list):
        current = known()
        if len(current) != len(names):
            raise ValueError(
                f"rename_columns requires 'names': {names} length match current schema names: "
                f"{current}."
            )
        names = dict(zip(current, names, strict=True))

    def rename_columns(batch: Columns) -> Columns:
        _expect(names, batch)
        return {names.get(name, name): array for name, array in batch.items()}

    return rename_columns


def _expect(names: Iterable[str], batch: Columns) -> None:
    for name in names:
        if name not in batch:
            raise KeyError(f"column {name!r} not found: there are {list(batch)}")


def sampling(fraction: float, seed: int) -> Projection:
    """Each row with this chance."""

    def random_sample(batch: Columns) -> Columns:
        first = next(iter(batch.values()), np.zeros(0))
        draws = Streams(seed)(f"random_sample/{mark_of(first[:1].tolist())}")
        return taken(batch, draws.random(rows_of(batch)) < fraction)

    return random_sample
