"""The cluster a program asks for in its header: `# cluster: NODE; NODE; ...`.

NODE = [`head`] [COUNT `x`] PART, PART, ... where PART is one of
`4 CPU`, `1 GPU`, `500 MiB memory`, `80 MiB object store`, `{"disk": 2}` (custom resources),
`labels {"zone": "a"}`. Nodes are numbered in the order written, the head first: node k is called
`nk` (its NodeName); in a cluster of several nodes, or when one may be added, it also offers the
custom resource `nk` = 1, by which programs tell nodes apart, and node ids sort in this order.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
EXPECTED = Path(__file__).parent / "expected"
HEADER = "# cluster: "
ADD_NODE = "@add-node "
KILL_NODE = "@kill-node "
BYTES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
PART = re.compile(
    r"""\s*(?:
        (?P<count>\d+)\s*x\s
      | (?P<head>head\b)
      | (?P<amount>\d+)\s*(?P<kind>CPU|GPU)
      | (?P<size>\d+)\s*(?P<unit>KiB|MiB|GiB)\s+(?P<store>memory|object\ store)
      | labels\s*(?P<labels>\{[^}]*\})
      | (?P<resources>\{[^}]*\})
    )\s*,?""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class NodeDeclaration:
    """What one node offers; None = what Ray would find out by itself."""

    num_cpus: int = 0
    num_gpus: int = 0
    memory_bytes: int | None = None
    object_store_bytes: int | None = None
    resources: dict[str, float] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ClusterDeclaration:
    """The nodes of a program's cluster, the head first; `named`: node k offers `nk`."""

    text: str
    nodes: tuple[NodeDeclaration, ...]
    named: bool
    disturbed: bool
    """The program kills or adds nodes, so that nobody may use the cluster after it."""


def parse_nodes(text: str) -> list[NodeDeclaration]:
    """The node that a NODE describes, as often as it says."""
    at, count = 0, 1
    amounts = {"CPU": 0, "GPU": 0}
    sizes: dict[str, int] = {}
    resources: dict[str, float] = {}
    labels: dict[str, str] = {}
    while text[at:].strip():
        part = PART.match(text, at)
        if part is None:
            raise ValueError(f"cannot read {text[at:]!r} in the node {text!r}")
        at = part.end()
        if part["count"]:
            count = int(part["count"])
        elif part["kind"]:
            amounts[part["kind"]] = int(part["amount"])
        elif part["store"]:
            sizes[part["store"]] = int(part["size"]) * BYTES[part["unit"]]
        elif part["labels"]:
            labels = json.loads(part["labels"])
        elif part["resources"]:
            resources = json.loads(part["resources"])
    node = NodeDeclaration(
        num_cpus=amounts["CPU"],
        num_gpus=amounts["GPU"],
        memory_bytes=sizes.get("memory"),
        object_store_bytes=sizes.get("object store"),
        resources=resources,
        labels=labels,
    )
    return [node] * count


def declared_by(program: Path) -> ClusterDeclaration:
    """The cluster in the program's first line that begins with `# cluster:`."""
    source = program.read_text(encoding="utf-8")
    (text,) = [li[len(HEADER) :] for li in source.splitlines() if li.startswith(HEADER)]
    nodes = tuple(node for part in text.split(";") for node in parse_nodes(part))
    disturbed = ADD_NODE in source or KILL_NODE in source
    return ClusterDeclaration(text, nodes, len(nodes) > 1 or ADD_NODE in source, disturbed)


def programs() -> list[Path]:
    """All programs, those of one declaration together, those that disturb theirs last."""

    def order(program: Path) -> tuple[bool, str, bool, str]:
        declared = declared_by(program)
        return declared.disturbed, declared.text, wants_dashboard(program), program.name

    return sorted(PROGRAMS.glob("*.py"), key=order)


def wants_dashboard(program: Path) -> bool:
    """The state API of real Ray is served by the dashboard."""
    return "ray.util.state" in program.read_text(encoding="utf-8")


def recorded(program: Path) -> list[str]:
    """The lines that real Ray made the program print."""
    path = EXPECTED / f"{program.stem}.txt"
    return path.read_text(encoding="utf-8").splitlines()
