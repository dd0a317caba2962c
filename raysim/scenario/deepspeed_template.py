"""DeepSpeed's JSON before a launch script has filled it in, as Megatron-DeepSpeed has them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from raysim.errors import Problem
from raysim.scenario.documents import Document, KeyPath

_UNFILLED = re.compile(r"[A-Z][A-Z0-9_]*,|\$\{?\w+\}?,?").fullmatch
"""``CONFIG_MBSIZE,`` and ``${zero_stage}``."""


def unfilled(document: Document) -> Problem | None:
    """Names that a launch script replaces: Hjson reads them, unquoted, as text with the comma."""
    found = [(path, value) for path, value in _leaves(document.data, ()) if _UNFILLED(value)]
    if not found:
        return None
    names = ", ".join(value.rstrip(",") for _, value in found[:4])
    more = f" and {len(found) - 4} more" if len(found) > 4 else ""
    message = f"a template, with placeholders {names}{more}; fill it in first, as its script does"
    return Problem(message=message, where=document.where(found[0][0]))


def _leaves(data: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    """Texts among nested values."""
    if isinstance(data, str):
        yield path, data
    items = data.items() if isinstance(data, dict) else ()
    for key, value in items:
        yield from _leaves(value, (*path, key))
