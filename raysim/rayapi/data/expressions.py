"""The module ``ray.data.expressions``: what a column is computed from, as a tree.

Real counterpart: ``ray/data/expressions.py`` and ``_internal/planner/plan_expression`` (2.60). A
tree is pickled with its task and computed there on the block's Arrow table, by Arrow's functions.

Not modelled: blocks of pandas, in which Ray divides whole numbers as Python does; expressions found
twice are computed twice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from raysim.rayapi.clock import import_unpatched
from raysim.rayapi.data.columns import arrow
from raysim.rayapi.data.datatype import DataType
from raysim.rayapi.unsupported import NotEmulatedError, getattr_of

LONGEST_LITERAL = 20
LONGEST_NAME = 60
"""Of what is printed of a literal, and of a whole predicate."""
_SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "mod": "%", "floordiv": "//", "gt": ">",
    "lt": "<", "ge": ">=", "le": "<=", "eq": "==", "ne": "!=", "and": "&", "or": "|", "in": "in",
    "not_in": "not in",
}  # fmt: skip
_ARROW = {
    "sub": "subtract", "mul": "multiply", "div": "divide", "gt": "greater", "lt": "less",
    "ge": "greater_equal", "le": "less_equal", "eq": "equal", "ne": "not_equal",
    "and": "and_kleene", "or": "or_kleene", "not": "invert", "is_null": "is_null",
    "is_not_null": "is_valid",
}  # fmt: skip
"""Operations that are one function of ``pyarrow.compute``."""
_OF_NUMBERS = (
    "ceil", "floor", "round", "trunc", "ln", "log10", "log2", "exp", "sin", "cos", "tan", "asin",
    "acos", "atan", "sign",
)  # fmt: skip


def compute() -> Any:
    """``pyarrow.compute``."""
    arrow("an expression")
    return import_unpatched("pyarrow.compute")


class Expr:
    """``ray.data.expressions.Expr``."""

    @property
    def name(self) -> str | None:
        """Of the column it makes; None until it has an alias."""
        return None

    @property
    def children(self) -> tuple[Expr, ...]:
        """What it is computed from."""
        return ()

    def value(self, table: Any) -> Any:
        """Computed on a block: an Arrow array, or a scalar."""
        raise NotImplementedError

    def alias(self, name: str) -> Expr:
        """The same under a name."""
        return AliasExpr(self, name)

    def is_null(self) -> Expr:
        """Where it is missing."""
        return UnaryExpr("is_null", self)

    def is_not_null(self) -> Expr:
        """Where it is there."""
        return UnaryExpr("is_not_null", self)

    def is_in(self, values: Any) -> Expr:
        """Where it is one of these."""
        return BinaryExpr("in", self, as_expr(values))

    def not_in(self, values: Any) -> Expr:
        """Where it is none of these."""
        return BinaryExpr("not_in", self, as_expr(values))

    def negate(self) -> Expr:
        """Its negative."""
        return arrow_call("negate_checked", self)

    def abs(self) -> Expr:
        """Without its sign."""
        return arrow_call("abs_checked", self)

    def power(self, exponent: Any) -> Expr:
        """To a power."""
        return arrow_call("power", self, exponent)

    def cast(self, target_type: DataType, *, safe: bool = True) -> Expr:
        """As another type."""
        if not isinstance(target_type, DataType):
            raise TypeError(
                "target_type must be a ray.data.datatype.DataType, got: "
                f"{type(target_type).__name__}. "
                "Use the DataType factories (e.g., DataType.int64(), DataType.string())."
            )
        return arrow_call("cast", self, target_type.to_arrow_dtype(), safe=safe)

    def __getattr__(self, name: str) -> Any:
        """Functions of numbers; ``str``, ``list``, ``dt`` and ``struct``; what is not emulated."""
        from raysim.rayapi.data.namespaces import NAMESPACES

        if name in _OF_NUMBERS:
            return functools.partial(arrow_call, name, self)
        if name in NAMESPACES:
            return NAMESPACES[name](self)
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotEmulatedError(f"ray.data.expressions.Expr.{name}", "map_batches")

    def __bool__(self) -> bool:
        """A tree is neither true nor false, but there."""
        return True

    def __invert__(self) -> Expr:
        """Where it is not so."""
        return UnaryExpr("not", self)

    __hash__ = object.__hash__


def _binary(operation: str, *, reflected: bool = False) -> Callable[[Expr, Any], Expr]:
    def made(self: Expr, other: Any) -> Expr:
        other = as_expr(other)
        left, right = (other, self) if reflected else (self, other)
        return BinaryExpr(operation, left, right)

    return made


for _name in ("add", "sub", "mul", "mod", "truediv", "floordiv"):
    _operation = "div" if _name == "truediv" else _name
    setattr(Expr, f"__{_name}__", _binary(_operation))
    setattr(Expr, f"__r{_name}__", _binary(_operation, reflected=True))
for _name in ("gt", "lt", "ge", "le", "eq", "ne", "and", "or"):
    setattr(Expr, f"__{_name}__", _binary(_name))


class ColumnExpr(Expr):
    """A column of the block."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def name(self) -> str:
        """Its own."""
        return self._name

    def value(self, table: Any) -> Any:
        """As it is."""
        return table[self._name]

    def __repr__(self) -> str:
        """As Ray says it within a line."""
        return f"col({self._name!r})"


class LiteralExpr(Expr):
    """A value."""

    def __init__(self, literal: Any) -> None:
        self._literal = literal

    def value(self, table: Any) -> Any:
        """Itself."""
        del table
        return self._literal

    def __repr__(self) -> str:
        """Its beginning."""
        said = repr(self._literal)
        return said if len(said) <= LONGEST_LITERAL else said[: LONGEST_LITERAL - 3] + "..."


class BinaryExpr(Expr):
    """An operation of two."""

    def __init__(self, operation: str, left: Expr, right: Expr) -> None:
        self._operation = operation
        self._left, self._right = left, right

    @property
    def children(self) -> tuple[Expr, ...]:
        """Both."""
        return self._left, self._right

    def value(self, table: Any) -> Any:
        """By Arrow's function."""
        left, right = self._left.value(table), self._right.value(table)
        pc, operation = compute(), self._operation
        if operation == "add":
            return _added(left, right)
        if operation in ("mod", "floordiv"):
            whole = pc.floor(pc.divide(left, right))
            if operation == "floordiv":
                return whole
            return pc.subtract(left, pc.multiply(whole, right))
        if operation in ("in", "not_in"):
            found = pc.is_in(left, right if _is_column(right) else arrow("is_in").array(right))
            return pc.invert(found) if operation == "not_in" else found
        return getattr(pc, _ARROW[operation])(left, right)

    def __repr__(self) -> str:
        """With brackets around operations within it."""
        left, right = _within(self._left), _within(self._right)
        return f"{left} {_SYMBOLS[self._operation]} {right}"


def _within(expr: Expr) -> str:
    return f"({expr!r})" if isinstance(expr, BinaryExpr) else repr(expr)


class UnaryExpr(Expr):
    """An operation of one."""

    def __init__(self, operation: str, operand: Expr) -> None:
        self._operation, self._operand = operation, operand

    @property
    def children(self) -> tuple[Expr, ...]:
        """The one."""
        return (self._operand,)

    def value(self, table: Any) -> Any:
        """By Arrow's function."""
        return getattr(compute(), _ARROW[self._operation])(self._operand.value(table))

    def __repr__(self) -> str:
        """As it is written."""
        said = (
            f"({self._operand!r})"
            if isinstance(self._operand, BinaryExpr)
            else f"{self._operand!r}"
        )
        return f"~{said}" if self._operation == "not" else f"{said}.{self._operation}()"


class AliasExpr(Expr):
    """The same under a name."""

    def __init__(self, expr: Expr, name: str) -> None:
        self._expr = expr.children[0] if isinstance(expr, AliasExpr) else expr
        self._name = name

    @property
    def name(self) -> str:
        """The new one."""
        return self._name

    @property
    def children(self) -> tuple[Expr, ...]:
        """What is named."""
        return (self._expr,)

    def value(self, table: Any) -> Any:
        """What is named."""
        return self._expr.value(table)

    def __repr__(self) -> str:
        """As it is written."""
        return f"{self._expr!r}.alias({self._name!r})"


class StarExpr(Expr):
    """All columns."""

    def value(self, table: Any) -> Any:
        """It has none of its own.

        Raises
        ------
        TypeError
            It is asked for.
        """
        del table
        raise TypeError(
            "StarExpr cannot be evaluated as a regular expression. "
            "It should only be used in Project operations."
        )

    def __repr__(self) -> str:
        """All of them."""
        return "col(*)"


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

    def __repr__(self) -> str:
        """As a call."""
        said = [repr(a) for a in self._args] + [f"{n}={a!r}" for n, a in self._kwargs.items()]
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


def as_expr(value: Any) -> Expr:
    """A value as a literal."""
    return value if isinstance(value, Expr) else LiteralExpr(value)


def parts(expr: Expr) -> list[Expr]:
    """It and all it is computed from."""
    return [expr, *(part for child in expr.children for part in parts(child))]


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


def _added(left: Any, right: Any) -> Any:
    """A sum, or texts joined."""
    pc = compute()
    if _is_text(left) or _is_text(right):
        for side in (left, right):
            if not _is_text(side):
                kind = str(side.type) if _is_column(side) else type(side).__name__
                raise TypeError(
                    "Expected string or string-like pyarrow Array/ChunkedArray for string "
                    f"concatenation, got {kind}."
                )
        return pc.binary_join_element_wise(left, right, "")
    return pc.add(left, right)


def _is_column(value: Any) -> bool:
    return hasattr(value, "type") and hasattr(value, "to_pylist")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (_is_column(value) and str(value.type).endswith("string"))


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or _is_column(value) or hasattr(value, "iloc")


__getattr__ = getattr_of("ray.data.expressions")
