"""What is published of data sets: rows by split, columns, sizes.

Real counterparts: the files themselves, which need not be on this machine. ``vision.csv`` has those
of torchvision, ``hub.csv`` those of the Hugging Face Hub, each row with its source: where its rows
and columns were seen, or that they are from memory. Lengths of texts are means in characters,
rounded, near the published bytes of a row where those are known, else assumed.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Pictures:
    """A data set of torchvision."""

    name: str
    by: str
    """What says which split: the name of an argument."""
    splits: Mapping[str, int]
    size: tuple[int, int]
    """Pixels: width, height."""
    mode: str
    """PIL's."""
    classes: int
    target: str
    source: str

    def rows(self, split: str) -> int:
        """Of a split; of the first one where it has none of that name."""
        return self.splits.get(split) or next(iter(self.splits.values()))


@cache
def pictures() -> Mapping[str, Pictures]:
    """By the name of torchvision's class, and after a slash what a data set is split by."""
    return {row["name"]: _pictures(row) for row in _table("vision.csv")}


def _pictures(row: Mapping[str, str]) -> Pictures:
    size, mode = row["image"].split()
    width, height = map(int, size.split("x"))
    return Pictures(
        row["name"], row["by"], _splits(row["splits"]), (width, height), mode,
        int(row["classes"]), row["target"], row["source"],
    )  # fmt: skip


@dataclass(frozen=True)
class Column:
    """Of a data set of the hub: ``label:class2``."""

    name: str
    kind: str
    sizes: tuple[float, ...]


@dataclass(frozen=True)
class Table:
    """A data set of the hub."""

    name: str
    config: str
    splits: Mapping[str, int]
    columns: tuple[Column, ...]
    source: str


_COLUMN = re.compile(r"(?P<name>[^:]+):(?P<kind>[a-z]+)(?P<sizes>[\d.x-]*)$")


@cache
def tables() -> Mapping[str, tuple[Table, ...]]:
    """By name, in lower case; one for each configuration."""
    found: dict[str, tuple[Table, ...]] = {}
    for row in _table("hub.csv"):
        columns = tuple(_column(text) for text in row["columns"].split())
        table = Table(row["name"], row["config"], _splits(row["splits"]), columns, row["source"])
        for name in row["name"].split():
            found[name.lower()] = (*found.get(name.lower(), ()), table)
    return found


def _column(text: str) -> Column:
    found = _COLUMN.match(text)
    assert found is not None, f"a column of hub.csv: {text}"
    sizes = tuple(float(n) for n in found["sizes"].split("x") if n)
    return Column(found["name"].replace("%20", " "), found["kind"], sizes)


def _splits(text: str) -> Mapping[str, int]:
    return {name: int(n) for name, _, n in (part.rpartition(":") for part in text.split())}


def _table(file: str) -> list[dict[str, str]]:
    with (_HERE / file).open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))
