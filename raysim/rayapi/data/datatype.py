"""The module ``ray.data.datatype``: names of types, for functions in expressions and for casts.

Real counterpart: ``ray/data/datatype.py`` (2.60).

Not modelled: tensors' types, those of cuDF.
"""

from __future__ import annotations

import builtins
import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np

from raysim.rayapi.data.columns import arrow
from raysim.rayapi.unsupported import NotEmulatedError, getattr_of

_PLAIN = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
    "float64", "string", "bool", "binary", "date32", "date64", "large_string", "large_binary",
)  # fmt: skip
_ARROW = {"bool": "bool_"}
"""Where pyarrow calls it otherwise."""
_KINDS: dict[str, tuple[tuple[str, ...], str, tuple[type, ...]]] = {
    "list": (("list", "large_list", "fixed_size_list"), "", ()),
    "struct": (("struct",), "", ()), "map": (("map",), "", ()), "nested": (("nested",), "", ()),
    "null": (("null",), "", ()), "boolean": (("boolean",), "b", (bool,)),
    "integer": (("integer",), "iu", (int,)), "floating": (("floating",), "f", (float,)),
    "numerical": (("integer", "floating", "decimal"), "iufc", (int, float, complex)),
    "string": (("string", "large_string"), "US", (str,)),
    "binary": (("binary", "large_binary", "fixed_size_binary"), "V", (bytes, bytearray)),
    "temporal": (
        ("temporal",), "mM",
        (dt.datetime, dt.date, dt.time, dt.timedelta),
    ),
}  # fmt: skip
"""What ``is_KIND_type`` looks for: Arrow's predicates, numpy's kinds, Python's types."""


class TypeCategory(StrEnum):
    """Of which ``DataType.is_of`` tells."""

    LIST = "list"
    LARGE_LIST = "large_list"
    STRUCT = "struct"
    MAP = "map"
    TENSOR = "tensor"
    TEMPORAL = "temporal"


class _Factories(type):
    """``DataType.int64()`` and its like."""

    def __getattr__(cls, name: str) -> Callable[[], DataType]:
        if name in ("tensor", "variable_shaped_tensor", "from_cudf"):
            raise NotEmulatedError(f"ray.data.datatype.DataType.{name}", "list and the like")
        if name not in _PLAIN:
            raise AttributeError(f"type object 'DataType' has no attribute {name!r}")
        return partial(cls, name)


@dataclass(frozen=True, eq=False)
class DataType(metaclass=_Factories):
    """``ray.data.datatype.DataType``: an Arrow type, maybe by its name; numpy's; or Python's."""

    _physical_dtype: Any

    # ---- made of other types ---------------------------------------------------------------------

    @classmethod
    def from_arrow(cls, arrow_type: Any) -> DataType:
        """Of a ``pyarrow.DataType``."""
        return cls(arrow_type)

    @classmethod
    def from_numpy(cls, numpy_dtype: Any) -> DataType:
        """Of a ``numpy.dtype``, or its name."""
        return cls(np.dtype(numpy_dtype))

    @classmethod
    def infer_dtype(cls, value: Any) -> DataType:
        """Of a value."""
        if isinstance(value, np.ndarray | np.generic):
            return cls(value.dtype)
        pa = arrow("a value's type")
        try:
            return cls(pa.infer_type([value]))
        except pa.ArrowInvalid:
            return cls(type(value))

    @classmethod
    def list(cls, value_type: DataType) -> DataType:
        """Lists of one type."""
        return cls(arrow("a list's type").list_(value_type.to_arrow_dtype()))

    @classmethod
    def large_list(cls, value_type: DataType) -> DataType:
        """Lists of one type, of 64-bit lengths."""
        return cls(arrow("a list's type").large_list(value_type.to_arrow_dtype()))

    @classmethod
    def fixed_size_list(cls, value_type: DataType, list_size: int) -> DataType:
        """Lists of one type and length."""
        return cls(arrow("a list's type").list_(value_type.to_arrow_dtype(), list_size))

    @classmethod
    def struct(cls, fields: Sequence[tuple[str, DataType]]) -> DataType:
        """Fields by name."""
        pa = arrow("a struct's type")
        return cls(pa.struct([(name, kind.to_arrow_dtype()) for name, kind in fields]))

    @classmethod
    def map(cls, key_type: DataType, value_type: DataType) -> DataType:
        """Values by key."""
        pa = arrow("a map's type")
        return cls(pa.map_(key_type.to_arrow_dtype(), value_type.to_arrow_dtype()))

    @classmethod
    def temporal(
        cls, temporal_type: str, unit: str | None = None, tz: str | None = None
    ) -> DataType:
        """``timestamp``, ``date32``, ``date64``, ``time32``, ``time64`` or ``duration``."""
        pa = arrow("a time's type")
        if temporal_type == "timestamp":
            return cls(pa.timestamp(unit or "us", tz=tz))
        make = getattr(pa, temporal_type)
        if temporal_type.startswith("date"):
            return cls(make())
        return cls(make(unit or ("s" if temporal_type == "time32" else "us")))

    # ---- what it is ------------------------------------------------------------------------------

    def is_python_type(self) -> bool:
        """One of Python's, as ``DataType(int)``."""
        return isinstance(self._physical_dtype, type)

    def is_numpy_type(self) -> bool:
        """One of numpy's."""
        return isinstance(self._physical_dtype, np.dtype)

    def is_arrow_type(self) -> bool:
        """One of Arrow's."""
        return not self.is_python_type() and not self.is_numpy_type()

    def is_of(self, category: TypeCategory | str) -> bool:
        """Whether it is of this kind."""
        if category == TypeCategory.LARGE_LIST:
            return self.is_arrow_type() and self._is(("large_list",))
        return category in _KINDS and category in list(TypeCategory) and self._is_kind(category)

    def __getattr__(self, name: str) -> Callable[[], bool]:
        """``is_integer_type`` and its like."""
        kind = name.removeprefix("is_").removesuffix("_type")
        if name != f"is_{kind}_type" or kind not in _KINDS:
            raise AttributeError(f"'DataType' object has no attribute {name!r}")
        return partial(self._is_kind, kind)

    def _is_kind(self, kind: str) -> bool:
        predicates, of_numpy, of_python = _KINDS[kind]
        if self.is_python_type():
            return self._physical_dtype in of_python
        if self.is_numpy_type():
            return self._physical_dtype.kind in of_numpy
        return self._is(predicates)

    def _is(self, predicates: tuple[str, ...]) -> bool:
        types, found = arrow("a type").types, self.to_arrow_dtype()
        if types.is_dictionary(found):
            found = found.value_type
        return any(getattr(types, f"is_{name}")(found) for name in predicates)

    # ---- as others have it -----------------------------------------------------------------------

    def to_arrow_dtype(self, values: builtins.list[Any] | None = None) -> Any:
        """The ``pyarrow.DataType``; of one of Python's, as values have it.

        Raises
        ------
        ValueError
            It is one of Python's, and there are no values.
        """
        kind = self._physical_dtype
        if self.is_python_type():
            if not values:
                raise ValueError("values are required to infer the Arrow type of a Python type")
            return arrow("a type").infer_type(values)
        if self.is_numpy_type():
            return arrow("a type").from_numpy_dtype(kind)
        if isinstance(kind, str):
            return getattr(arrow("a type"), _ARROW.get(kind, kind))()
        return kind

    def to_numpy_dtype(self) -> Any:
        """The ``numpy.dtype``; objects where numpy has none."""
        if self.is_numpy_type():
            return self._physical_dtype
        if self.is_arrow_type():
            try:
                return np.dtype(self.to_arrow_dtype().to_pandas_dtype())
            except (TypeError, NotImplementedError):
                return np.dtype(object)
        return np.dtype(object)

    def to_python_type(self) -> type:
        """Python's.

        Raises
        ------
        ValueError
            It is another's.
        """
        if not isinstance(self._physical_dtype, type):
            raise ValueError(
                f"DataType {self} is not backed by a Python type. "
                "Use to_arrow_dtype() or to_numpy_dtype() for conversion."
            )
        return self._physical_dtype

    def __repr__(self) -> str:
        """As Ray prints it."""
        if self.is_python_type():
            return f"DataType(python:{self._physical_dtype.__name__})"
        if self.is_numpy_type():
            return f"DataType(numpy:{self._physical_dtype})"
        return f"DataType(arrow:{self.to_arrow_dtype()})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DataType) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))


__getattr__ = getattr_of("ray.data.datatype")
