"""The module ``ray.data.datatype``: names of types, for functions in expressions and for casts.

Real counterpart: ``ray/data/datatype.py`` (2.60).

Not modelled: tensors' types, and what is asked of a type beside its Arrow type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from raysim.rayapi.data.columns import arrow
from raysim.rayapi.unsupported import getattr_of

_PLAIN = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
    "float64", "string", "bool", "binary", "date32", "date64", "large_string", "large_binary",
)  # fmt: skip
_ARROW = {"bool": "bool_"}
"""Where pyarrow calls it otherwise."""


class _Factories(type):
    """``DataType.int64()`` and its like."""

    def __getattr__(cls, name: str) -> Callable[[], DataType]:
        if name not in _PLAIN:
            raise AttributeError(f"type object 'DataType' has no attribute {name!r}")
        return partial(cls, name)


@dataclass(frozen=True)
class DataType(metaclass=_Factories):
    """``ray.data.datatype.DataType``: an Arrow type, maybe by its name, or one of Python's."""

    _physical_dtype: Any

    @classmethod
    def from_arrow(cls, arrow_type: Any) -> DataType:
        """Of a ``pyarrow.DataType``."""
        return cls(arrow_type)

    @classmethod
    def list(cls, value_type: DataType) -> DataType:
        """Lists of one type."""
        return cls(arrow("a list's type").list_(value_type.to_arrow_dtype()))

    @classmethod
    def struct(cls, fields: Sequence[tuple[str, DataType]]) -> DataType:
        """Fields by name."""
        pa = arrow("a struct's type")
        return cls(pa.struct([(name, kind.to_arrow_dtype()) for name, kind in fields]))

    @classmethod
    def temporal(
        cls, temporal_type: str, unit: str | None = None, tz: str | None = None
    ) -> DataType:
        """``timestamp``, ``date32``, ``date64``, ``time32``, ``time64`` or ``duration``."""
        pa = arrow("a time's type")
        if temporal_type == "timestamp":
            return cls(pa.timestamp(unit or "us", tz=tz))
        make = getattr(pa, temporal_type)
        return cls(make() if temporal_type.startswith("date") else make(unit or "us"))

    def is_python_type(self) -> bool:
        """One of Python's, as ``DataType(int)``."""
        return isinstance(self._physical_dtype, type)

    def is_arrow_type(self) -> bool:
        """One of Arrow's."""
        return not self.is_python_type()

    def to_arrow_dtype(self) -> Any:
        """The ``pyarrow.DataType``.

        Raises
        ------
        ValueError
            It is one of Python's, which says no Arrow type without values.
        """
        kind = self._physical_dtype
        if self.is_python_type():
            raise ValueError("values are required to infer the Arrow type of a Python type")
        if isinstance(kind, str):
            return getattr(arrow("a type"), _ARROW.get(kind, kind))()
        return kind

    def __repr__(self) -> str:
        """As Ray prints it."""
        where = "python" if self.is_python_type() else "arrow"
        name = self._physical_dtype.__name__ if where == "python" else self.to_arrow_dtype()
        return f"DataType({where}:{name})"


__getattr__ = getattr_of("ray.data.datatype")
