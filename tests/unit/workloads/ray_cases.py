"""A small emulated cluster and what a workload did on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from raysim.hardware import catalog
from raysim.hardware.cluster import ClusterSpec, NodeGroup
from raysim.kernel.rng import Streams
from raysim.kernel.simulation import Simulation
from raysim.raycore.cluster import Cluster
from raysim.raycore.process import CoreProcess
from raysim.raycore.state_log import Change, StateLog
from raysim.raystate.moment import Moment, TaskAttempt, moment
from raysim.units import NS_PER_S
from raysim.workloads.ray.outcome import Outcome, outcome
from raysim.workloads.ray.program import Done, Program

Start = Callable[[CoreProcess, Streams, Callable[[Done], object]], Program]


@dataclass
class Played:
    """A workload that has ended."""

    rows: list[Change]
    done: Done
    digest: str

    @property
    def end(self) -> Moment:
        return moment(self.rows)

    @property
    def outcome(self) -> Outcome:
        return outcome(self.rows, self.done.tasks)

    def attempts(self, name: str = "") -> list[TaskAttempt]:
        """Of tasks whose function has this name, in order of submission."""
        found = [self.end.tasks[number] for number in self.done.tasks]
        return [a for a in found if a.spec and a.spec.name.endswith(name)]

    def most_at_once(self) -> int:
        """How many of its tasks ran at the same time."""
        edges = []
        for attempt in self.attempts():
            edges += [(ran_s(attempt)[0], 1), (ran_s(attempt)[1], -1)]
        running = most = 0
        for _, change in sorted(edges):
            running += change
            most = max(most, running)
        return most


def ran_s(attempt: TaskAttempt) -> tuple[float, float]:
    """From when to when."""
    start_ns, end_ns = attempt.first_ns("RUNNING"), attempt.end_ns
    assert start_ns is not None
    assert end_ns is not None
    return start_ns / NS_PER_S, end_ns / NS_PER_S


def play(start: Start, *, nodes: int = 2, node: str = "m5.16xlarge", seed: int = 1) -> Played:
    """Run a workload to its end."""
    sim, log = Simulation(seed=seed), StateLog()
    group = NodeGroup(name="head", node=catalog.node(node), count=nodes, head=True)
    cluster = Cluster(sim, ClusterSpec(groups=(group,)), log=log)
    ends: list[Done] = []
    cluster.driver(lambda driver: start(driver, sim.rng, ends.append))
    sim.run(until="10min")
    assert ends, "the workload has not ended in ten minutes"
    return Played(log.rows, ends[0], sim.digest)


def starter(function: Any, spec: Any, *, draws: bool = True) -> Start:
    """``start_x(spec, ...)`` with the rest to come."""

    def start(process: CoreProcess, streams: Streams, then: Callable[[Done], object]) -> Program:
        if draws:
            return function(spec, process, streams, then)
        return function(spec, process, then)

    return start
