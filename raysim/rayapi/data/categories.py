"""Columns of categories: values, and the dictionary that Arrow keeps of them.

Real counterpart: ``pyarrow.DictionaryArray``, what pandas' categories become in a block.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raysim.rayapi.clock import import_unpatched

Array = np.ndarray[Any, Any]


class Categories(np.ndarray[Any, Any]):
    """Objects, None where one is missing, and the dictionary that they are of."""

    dictionary: Any = None
    """Of Arrow: an array of all categories, used or not."""
    kind: Any = None
    """Of Arrow: the dictionary type, with that of the indices and whether there is an order."""

    def __array_finalize__(self, made_of: Any) -> None:
        self.dictionary = getattr(made_of, "dictionary", None)
        self.kind = getattr(made_of, "kind", None)


def of_arrow(column: Any) -> Array:
    """Of an Arrow's array of dictionary type, or of one in chunks."""
    if hasattr(column, "chunks"):
        column = column.combine_chunks()
        column = column.chunk(0) if hasattr(column, "chunks") else column
    values = np.empty(len(column), dtype=object)
    values[:] = column.to_pylist()
    found = values.view(Categories)
    found.dictionary, found.kind = column.dictionary, column.type
    return found


def to_arrow(column: Categories) -> Any:
    """With the whole dictionary."""
    pa = import_unpatched("pyarrow")
    numbers = {value: i for i, value in enumerate(column.dictionary.to_pylist())}
    index = pa.array([numbers.get(v) for v in column.tolist()], type=column.kind.index_type)
    return pa.DictionaryArray.from_arrays(index, column.dictionary, ordered=column.kind.ordered)


def joined(arrays: list[Array]) -> Array | None:
    """One after the other, if all are categories of one type; else None."""
    if not all(isinstance(array, Categories) for array in arrays):
        return None
    pa = import_unpatched("pyarrow")
    parts: list[Any] = [to_arrow(array) for array in arrays]  # type: ignore[arg-type]
    if len({str(part.type) for part in parts}) > 1:
        return None
    return of_arrow(pa.chunked_array(parts).unify_dictionaries())


def check_sorted(column: Array) -> None:
    """As Arrow sorts.

    Raises
    ------
    pyarrow.ArrowNotImplementedError
        It is one of categories.
    """
    if isinstance(column, Categories):
        raise import_unpatched("pyarrow").ArrowNotImplementedError(str(column.kind))


def check_together(columns: list[Array]) -> None:
    """As Arrow groups rows of several blocks.

    Raises
    ------
    pyarrow.ArrowNotImplementedError
        They have dictionaries that differ.
    """
    known = [c.dictionary.to_pylist() for c in columns if isinstance(c, Categories)]
    if any(one != known[0] for one in known):
        raise import_unpatched("pyarrow").ArrowNotImplementedError(
            "Unifying differing dictionaries"
        )
