"""What a prediction rests on: how much the step changes with each input of the hardware.

An elasticity of -0.8 says that an input 10 % larger makes the step about 8 % shorter. Each input is
moved alone, by ten per cent up, and the step is played again; of a Ray program the whole run.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from raysim.hardware.cluster import ClusterSpec
from raysim.hardware.specs import CpuSpec, DiskSpec, GpuSpec, NicSpec, NodeSpec
from raysim.run import run
from raysim.scenario.build import build_job
from raysim.scenario.load import AnyScenario, Scenario
from raysim.workloads.whatif import quick_step_s

MORE = 1.1
NOTHING = 5e-4
"""Elasticities nearer to zero are none."""


class Elasticity(NamedTuple):
    """Of the step's time, by one input."""

    input: str
    elasticity: float


def _gpu(change: Callable[[GpuSpec], GpuSpec]) -> Callable[[NodeSpec], NodeSpec]:
    return lambda node: node if node.gpu is None else replace(node, gpu=change(node.gpu))


def _nic(change: Callable[[NicSpec], NicSpec]) -> Callable[[NodeSpec], NodeSpec]:
    return lambda node: replace(
        node, nic=change(node.nic), host_nic=change(node.host_nic) if node.host_nic else None
    )


def _disk(disk: DiskSpec) -> DiskSpec:
    return replace(
        disk, read_bytes_per_s=disk.read_bytes_per_s * MORE, read_iops=disk.read_iops * MORE,
        write_bytes_per_s=disk.write_bytes_per_s * MORE, write_iops=disk.write_iops * MORE,
    )  # fmt: skip


def _cpu(change: Callable[[CpuSpec], CpuSpec]) -> Callable[[NodeSpec], NodeSpec]:
    return lambda node: replace(node, cpu=change(node.cpu))


INPUTS: Mapping[str, Callable[[NodeSpec], NodeSpec]] = {
    "GPU products, FLOP/s": _gpu(
        lambda g: replace(g, flops_per_s={k: v * MORE for k, v in g.flops_per_s.items()})
    ),
    "GPU memory bandwidth": _gpu(
        lambda g: replace(g, memory_bytes_per_s=g.memory_bytes_per_s * MORE)
    ),
    "links between GPUs of a node": _gpu(
        lambda g: replace(
            g, scale_up_bytes_per_s=g.scale_up_bytes_per_s * MORE,
            pcie_bytes_per_s=g.pcie_bytes_per_s * MORE,
        )
    ),
    "a host thread's speed": _cpu(lambda c: replace(c, single_thread=c.single_thread * MORE)),
    "host memory bandwidth": _cpu(
        lambda c: replace(c, memory_bytes_per_s=c.memory_bytes_per_s * MORE)
    ),
    "network between nodes": _nic(lambda n: replace(n, bytes_per_s=n.bytes_per_s * MORE)),
    "network latency": _nic(lambda n: replace(n, latency_s=n.latency_s * MORE)),
    "disks": lambda node: replace(node, disks=tuple((_disk(d), n) for d, n in node.disks)),
}  # fmt: skip


def elasticities(scenario: AnyScenario) -> list[Elasticity]:
    """Of every input that matters, the strongest first."""
    cluster, seconds = scenario.cluster, _seconds(scenario)
    inputs = INPUTS if isinstance(scenario, Scenario) else OF_PROGRAMS
    usual = seconds(cluster)
    found = []
    for name in inputs:
        changed = seconds(_changed(cluster, INPUTS[name]))
        elasticity = math.log(changed / usual) / math.log(MORE)
        if abs(elasticity) > NOTHING:
            found.append(Elasticity(name, elasticity))
    return sorted(found, key=lambda e: -abs(e.elasticity))


def _seconds(scenario: AnyScenario) -> Callable[[ClusterSpec], float]:
    """What a step, or a program, takes on a cluster."""
    if isinstance(scenario, Scenario):
        plan = build_job(scenario).plan
        return lambda cluster: quick_step_s(plan, cluster)

    def run_s(cluster: ClusterSpec) -> float:
        with contextlib.redirect_stdout(io.StringIO()):
            summary = run(replace(scenario, cluster=cluster), record=False).summary
        return float(summary["run"]["seconds"])

    return run_s


OF_PROGRAMS = ("network between nodes", "network latency", "disks")
"""Cores are in what the program says that its work takes; see `ray.node_speed`."""


def _changed(cluster: ClusterSpec, change: Callable[[NodeSpec], NodeSpec]) -> ClusterSpec:
    groups = tuple(replace(g, node=change(g.node)) for g in cluster.groups)
    return replace(cluster, groups=groups)
