"""One object to many tasks: ``ref = ray.put(x); [f.remote(ref) for _ in ...]``.

Without ``fan_out`` all receivers ask for it at once, so that they all ask the only holder (Ray has
no broadcast tree); with it, a receiver starts when another that has the object has ended, a tree
that users build by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raysim.kernel.rng import Streams
from raysim.raycore.ids import NodeID
from raysim.raycore.process import CoreProcess
from raysim.raycore.tasks import NONE, NodeAffinity, Payload, Ref
from raysim.workloads.ray.checks import Checks
from raysim.workloads.ray.durations import draw_s
from raysim.workloads.ray.program import Program, Then
from raysim.workloads.ray.shapes import TaskShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast:
    """An object of ``object_bytes`` to ``receivers`` tasks."""

    object_bytes: int
    receivers: int
    nodes: tuple[NodeID, ...] = ()
    """One receiver on each in turn; empty: wherever ``shape.strategy`` puts them."""
    shape: TaskShape = field(default_factory=lambda: TaskShape(name="receive", strategy="SPREAD"))
    fan_out: int = 0
    """Receivers that wait for the same one; 0: none waits."""

    def __post_init__(self) -> None:
        checks = Checks("broadcast")
        checks.count("object_bytes", self.object_bytes)
        checks.count("receivers", self.receivers)
        checks.count("fan_out", self.fan_out, 0)
        for index, node in enumerate(self.nodes):
            checks.count(f"nodes[{index}]", node, 0)
        checks.done()


def start_broadcast(spec: Broadcast, process: CoreProcess, streams: Streams, then: Then) -> Program:
    """Start it in a driver; ``then`` when all receivers have ended. Draws durations."""
    durations = draw_s(spec.shape.runs, streams("workload/broadcast"), spec.receivers)
    program = Program(process)
    refs: list[Ref] = []

    def finished() -> None:
        program.drop(refs)
        then(program.done())

    def sealed() -> None:
        refs.extend(_send(spec, program, durations, thing))
        program.drop([thing])
        program.get(refs, finished)

    thing = program.put(Payload(spec.object_bytes), sealed)
    return program


def _send(spec: Broadcast, program: Program, durations: list[float], thing: Ref) -> list[Ref]:
    """All receivers at once."""
    kinds = [spec.shape.options(strategy=NodeAffinity(node_id=node)) for node in spec.nodes] or [
        spec.shape.options()
    ]
    refs: list[Ref] = []
    for index, seconds in enumerate(durations):
        before = refs[(index - 1) // spec.fan_out :][:1] if spec.fan_out and index else []
        todo = spec.shape.work(seconds, (NONE,))
        refs += program.submit(kinds[index % len(kinds)], todo, thing, *before)
    return refs
