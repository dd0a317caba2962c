"""``raysim show --tree``: the model's modules with the GPU time each took in one step.

Read from ``frames/spans.parquet``: a span is named after its module ("model.layers.3 forward").
Numbered siblings that took the same kind of work are folded into one line: ``layers.0-31``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raysim.cli import terminal
from raysim.errors import ScenarioError
from raysim.units import format_seconds

PHASES = ("forward", "recompute", "backward")
_NS = 1e-9


@dataclass(slots=True)
class Module:
    """One module: its own GPU time by phase, and its children."""

    own_ns: dict[str, int] = field(default_factory=dict)
    children: dict[str, Module] = field(default_factory=dict)
    count: int = 1

    def total_ns(self, phase: str) -> int:
        """Own and children's time of one phase."""
        below = sum(child.total_ns(phase) for child in self.children.values())
        return self.own_ns.get(phase, 0) + below


def print_tree(folder: Path, summary: Mapping[str, Any]) -> None:
    """Print the tree of the first recorded rank and its last recorded step.

    Raises
    ------
    ScenarioError
        The run recorded nothing (``--no-trace``).
    """
    root, rank, step = read(folder)
    total = sum(root.total_ns(phase) for phase in PHASES) or 1
    rows = [
        [
            "  " * depth + name,
            *(format_seconds(m.total_ns(p) * _NS) if m.total_ns(p) else "-" for p in PHASES),
            f"{sum(m.total_ns(p) for p in PHASES) / total * 100:.1f} %",
        ]
        for depth, name, m in walk(root, summary["job"]["model"])
    ]
    headers = [f"module (rank {rank}, step {step})", *PHASES, "share"]
    terminal.table(headers, rows, right={*PHASES, "share"})


def read(folder: Path) -> tuple[Module, str, int]:
    """The module tree of one rank and step, with which these are."""
    path = folder / "frames" / "spans.parquet"
    if not path.is_file():
        raise ScenarioError(f"{folder} has no frames/spans.parquet; run it without --no-trace")
    import pyarrow.parquet as pq

    columns = ["rank", "step", "category", "name", "duration_ns"]
    rows = pq.read_table(path, columns=columns).to_pydict()
    spans = [
        row
        for row in zip(*(rows[c] for c in columns), strict=True)
        if row[2] in PHASES and row[0] is not None and row[1] is not None
    ]
    if not spans:
        raise ScenarioError(f"{path}: no forward or backward was recorded")
    rank = min((s[0] for s in spans), key=int)
    step = max(s[1] for s in spans if s[0] == rank)
    return build(s[2:] for s in spans if s[:2] == (rank, step)), rank, step


def build(spans: Iterable[tuple[str, str, int]]) -> Module:
    """Modules from ``(category, name, duration_ns)``; the dotted part of the name is the path."""
    root = Module()
    for category, name, duration_ns in spans:
        here = root
        for part in name.split(" ")[0].split("."):
            here = here.children.setdefault(part, Module())
        here.own_ns[category] = here.own_ns.get(category, 0) + duration_ns
    return root


def walk(module: Module, name: str, depth: int = 0) -> Iterator[tuple[int, str, Module]]:
    """Depth first, numbered siblings of one shape folded."""
    yield depth, name, module
    for child_name, child in fold(module.children):
        yield from walk(child, child_name, depth + 1)


def fold(children: Mapping[str, Module]) -> list[tuple[str, Module]]:
    """Merge consecutive numbered children with the same descendants: ``0-31 (32 x)``."""
    folded: list[tuple[str, str, Module]] = []
    for name, child in children.items():
        if folded and name.isdecimal() and folded[-1][1].isdecimal():
            first, last, merged = folded[-1]
            if shape(merged) == shape(child) and int(name) == int(last) + 1:
                folded[-1] = (first, name, merge(merged, child))
                continue
        folded.append((name, name, child))
    return [
        (first if first == last else f"{first}-{last} ({module.count} x)", module)
        for first, last, module in folded
    ]


def shape(module: Module) -> tuple[Any, ...]:
    """Names of all descendants."""
    return tuple((name, shape(child)) for name, child in module.children.items())


def merge(one: Module, other: Module) -> Module:
    """Two modules of one shape as one, times added."""
    own = {p: one.own_ns.get(p, 0) + other.own_ns.get(p, 0) for p in {*one.own_ns, *other.own_ns}}
    children = {n: merge(c, other.children[n]) for n, c in one.children.items()}
    return Module(own_ns=own, children=children, count=one.count + other.count)
