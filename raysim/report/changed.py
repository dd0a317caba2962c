"""What of the input differs between runs: keys of resolved scenarios, and the text as a diff."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

LONG = 60
"""Characters of a value shown."""
ABSENT = "-"
CONTEXT = 3


class Changed(NamedTuple):
    """A key with a value per run, as text."""

    key: str
    cells: tuple[str, ...]


def changed_keys(scenarios: Sequence[Mapping[str, Any]]) -> list[Changed]:
    """Keys that are not the same in all, in the order of the files; ``-`` where one has none."""
    flat = [dict(_leaves(s, "")) for s in scenarios]
    keys = dict.fromkeys(key for one in flat for key in one)
    found = []
    for key in keys:
        cells = tuple(_text(one[key]) if key in one else ABSENT for one in flat)
        if len({json.dumps(one[key], default=str) if key in one else None for one in flat}) > 1:
            found.append(Changed(key.removeprefix("jobs."), cells))
    return found


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Values by dotted path; a list of one thing is that thing, as `--set` calls it."""
    if isinstance(value, Mapping) and (value or not path):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(v, Mapping | list) for v in value):
        for number, inner in enumerate(value):
            yield from _leaves(inner, path if len(value) == 1 else f"{path}.{number}")
    else:
        yield path, value


def _text(value: Any) -> str:
    words = value if isinstance(value, str) else json.dumps(value, default=str)
    return words if len(words) <= LONG else f"{words[: LONG - 3]}..."


def text_diff(first: str, other: str, names: tuple[str, str]) -> list[str]:
    """A unified diff of two files' lines."""
    old, new = first.splitlines(), other.splitlines()
    return list(difflib.unified_diff(old, new, names[0], names[1], n=CONTEXT, lineterm=""))
