"""``ray.data.Schema``: names of columns and their types, as Arrow has them.

Real counterpart: ``Schema`` of ``ray/data/dataset.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raysim.rayapi.data.categories import Categories
from raysim.rayapi.data.columns import Array, Columns, column_of, is_map, missing, sliced, to_arrow

_ARROW = {"float64": "double", "float32": "float", "float16": "halffloat"}


class Schema:
    """Of one dataset."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    @property
    def names(self) -> list[str]:
        """Of the columns."""
        return list(self._columns)

    @property
    def types(self) -> list[Any]:
        """Their types: Arrow's where pyarrow is there, else its names for them."""
        dtypes = getattr(
            self._columns, "dtypes", {}
        )  # of a frame, whose categories Ray cannot name
        found = {name: _type_of(column) for name, column in self._columns.items()}
        for name, kind in found.items():
            said = str(dtypes.get(name))
            if said == "category":
                found[name] = "None"
            elif said == "object" and kind == "date32[day]":
                found[name] = "<class 'object'>"
        return list(found.values())

    @property
    def base_schema(self) -> Any:
        """Of pyarrow, as ``types`` are named."""
        return to_arrow(sliced(self._columns, 0, 1)).schema.remove_metadata()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and (self.names, self.types) == (other.names, other.types)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """As Ray draws it."""
        width = max([len(name) for name in self.names] + [len("Column")]) + 2
        lines = [f"{'Column':{width}}Type", f"{'------':{width}}----"]
        rows = zip(self.names, self.types, strict=True)
        return "\n".join([*lines, *(f"{name:{width}}{kind}" for name, kind in rows)]).rstrip()


def _type_of(column: Array) -> str:
    """The name Arrow gives it."""
    if column.ndim > 1:
        return f"ArrowTensorTypeV2(shape={column.shape[1:]}, dtype={_named(column.dtype)})"
    if isinstance(column, Categories):
        return str(column.kind)
    if column.dtype != object:
        return _named(column.dtype)
    known = [v for v in column[~missing(column)].tolist() if v is not None]
    if not known:
        return "null"
    if isinstance(known[0], np.ndarray):
        return (
            f"ArrowVariableShapedTensorType(ndim={known[0].ndim}, dtype={_named(known[0].dtype)})"
        )
    if is_map(known[0]):
        key, item = (_type_of(column_of([pair[i] for pair in known[0]])) for i in (0, 1))
        return f"map<{key}, {item}>"
    if isinstance(known[0], list):
        filled = [each for each in known if each]  # of empty ones Arrow knows no more
        return f"list<item: {_type_of(column_of(filled[0])) if filled else 'null'}>"
    if isinstance(known[0], dict):
        fields = (f"{name}: {_type_of(column_of([v]))}" for name, v in known[0].items())
        return f"struct<{', '.join(fields)}>"
    if isinstance(known[0], bytes):
        return "binary"
    if (said := _by_name(known)) is not None:
        return said
    found = column_of(known)
    return "object" if found.dtype == object else _named(found.dtype)


def _by_name(known: list[Any]) -> str | None:
    """Of values that numpy has no type for; the program's classes of them are its own."""
    kinds = {type(value).__name__ for value in known}
    if kinds == {"date"}:
        return "date32[day]"
    if kinds == {"time"}:
        return "time64[us]"
    if kinds == {"timedelta"}:
        return "duration[us]"
    if kinds == {"Decimal"}:
        parts = [value.as_tuple() for value in known]
        scale = max(max(-part.exponent, 0) for part in parts)
        whole = max(max(len(part.digits) + part.exponent, 0) for part in parts)
        return f"decimal128({whole + scale}, {scale})"
    return None


def _named(dtype: np.dtype[Any]) -> str:
    if dtype.kind in "US":
        return "string" if dtype.kind == "U" else "binary"
    if dtype.kind in "mM":
        unit = np.datetime_data(dtype)[0]
        if unit == "D":
            return "date32[day]"
        return f"{'timestamp' if dtype.kind == 'M' else 'duration'}[{unit}]"
    return _ARROW.get(dtype.name, dtype.name)
