"""Columns and rows by expressions: ``with_column``, ``with_columns``, ``filter(expr=)``.

Real counterpart: these methods of ``ray/data/dataset.py``, ``Project`` and ``Filter`` of the plan,
and ``ExpressionEvaluator`` for predicates that are texts.

Not modelled: predicates and projections that are pushed into reads of Parquet files.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping
from typing import Any

from raysim.rayapi.data.columns import from_arrow, to_arrow
from raysim.rayapi.data.consuming import with_first
from raysim.rayapi.data.expression_nodes import (
    LONGEST_NAME,
    BinaryExpr,
    ColumnExpr,
    Expr,
    LiteralExpr,
    UnaryExpr,
    parts,
)
from raysim.rayapi.data.expressions import UDFExpr, col, lit

_COMPARED = {
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge",
    ast.In: "in", ast.NotIn: "not_in",
}  # fmt: skip


class Projected:
    """Blocks with more columns, or others."""

    __name__ = "Project"

    def __init__(self, columns: Mapping[str, Expr]) -> None:
        self._columns = columns

    def __call__(self, table: Any) -> Any:
        """All are computed of the block as it was."""
        made = {name: expr.value(table) for name, expr in self._columns.items()}
        for name, value in made.items():
            column = value if hasattr(value, "__len__") and not isinstance(value, str) else None
            if column is None:
                column = [value.as_py() if hasattr(value, "as_py") else value] * len(table)
            at = table.schema.get_field_index(name)
            if at < 0:
                table = table.append_column(name, [column])
            else:
                table = table.set_column(at, name, [column])
        return table


class Kept:
    """Rows for which a predicate holds."""

    def __init__(self, predicate: Expr) -> None:
        self._predicate = predicate
        said = predicate.inline()
        cut = said if len(said) <= LONGEST_NAME else said[: LONGEST_NAME - 3] + "..."
        self.__name__ = cut

    def __call__(self, table: Any) -> Any:
        """Others, and those of which it is not known, are dropped."""
        return table.filter(self._predicate.value(table))


def with_column(dataset: Any, column_name: str, expr: Expr, **options: Any) -> Any:
    """``Dataset.with_column``."""
    return dataset.with_columns({column_name: expr}, **options)


def with_columns(dataset: Any, exprs: Any = None, *more_exprs: Any, **options: Any) -> Any:
    """``Dataset.with_columns``."""
    columns: dict[str, Expr] = {}
    for each in ([] if exprs is None else [exprs]) + list(more_exprs):
        if not isinstance(each, Mapping):
            raise TypeError(
                "`with_columns` arguments must be mappings from column name to expression, or "
                f"unnest() expressions, got {type(each).__name__}."
            )
        columns |= {name: expr.alias(name) for name, expr in each.items()}
    if not columns:
        return dataset
    udfs = [p for e in columns.values() for p in parts(e) if isinstance(p, UDFExpr)]
    project = Projected(columns)
    made = dataset.by_blocks("Project", project, options, actors=any(p.of_class for p in udfs))
    if not udfs:
        first = dataset._first  # noqa: SLF001  (its room's)
        with_first(made, first, lambda some: from_arrow(project(to_arrow(some))))
    return made


def filtered(dataset: Any, predicate: Any, options: dict[str, Any]) -> Any:
    """``Dataset.filter(expr=)``."""
    if isinstance(predicate, str):
        warnings.warn(
            "String expressions are deprecated and will be removed in a future version. "
            "Use predicate expressions from ray.data.expressions instead. "
            "For example: from ray.data.expressions import col; "
            "ds.filter(expr=col('column_name') > 5)",
            DeprecationWarning,
            stacklevel=3,
        )
        predicate = parsed(predicate)
    if any(options.pop(name, None) is not None for name in (
        "fn_args", "fn_kwargs", "fn_constructor_args", "fn_constructor_kwargs",
    )):  # fmt: skip
        raise ValueError(
            "when 'expr' is used, 'fn_args/fn_kwargs' or 'fn_constructor_args/"
            "fn_constructor_kwargs' cannot be used."
        )
    kept = Kept(predicate)
    return dataset.by_blocks(f"Filter({kept.__name__})", kept, options, changes_rows=True)


def parsed(text: str) -> Expr:
    """A predicate that is written as text.

    Raises
    ------
    ValueError
        It is not one.
    """
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError as error:
        raise ValueError(f"Invalid syntax in the expression: {text}") from error
    return _expr(tree.body)


def _expr(node: ast.expr) -> Expr:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return BinaryExpr(_COMPARED[type(op)], _expr(left), _expr(right))
        case ast.Compare():
            raise ValueError("Only simple binary comparisons are supported")
        case ast.BoolOp(op=how, values=[first, *others]):
            found = _expr(first)
            for other in others:
                found = BinaryExpr("and" if isinstance(how, ast.And) else "or", found, _expr(other))
            return found
        case ast.UnaryOp(op=op, operand=operand):
            return _unary(op, _expr(operand))
        case ast.Name(id=name):
            return col(name)
        case ast.Constant(value=value):
            return lit(value)
        case ast.List(elts=elements):
            return lit([_constant(e) for e in elements])
        case ast.Attribute(value=ast.Name() | ast.Attribute() as value, attr=attribute):
            inner = _expr(value)
            assert isinstance(inner, ColumnExpr), "names and their attributes are columns"
            return col(f"{inner.name}.{attribute}")
        case ast.Call(func=ast.Name(id=name), args=args):
            return _called(name, [_expr(a) for a in args])
    raise ValueError(f"Unsupported expression: {ast.unparse(node)}")


def _unary(op: ast.unaryop, operand: Expr) -> Expr:
    if isinstance(op, ast.Not):
        return UnaryExpr("not", operand)
    if isinstance(op, ast.USub):
        return BinaryExpr("mul", operand, lit(-1))
    raise ValueError(f"Unsupported unary operator: {type(op).__name__}")


def _constant(node: ast.expr) -> Any:
    found = _expr(node)
    if not isinstance(found, LiteralExpr):
        raise ValueError(
            "List contains non-constant expressions. Ray Data expressions currently only support "
            "lists of constant values."
        )
    return found.value(None)


def _called(name: str, args: list[Expr]) -> Expr:
    counts = {"is_null": 1, "is_valid": 1, "is_not_null": 1, "is_nan": 1, "is_in": 2}
    if name not in counts:
        raise ValueError(f"Unsupported function: {name}")
    if len(args) != counts[name]:
        number = "one argument" if counts[name] == 1 else "two arguments"
        raise ValueError(f"{name}() expects exactly {number}")
    if name == "is_in":
        return BinaryExpr("in", *args)
    if name == "is_nan":
        return BinaryExpr("ne", args[0], args[0])
    return UnaryExpr("is_null" if name == "is_null" else "is_not_null", args[0])
