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
from raysim.scenario.schema_program import ProgramJobSection
from raysim.workloads.sensitivity import Elasticity, by_input, of_step

OF_PROGRAMS = ("network between nodes", "network latency", "disks")
"""Cores are in what the program says that its work takes; see `ray.node_speed`."""


def elasticities(scenario: AnyScenario, seconds: float | None = None) -> list[Elasticity]:
    """Of every input that matters, the strongest first.

    None where requests come when they come: such a run is as long as its load; and none where spot
    nodes go by chance, which would differ by more.

    Parameters
    ----------
    seconds
        Of the program's run as it is; None: it is run.
    """
    if isinstance(scenario, Scenario):
        return of_step(build_job(scenario).plan, scenario.cluster)
    if scenario.spec.spot or any(_paced(job) for job in scenario.spec.jobs):
        return []

    def run_s(cluster: ClusterSpec) -> float:
        with contextlib.redirect_stdout(io.StringIO()):
            summary = run(replace(scenario, cluster=cluster), record=False).summary
        return float(summary["run"]["seconds"])

    return by_input(run_s, scenario.cluster, OF_PROGRAMS, usual=seconds)


def _paced(job: ProgramJobSection) -> bool:
    """Whether clients send by the clock, whatever becomes of what they sent."""
    if job.llm is not None:
        return job.llm.load.rate is not None
    return job.serve is not None and job.serve.load.users is None
