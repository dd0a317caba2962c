"""An all-to-all shuffle: every reducer takes one partition of every mapper.

Real counterpart: the simple (two-stage) shuffle of ``ray.data`` and of
``python/ray/experimental/shuffle.py``: maps with ``num_returns=reducers``, reduces with one
argument per map. Its m x r objects are what makes it hard.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raysim.kernel.rng import Streams
from raysim.raycore.process import CoreProcess
from raysim.raycore.tasks import Payload, Ref
from raysim.workloads.ray.checks import Checks
from raysim.workloads.ray.durations import draw_s
from raysim.workloads.ray.program import Program, Then
from raysim.workloads.ray.shapes import TaskShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffle:
    """``mappers`` x ``reducers`` partitions of ``total_bytes`` together."""

    mappers: int
    reducers: int
    total_bytes: int
    map_shape: TaskShape = field(default_factory=lambda: TaskShape(name="map"))
    reduce_shape: TaskShape = field(default_factory=lambda: TaskShape(name="reduce"))
    output_bytes: int = 0
    """Of each reducer."""
    fetch: bool = False
    """Bring the outputs to the driver."""

    def __post_init__(self) -> None:
        checks = Checks("shuffle")
        checks.count("mappers", self.mappers)
        checks.count("reducers", self.reducers)
        checks.count("total_bytes", self.total_bytes)
        checks.count("output_bytes", self.output_bytes, 0)
        partitions = self.mappers * self.reducers
        if 0 < self.total_bytes < partitions:
            checks.wrong("total_bytes", f"is less than one byte for {partitions} partitions")
        checks.done()


def start_shuffle(spec: Shuffle, process: CoreProcess, streams: Streams, then: Then) -> Program:
    """Start it in a driver; ``then`` when the reducers have ended. Draws ``workload/shuffle``."""
    rng = streams("workload/shuffle")
    map_s = draw_s(spec.map_shape.runs, rng, spec.mappers)
    reduce_s = draw_s(spec.reduce_shape.runs, rng, spec.reducers)
    program = Program(process)
    partition = Payload(spec.total_bytes // (spec.mappers * spec.reducers))
    options = spec.map_shape.options(num_returns=spec.reducers)
    partitions: list[list[Ref]] = [
        program.submit(options, spec.map_shape.work(seconds, (partition,) * spec.reducers))
        for seconds in map_s
    ]
    options = spec.reduce_shape.options()
    outputs: list[Ref] = []
    for index, seconds in enumerate(reduce_s):
        column = [row[index] for row in partitions]
        todo = spec.reduce_shape.work(seconds, (Payload(spec.output_bytes),))
        outputs += program.submit(options, todo, *column)
        program.drop(column)

    def finished(*_: object) -> None:
        program.drop(outputs)
        then(program.done())

    if spec.fetch:
        program.get(outputs, finished)
    else:
        program.wait(outputs, len(outputs), finished)
    return program
