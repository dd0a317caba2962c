"""How a node is printed.

Real counterpart: ``python/ray/dag/format_utils.py``.
"""

from __future__ import annotations

from typing import Any

_INDENT = " " * 4


def node_text(node: Any, body: str) -> str:
    """Several lines."""
    return (
        f"({type(node).__name__}, {node.get_stable_uuid()})(\n"
        f"{_INDENT}body={body}\n"
        f"{_INDENT}args={_listed(node.get_args())}\n"
        f"{_INDENT}kwargs={_named(node.get_kwargs())}\n"
        f"{_INDENT}options={_named(node.get_options())}\n"
        f"{_INDENT}other_args_to_resolve={_named(node.get_other_args_to_resolve())}\n)"
    )


def _lines(value: Any) -> list[str]:
    if isinstance(value, (list, dict)):
        items = list(value.values()) if isinstance(value, dict) else value
        return [f"{_INDENT}{line}" for item in items for line in str(item).split("\n")]
    text = str(value)
    return [f"{_INDENT}{line}" for line in text.split("\n")]


def _listed(args: tuple[Any, ...]) -> str:
    lines: list[str] = []
    for arg in args:
        found = _lines(arg)
        if not hasattr(arg, "get_stable_uuid") and not isinstance(arg, (list, dict)):
            found = [f"{_INDENT}{arg}, "]
        lines += found
    if not lines:
        return "[]"
    return "[" + "".join(f"\n{_INDENT}{line}" for line in lines) + f"\n{_INDENT}]"


def _named(values: dict[str, Any]) -> str:
    given = {name: value for name, value in values.items() if value is not None}
    if not given:
        return "{}"
    lines = []
    for name, value in given.items():
        first, *rest = str(value).split("\n")
        lines += [f"{_INDENT}{name}: {first}", *(f"{_INDENT}{line}" for line in rest)]
    return "{" + "".join(f"\n{_INDENT}{line}" for line in lines) + f"\n{_INDENT}}}"
