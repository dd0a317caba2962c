"""User files as plain data in which every key and value still knows its line and column.

A ``Document`` is what a YAML or Hjson text says, plus the marks that error messages need.
Everything that can be wrong with a *file* (absent, a folder, binary, not UTF-8, too large) ends
here as one ``ScenarioError``; nothing below ever sees an ``OSError``.

Not modelled: encodings other than UTF-8 (a UTF-8 byte order mark is skipped).
"""

from __future__ import annotations

import difflib
import hashlib
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from raysim.errors import Location, Problem, ScenarioError

logger = logging.getLogger(__name__)
KeyPath = tuple[str | int, ...]
"""Where in nested data something stands: mapping keys and list indices from the root."""
MAX_DEPTH = 64
"""Nesting no configuration needs, and far below Python's recursion limit."""
_PLACEHOLDER = re.compile(r"\{\{.{1,60}?\}\}")
"""Of Helm, Jinja and Go templates."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Line and column, from 1, of a key and of its value."""

    key: tuple[int, int]
    value: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The content of one user file."""

    file: str
    """As shown to the user."""
    data: Any
    sha256: str | None = None
    """Of the bytes read; None for content that came from no file of its own."""
    marks: Mapping[KeyPath, Mark] = field(default_factory=dict, compare=False)
    text: str = field(default="", repr=False, compare=False)
    """The file's text, where a later reader searches it; empty after an override."""
    prefix: str = ""
    """Put before keys in messages, where the document is a part of another."""
    overrides: tuple[tuple[KeyPath, str], ...] = ()
    """Paths that ``--set`` replaced, with the text of the override."""

    def where(self, path: KeyPath, *, key: bool = False) -> Location:
        """Position of a value (or of its key), or of the nearest thing around it."""
        for overridden, text in self.overrides:
            if path[: len(overridden)] == overridden:
                return Location(file=text)
        for length in range(len(path), -1, -1):
            mark = self.marks.get(path[:length])
            if mark is not None:
                line, column = mark.key if key and length == len(path) else mark.value
                return Location(file=self.file, line=line, column=column)
        return Location(file=self.file, line=1, column=1)

    def problem(self, path: KeyPath, message: str, *, key: bool = False) -> Problem:
        """A problem at ``path``; ``key`` points at the key instead of the value."""
        name = ".".join(part for part in (self.prefix, dotted(path)) if part)
        message = printable(message)
        return Problem(message=message, where=self.where(path, key=key), key=name or None)

    def child(self, path: KeyPath, prefix: str = "") -> Document:
        """The part under ``path`` as a document of its own, with the same positions."""
        data, cut = self.data, len(path)
        for step in path:
            data = data[step]
        marks = {p[cut:]: m for p, m in self.marks.items() if p[:cut] == path}
        overrides = tuple((p[cut:], text) for p, text in self.overrides if p[:cut] == path)
        return Document(file=self.file, data=data, marks=marks, overrides=overrides, prefix=prefix)

    def with_data(self, data: Any, overrides: Iterable[tuple[KeyPath, str]]) -> Document:
        """The same file with some paths replaced."""
        return replace(self, data=data, text="", overrides=(*self.overrides, *overrides))


def dotted(path: KeyPath) -> str:
    """``train.workers`` of a path: the one job is called by its kind, as in ``--set``."""
    if path[:3] == ("jobs", 0, "train"):
        path = path[2:]
    return ".".join(_plain(str(step)) for step in path)


def _plain(step: str) -> str:
    """A key as it may be printed: one line, no control characters, not endless."""
    text = printable(step)
    return text if len(text) <= 80 else text[:77] + "..."


def value_at(data: Any, path: KeyPath) -> Any:
    """The value at ``path``, or None."""
    for step in path:
        if isinstance(data, dict) or (
            isinstance(data, list) and isinstance(step, int) and step < len(data)
        ):
            data = data.get(step) if isinstance(data, dict) else data[step]  # type: ignore[index]
        else:
            return None
    return data


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """``; did you mean 'micro_batch'?`` when some known name is close, otherwise nothing."""
    near = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def shorten(value: object) -> str:
    """``repr`` that stays on one line and short enough to read."""
    text = repr(value) if not isinstance(value, (dict, list)) else _outline(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _outline(value: dict[Any, Any] | list[Any]) -> str:
    """``a mapping of 3 keys`` or ``a list of 2``."""
    if isinstance(value, dict):
        return f"a mapping of {len(value)} keys"
    return f"a list of {len(value)}"


def one_line(message: str) -> str:
    """A library's message without line breaks or control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in message).split())


def printable(text: str) -> str:
    """``text`` as it is, or on one line without what a terminal cannot show."""
    return text if text.isprintable() else one_line(text)


def template_problem(text: str, shown: str) -> Problem | None:
    """That a text which cannot be read is a template, at its first placeholder; else None."""
    placeholder = _PLACEHOLDER.search(text)
    if placeholder is None:
        return None
    start = placeholder.start()
    line, column = text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start)
    message = f"a template, with placeholders such as {placeholder[0]}; render it first"
    where = Location(file=shown, line=line, column=column)
    return Problem(message=one_line(message), where=where)


def read_text(path: Path, shown: str, max_bytes: int) -> tuple[str, str]:
    """Text and SHA-256 of a user's file.

    Raises
    ------
    ScenarioError
        The file is absent, a folder, unreadable, too large, binary or not UTF-8.
    """

    def refuse(message: str) -> ScenarioError:
        return ScenarioError(Problem(message=message, where=Location(file=shown)))

    try:
        if path.is_dir():
            raise refuse("is a folder; a file is needed here")
        if not path.is_file():
            raise refuse("no such file" + _near_files(path))
        with path.open("rb") as handle:
            content = handle.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        raise refuse(f"cannot be read: {one_line(str(error))}") from None
    if len(content) > max_bytes:
        raise refuse(f"is larger than {max_bytes:,} bytes; not a file of this kind")
    if b"\0" in content:
        raise refuse(f"is a binary file (a zero byte at offset {content.index(0)})")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - (content.rfind(b"\n", 0, error.start) + 1) + 1
        where = Location(file=shown, line=line, column=column)
        message = f"is not UTF-8 text: byte 0x{content[error.start]:02x}"
        raise ScenarioError(Problem(message=message, where=where)) from None
    sha256 = hashlib.sha256(content).hexdigest()
    logger.info("read %s: %d bytes, sha256 %s", shown, len(content), sha256[:12])
    return text, sha256


def _near_files(path: Path) -> str:
    """A suggestion from the folder the absent file should be in."""
    parent = path.parent
    if not parent.is_dir():
        return f" (nor the folder {parent.name!r})" if parent.name else ""
    return did_you_mean(path.name, sorted(p.name for p in parent.iterdir()))


def with_prefix(document: Document, section: str, prefix: str) -> Document:
    """Keys of a section as Accelerate's launcher reads them: ``x`` is ``prefix_x``."""
    block = document.data.get(section)
    if not isinstance(block, dict):
        return document
    renamed = {k: k if str(k).startswith(prefix) else f"{prefix}_{k}" for k in block}
    data = {**document.data, section: {renamed[k]: v for k, v in block.items()}}

    def moved(path: KeyPath) -> KeyPath:
        if path[:1] != (section,) or len(path) < 2:
            return path
        return (section, renamed.get(str(path[1]), path[1]), *path[2:])

    return replace(document, data=data, marks={moved(p): m for p, m in document.marks.items()})
