"""An application with a fixed number of replicas, without a Ray cluster under it.

Real counterpart: a Serve benchmark once everything is up. The same routers, replicas and proxies
as under a cluster, on bare processes that start at once and do not die: for closed forms, for the
published benchmarks, and for the windows of ``flow.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from raysim.kernel.simulation import Simulation
from raysim.raylibs.serve.clients import Clients, PythonClient
from raysim.raylibs.serve.config import ApplicationConfig
from raysim.raylibs.serve.costs import ServeCosts
from raysim.raylibs.serve.defaults import RAY_2_60, ServeDefaults
from raysim.raylibs.serve.instance import Instance, MakeCode
from raysim.raylibs.serve.load import Load
from raysim.raylibs.serve.records import RequestLog


class Place(NamedTuple):
    """Where a bare process is."""

    node_id: int


class BareProcess:
    """A process that neither starts nor dies."""

    __slots__ = ("_clock", "me", "state")

    def __init__(self, sim: Simulation, node_id: int = 0) -> None:
        self._clock = sim.clock
        self.me = Place(node_id)
        self.state = "up"

    @property
    def now_ns(self) -> int:
        """The clock's time."""
        return self._clock.now

    def after(self, delay_ns: int, fn: Callable[[Any], object], arg: Any = None) -> Any:
        """Call ``fn(arg)`` later."""
        return self._clock.call_later(delay_ns, fn, arg)


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
    python: PythonClient | None = None
    """What the clients' own code takes; None: nothing."""
    defaults: ServeDefaults = RAY_2_60


class Bench:
    """The application on bare processes, and its clients."""

    def __init__(
        self,
        sim: Simulation,
        spec: BenchSpec,
        *,
        replicas: Mapping[str, int] | None = None,
        code_of: MakeCode | None = None,
    ) -> None:
        self.sim = sim
        self.spec = spec
        self.instance = Instance(
            spec.app, spec.costs, sim.rng, defaults=spec.defaults, code_of=code_of
        )
        for config in _callees_first(spec.app):
            count = (replicas or {}).get(config.name, config.initial_replicas)
            running = [
                self.instance.make_replica(
                    BareProcess(sim, i % spec.nodes), config, f"{config.name}#{i}"
                )
                for i in range(count)
            ]
            self.instance.broadcast(config.name, running)
        for i in range(spec.nodes):
            self.instance.make_proxy(BareProcess(sim, i))
        self.clients = Clients(
            self.instance, BareProcess(sim, -1), sim.rng, models=spec.models, python=spec.python
        )

    def run(self) -> RequestLog:
        """Play the load to its end."""
        ended: list[bool] = []
        self.clients.start(self.spec.load, lambda: ended.append(True))
        self.sim.run()
        assert ended, "the load has not ended, and nothing is left to happen"
        return self.clients.log


def _callees_first(app: ApplicationConfig) -> list[Any]:
    """Handles know the replicas that are there when they are made."""
    ordered: dict[str, Any] = {}

    def visit(name: str) -> None:
        config = app.deployment(name)
        for group in config.work.calls:
            for callee in group:
                visit(callee)
        ordered.setdefault(name, config)

    visit(app.ingress)
    return list(ordered.values())


def play(spec: BenchSpec, *, seed: int = 0) -> RequestLog:
    """The requests of one load on one application with its initial replicas."""
    return Bench(Simulation(seed=seed), spec).run()
