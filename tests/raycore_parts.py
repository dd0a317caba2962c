"""Small Ray clusters for tests: every option defaulted, so what a test sets is what matters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from raysim.hardware.cluster import ClusterSpec, FabricSpec, NodeGroup
from raysim.kernel.simulation import Simulation
from raysim.perf.ray_core import RayCosts
from raysim.raycore.cloud import EVERYWHERE, CloudSpec
from raysim.raycore.cluster import Cluster, NodeOptions
from raysim.raycore.config import RayConfig
from raysim.raycore.state_log import StateLog
from tests.hardware_parts import bare_node
from tests.hardware_parts import node as gpu_node


def ray_cluster(
    nodes: int = 1,
    *,
    cpus: int = 4,
    threads_per_core: int = 1,
    gpus: int = 0,
    resources: dict[str, float] | None = None,
    options: dict[int, NodeOptions] | None = None,
    config: dict[str, Any] | None = None,
    costs: dict[str, Any] | None = None,
    log: bool = True,
    seed: int = 0,
    check: bool = False,
    autoscaling: Any = None,
    clouds: CloudSpec = EVERYWHERE,
    max_nodes: int | None = None,
) -> Cluster:
    """Equal nodes on one switch; node 0 is the head."""
    spec = gpu_node(vcpus=cpus, gpu_count=gpus) if gpus else bare_node(vcpus=cpus)
    spec = replace(spec, cpu=replace(spec.cpu, threads_per_core=threads_per_core))
    groups = [NodeGroup(name="head", node=spec, count=1, head=True, resources=resources or {})]
    if nodes > 1 or max_nodes:
        groups.append(
            NodeGroup(
                name="worker", node=spec, count=nodes - 1, resources=resources or {},
                max_count=max_nodes,
            )
        )  # fmt: skip
    sim = Simulation(seed=seed, check=check)
    return Cluster(
        sim,
        ClusterSpec(groups=tuple(groups), fabric=FabricSpec(kind="star")),
        config=RayConfig(**(config or {})),
        costs=RayCosts(**(costs or {})),
        options=options,
        autoscaling=autoscaling,
        clouds=clouds,
        log=StateLog(enabled=log),
    )
