"""Tasks with data dependencies, from a ``networkx.DiGraph``.

Nodes are tasks, an edge passes the output of one to another. Node attributes: ``duration_s``
(needed), ``num_cpus`` (1), ``num_gpus``, ``memory_bytes``, ``output_bytes``, ``name`` ("task"),
``uses`` ("cores"). Everything is submitted at once, in an order in which arguments come first, as a
program that builds the graph with ``f.remote(*parents)`` does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from raysim.raycore.process import CoreProcess
from raysim.raycore.tasks import Payload, Ref, TaskOptions
from raysim.workloads.ray.checks import Checks
from raysim.workloads.ray.durations import Constant
from raysim.workloads.ray.program import Program, Then
from raysim.workloads.ray.shapes import TaskShape

if TYPE_CHECKING:
    import networkx as nx

_NUMBERS = {"duration_s": 0.0, "num_cpus": 1.0, "num_gpus": 0.0, "memory_bytes": 0,
            "output_bytes": 0}  # fmt: skip
_TEXTS = {"name": "task", "uses": "cores"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskGraph:
    """A graph of tasks; not copied, so do not change it afterwards."""

    graph: nx.DiGraph[Any]
    keep_references: bool = False
    """The driver holds every output to the end; False: only those that nobody takes."""
    fetch: bool = True
    """Bring the last outputs to the driver."""

    def __post_init__(self) -> None:
        checks = Checks("graph")
        if not self.graph.is_directed():
            checks.wrong("graph", "must be directed (a networkx.DiGraph)")
        elif not len(self.graph):
            checks.wrong("graph", "has no tasks")
        else:
            self._check_attributes(checks)
            left = len(self.graph) - len(order(self.graph))
            if left:
                checks.wrong("graph", f"has a cycle: {left} tasks wait for each other")
        checks.done()

    def _check_attributes(self, checks: Checks) -> None:
        for node, attributes in self.graph.nodes(data=True):
            if "duration_s" not in attributes:
                checks.wrong(f"{node!r}", "has no duration_s")
            for key, value in attributes.items():
                if key in _NUMBERS:
                    checks.at_least(f"{node!r}.{key}", value, 0)
                elif key not in _TEXTS:
                    known = ", ".join([*_NUMBERS, *_TEXTS])
                    checks.wrong(f"{node!r}.{key}", f"is not one of {known}")


def order(graph: nx.DiGraph[Any]) -> list[Hashable]:
    """Every task after those it takes from, else as in the graph; less if there is a cycle."""
    missing = {node: graph.in_degree(node) for node in graph}
    free = deque(node for node, n in missing.items() if not n)
    found: list[Hashable] = []
    while free:
        node = free.popleft()
        found.append(node)
        for successor in graph.successors(node):
            missing[successor] -= 1
            if not missing[successor]:
                free.append(successor)
    return found


def start_task_graph(spec: TaskGraph, process: CoreProcess, then: Then) -> Program:
    """Start it in a driver; ``then`` when everything has ended. Draws nothing."""
    program, graph = Program(process), spec.graph
    refs: dict[Hashable, Ref] = {}
    takers = {node: graph.out_degree(node) for node in graph}
    options: dict[tuple[object, ...], tuple[TaskShape, TaskOptions]] = {}
    for node in order(graph):
        attributes = {**_NUMBERS, **_TEXTS, **graph.nodes[node]}
        key = tuple(v for k, v in attributes.items() if k not in {"duration_s", "output_bytes"})
        if key not in options:
            shape = _shape(attributes)
            options[key] = shape, shape.options()
        shape, opts = options[key]
        todo = shape.work(attributes["duration_s"], (Payload(int(attributes["output_bytes"])),))
        sources = list(graph.predecessors(node))
        (refs[node],) = program.submit(opts, todo, *(refs[source] for source in sources))
        for source in sources:
            takers[source] -= 1
            if not takers[source] and not spec.keep_references:
                program.drop([refs[source]])
    last = [refs[node] for node in graph if not graph.out_degree(node)]
    held = list(refs.values()) if spec.keep_references else last

    def finished(*_: object) -> None:
        program.drop(held)
        then(program.done())

    if spec.fetch:
        program.get(last, finished)
    else:
        program.wait(last, len(last), partial(finished))
    return program


def _shape(attributes: dict[str, Any]) -> TaskShape:
    return TaskShape(
        name=attributes["name"],
        runs=Constant(seconds=0.0),
        uses=attributes["uses"],
        num_cpus=attributes["num_cpus"],
        num_gpus=attributes["num_gpus"],
        memory_bytes=int(attributes["memory_bytes"]),
    )
