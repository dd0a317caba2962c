"""The module ``ray.data.expressions``: columns, values, functions of arrays.

Real counterpart: ``ray/data/expressions.py`` (2.60).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import numpy as np

from raysim.rayapi.data.datatype import DataType
from raysim.rayapi.data.expression_nodes import (
    AliasExpr,
    BinaryExpr,
    ColumnExpr,
    Expr,
    LiteralExpr,
    StarExpr,
    UnaryExpr,
    as_expr,
    compute,
    is_column,
)
from raysim.rayapi.data.row_expressions import DownloadExpr, UUIDExpr, download, uuid
from raysim.rayapi.unsupported import getattr_of

__all__ = [
    "AliasExpr",
    "BinaryExpr",
    "ColumnExpr",
    "DownloadExpr",
    "Expr",
    "LiteralExpr",
    "Operation",
    "StarExpr",
    "UDFExpr",
    "UUIDExpr",
    "UnaryExpr",
    "col",
    "download",
    "lit",
    "pyarrow_udf",
    "star",
    "udf",
    "uuid",
]

Operation = StrEnum(
    "Operation",
    "ADD SUB MUL DIV MOD FLOORDIV GT LT GE LE EQ NE AND OR NOT IS_NULL IS_NOT_NULL IN NOT_IN",
)
"""``ray.data.expressions.Operation``: their values are what nodes are made with."""


class UDFExpr(Expr):
    """A function of arrays: the program's own, or Arrow's."""

    def __init__(self, fn: Any, args: Any, kwargs: Any, *, checks: bool = True) -> None:
        self._fn, self._checks = fn, checks
        self._args = [as_expr(a) for a in args]
        self._kwargs = {name: as_expr(a) for name, a in kwargs.items()}

    @property
    def children(self) -> tuple[Expr, ...]:
        """Its arguments."""
        return (*self._args, *self._kwargs.values())

    @property
    def of_class(self) -> bool:
        """Whether an instance is made in a worker, which then is an actor."""
        return isinstance(self._fn, _Instance)

    def value(self, table: Any) -> Any:
        """Called on a block's arrays.

        Raises
        ------
        TypeError
            It returns something else than an array.
        """
        args = [a.value(table) for a in self._args]
        found = self._fn(*args, **{name: a.value(table) for name, a in self._kwargs.items()})
        if self._checks and not _is_array(found):
            raise TypeError(
                f"UDF '{self._fn.__name__}' returned invalid type {type(found).__name__}. "
                "Expected type (pandas.Series, numpy.ndarray, pyarrow.Array, pyarrow.ChunkedArray)"
            )
        return found

    @property
    def label(self) -> str:
        """The function; Arrow's are called one like another."""
        return f"UDF({self._fn.__name__ if self._checks else 'udf'})"

    @property
    def branches(self) -> list[tuple[str, Expr]]:
        """Its arguments."""
        said = [(f"arg[{number}]", arg) for number, arg in enumerate(self._args)]
        return said + [(f"kwarg[{name!r}]", arg) for name, arg in self._kwargs.items()]

    def inline(self) -> str:
        """As a call."""
        said = [a.inline() for a in self._args]
        said += [f"{name}={a.inline()}" for name, a in self._kwargs.items()]
        return f"{getattr(self._fn, '__name__', type(self._fn).__name__)}({', '.join(said)})"


class _Instance:
    """Of a callable class, made where it is first called."""

    def __init__(self, cls: type, args: Any, kwargs: Any) -> None:
        self.__name__ = cls.__name__
        self._made_of = (cls, args, kwargs)
        self._made: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._made is None:
            cls, of, named = self._made_of
            self._made = cls(*of, **named)
        return self._made(*args, **kwargs)


class _Compute:
    """One of Arrow's functions by its name: modules are found again in the worker."""

    __name__ = "arrow_wrapper"

    def __init__(self, function: str, args: Any, kwargs: Any) -> None:
        self._function, self._args, self._kwargs = function, args, kwargs

    def __call__(self, array: Any) -> Any:
        return getattr(compute(), self._function)(array, *self._args, **self._kwargs)


def arrow_call(function: str, expr: Expr, *args: Any, **kwargs: Any) -> UDFExpr:
    """One of Arrow's functions of an expression and plain values."""
    return UDFExpr(_Compute(function, args, kwargs), [expr], {}, checks=False)


def col(name: str) -> ColumnExpr:
    """``ray.data.expressions.col``."""
    return ColumnExpr(name)


def lit(value: Any) -> LiteralExpr:
    """``ray.data.expressions.lit``."""
    return LiteralExpr(value)


def star() -> StarExpr:
    """``ray.data.expressions.star``."""
    return StarExpr()


def udf(return_dtype: DataType) -> Callable[[Any], Any]:
    """``ray.data.expressions.udf``: of a function of arrays, or of a class of such."""
    del return_dtype  # what comes back says its type

    def decorated(function: Any) -> Any:
        if not isinstance(function, type):
            return functools.wraps(function)(lambda *a, **kw: UDFExpr(function, a, kw))

        def made(*args: Any, **kwargs: Any) -> Callable[..., UDFExpr]:
            instance = _Instance(function, args, kwargs)
            return lambda *a, **kw: UDFExpr(instance, a, kw)

        return functools.wraps(function, updated=())(made)

    return decorated


pyarrow_udf = udf


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or is_column(value) or hasattr(value, "iloc")


__getattr__ = getattr_of("ray.data.expressions")
