"""The cluster that ``ray.init()`` starts in a program that raysim does not run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raysim.kernel.simulation import Simulation
from raysim.raycore.cluster import Cluster, NodeOptions
from raysim.raycore.state_log import StateLog
from raysim.scenario.ray_init import resources_given
from raysim.scenario.script import script_scenario
from raysim.workloads.program_run import cluster_of


def local_cluster(file: Path | None, request: Mapping[str, Any]) -> Cluster:
    """A cluster with a clock of its own.

    Parameters
    ----------
    file
        As ``--cluster`` of ``raysim run``; None: one node with what ``request`` says.
    request
        Arguments of ``ray.init``: ``num_cpus``, ``num_gpus``, ``resources``, ``labels``,
        ``object_store_memory`` (bytes).

    Raises
    ------
    ScenarioError
        The file is absent or wrong.
    """
    scenario = script_scenario(Path(__file__), cluster=file)  # any: the program runs already
    here: dict[int, NodeOptions] = {}
    if file is None:
        here[0] = NodeOptions(
            resources=resources_given(request),
            labels=dict(request.get("labels") or {}),
            object_store_bytes=request.get("object_store_memory"),
        )
    return cluster_of(scenario.job, scenario.cluster, Simulation(), StateLog(), here)
