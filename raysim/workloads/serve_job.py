"""An application of Ray Serve by numbers, and its load: rates, latencies, replicas, what binds.

Real counterpart: ``serve.run`` of an application, and a load generator beside the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from raysim.kernel.rng import Streams
from raysim.raycore import protocol as p
from raysim.raycore.process import CoreProcess
from raysim.raycore.resources import total_resources
from raysim.raycore.scripts import Event, Script, ask_gcs, now, sleep, wait_for
from raysim.raylibs.report import LibraryReport, Unit
from raysim.raylibs.serve import advice
from raysim.raylibs.serve.clients import Clients
from raysim.raylibs.serve.config import ApplicationConfig
from raysim.raylibs.serve.costs import STACKS
from raysim.raylibs.serve.flow import Flow
from raysim.raylibs.serve.instance import Instance
from raysim.raylibs.serve.load import Load, OpenLoop
from raysim.raylibs.serve.report import (
    INPUTS,
    ServeReport,
    of_flow,
    of_requests,
)
from raysim.raylibs.serve.run import Running, serve_run
from raysim.raylibs.serve.windows import Windows

Fidelity = Literal["auto", "requests", "flow"]
MANY_REQUESTS = 200_000
"""``auto`` plays more of them as a flow."""
START_TIMEOUT_S = 3600.0
"""An application that does not run by then is given up; Ray's would wait for ever."""
SHUTDOWN_NS = 1_000_000
"""Calls that watched actors return."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redeploy:
    """A new version of a deployment, so long after the load has begun."""

    deployment: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeJob:
    """Serve this, and send it that."""

    app: ApplicationConfig
    load: Load
    stack: str = "default"
    """A row of ``costs.STACKS``."""
    models: int = 0
    """Requests ask for one of so many multiplexed models."""
    redeploys: tuple[Redeploy, ...] = ()
    fidelity: Fidelity = "auto"
    kind: str = field(default="serve", init=False)

    @property
    def metrics(self) -> Mapping[str, Unit]:
        """What targets may limit."""
        return {
            "requests_per_s": "per_s", "latency_mean": "seconds", "latency_p50": "seconds",
            "latency_p90": "seconds", "latency_p95": "seconds", "latency_p99": "seconds",
            "failed": "share",
            "replicas_mean": "count", "replica_hours": "count", "longest_wait": "seconds",
            "start": "seconds",
        }  # fmt: skip

    def main(self, process: CoreProcess, streams: Streams) -> Script:
        """The driver."""
        began_ns = yield now()
        nodes = yield ask_gcs(p.GetAllNodeInfo())
        instance = Instance(
            self.app, STACKS[self.stack].at_speed(process.costs.serve_speed), streams
        )
        running: Running = yield from serve_run(instance, timeout_s=START_TIMEOUT_S)
        up_ns = yield now()
        if running.refusal:
            return self._refused(running.refusal)
        over = Event()
        flow, clients = None, Clients(instance, process, streams, models=self.models)
        if self._flows:
            assert isinstance(self.load, OpenLoop), "a flow is a rate"
            windows = Windows(
                self.app, instance.costs, instance.defaults, streams.seed, self.models
            )
            flow = Flow(instance, process, self.load, windows, streams("serve/flow"))
            flow.start(over.set)
        else:
            clients.start(self.load, over.set)
        for redeploy in self.redeploys:
            process.after(round(redeploy.at_s * 1e9), self._redeploy, (running, redeploy))
        yield wait_for(over)
        ended_ns = yield now()
        instance.shut_down()
        yield sleep(SHUTDOWN_NS)
        span_s = (up_ns / 1e9, ended_ns / 1e9)
        warnings = tuple(advice.of_settings(self.app, total_resources(nodes)))
        start_s = (up_ns - began_ns) / 1e9
        if flow is not None:
            said = of_flow(flow, running, span_s)
        else:
            said = of_requests(clients.log, running, span_s)
        return ServeReport(said, running.timeline, span_s, start_s).made(warnings)

    @property
    def why_not_flow(self) -> str:
        """What a flow cannot be of; empty: it can."""
        if not isinstance(self.load, OpenLoop):
            return "users wait for their answers: give a rate"
        inner = [d for d in self.app.deployments if d.name != self.app.ingress]
        limited = next((d.name for d in inner if d.max_queued_requests >= 0), "")
        if limited:
            return f"{limited} has max_queued_requests and is not the ingress"
        return ""

    @property
    def _flows(self) -> bool:
        if self.fidelity == "auto" and isinstance(self.load, OpenLoop):
            many = self.load.expected(0.0, self.load.duration_s) > MANY_REQUESTS
            return many and not self.why_not_flow
        return self.fidelity == "flow"

    @staticmethod
    def _redeploy(what: tuple[Running, Redeploy]) -> None:
        running, redeploy = what
        config = running.instance.app.deployment(redeploy.deployment)
        running.controller.redeploy(replace(config, version=f"{config.version}+"))

    def _refused(self, why: str) -> LibraryReport:
        return LibraryReport(
            kind=self.kind, ok=False, text=f"{self.app.name} does not run: {why}.", metrics={},
            inputs=INPUTS,
        )  # fmt: skip
