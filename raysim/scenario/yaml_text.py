"""YAML 1.2 with positions: duplicate keys refused, alias bombs refused, plain data only.

ruamel.yaml composes the node graph (with a mark on every node); the values are built here, because
that is three times as fast as its round-trip loader and lets aliases be counted before they expand.
Scalars resolve as YAML 1.2 core: ``on`` is a string, ``5e8`` a number, ``12:30:00`` a string.
Merge keys (``<<``), which cluster files use, are honoured.

Not modelled: tags such as ``!!binary`` or ``!custom`` (refused), timestamps (kept as text).
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from raysim.errors import Location, Problem, ScenarioError
from raysim.scenario.documents import (
    MAX_DEPTH,
    Document,
    KeyPath,
    Mark,
    dotted,
    one_line,
    read_text,
    shorten,
    template_problem,
)

MAX_BYTES = 256 * 1024
MAX_NODES = 20_000
"""After aliases are expanded: a "billion laughs" file fails here in milliseconds."""
MAX_OPEN_BRACKETS = 300
"""Unclosed ``[`` or ``{``, those inside quoted text included."""
_TAG = "tag:yaml.org,2002:"


def read_yaml(path: Path, shown: str) -> Document:
    """The single document of the YAML file at ``path``.

    Raises
    ------
    ScenarioError
        The file cannot be read, is not YAML, repeats a key, or holds more than one document.
    """
    documents = read_yaml_all(path, shown)
    if len(documents) != 1:
        where = documents[1].where(()) if documents else Location(file=shown, line=1, column=1)
        raise ScenarioError(
            Problem(message=f"expected one YAML document, found {len(documents)}", where=where)
        )
    return documents[0]


def read_yaml_all(path: Path, shown: str) -> list[Document]:
    """Every document of the file; errors as :func:`read_yaml`."""
    text, sha256 = read_text(path, shown, MAX_BYTES)
    return parse_yaml_all(text, shown, sha256)


def parse_yaml_all(text: str, shown: str, sha256: str | None = None) -> list[Document]:
    """Every YAML document in ``text``; errors as :func:`read_yaml`."""
    try:
        return _parsed(text, shown, sha256)
    except ScenarioError:
        if (template := template_problem(text, shown)) is None:
            raise
    raise ScenarioError(template)


def _parsed(text: str, shown: str, sha256: str | None) -> list[Document]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    _check_brackets(text, shown)
    loader = YAML(typ="safe", pure=True)
    try:
        nodes = loader.compose_all(text)
        documents = [_build(node, shown, sha256) for node in nodes if node is not None]
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = Location(file=shown, line=mark.line + 1, column=mark.column + 1) if mark else None
        reason = one_line(str(error.problem or error.context or "cannot be parsed"))
        raise ScenarioError(_not_yaml(reason, where or Location(file=shown))) from None
    except RecursionError:
        reason = f"nested deeper than {MAX_DEPTH}"
        raise ScenarioError(_not_yaml(reason, Location(file=shown, line=1, column=1))) from None
    except (YAMLError, ValueError, IndexError, TypeError, AttributeError) as error:
        where = Location(file=shown, line=1, column=1)
        raise ScenarioError(_not_yaml(one_line(str(error)), where)) from None
    return documents


def parse_scalar(text: str) -> Any:
    """The value of ``--set key=VALUE``: YAML, or the text itself if it is not."""
    try:
        documents = parse_yaml_all(text, "--set")
    except ScenarioError:
        return text
    return documents[0].data if len(documents) == 1 else text


def _check_brackets(text: str, shown: str) -> None:
    """Refuse runs of open brackets on which ruamel's scanner takes quadratic time."""
    depth = 0
    for bracket in re.finditer(r"[\[\]{}]", text):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > MAX_OPEN_BRACKETS:
            line = text.count("\n", 0, bracket.start()) + 1
            where = Location(file=shown, line=line, column=1)
            raise ScenarioError(_not_yaml(f"nested deeper than {MAX_DEPTH}", where))


def _not_yaml(reason: str, where: Location) -> Problem:
    return Problem(message=f"not YAML: {reason}", where=where)


def _build(root: Any, shown: str, sha256: str | None) -> Document:
    """Plain data and marks of a composed node."""
    builder = _Builder(shown)
    data = builder.value(root, ())
    if builder.problems:
        raise ScenarioError(builder.problems)
    return Document(file=shown, data=data, sha256=sha256, marks=builder.marks)


class _Builder:
    """Walks a node graph once per place it is used from, on a budget."""

    def __init__(self, shown: str) -> None:
        self.shown = shown
        self.marks: dict[KeyPath, Mark] = {}
        self.problems: list[Problem] = []
        self.left = MAX_NODES

    def at(self, node: Any) -> tuple[int, int]:
        """Line and column of a node."""
        return node.start_mark.line + 1, node.start_mark.column + 1

    def refuse(self, node: Any, message: str, key: str | None = None) -> Problem:
        """A problem at a node."""
        line, column = self.at(node)
        where = Location(file=self.shown, line=line, column=column)
        return Problem(message=message, where=where, key=key)

    def value(self, node: Any, path: KeyPath) -> Any:
        """Plain data of ``node``; its mark is set unless its key already set one."""
        self.left -= 1
        if self.left < 0:
            message = f"expands to more than {MAX_NODES:,} values (aliases of aliases?)"
            raise ScenarioError(self.refuse(node, message))
        if len(path) > MAX_DEPTH:
            raise ScenarioError(self.refuse(node, f"not YAML: nested deeper than {MAX_DEPTH}"))
        self.marks.setdefault(path, Mark(self.at(node), self.at(node)))
        if node.id == "mapping":
            return self.mapping(node, path)
        if node.id == "sequence":
            return [self.value(item, (*path, i)) for i, item in enumerate(node.value)]
        return self.scalar(node)

    def mapping(self, node: Any, path: KeyPath) -> dict[Any, Any]:
        """A mapping; keys written here win over merged ones."""
        data: dict[Any, Any] = {}
        merged: list[Any] = []
        for key_node, value_node in node.value:
            if key_node.tag == f"{_TAG}merge":
                merged.append(value_node)
                continue
            key = self.key(key_node)
            if key in data:
                self.problems.append(self.refuse(key_node, f"duplicate key {shorten(key)}"))
            here = (*path, key)
            self.marks[here] = Mark(self.at(key_node), self.at(value_node))
            data[key] = self.value(value_node, here)
        for value_node in merged:
            self.merge(value_node, path, data)
        return data

    def merge(self, node: Any, path: KeyPath, data: dict[Any, Any]) -> None:
        """``<<: *alias`` or a list of aliases."""
        for source in node.value if node.id == "sequence" else [node]:
            if source.id != "mapping":
                self.problems.append(self.refuse(source, "'<<' needs a mapping"))
                continue
            inner = self.value(source, (*path, "<<"))
            for key, value in inner.items():
                if key not in data:
                    data[key] = value
                    self.marks[*path, key] = Mark(self.at(node), self.at(node))

    def key(self, node: Any) -> str:
        """A mapping key: text, or a scalar's own spelling."""
        if node.id != "scalar":
            raise ScenarioError(self.refuse(node, "a key must be plain text"))
        return str(node.value)

    def scalar(self, node: Any) -> Any:
        """A scalar by its YAML 1.2 tag."""
        text, tag = node.value, str(node.tag)
        if tag in (f"{_TAG}str", f"{_TAG}timestamp"):
            return text
        if tag == f"{_TAG}null":
            return None
        if tag == f"{_TAG}bool":
            return text.lower() == "true"
        try:
            if tag == f"{_TAG}int":
                return _integer(text)
            if tag == f"{_TAG}float":
                return _number(text)
        except ValueError:
            return text
        self.problems.append(self.refuse(node, f"the tag {shorten(tag)} is not accepted"))
        return None


def _integer(text: str) -> int:
    """Decimal, ``0o17`` or ``0x1f``."""
    plain = text.replace("_", "")
    if len(plain) > 400:
        raise ValueError(dotted((text[:20],)))
    sign = -1 if plain.startswith("-") else 1
    digits = plain.lstrip("+-")
    if digits[:2] in ("0o", "0x", "0b"):
        return sign * int(digits, 0)
    return sign * int(digits)


def _number(text: str) -> float:
    """A float, with YAML's ``.inf`` and ``.nan``."""
    plain = text.replace("_", "").lower()
    if plain.endswith(".inf"):
        return -math.inf if plain.startswith("-") else math.inf
    return math.nan if plain == ".nan" else float(plain)
