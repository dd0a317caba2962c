"""Command-line arguments as they stand in a launch script, with their places.

Reads ``--flag value`` anywhere in a shell script or a file of arguments: over several lines, in
arrays, with ``$NAME`` where the script itself assigns ``NAME`` once (``NAME=4``,
``NAME=${NAME:-4}``, ``NAME=$((A*B))`` of known whole numbers). A variable that holds arguments
(``$GPT_ARGS``, ``${GPT_ARGS[@]}``) ends those of the flag before it. Nothing is executed: a
variable that the script gets from outside or from a command, or assigns in several branches, stays
in the value as it is written, for who reads it to refuse.
"""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raysim.errors import ScenarioError
from raysim.scenario.documents import Document, KeyPath, Mark, read_text
from raysim.scenario.yaml_text import parse_scalar

MAX_BYTES = 256 * 1024
MOST = 2**63
"""Beyond what a shell computes with."""
_ASSIGNMENT = re.compile(r"^\s*(?:export\s+|local\s+)?([A-Za-z_]\w*)=(?!\()(.*)$")
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
_HOLDS_SEVERAL = re.compile(r"^\s*(?:export\s+|local\s+)?([A-Za-z_]\w*)\+?=(\(.*|.*)$")
_WHOLE = re.compile(r"\$\{?(\w+)(\[@\])?\}?")
_ARITHMETIC = re.compile(r"\$\(\((.*)\)\)")
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
"""Of the shell's arithmetic, in which numbers are whole."""
_WORD = re.compile(r"""(?:"[^"]*"|'[^']*'|[^\s"'()\\])+""")


@dataclass(slots=True)
class Variables:
    """What a shell script has assigned so far."""

    values: dict[str, str] = field(default_factory=dict)
    several: set[str] = field(default_factory=set)
    """Assigned more than once, not always the same, or by a command."""
    arguments: set[str] = field(default_factory=set)
    """Hold arguments."""

    def assign(self, name: str, text: str) -> None:
        """What follows ``NAME=``, kept if the script says it once and for all."""
        sum_ = _ARITHMETIC.fullmatch(text.strip().strip("\"'"))
        if sum_ is not None:
            number = self.number(sum_[1])
            text = "$(" if number is None else str(number)
        if text.lstrip("\"'").startswith(("$(", "`")):
            self.several.add(name)
            return
        words = _WORD.findall(text)
        value = self.expand(_plain(words[0])) if words else ""
        if unknown_variable(value) or self.values.setdefault(name, value) != value:
            self.several.add(name)

    def number(self, text: str) -> int | None:
        """What whole numbers and variables come to; None where the script does not say."""
        named = re.sub(r"\b(?<!\$\{)(?<!\$)([A-Za-z_]\w*)", r"$\1", text)
        try:
            return _number(ast.parse(self.expand(named).strip(), mode="eval").body)
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            return None

    def ends_flag(self, word: str) -> bool:
        """Whether a word stands for more arguments."""
        match = _WHOLE.fullmatch(word)
        return match is not None and (match[2] is not None or match[1] in self.arguments)

    def expand(self, text: str) -> str:
        """What is known put in; the rest keeps its dollar sign."""
        for match in _VARIABLE.finditer(text):
            name = match[1] or match[3]
            known = None if name in self.several else self.values.get(name, match[2])
            if known is not None:
                text = text.replace(match[0], known)
        return text


def unknown_variable(value: object) -> str | None:
    """Name of a variable that ``value`` still depends on."""
    match = _VARIABLE.search(value) if isinstance(value, str) else None
    return match and (match[1] or match[3])


def read_arguments(path: Path, shown: str) -> Document:
    """Arguments by name: dashes as underscores, several values as a list, none as true.

    Raises
    ------
    ScenarioError
        The file cannot be read, or has no arguments.
    """
    text, sha256 = read_text(path, shown, MAX_BYTES)
    document = parse_arguments(text, shown, sha256)
    if not document.data:
        raise ScenarioError(document.problem((), "has no --arguments"))
    return document


def parse_arguments(text: str, shown: str, sha256: str | None = None) -> Document:
    """The same from text."""
    script, found = Variables(), dict[str, list[str]]()
    marks: dict[KeyPath, Mark] = {(): Mark((1, 1), (1, 1))}
    name: str | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        code = _without_comment(line)
        held = _HOLDS_SEVERAL.match(code)
        if held is not None and ("--" in held[2] or held[2].startswith("(") or _open(held[2])):
            script.arguments.add(held[1])
            code = " " * held.start(2) + _unquoted(held[2]) if "--" in held[2] else code
        assignment = _ASSIGNMENT.match(code)
        if assignment is not None and "--" not in assignment[2]:
            script.assign(assignment[1], assignment[2])
            continue
        if not code.strip():
            continue
        for word in _WORD.finditer(code):
            plain = _plain(word[0])
            if script.ends_flag(plain):
                name = None
                continue
            if plain.startswith("--") and len(plain) > 2:
                flag, _, value = plain[2:].partition("=")
                name = flag.replace("-", "_")
                found[name] = []
                place = (number, word.start() + 1)
                marks[name,] = Mark(place, place)
                plain = value
                if not value:
                    continue
            if name is not None:
                if not found[name]:
                    place = (number, word.start() + 1)
                    marks[name,] = Mark(marks[name,].key, place)
                found[name].append(script.expand(plain))
        if not line.rstrip().endswith("\\"):
            name = None
    data: dict[str, Any] = {key: _value(values) for key, values in found.items()}
    return Document(file=shown, data=data, sha256=sha256, marks=marks, text=text)


def _number(node: ast.expr) -> int:
    """Of an expression of whole numbers.

    Raises
    ------
    ValueError
        There is anything else in it.
    """
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        found = _OPERATORS[type(node.op)](_number(node.left), _number(node.right))
        if abs(found) < MOST:
            return found
    raise ValueError(ast.dump(node))


def _unquoted(text: str) -> str:
    """Without the quotation marks around all of it, which keeps its columns."""
    mark = text[:1]
    if mark not in ('"', "'"):
        return text
    return " " + text[1:].rstrip().removesuffix(mark)


def _open(text: str) -> bool:
    """Whether a quotation goes on in the next line."""
    return text.count('"') % 2 == 1 or text.count("'") % 2 == 1


def _value(words: list[str]) -> Any:
    values = [parse_scalar(word) for word in words]
    if not values:
        return True
    return values[0] if len(values) == 1 else values


def _plain(word: str) -> str:
    try:
        parts = shlex.split(word)
    except ValueError:
        return word
    return parts[0] if len(parts) == 1 else word.strip("\"'")


def _without_comment(line: str) -> str:
    return re.sub(r"(^|\s)#.*$", r"\1", line)
