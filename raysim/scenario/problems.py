"""pydantic's findings as one-line problems that point into the user's file."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from raysim.errors import Problem
from raysim.scenario.documents import (
    Document,
    KeyPath,
    did_you_mean,
    dotted,
    one_line,
    printable,
    shorten,
)
from raysim.scenario.schema import known_keys, section_at

_CALLED_HERE = {
    "tp": "tensor_parallel",
    "pp": "pipeline",
    "pipeline_parallel": "pipeline",
    "pipeline_parallel_size": "pipeline",
    "dp": "workers",
}
"""What people call a key elsewhere."""
_BOUNDS = {
    "greater_than": ("must be more than", "gt"),
    "greater_than_equal": ("must be at least", "ge"),
    "less_than": ("must be less than", "lt"),
    "less_than_equal": ("must be at most", "le"),
}
_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a smaller whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}


def problems_of(
    error: ValidationError,
    document: Document,
    root: type[BaseModel],
    *,
    prefix: KeyPath = (),
) -> list[Problem]:
    """Every finding as a problem; ``prefix`` is where ``root`` stands in ``document``."""
    found: dict[tuple[KeyPath, str], Problem] = {}
    for item in error.errors(include_url=False):
        if item["loc"] and str(item["loc"][-1]).startswith("literal["):
            continue  # the other member of a union has its own finding
        path = _real_path(item["loc"], document, prefix)
        if item["type"] == "extra_forbidden":
            problem = _unknown_key(path, document, root, prefix)
        elif item["type"] == "missing":
            message = printable(f"{dotted(path)} is required")
            problem = Problem(message=message, where=document.where(path[:-1], key=True))
        else:
            problem = document.problem(path, _message(dict(item)))
        found.setdefault((path, problem.message), problem)
    return list(found.values())


def _real_path(loc: tuple[int | str, ...], document: Document, prefix: KeyPath) -> KeyPath:
    """``loc`` without the tags pydantic adds for union members."""
    path: KeyPath = prefix
    data: Any = document.data
    for step in prefix:
        data = data[step]
    for i, step in enumerate(loc):
        last = i == len(loc) - 1
        inside = (isinstance(data, dict) and step in data) or (
            isinstance(data, list) and isinstance(step, int) and step < len(data)
        )
        if inside:
            data = data[step]
            path = (*path, step)
        elif last and isinstance(data, dict) and isinstance(step, str) and step != "[key]":
            path = (*path, step)
    return path


def _unknown_key(
    path: KeyPath, document: Document, root: type[BaseModel], prefix: KeyPath
) -> Problem:
    """The nearest name among the keys allowed at that place."""
    section = section_at(root, path[len(prefix) : -1])
    known = list(known_keys(section)) if section else []
    parent = dotted(path[:-1])
    where = f" in {parent}" if parent else ""
    meant = _CALLED_HERE.get(str(path[-1]))
    hint = f"; here it is {meant!r}" if meant in known else did_you_mean(path[-1], known)
    if not hint and known and len(known) <= 12:
        hint = f"; known: {', '.join(known)}"
    message = printable(f"unknown key {shorten(path[-1])}{where}{hint}")
    return Problem(message=message, where=document.where(path, key=True))


def _message(item: dict[str, Any]) -> str:
    """A sentence with what was expected and what was found."""
    kind, context = item["type"], item.get("ctx", {})
    got = shorten(item.get("input"))
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        return f"{words} {context[bound]:,} (got {got})"
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}, got {got}"
    if kind in ("too_short", "string_too_short"):
        return f"needs at least {context['min_length']} (got {got})"
    if kind == "too_long":
        return f"takes at most {context['max_length']} (got {got})"
    if kind == "literal_error":
        names = [name.strip("' ") for name in context["expected"].replace(" or ", ",").split(",")]
        hint = did_you_mean(item.get("input"), names)
        return f"must be {context['expected']}{hint} (got {got})"
    if kind in ("value_error", "assertion_error"):
        return one_line(str(context["error"]))
    message = item["msg"]
    return one_line(f"{message[:1].lower()}{message[1:]} (got {got})")
