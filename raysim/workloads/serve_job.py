"""An application of Ray Serve by numbers, and its load: rates, latencies, replicas, what binds.

Real counterpart: ``serve.run`` of an application, and a load generator beside the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from raysim.kernel.rng import Streams
from raysim.raycore import protocol as p
from raysim.raycore.process import CoreProcess
from raysim.raycore.resources import UNIT
from raysim.raycore.scripts import Event, Script, ask_gcs, now, sleep, wait_for
from raysim.raylibs.report import Input, LibraryReport, Table, Unit
from raysim.raylibs.serve import advice
from raysim.raylibs.serve.clients import Clients
from raysim.raylibs.serve.config import ApplicationConfig
from raysim.raylibs.serve.costs import STACKS
from raysim.raylibs.serve.flow import Flow
from raysim.raylibs.serve.instance import Instance
from raysim.raylibs.serve.load import Load, OpenLoop
from raysim.raylibs.serve.records import PHASES, LoadSummary, RequestLog
from raysim.raylibs.serve.run import Running, serve_run
from raysim.raylibs.serve.timeline import Timeline, area, at
from raysim.raylibs.serve.usage import BUSY, DeploymentUse, proxy_busy, usage_of
from raysim.raylibs.serve.windows import Windows

Fidelity = Literal["auto", "requests", "flow"]
MANY_REQUESTS = 200_000
"""``auto`` plays more of them as a flow."""
START_TIMEOUT_S = 3600.0
"""An application that does not run by then is given up; Ray's would wait for ever."""
SHUTDOWN_NS = 1_000_000
"""Calls that watched actors return."""
SHOWN = 8
"""Rows of the table of replicas over time."""


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
            "latency_p90": "seconds", "latency_p99": "seconds", "failed": "share",
            "replicas_mean": "count", "replica_hours": "count", "longest_wait": "seconds",
            "start": "seconds",
        }  # fmt: skip

    def main(self, process: CoreProcess, streams: Streams) -> Script:
        """The driver."""
        began_ns = yield now()
        nodes = yield ask_gcs(p.GetAllNodeInfo())
        instance = Instance(self.app, STACKS[self.stack], streams)
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
        warnings = tuple(advice.of_settings(self.app, _total(nodes)))
        start_s = (up_ns - began_ns) / 1e9
        if flow is not None:
            said = _of_flow(flow, running, span_s)
        else:
            said = _of_requests(clients.log, running, span_s)
        return _Report(said, running.timeline, span_s, start_s).made(warnings)

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
            inputs=_INPUTS,
        )  # fmt: skip


class _Said(NamedTuple):
    summary: LoadSummary
    uses: tuple[DeploymentUse, ...]
    proxy_busy: float
    how: tuple[str, ...]
    """What was left out of requests."""


def _of_requests(log: RequestLog, running: Running, span_s: tuple[float, float]) -> _Said:
    return _Said(
        log.summary(*span_s),
        usage_of(running.instance, running.timeline, *span_s),
        proxy_busy(running.instance, *span_s),
        (),
    )


def _of_flow(flow: Flow, running: Running, span_s: tuple[float, float]) -> _Said:
    seconds = span_s[1] - span_s[0]
    return _Said(
        flow.summary(seconds),
        flow.uses(running.timeline, *span_s),
        flow.proxy_busy(seconds),
        (f"Requests are a flow, of {flow.windows.played} windows whose requests were played.",),
    )


class _Report:
    """One run, in words and tables."""

    def __init__(
        self, said: _Said, timeline: Timeline, span_s: tuple[float, float], start_s: float
    ) -> None:
        self.timeline = timeline
        self.span_s = span_s
        self.start_s = start_s
        self.summary, self.uses, self.proxy, self.how = said

    def made(self, warnings: tuple[Any, ...]) -> LibraryReport:
        """The report."""
        s, metrics = self.summary, self._metrics()
        asked = s.requests + s.failed
        failed = f"{s.failed:,} of {asked:,} failed" if s.failed else f"all {asked:,} answered"
        return LibraryReport(
            kind="serve",
            ok=s.requests > 0,
            text=f"{s.rps:,.1f} requests/s, {failed}; median {_ms(s.p50_s)}, p99 {_ms(s.p99_s)}; "
            f"{metrics['replicas_mean']:,.3g} replicas in the mean.",
            metrics=metrics,
            tables=(self._latencies(), self._deployments(), *self._over_time()),
            bound_by=self._bound_by(),
            would_help=tuple(self._would_help()),
            warnings=(*warnings, *advice.of_run(self.uses, self.proxy)),
            inputs=_INPUTS,
            simplifications=(
                "A load balancer knows at once which proxies live; clients do not retry.",
                "Bytes of requests are not on the network.",
                *self.how,
            ),
            detail={
                "statuses": dict(s.statuses), "proxy_busy": self.proxy,
                "replicas": {k: _steps(v, self.span_s) for k, v in self.timeline.runs.items()},
                "targets": {k: _steps(v, self.span_s) for k, v in self.timeline.targets.items()},
            },
        )  # fmt: skip

    def _metrics(self) -> dict[str, float]:
        s, (from_s, to_s) = self.summary, self.span_s
        replica_s = sum(area(steps, from_s, to_s) for steps in self.timeline.runs.values())
        return {
            "requests_per_s": s.rps, "latency_mean": s.mean_s, "latency_p50": s.p50_s,
            "latency_p90": s.p90_s, "latency_p99": s.p99_s,
            "failed": s.failed / max(s.requests + s.failed, 1),
            "replicas_mean": replica_s / max(to_s - from_s, 1e-9),
            "replica_hours": replica_s / 3600,
            "longest_wait": max((u.wait_max_s for u in self.uses), default=0.0),
            "start": self.start_s,
        }  # fmt: skip

    def _bound_by(self) -> str:
        busiest = max(self.uses, key=lambda u: u.busy)
        fullest = max(self.uses, key=lambda u: u.slots_used)
        late = [u for u in self.uses if u.wait_max_s > advice.LONG_WAIT_S]
        grew = [u for u in self.uses if u.config.autoscaling is not None]
        if self.proxy > max(BUSY, busiest.busy):
            return f"The proxy: its thread is busy {self.proxy:.0%} of the time."
        if busiest.busy > BUSY:
            return f"{busiest.config.name}: its replicas' threads are busy {busiest.busy:.0%}."
        if fullest.slots_used > advice.FULL:
            return (
                f"{fullest.config.name}: {fullest.slots_used:.0%} of its "
                f"{fullest.config.max_ongoing_requests} slots per replica are taken."
            )
        if late:
            longest_s = max(u.wait_max_s for u in late)
            names = ", ".join(u.config.name for u in grew)
            what = f"Scaling of {names}" if grew else f"Bursts on {late[-1].config.name}"
            return f"{what}: requests wait up to {longest_s:.1f} s for a replica."
        return (
            f"Nothing: requests are served as they come; {busiest.config.name} is busiest "
            f"({busiest.busy:.0%})."
        )

    def _would_help(self) -> Iterator[str]:
        if self.proxy > BUSY:
            yield "RAY_SERVE_ENABLE_HA_PROXY=1: the proxy's thread no longer binds."
        for use in self.uses:
            auto, name = use.config.autoscaling, use.config.name
            if use.busy > BUSY and auto is None:
                yield f"Twice the replicas of {name}: up to 100 % more requests/s."
            elif auto is not None and use.wait_max_s > advice.LONG_WAIT_S:
                yield (
                    f"A shorter upscale_delay_s for {name} (now {auto.upscale_delay_s:g} s), or "
                    f"more min_replicas (now {auto.min_replicas})."
                )

    def _latencies(self) -> Table:
        s = self.summary
        rows: list[tuple[str, float, float]] = [(name, *s.phases_s[name]) for name in PHASES]
        names = {
            "proxy": "waits for the proxy", "router": "waits for a replica",
            "replica": "waits in the replica", "service": "is served",
        }  # fmt: skip
        return Table(
            title="latency",
            columns=(("a request", "text"), ("p50", "seconds"), ("p99", "seconds")),
            rows=(*((names[n], a, b) for n, a, b in rows), ("altogether", s.p50_s, s.p99_s)),
        )

    def _deployments(self) -> Table:
        return Table(
            title="deployments",
            columns=(
                ("deployment", "text"), ("replicas", "count"), ("at most", "count"),
                ("thread busy", "share"), ("slots taken", "share"), ("mean wait", "seconds"),
                ("longest wait", "seconds"),
            ),
            rows=tuple(_row(u) for u in self.uses),
        )  # fmt: skip

    def _over_time(self) -> Iterator[Table]:
        from_s, to_s = self.span_s
        scaled = [u.config.name for u in self.uses if u.config.autoscaling is not None]
        if not scaled:
            return
        times = [from_s + (to_s - from_s) * i / SHOWN for i in range(SHOWN + 1)]
        yield Table(
            title="replicas over time",
            columns=(("from", "text"), *((name, "count") for name in scaled)),
            rows=tuple(
                (
                    f"{t - from_s:,.0f} s",
                    *(round(self.timeline.mean(n, t, t + times[1] - times[0]), 1) for n in scaled),
                )
                for t in times[:-1]
            ),
        )


def _row(use: DeploymentUse) -> tuple[str | float | int, ...]:
    return (
        use.config.name, round(use.replicas_mean, 2), use.replicas_max, use.busy,
        min(use.slots_used, 1.0), use.wait_mean_s, use.wait_max_s,
    )  # fmt: skip


def _steps(steps: list[tuple[float, int]], span_s: tuple[float, float]) -> list[list[float]]:
    """Seconds since the load began, and the number from then on."""
    first = [0.0, float(at(steps, span_s[0]))]
    return [first, *([round(t - span_s[0], 3), float(n)] for t, n in steps if t > span_s[0])]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.3g} ms" if seconds < 1 else f"{seconds:,.3g} s"


_BLOG = "anyscale/serve-performance-blog, 18 rows (validation, section ray_serve)"
_INPUTS = (
    Input(name="threads of proxies and replicas", value="costs.py", basis="measured", source=_BLOG),
    Input(name="imports of a replica", value="1 s of a core", basis="assumed",
          source="raylibs.serve.defaults"),
)  # fmt: skip


def _total(nodes: Any) -> dict[str, float]:
    total: dict[str, float] = {}
    for node in nodes:
        if node.state != "DEAD":
            for name, units in node.resources.items():
                total[name] = total.get(name, 0.0) + units / UNIT
    return total
