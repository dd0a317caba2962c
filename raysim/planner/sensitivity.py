"""What a plan's choice rests on: how much its step, or a Ray program's run, changes with hardware.

The inputs, and the arithmetic, are those of ``workloads.sensitivity``.
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import replace

from raysim.hardware.cluster import ClusterSpec
from raysim.run import run
from raysim.scenario.build import build_job
from raysim.scenario.load import AnyScenario, Scenario
from raysim.workloads.sensitivity import Elasticity, by_input, of_step

OF_PROGRAMS = ("network between nodes", "network latency", "disks")
"""Cores are in what the program says that its work takes; see `ray.node_speed`."""


def elasticities(scenario: AnyScenario) -> list[Elasticity]:
    """Of every input that matters, the strongest first."""
    if isinstance(scenario, Scenario):
        return of_step(build_job(scenario).plan, scenario.cluster)

    def run_s(cluster: ClusterSpec) -> float:
        with contextlib.redirect_stdout(io.StringIO()):
            summary = run(replace(scenario, cluster=cluster), record=False).summary
        return float(summary["run"]["seconds"])

    return by_input(run_s, scenario.cluster, OF_PROGRAMS)
