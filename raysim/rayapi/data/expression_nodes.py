"""Trees that columns are computed from: names, values, operations; how they print.

Real counterpart: ``ray/data/expressions.py`` and ``_internal/planner/plan_expression`` (2.60). A
tree is pickled with its task and computed there on the block's Arrow table, by Arrow's functions.

Not modelled: blocks of pandas, in which Ray divides whole numbers as Python does; expressions found
twice are computed twice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from raysim.rayapi.clock import import_unpatched
from raysim.rayapi.data.columns import arrow
from raysim.rayapi.data.datatype import DataType
from raysim.rayapi.unsupported import NotEmulatedError

LONGEST_LITERAL = 20
LONGEST_LABEL = 50
LONGEST_NAME = 60
"""Of what is printed of a literal, in a line and in a tree, and of a whole predicate."""
_BRANCH, _LAST, _BESIDE = "\u251c\u2500\u2500 ", "\u2514\u2500\u2500 ", "\u2502   "
"""Of a tree's lines."""
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


def _arrow_call(function: str, expr: Expr, *args: Any, **kwargs: Any) -> Expr:
    from raysim.rayapi.data.expressions import arrow_call  # it imports what imports this

    return arrow_call(function, expr, *args, **kwargs)


def compute() -> Any:
    """``pyarrow.compute``."""
    arrow("an expression")
    return import_unpatched("pyarrow.compute")


_REFUSED = frozenset([
    "data_type", "expand_projection", "get_type", "is_idempotent", "nullable",
    "structurally_equals", "to_field", "to_pyarrow",
])  # fmt: skip
"""What Ray 2.60's has besides."""


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

    def inline(self) -> str:
        """On one line, as operators are named by it."""
        raise NotImplementedError

    @property
    def label(self) -> str:
        """What it is, as the first line of its tree says."""
        return self.inline()

    @property
    def branches(self) -> list[tuple[str, Expr]]:
        """What it is computed from, as its tree has it."""
        return [("", child) for child in self.children]

    def __repr__(self) -> str:
        """A line of each."""
        return "\n".join(self._lines("", last=True))

    def _lines(self, indent: str, *, last: bool) -> list[str]:
        lines, branches = [self.label], self.branches
        below = indent + ("    " if last else _BESIDE)
        for number, (name, child) in enumerate(branches, 1):
            ends = number == len(branches)
            first, *others = child._lines(below, last=ends)  # noqa: SLF001  (its own class)
            lead = below + (_LAST if ends else _BRANCH)
            lines += [f"{lead}{name}: {first}" if name else f"{lead}{first}", *others]
        return lines

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
        return _arrow_call("negate_checked", self)

    def abs(self) -> Expr:
        """Without its sign."""
        return _arrow_call("abs_checked", self)

    def power(self, exponent: Any) -> Expr:
        """To a power."""
        return _arrow_call("power", self, exponent)

    def cast(self, target_type: DataType, *, safe: bool = True) -> Expr:
        """As another type."""
        if not isinstance(target_type, DataType):
            raise TypeError(
                "target_type must be a ray.data.datatype.DataType, got: "
                f"{type(target_type).__name__}. "
                "Use the DataType factories (e.g., DataType.int64(), DataType.string())."
            )
        return _arrow_call("cast", self, target_type.to_arrow_dtype(), safe=safe)

    def __getattr__(self, name: str) -> Any:
        """Functions of numbers; ``str``, ``list``, ``dt`` and ``struct``; what is not emulated."""
        from raysim.rayapi.data.namespaces import NAMESPACES

        if name in _OF_NUMBERS:
            return functools.partial(_arrow_call, name, self)
        if name in NAMESPACES:
            return NAMESPACES[name](self)
        if name not in _REFUSED:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
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

    @property
    def label(self) -> str:
        """Its name."""
        return f"COL({self._name!r})"

    def inline(self) -> str:
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

    @property
    def label(self) -> str:
        """Its beginning, in a tree."""
        return f"LIT({_cut(repr(self._literal), LONGEST_LABEL)})"

    def inline(self) -> str:
        """Its beginning."""
        return _cut(repr(self._literal), LONGEST_LITERAL)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 3] + "..."


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
            found = pc.is_in(left, right if is_column(right) else arrow("is_in").array(right))
            return pc.invert(found) if operation == "not_in" else found
        return getattr(pc, _ARROW[operation])(left, right)

    @property
    def label(self) -> str:
        """The operation."""
        return self._operation.upper()

    @property
    def branches(self) -> list[tuple[str, Expr]]:
        """Both sides."""
        return [("left", self._left), ("right", self._right)]

    def inline(self) -> str:
        """With brackets around operations within it."""
        left, right = _within(self._left), _within(self._right)
        return f"{left} {_SYMBOLS[self._operation]} {right}"


def _within(expr: Expr) -> str:
    return f"({expr.inline()})" if isinstance(expr, BinaryExpr) else expr.inline()


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

    @property
    def label(self) -> str:
        """The operation."""
        return self._operation.upper()

    @property
    def branches(self) -> list[tuple[str, Expr]]:
        """The one."""
        return [("operand", self._operand)]

    def inline(self) -> str:
        """As it is written."""
        said = _within(self._operand)
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

    @property
    def label(self) -> str:
        """The new name."""
        return f"ALIAS({self._name!r})"

    def inline(self) -> str:
        """As it is written."""
        return f"{self._expr.inline()}.alias({self._name!r})"


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

    @property
    def label(self) -> str:
        """As of a column."""
        return "COL(*)"

    def inline(self) -> str:
        """All of them."""
        return "col(*)"


def as_expr(value: Any) -> Expr:
    """A value as a literal."""
    return value if isinstance(value, Expr) else LiteralExpr(value)


def parts(expr: Expr) -> list[Expr]:
    """It and all it is computed from."""
    return [expr, *(part for child in expr.children for part in parts(child))]


def _added(left: Any, right: Any) -> Any:
    """A sum, or texts joined."""
    pc = compute()
    if _is_text(left) or _is_text(right):
        for side in (left, right):
            if not _is_text(side):
                kind = str(side.type) if is_column(side) else type(side).__name__
                raise TypeError(
                    "Expected string or string-like pyarrow Array/ChunkedArray for string "
                    f"concatenation, got {kind}."
                )
        return pc.binary_join_element_wise(left, right, "")
    return pc.add(left, right)


def is_column(value: Any) -> bool:
    """Of Arrow."""
    return hasattr(value, "type") and hasattr(value, "to_pylist")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (is_column(value) and str(value.type).endswith("string"))
