"""Words for tests of Serve: applications, a cluster, a load and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from raysim.hardware import catalog
from raysim.hardware.cluster import ClusterSpec, FabricSpec, NodeGroup
from raysim.kernel.simulation import Simulation
from raysim.raycore.cluster import Cluster
from raysim.raycore.core_worker.worker import CoreWorker
from raysim.raycore.scripts import Event, Script, wait_for
from raysim.raycore.state_log import StateLog
from raysim.raylibs.serve.bench import BenchSpec
from raysim.raylibs.serve.clients import Clients
from raysim.raylibs.serve.config import ApplicationConfig, DeploymentConfig, Work
from raysim.raylibs.serve.costs import DEFAULT, ServeCosts
from raysim.raylibs.serve.instance import Instance
from raysim.raylibs.serve.load import Load, OpenLoop
from raysim.raylibs.serve.records import RequestLog
from raysim.raylibs.serve.run import Running, serve_run
from raysim.units import NS_PER_S
from tests.stories.ray_scripts import run

FREE = ServeCosts(
    proxy_s=0.0, ingress_s=0.0, replica_s=0.0, handle_s=0.0, transit_s=0.0, proxy_chunk_s=0.0,
    replica_chunk_s=0.0, handle_chunk_s=0.0, cv=0.0, pause_s=0.0, probe_s=0.0,
    cross_node_s=0.0,
)  # fmt: skip
"""Serve itself takes no time: what is left is the user's code and queueing."""


def app(*deployments: DeploymentConfig, ingress: str = "") -> ApplicationConfig:
    """The first is the ingress."""
    return ApplicationConfig(ingress=ingress or deployments[0].name, deployments=deployments)


def one(work: Work, **options: Any) -> ApplicationConfig:
    """An application of one deployment."""
    return app(DeploymentConfig(name="model", work=work, **options))


def steady(rate: float, duration_s: float, **options: Any) -> OpenLoop:
    """Arrivals at one rate."""
    return OpenLoop(rate=((0.0, rate),), duration_s=duration_s, **options)


def bench(application: ApplicationConfig, load: Load, **options: Any) -> BenchSpec:
    """Without a cluster, and Serve for free."""
    return BenchSpec(**({"costs": FREE} | options), app=application, load=load)


def cluster_of(nodes: int) -> Cluster:
    """Nodes of eight CPUs."""
    group = NodeGroup(name="head", node=catalog.node("m5.2xlarge"), count=nodes, head=True)
    spec = ClusterSpec(groups=(group,), fabric=FabricSpec(kind="star"))
    return Cluster(Simulation(), spec, log=StateLog(enabled=False))


@dataclass(slots=True)
class Served:
    """What came of a load on a cluster."""

    cluster: Cluster
    running: Running
    log: RequestLog
    up_s: float

    def replicas(self, deployment: str = "model") -> list[tuple[float, int]]:
        """Changes of running replicas since the load began."""
        return [
            (round(t - self.up_s, 1), n)
            for t, n in self.running.timeline.runs[deployment]
            if t > self.up_s
        ]

    def targets(self, deployment: str = "model") -> list[tuple[float, int]]:
        """Changes of targets since the load began."""
        steps = self.running.timeline.targets[deployment]
        return [(round(t - self.up_s, 1), n) for t, n in steps if t > self.up_s]


def serve(
    application: ApplicationConfig,
    load: Load,
    *,
    nodes: int = 3,
    costs: ServeCosts = DEFAULT,
    during: Callable[[Cluster, Running], object] | None = None,
    until: str = "3h",
    timeout_s: float = 600.0,
) -> Served:
    """Deploy it, play the load, and do something else ``during`` it."""
    cluster = cluster_of(nodes)
    instance = Instance(application, costs, cluster.sim.rng)

    def main(driver: CoreWorker) -> Script:
        running: Running = yield from serve_run(instance, timeout_s=timeout_s)
        up_s = driver.now_ns / NS_PER_S
        clients = Clients(instance, driver, cluster.sim.rng)
        if not running.refusal:
            over = Event()
            clients.start(load, over.set)
            if during is not None:
                during(cluster, running)
            yield wait_for(over)
        return Served(cluster, running, clients.log, up_s)

    served: Served = run(cluster, main, until=until)
    return served


def later(cluster: Cluster, seconds: float, fn: Callable[[], object]) -> None:
    """Call it so many seconds from now."""
    cluster.sim.clock.call_later(round(seconds * NS_PER_S), lambda _: fn(), None)
