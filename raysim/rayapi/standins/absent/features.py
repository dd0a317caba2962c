"""``datasets.features``: types of columns.

Real counterpart: ``datasets/features`` (5.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from raysim.rayapi.standins.published import Table


class Features(dict[str, Any]):
    """Types by column."""


class Value:
    """A plain value."""

    def __init__(self, dtype: str = "string", **_: Any) -> None:
        self.dtype = dtype

    def __repr__(self) -> str:
        return f"Value({self.dtype!r})"


class ClassLabel:
    """A class by number."""

    def __init__(self, num_classes: int | None = None, names: Any = None, **_: Any) -> None:
        self.names = list(names) if names else [str(i) for i in range(num_classes or 0)]
        self.num_classes = len(self.names)
        self.dtype = "int64"

    def int2str(self, value: int) -> str:
        """Its name."""
        return self.names[value]

    def str2int(self, value: str) -> int:
        """Its number."""
        return self.names.index(value)


class Sequence:
    """A list."""

    def __init__(self, feature: Any = None, **_: Any) -> None:
        self.feature = feature


class Image:
    """A picture."""

    def __init__(self, **_: Any) -> None:
        self.dtype = "PIL.Image.Image"


class Audio:
    """A sound."""

    def __init__(self, sampling_rate: int | None = None, **_: Any) -> None:
        self.sampling_rate = sampling_rate

    def at_rate(self, sound: Mapping[str, Any]) -> dict[str, Any]:
        """As long, of other samples."""
        assert self.sampling_rate is not None, "asked where it says one"
        many = round(len(sound["array"]) * self.sampling_rate / sound["sampling_rate"])
        silence = np.zeros(many, np.float32)
        return {**sound, "array": silence, "sampling_rate": self.sampling_rate}


class Array2D(Value):
    """A matrix."""

    def __init__(self, shape: Any = None, dtype: str = "float32") -> None:
        super().__init__(dtype)
        self.shape = shape


class Array3D(Array2D):
    """Of three dimensions."""


def features_of(
    bank: Mapping[str, list[Any]], known: Mapping[str, Any], table: Table | None = None
) -> Features:
    """Of columns: as known, as published, else as the first value is."""
    columns = {c.name: c for c in table.columns} if table is not None else {}
    made: dict[str, Any] = {}
    for name, values in bank.items():
        column = columns.get(name)
        if column is not None and column.kind == "class":
            made[name] = ClassLabel(int(column.sizes[0]))
        elif column is not None and column.kind == "tags":
            made[name] = Sequence(ClassLabel(int(column.sizes[0])))
        elif column is not None and column.kind == "audio":
            made[name] = Audio(int(column.sizes[1]))
        elif column is not None and column.kind in ("image", "grey"):
            made[name] = Image()
        else:
            made[name] = known.get(name) or _guessed(values)
    return Features(made)


def _guessed(values: list[Any]) -> Any:
    first = values[0] if values else ""
    if isinstance(first, list):
        return Sequence(_guessed(first))
    if isinstance(first, bool):
        return Value("bool")
    if isinstance(first, int):
        return Value("int64")
    return Value("float64" if isinstance(first, float) else "string")
