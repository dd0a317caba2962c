"""Where a script's DeepSpeed configuration stands: in its JSON, or as a dictionary in the script.

What is refused is told by file, line and key. A dictionary is found by its keys; one that the
script has put together is told by the line that called ``deepspeed.initialize``.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from raysim.rayapi.standins.said import own_frame


def document_of(name: str, data: Mapping[str, Any]) -> Any:
    """A ``raysim.scenario.documents.Document`` of a configuration, with lines and columns.

    Parameters
    ----------
    name
        Of its file, or ``config`` of a dictionary.
    data
        The configuration.
    """
    # By name: what reads users' files stands above this package.
    if Path(name).is_file():
        return import_module("raysim.scenario.hjson_text").read_hjson(Path(name), name)
    documents = import_module("raysim.scenario.documents")
    frame = own_frame(sys._getframe(1))  # noqa: SLF001  (as tracebacks do)
    if frame is None:
        return documents.Document(file=name, data=data)
    called = (frame.f_lineno, 1)
    marks = {path: documents.Mark(*at) for path, at in _positions(frame, data)}
    return documents.Document(
        file=Path(frame.f_code.co_filename).name, data=data,
        marks={(): documents.Mark(called, called), **marks},
    )  # fmt: skip


def _positions(
    frame: FrameType, data: Mapping[str, Any]
) -> Iterator[tuple[tuple[str, ...], tuple[tuple[int, int], tuple[int, int]]]]:
    """Paths of a dictionary, with the places of key and value, where a literal has its keys."""
    try:
        tree = ast.parse(Path(frame.f_code.co_filename).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict) and {key for key, _, _ in _items(node)} == set(data):
            yield from _within(node, ())
            return


def _within(
    node: ast.Dict, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], tuple[tuple[int, int], tuple[int, int]]]]:
    for name, key, value in _items(node):
        yield (*path, name), (_at(key), _at(value))
        if isinstance(value, ast.Dict):
            yield from _within(value, (*path, name))


def _items(node: ast.Dict) -> Iterator[tuple[str, ast.expr, ast.expr]]:
    """Items of a literal whose keys are texts."""
    for key, value in zip(node.keys, node.values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key.value, key, value


def _at(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset + 1
