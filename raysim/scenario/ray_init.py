"""What a script's own ``ray.init()`` says of the node it starts, when no cluster is given.

Read from the text, before anything runs, so that the resolved scenario shows what was taken. The
first ``ray.init`` counts. Arguments that are not written out as constants cannot be read, and are
said.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SIZES = ("num_cpus", "num_gpus", "resources", "object_store_memory")
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Pow: operator.pow,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class InitCall:
    """The sizes in a call of ``ray.init``."""

    line: int = 0
    """0: there is no such call."""
    given: dict[str, Any] = field(default_factory=dict)
    """By Ray's names of the arguments."""
    unread: tuple[str, ...] = ()
    """Arguments that are no constants."""


def resources_given(given: Mapping[str, Any]) -> dict[str, float]:
    """Resources of a node by what ``ray.init`` was given, in place of what Ray finds out."""
    names = {"CPU": "num_cpus", "GPU": "num_gpus"}
    sizes = {n: float(given[k]) for n, k in names.items() if given.get(k) is not None}
    return {**sizes, **(given.get("resources") or {})}


def init_call(script: Path) -> InitCall:
    """The first ``ray.init`` of a script; of one that does not parse, none."""
    try:
        tree = ast.parse(script.read_bytes())
    except (SyntaxError, ValueError):
        return InitCall()  # running it will say so
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and _is_init(n.func)]
    if not calls:
        return InitCall()
    first = min(calls, key=lambda call: call.lineno)
    given: dict[str, Any] = {}
    unread = []
    for keyword in first.keywords:
        if keyword.arg not in _SIZES:
            continue
        try:
            value = _constant(keyword.value)
        except (ValueError, TypeError, ArithmeticError):
            unread.append(keyword.arg)
            continue
        many = keyword.arg == "resources"
        if _is_sizes(value) if many else _is_size(value):
            given[keyword.arg] = value  # anything else is Ray's to refuse
    return InitCall(line=first.lineno, given=given, unread=tuple(unread))


def _is_init(called: ast.expr) -> bool:
    return (
        isinstance(called, ast.Attribute)
        and called.attr == "init"
        and isinstance(called.value, ast.Name)
        and called.value.id == "ray"
    )


def _is_size(value: object) -> bool:
    return isinstance(value, int | float) and value >= 0


def _is_sizes(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_size, value.values()))


def _constant(node: ast.expr) -> Any:
    """A literal, or a product of literals as in ``200 * 1024**2``."""
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = _constant(node.left), _constant(node.right)
        if isinstance(node.op, ast.Pow) and abs(right) > 64:  # no size needs more
            raise ValueError
        return _ARITHMETIC[type(node.op)](left, right)
    return ast.literal_eval(node)
