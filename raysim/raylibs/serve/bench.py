"""An application with a fixed number of replicas, without a Ray cluster under it.

Real counterpart: a Serve benchmark once everything is up. The same routers, replicas and proxies
as under a cluster, on bare processes that start at once and do not die: for closed forms, for the
published benchmarks, and for the windows of ``fluid.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from raysim.kernel.simulation import Simulation
from raysim.raylibs.serve.config import ApplicationConfig, DeploymentConfig
from raysim.raylibs.serve.costs import ServeCosts
from raysim.raylibs.serve.defaults import RAY_2_60, ServeDefaults
from raysim.raylibs.serve.event_loop import Jitter, ServeProcess
from raysim.raylibs.serve.load import Load, source_of
from raysim.raylibs.serve.proxy import Proxy
from raysim.raylibs.serve.records import RequestLog
from raysim.raylibs.serve.replica import Replica, SimulatedCode, UserCode
from raysim.raylibs.serve.request import Request
from raysim.raylibs.serve.router import Router
from raysim.units import to_ns


class Place(NamedTuple):
    """Where a bare process is."""

    node_id: int


class BareProcess:
    """A process that neither starts nor dies."""

    __slots__ = ("_sim", "me", "state")

    def __init__(self, sim: Simulation, node_id: int = 0) -> None:
        self._sim = sim
        self.me = Place(node_id)
        self.state = "up"

    @property
    def now_ns(self) -> int:
        """The clock's time."""
        return self._sim.clock.now

    def after(self, delay_ns: int, fn: Callable[[Any], object], arg: Any = None) -> Any:
        """Call ``fn(arg)`` later."""
        return self._sim.clock.call_later(delay_ns, fn, arg)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSpec:
    """What is measured."""

    app: ApplicationConfig
    costs: ServeCosts
    load: Load
    nodes: int = 1
    """Replicas are dealt out to them in turn; each has a proxy."""
    models: int = 0
    """Requests ask for one of so many multiplexed models, each as often."""
    defaults: ServeDefaults = RAY_2_60


class Bench:
    """The application on bare processes, and its clients."""

    def __init__(
        self,
        sim: Simulation,
        spec: BenchSpec,
        *,
        replicas: Mapping[str, int] | None = None,
        code_of: Callable[[DeploymentConfig, str], UserCode] | None = None,
    ) -> None:
        self.sim = sim
        self.spec = spec
        self.log = RequestLog()
        self.client = BareProcess(sim, -1)
        self.replicas: dict[str, list[Replica]] = {}
        self.routers: list[Router] = []
        self._code_of = code_of or self._simulated
        self._sent = 0
        for deployment in spec.app.deployments:
            count = (replicas or {}).get(deployment.name, deployment.initial_replicas)
            self.replicas[deployment.name] = [self._replica(deployment, i) for i in range(count)]
        for deployment in spec.app.deployments:
            for replica in self.replicas[deployment.name]:
                for group in deployment.work.calls:
                    for name in group:
                        replica.handles[name] = self._router(
                            replica.process, name, f"{replica.replica_id}/{name}"
                        )
        self.proxies = [self._proxy(i) for i in range(spec.nodes)]

    def run(self) -> RequestLog:
        """Play the load to its end."""
        rng = self.sim.rng("serve/arrivals")
        ended: list[bool] = []
        source = source_of(self.spec.load, self.client, self.send, rng)
        source.start(lambda: ended.append(True))
        self.sim.run()
        assert ended, "the load has not ended, and nothing is left to happen"
        return self.log

    def send(self, then: Callable[[Request], object]) -> Request:
        """One request, to the next proxy."""
        number, self._sent = self._sent, self._sent + 1

        def ended(request: Request) -> None:
            self.log.add(request)
            then(request)

        model = ""
        if self.spec.models:
            model = f"model-{int(self.sim.rng('serve/models').integers(self.spec.models))}"
        request = Request(number, self.spec.app.name, self.client.now_ns, ended, model_id=model)
        proxy = self.proxies[number % len(self.proxies)]
        self.client.after(to_ns(self.spec.costs.transit_s), proxy.receive, request)
        return request

    def _jitter(self, name: str) -> Jitter:
        costs = self.spec.costs
        return Jitter(
            self.sim.rng(name), costs.cv, pause_s=costs.pause_s,
            pause_every_s=costs.pause_every_s,
        )  # fmt: skip

    def _simulated(self, deployment: DeploymentConfig, name: str) -> UserCode:
        return SimulatedCode(
            deployment.work,
            Jitter(self.sim.rng(f"{name}/work"), deployment.work.cv),
            self.sim.rng(f"{name}/failures").random,
        )

    def _replica(self, deployment: DeploymentConfig, i: int) -> Replica:
        name = f"{deployment.name}#{i}"
        replica = Replica(
            BareProcess(self.sim, i % self.spec.nodes),
            name,
            deployment,
            self.spec.costs,
            self._jitter(f"serve/{name}"),
            self._code_of(deployment, f"serve/{name}"),
            is_ingress=deployment.name == self.spec.app.ingress,
        )
        replica.on_models_changed = self._announce
        return replica

    def _announce(self, replica: Replica) -> None:
        """The controller tells routers, a tenth of a second later."""
        interval_ns = to_ns(self.spec.defaults.push_multiplexed_ids_interval_s)
        assert replica.models is not None, "no models to announce"
        loaded = dict(replica.models.loaded)
        self.client.after(interval_ns, lambda _: setattr(replica, "announced_models", loaded))

    def _router(
        self, process: ServeProcess, deployment: str, name: str, *, proxy: bool = False
    ) -> Router:
        config = self.spec.app.deployment(deployment)
        router = Router(
            process, config, self.spec.costs, self.sim.rng(f"serve/{name}"), handle_id=name,
            prefer_local_node=proxy, defaults=self.spec.defaults,
        )  # fmt: skip
        router.update_replicas(self.replicas[deployment])
        self.routers.append(router)
        return router

    def _proxy(self, node_id: int) -> Proxy:
        process = BareProcess(self.sim, node_id)
        name = f"proxy-{node_id}"
        proxy = Proxy(process, self.spec.costs, self._jitter(f"serve/{name}/cost"))
        app = self.spec.app
        proxy.routes[app.name] = self._router(process, app.ingress, name, proxy=True)
        return proxy


def play(spec: BenchSpec, *, seed: int = 0) -> RequestLog:
    """The requests of one load on one application with its initial replicas."""
    return Bench(Simulation(seed=seed), spec).run()
