"""Open-loop arrivals: a task at each instant, whether or not earlier ones have ended.

A driver that wakes at every arrival and calls ``f.remote()``; one that is late (calls cost its
thread time) submits as fast as it can.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raysim.kernel.rng import Streams
from raysim.raycore.process import CoreProcess
from raysim.raycore.tasks import Payload, Ref
from raysim.workloads.ray.checks import Checks
from raysim.workloads.ray.durations import Drawing, draw_s, to_ns
from raysim.workloads.ray.program import Program, Then
from raysim.workloads.ray.shapes import TaskShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """``rate_per_s`` on average, for ``duration_s``."""

    rate_per_s: float
    duration_s: float

    def __post_init__(self) -> None:
        checks = Checks("poisson")
        checks.more_than("rate_per_s", self.rate_per_s, 0)
        checks.more_than("duration_s", self.duration_s, 0)
        checks.done()


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """A trace: seconds from the start, in order."""

    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        checks = Checks("times")
        last = 0.0
        if not self.seconds:
            checks.wrong("seconds", "needs at least one value")
        for index, value in enumerate(self.seconds):
            checks.at_least(f"seconds[{index}]", value, last)
            last = max(last, value)
        checks.done()


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Tasks of one shape at these times."""

    times: Poisson | Times
    shape: TaskShape = field(default_factory=lambda: TaskShape(name="request"))
    arg_bytes: int = 0
    return_bytes: int = 0

    def __post_init__(self) -> None:
        checks = Checks("arrivals")
        checks.count("arg_bytes", self.arg_bytes, 0)
        checks.count("return_bytes", self.return_bytes, 0)
        checks.done()


def arrival_times_s(times: Poisson | Times, rng: Drawing) -> list[float]:
    """Seconds from the start."""
    if isinstance(times, Times):
        return list(times.seconds)
    found: list[float] = []
    now_s = 0.0
    while True:
        for gap_s in rng.exponential(1 / times.rate_per_s, 1024):
            now_s += float(gap_s)
            if now_s >= times.duration_s:
                return found
            found.append(now_s)


def start_arrivals(spec: Arrivals, process: CoreProcess, streams: Streams, then: Then) -> Program:
    """Start it in a driver; ``then`` when the last task has ended.

    Draws from ``workload/arrivals`` and ``workload/durations``.
    """
    times = arrival_times_s(spec.times, streams("workload/arrivals"))
    durations = draw_s(spec.shape.runs, streams("workload/durations"), len(times))
    program = Program(process)
    options = spec.shape.options()
    arguments = (Payload(spec.arg_bytes),) if spec.arg_bytes else ()
    returns = (Payload(spec.return_bytes),)
    refs: list[Ref] = []
    for arrival_s, seconds in zip(times, durations, strict=True):
        program.run_until(to_ns(arrival_s))
        refs += program.submit(options, spec.shape.work(seconds, returns), *arguments)

    def finished() -> None:
        program.drop(refs)
        then(program.done())

    if refs:
        program.get(refs, finished)
    else:
        finished()
    return program
