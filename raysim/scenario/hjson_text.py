"""JSON as DeepSpeed reads it: Hjson (comments, trailing commas, no quotes needed), positions kept.

DeepSpeed loads its file with ``hjson.load`` and refuses duplicate keys (``runtime/config.py``). The
same library scans every token here; only the two loops over objects and arrays are our own, because
the library keeps no positions.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from raysim.errors import Location, Problem, ScenarioError
from raysim.scenario.documents import (
    MAX_DEPTH,
    Document,
    KeyPath,
    Mark,
    one_line,
    read_text,
    template_problem,
)

MAX_BYTES = 4 * 2**20
PYTHONS = {"True": "true", "False": "false", "None": "null"}
"""What is pasted from Python, and JSON's words."""


def read_hjson(path: Path, shown: str) -> Document:
    """The file at ``path`` as a document.

    Raises
    ------
    ScenarioError
        The file cannot be read, is not Hjson, or repeats a key.
    """
    text, sha256 = read_text(path, shown, MAX_BYTES)
    if not text.strip():
        raise ScenarioError(Document(file=shown, data=None).problem((), "is empty"))
    return parse_hjson(text, shown, sha256)


def parse_hjson(text: str, shown: str, sha256: str | None = None) -> Document:
    """``text`` as a document; errors as :func:`read_hjson`."""
    import hjson

    scan = _Scan(text)
    try:
        data = scan.root()
    except hjson.HjsonDecodeError as error:
        line, column = scan.line_column(max(0, min(error.pos, len(text))))
        message = f"not JSON: {one_line(error.msg).removesuffix(' at').replace(' %r', '')}"
        if scan.unquoted is not None:
            line, column = scan.line_column(scan.unquoted)
            message = f"not JSON: {_unquoted(text[scan.unquoted :].splitlines()[0])}"
        problem = Problem(message=message, where=Location(file=shown, line=line, column=column))
        raise ScenarioError(template_problem(text, shown) or problem) from None
    except (ValueError, IndexError, OverflowError, RecursionError) as error:
        line, column = scan.line_column(min(scan.last, len(text)))
        reasons = {IndexError: "ends too early", OverflowError: "the number is too large"}
        reason = reasons.get(type(error), one_line(str(error)))
        where = Location(file=shown, line=line, column=column)
        raise ScenarioError(Problem(message=f"not JSON: {reason}", where=where)) from None
    document = Document(file=shown, data=data, sha256=sha256, marks=scan.marks)
    if scan.repeated:
        raise ScenarioError(
            document.problem(path, "duplicate key; DeepSpeed refuses the file", key=True)
            for path in scan.repeated
        )
    return document


def _unquoted(rest: str) -> str:
    """What is wrong with a word without quotes: Hjson takes all of its line for it."""
    word = re.split(r"[\s,}\]]", rest, maxsplit=1)[0]
    meant = PYTHONS.get(word)
    if meant is not None:
        return f"{word} is Python's; write {meant}"
    return f"{word} is neither a number nor in quotes"


class _Scan:
    """One pass over a text; the grammar is that of ``hjson.decoder``."""

    parse_float = float
    parse_int = int

    def __init__(self, text: str) -> None:
        from hjson import decoder

        self.text = text
        self.lib = decoder
        self.marks: dict[KeyPath, Mark] = {}
        self.repeated: list[KeyPath] = []
        self.last = 0
        self.unquoted: int | None = None
        """Where the last text without quotes begins that took a closing brace or bracket."""
        self.line_starts = [0]
        for i, character in enumerate(text):
            if character == "\n":
                self.line_starts.append(i + 1)

    def line_column(self, offset: int) -> tuple[int, int]:
        """Line and column, from 1, of an offset."""
        from bisect import bisect_right

        line = bisect_right(self.line_starts, offset)
        return line, offset - self.line_starts[line - 1] + 1

    def fail(self, message: str, at: int) -> Exception:
        """The library's own error at an offset."""
        error: Exception = self.lib.HjsonDecodeError(message, self.text, at)
        return error

    def root(self) -> Any:
        """The whole text, with or without braces around it."""
        first, at = self.lib.getNext(self.text, 0)
        self.marks[()] = Mark((1, 1), self.line_column(at))
        if first == "":
            return {}
        if first in ("{", "["):
            data, end = self.value(at, ())
        else:
            data, end = self.members(at, (), closed=False)
        _, end = self.lib.getNext(self.text, end)
        if end != len(self.text):
            raise self.fail("extra text after the end", end)
        return data

    def value(self, at: int, path: KeyPath) -> tuple[Any, int]:
        """The value that starts at ``at`` and where it ends."""
        self.last = at
        if len(path) > MAX_DEPTH:
            raise self.fail(f"nested deeper than {MAX_DEPTH}", at)
        first = self.text[at : at + 1]
        if first == "":
            raise self.fail("a value is missing at the end", at)
        if first == "{":
            return self.members(at + 1, path, closed=True)
        if first == "[":
            return self.items(at + 1, path)
        scanned: tuple[Any, int]
        if self.text[at : at + 3] == "'''":
            scanned = self.lib.mlscanstring(self.text, at)
        elif first in "\"'":
            scanned = self.lib.scanstring(self.text, at + 1)
        else:
            scanned = self.lib.scantfnns(self, self.text, at)
            if isinstance(scanned[0], str) and re.search(r"[}\]]", scanned[0]):
                self.unquoted = at
        return scanned

    def members(self, at: int, path: KeyPath, *, closed: bool) -> tuple[dict[str, Any], int]:
        """``key: value`` pairs up to the closing brace, or to the end when there is none."""
        data: dict[str, Any] = {}
        character, at = self.lib.getNext(self.text, at)
        while not (closed and character == "}"):
            key_at = at
            key, at = self.lib.scanKeyName(self.text, at)
            colon, at = self.lib.getNext(self.text, at)
            if colon != ":":
                raise self.fail("expected ':'", at)
            _, at = self.lib.getNext(self.text, at + 1)
            here = (*path, key)
            if key in data:
                self.repeated.append(here)
            self.marks[here] = Mark(self.line_column(key_at), self.line_column(at))
            data[key], at = self.value(at, here)
            character, at = self.lib.getNext(self.text, at)
            if character == ",":
                character, at = self.lib.getNext(self.text, at + 1)
            if not closed and character == "":
                return data, at
        return data, at + 1

    def items(self, at: int, path: KeyPath) -> tuple[list[Any], int]:
        """List items up to the closing bracket."""
        data: list[Any] = []
        character, at = self.lib.getNext(self.text, at)
        while character != "]":
            if character == "":
                raise self.fail("the list has no closing ']'", at)
            here = (*path, len(data))
            mark = self.line_column(at)
            self.marks[here] = Mark(mark, mark)
            item, at = self.value(at, here)
            data.append(item)
            character, at = self.lib.getNext(self.text, at)
            if character == ",":
                character, at = self.lib.getNext(self.text, at + 1)
        return data, at + 1
