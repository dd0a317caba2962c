"""What the processes of one Serve application share: who there is, what they cost, their streams.

Real counterpart: the controller's view of an application (``_private/application_state.py``) and
what long polls bring to handles and proxies. Replicas, routers and proxies are made here, whether
their processes are those of a cluster (``controller.py``) or bare ones (``bench.py``).

Not modelled: several applications behind one proxy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from raysim.kernel.rng import Streams
from raysim.raycore.scripts import Event
from raysim.raylibs.serve.config import ApplicationConfig, DeploymentConfig
from raysim.raylibs.serve.costs import ServeCosts
from raysim.raylibs.serve.defaults import RAY_2_60, ServeDefaults
from raysim.raylibs.serve.event_loop import EventLoop, Jitter, ServeProcess, deliver
from raysim.raylibs.serve.handle_metrics import HandleMetrics, Push
from raysim.raylibs.serve.proxy import Proxy
from raysim.raylibs.serve.replica import Replica, SimulatedCode, UserCode
from raysim.raylibs.serve.router import Router
from raysim.units import to_ns

MakeCode = Callable[[ServeProcess, DeploymentConfig, str], UserCode]
"""The user's code of one replica: its process, its deployment, and the replica's name."""


class Instance:
    """One application on one Serve instance.

    Parameters
    ----------
    app
        What is deployed.
    costs, defaults
        Of requests; timers and limits of the version of Ray.
    rng
        Named streams.
    code_of
        Makes a replica's user code; by default what ``Work`` says.
    push
        Where handles of autoscaled deployments send their reports; None: nobody scales.
    with_proxies
        Whether nodes get a proxy; not under ``ProxyLocation.Disabled``.
    """

    def __init__(
        self,
        app: ApplicationConfig,
        costs: ServeCosts,
        rng: Streams,
        *,
        defaults: ServeDefaults = RAY_2_60,
        code_of: MakeCode | None = None,
        push: Push | None = None,
        with_proxies: bool = True,
    ) -> None:
        self.app = app
        self.costs = costs
        self.defaults = defaults
        self.rng = rng
        self.push = push
        self.with_proxies = with_proxies
        self.running: dict[str, list[Replica]] = {d.name: [] for d in app.deployments}
        """By deployment, as routers know them."""
        self.routers: dict[str, list[Router]] = {d.name: [] for d in app.deployments}
        self.proxies: dict[int, Proxy] = {}
        """By node: those that take requests."""
        self.all_replicas: dict[str, list[Replica]] = {d.name: [] for d in app.deployments}
        """By deployment, the gone ones too; likewise the others, for ``usage.py``."""
        self.all_routers: dict[str, list[Router]] = {d.name: [] for d in app.deployments}
        self.all_proxies: list[Proxy] = []
        self.watches: list[tuple[ServeProcess, Event]] = []
        """Calls that return when their actor is no longer needed, and fail when it dies."""
        self.before_change: Callable[[], object] | None = None
        """Called before routers hear of other replicas; ``on_death`` when one has died."""
        self.on_death: Callable[[Replica], object] | None = None
        self.code_of = code_of or self._simulated

    def take(self, app: ApplicationConfig) -> None:
        """From now on this is the application."""
        self.app = app
        for config in app.deployments:
            for table in (self.running, self.routers, self.all_replicas, self.all_routers):
                table.setdefault(config.name, [])

    # ---- what is made

    def make_replica(
        self,
        process: ServeProcess,
        config: DeploymentConfig,
        name: str,
        code: UserCode | None = None,
    ) -> Replica:
        """The data path of a replica, with its handles to other deployments."""
        replica = Replica(
            process, name, config, self.costs, self._jitter(f"serve/{name}"),
            code or self.code_of(process, config, name), is_ingress=config.name == self.app.ingress,
        )  # fmt: skip
        replica.on_models_changed = self._announce
        self.all_replicas[config.name].append(replica)
        for group in config.work.calls:
            for callee in group:
                if callee not in replica.handles:
                    replica.handles[callee] = self.make_router(
                        process, self.app.deployment(callee), f"{name}/{callee}", replica.loop
                    )
        return replica

    def make_proxy(self, process: ServeProcess) -> Proxy:
        """The data path of a proxy: it takes requests from now on."""
        node_id = process.me.node_id
        name = f"proxy-{node_id}"
        proxy = Proxy(process, self.costs, self._jitter(f"serve/{name}/cost"))
        config = self.app.deployment(self.app.ingress)
        proxy.router = self.make_router(process, config, name, proxy.loop, proxy=True)
        self.proxies[node_id] = proxy
        self.all_proxies.append(proxy)
        return proxy

    def make_router(
        self,
        process: ServeProcess,
        config: DeploymentConfig,
        name: str,
        loop: EventLoop,
        *,
        proxy: bool = False,
    ) -> Router:
        """Of one handle, on its caller's loop; it knows the replicas that run."""
        if proxy and self.costs.haproxy:
            config = replace(config, request_router="least_connections")
        router = Router(
            process, config, self.costs, self.rng(f"serve/{name}"), loop=loop, handle_id=name,
            prefer_local_node=proxy, defaults=self.defaults,
        )  # fmt: skip
        self.routers[config.name].append(router)
        self.all_routers[config.name].append(router)
        if config.autoscaling is not None and self.push is not None:
            router.metrics = HandleMetrics(router, config.autoscaling, self.push)
        router.update_replicas(self.running[config.name])
        return router

    def _jitter(self, name: str) -> Jitter:
        costs = self.costs
        return Jitter(
            self.rng(name), costs.cv, pause_s=costs.pause_s, pause_every_s=costs.pause_every_s
        )

    def _simulated(self, _process: ServeProcess, config: DeploymentConfig, name: str) -> UserCode:
        return SimulatedCode(
            config.work,
            Jitter(self.rng(f"serve/{name}/work"), config.work.cv),
            self.rng(f"serve/{name}/failures").random,
            constructor_s=config.constructor_s,
        )

    # ---- what routers are told

    def broadcast(self, deployment: str, replicas: list[Replica]) -> None:
        """By long poll: these run now."""
        if self.before_change is not None:
            self.before_change()
        self.running[deployment] = replicas
        delay_ns = to_ns(self.costs.transit_s)
        for router in self._alive(deployment):
            router.process.after(delay_ns, router.update_replicas, replicas)

    def update_config(self, config: DeploymentConfig) -> None:
        """A deployment's new options."""
        others = tuple(d if d.name != config.name else config for d in self.app.deployments)
        self.app = replace(self.app, deployments=others)
        for router in self._alive(config.name):
            router.update_config(replace(config, request_router=router.config.request_router))

    def replica_died(self, replica: Replica) -> None:
        """Ray Core has said so."""
        delay_ns = to_ns(self.costs.transit_s)
        for router in self._alive(replica.config.name):
            router.process.after(delay_ns, router.replica_died, replica)

    def shut_down(self) -> None:
        """``serve.shutdown``: nobody is watched any more."""
        for process, event in self.watches:
            deliver(process, 0, event.set, None)

    def _alive(self, deployment: str) -> list[Router]:
        alive = [r for r in self.routers[deployment] if r.process.state == "up"]
        self.routers[deployment] = alive
        return alive

    def _announce(self, replica: Replica) -> None:
        """Routers hear which models a replica has at the next push of its ids."""
        assert replica.models is not None, "no models to announce"
        interval_ns = to_ns(self.defaults.push_multiplexed_ids_interval_s)
        loaded = dict(replica.models.loaded)
        replica.process.after(interval_ns, lambda _: setattr(replica, "announced_models", loaded))
