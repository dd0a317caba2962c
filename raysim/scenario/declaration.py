"""The cluster a program asks for in its header: `# cluster: NODE; NODE; ...`.

NODE = [`head`] [COUNT `x`] PART, PART, ... where PART is one of
`4 CPU`, `1 GPU`, `500 MiB memory`, `80 MiB object store`, `{"disk": 2}` (custom resources),
`labels {"zone": "a"}`. Nodes are numbered in the order written, the head first: node k is called
`nk` (its NodeName); in a cluster of several nodes, or when one may be added, it also offers the
custom resource `nk` = 1, by which programs tell nodes apart, and node ids sort in this order.

A line that the program prints may ask for something: `@kill-node n1`, `@add-node NODE`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from raysim.errors import Location, Problem, ScenarioError
from raysim.units import GIB, KIB, MIB

HEADER = "# cluster: "
ADD_NODE = "@add-node "
KILL_NODE = "@kill-node "
BYTES = {"KiB": KIB, "MiB": MIB, "GiB": GIB}
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDeclaration:
    """What one node offers; None = what Ray would find out by itself."""

    num_cpus: int = 0
    num_gpus: int = 0
    memory_bytes: int | None = None
    object_store_bytes: int | None = None
    resources: dict[str, float] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDeclaration:
    """The nodes of a program's cluster, the head first."""

    text: str
    nodes: tuple[NodeDeclaration, ...]
    named: bool
    """Node k offers the resource `nk`."""
    disturbed: bool
    """The program kills or adds nodes, so that nobody may use the cluster after it."""


def parse_nodes(text: str) -> list[NodeDeclaration]:
    """The node that a NODE describes, as often as it says.

    Raises
    ------
    ScenarioError
        Something in it is none of the parts.
    """
    at, count = 0, 1
    amounts = {"CPU": 0, "GPU": 0}
    sizes: dict[str, int] = {}
    resources: dict[str, float] = {}
    labels: dict[str, str] = {}
    while text[at:].strip():
        part = PART.match(text, at)
        if part is None:
            raise ScenarioError(
                f"cannot read {text[at:].strip()!r} in the node {text.strip()!r}: its parts are "
                "such as `4 CPU`, `1 GPU`, `500 MiB memory`, `80 MiB object store`, "
                '`{"disk": 2}`, `labels {"zone": "a"}`'
            )
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


def parse_cluster(text: str, *, grows: bool = False, disturbed: bool = False) -> ClusterDeclaration:
    """The cluster of `NODE; NODE; ...`; ``grows``: nodes may join."""
    nodes = tuple(node for part in text.split(";") for node in parse_nodes(part))
    return ClusterDeclaration(
        text=text, nodes=nodes, named=len(nodes) > 1 or grows, disturbed=disturbed
    )


def declared_by(program: Path) -> ClusterDeclaration:
    """The cluster in the program's line that begins with `# cluster:`.

    Raises
    ------
    ScenarioError
        There is no such line, or several, or it cannot be read.
    """
    source = program.read_text(encoding="utf-8")
    found = [(n, li) for n, li in enumerate(source.splitlines(), 1) if li.startswith(HEADER)]
    if len(found) != 1:
        where = Location(file=str(program), line=found[1][0] if found else 1)
        said = f"{len(found)} lines begin with `{HEADER.strip()}`; one says which cluster it needs"
        raise ScenarioError(Problem(message=said, where=where))
    ((line, text),) = found
    grows = ADD_NODE in source
    try:
        return parse_cluster(
            text[len(HEADER) :], grows=grows, disturbed=grows or KILL_NODE in source
        )
    except (ScenarioError, ValueError) as error:
        where = Location(file=str(program), line=line)
        raise ScenarioError(Problem(message=str(error), where=where)) from None


def in_running_order(programs: Iterable[Path]) -> list[Path]:
    """Those of one declaration together, those that disturb their cluster last."""

    def order(program: Path) -> tuple[bool, str, bool, str]:
        declared = declared_by(program)
        return declared.disturbed, declared.text, wants_dashboard(program), program.name

    return sorted(programs, key=order)


def wants_dashboard(program: Path) -> bool:
    """The state API of real Ray is served by the dashboard."""
    return "ray.util.state" in program.read_text(encoding="utf-8")
