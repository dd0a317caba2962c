"""Functions of texts, lists, times and structs in expressions: ``col("name").str.upper()``.

Real counterpart: ``ray/data/namespace_expressions`` (2.60). Most are one function of Arrow's.

Lists and maps are taken apart in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from raysim.rayapi.data.columns import arrow
from raysim.rayapi.data.expression_nodes import Expr
from raysim.rayapi.data.expressions import UDFExpr, arrow_call
from raysim.rayapi.unsupported import NotEmulatedError

_STR = {
    "len": "utf8_length", "byte_len": "binary_length", "is_ascii": "string_is_ascii",
    "starts_with": "starts_with", "ends_with": "ends_with", "contains": "match_substring",
    "match": "match_like", "find": "find_substring", "count": "count_substring",
    "find_regex": "find_substring_regex", "count_regex": "count_substring_regex",
    "match_regex": "match_substring_regex", "slice": "utf8_slice_codeunits",
    "replace": "replace_substring", "replace_regex": "replace_substring_regex",
    "replace_slice": "binary_replace_slice", "split": "split_pattern",
    "split_regex": "split_pattern_regex", "split_whitespace": "utf8_split_whitespace",
    "extract": "extract_regex", "repeat": "binary_repeat",
    **{name: f"utf8_{name}" for name in (
        "upper", "lower", "capitalize", "title", "swapcase", "is_alpha", "is_alnum", "is_digit",
        "is_decimal", "is_numeric", "is_space", "is_lower", "is_upper", "is_title",
        "is_printable", "reverse",
    )},
}  # fmt: skip
_PADS = {"center": "utf8_center", "lpad": "utf8_lpad", "rpad": "utf8_rpad"}
_STRIPS = {"strip": "utf8_trim", "lstrip": "utf8_ltrim", "rstrip": "utf8_rtrim"}
_SIDES = {"right": "utf8_rpad", "left": "utf8_lpad", "both": "utf8_center"}
_TIMES = ("year", "month", "day", "hour", "minute", "second")


class _Namespace:
    """What all of them are: Arrow's functions by Ray's names, of one expression."""

    _names: ClassVar[Mapping[str, str]] = {}

    def __init__(self, expr: Expr) -> None:
        self._expr = expr

    def _call(self, function: str, *args: Any, **kwargs: Any) -> UDFExpr:
        return arrow_call(function, self._expr, *args, **kwargs)

    def __getattr__(self, name: str) -> Callable[..., UDFExpr]:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._names:
            raise NotEmulatedError(f"ray.data.expressions {type(self).__name__} {name}", "a udf")
        return lambda *args, **kwargs: self._call(self._names[name], *args, **kwargs)


class Texts(_Namespace):
    """``.str``."""

    _names: ClassVar[Mapping[str, str]] = _STR

    def __getattr__(self, name: str) -> Callable[..., UDFExpr]:
        """Padding and stripping have arguments of their own."""
        if name in _PADS:
            return lambda width, padding=" ": self._call(_PADS[name], width, padding)
        if name in _STRIPS:
            return lambda characters=None: self._stripped(_STRIPS[name], characters)
        return super().__getattr__(name)

    def pad(self, width: int, fillchar: str = " ", side: str = "right") -> UDFExpr:
        """To a width, on either side."""
        if side not in _SIDES:
            raise ValueError("side must be 'left', 'right', or 'both'")
        return self._call(_SIDES[side], width=width, padding=fillchar)

    def _stripped(self, function: str, characters: str | None) -> UDFExpr:
        if characters is None:
            return self._call(f"{function}_whitespace")
        return self._call(function, characters=characters)


class Lists(_Namespace):
    """``.list``."""

    _names: ClassVar[Mapping[str, str]] = {"len": "list_value_length", "get": "list_element"}

    def __getitem__(self, key: int | slice) -> UDFExpr:
        """An element, or some."""
        if isinstance(key, slice):
            return self.slice(key.start, key.stop, key.step)
        if isinstance(key, int):
            return self._call("list_element", key)
        raise TypeError(f"List indices must be integers or slices, not {type(key).__name__}")

    def slice(
        self, start: int | None = None, stop: int | None = None, step: int | None = None
    ) -> UDFExpr:
        """Elements from one to another."""
        return self._call("list_slice", start=start or 0, stop=stop, step=step or 1)

    def sort(self, order: str = "ascending", null_placement: str = "at_end") -> UDFExpr:
        """Each list in order."""
        if order not in ("ascending", "descending"):
            raise ValueError(
                f"Invalid value for `order`: {order}. Choose either 'ascending' or 'descending'."
            )
        return UDFExpr(_EachList(_Sorted(order, null_placement)), [self._expr], {}, checks=False)

    def flatten(self) -> UDFExpr:
        """Lists of lists as one list of each row."""
        return UDFExpr(_EachList(_flat), [self._expr], {}, checks=False)


class _EachList:
    """A function of every list of a column, of which some may be missing."""

    __name__ = "udf"

    def __init__(self, function: Callable[[list[Any]], list[Any]]) -> None:
        self._function = function

    def __call__(self, column: Any) -> Any:
        made = [None if row is None else self._function(row) for row in column.to_pylist()]
        return arrow("lists").array(made)


class _Sorted:
    def __init__(self, order: str, null_placement: str) -> None:
        self._order, self._nulls = order, null_placement

    def __call__(self, row: list[Any]) -> list[Any]:
        there = sorted((v for v in row if v is not None), reverse=self._order == "descending")
        missing: list[Any] = [None] * (len(row) - len(there))
        return missing + there if self._nulls == "at_start" else there + missing


def _flat(row: list[Any]) -> list[Any]:
    return [value for part in row if part is not None for value in part]


class Arrays(_Namespace):
    """``.arr``: blocks hold lists of any length."""

    def to_list(self) -> UDFExpr:
        """As a list."""
        return UDFExpr(_EachList(list), [self._expr], {}, checks=False)


class Maps(_Namespace):
    """``.map``."""

    def keys(self) -> UDFExpr:
        """Of each row."""
        return UDFExpr(_EachMap("keys"), [self._expr], {}, checks=False)

    def values(self) -> UDFExpr:
        """Of each row."""
        return UDFExpr(_EachMap("values"), [self._expr], {}, checks=False)


class _EachMap:
    __name__ = "udf"

    def __init__(self, part: str) -> None:
        self._part = part

    def __call__(self, column: Any) -> Any:
        rows = [None if row is None else dict(row) for row in column.to_pylist()]
        made = [None if row is None else list(getattr(row, self._part)()) for row in rows]
        return arrow("maps").array(made)


class Times(_Namespace):
    """``.dt``."""

    _names: ClassVar[Mapping[str, str]] = {name: name for name in _TIMES}

    def strftime(self, fmt: str) -> UDFExpr:
        """As text."""
        return self._call("strftime", format=fmt)

    def ceil(self, unit: str) -> UDFExpr:
        """To the next whole unit."""
        return self._call("ceil_temporal", multiple=1, unit=unit)

    def floor(self, unit: str) -> UDFExpr:
        """To the whole unit before."""
        return self._call("floor_temporal", multiple=1, unit=unit)

    def round(self, unit: str) -> UDFExpr:
        """To the nearest whole unit."""
        return self._call("round_temporal", multiple=1, unit=unit)


class Structs(_Namespace):
    """``.struct``."""

    _names: ClassVar[Mapping[str, str]] = {
        "field": "struct_field",
        "field_by_index": "struct_field",
    }

    def __getitem__(self, key: str | int) -> UDFExpr:
        """A field."""
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise TypeError(f"Struct indices must be strings or integers, not {type(key).__name__}")
        return self._call("struct_field", key)


NAMESPACES: Mapping[str, Callable[[Expr], _Namespace]] = {
    "str": Texts, "list": Lists, "dt": Times, "struct": Structs, "arr": Arrays, "map": Maps,
}  # fmt: skip
