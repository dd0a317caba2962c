"""What an application's requests came to, in words and tables.

Real counterpart: a load generator's summary, ``serve status``, the dashboard's Serve page.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from raysim.raylibs.charts import Chart
from raysim.raylibs.report import Input, LibraryReport, Table
from raysim.raylibs.serve import advice, over_time
from raysim.raylibs.serve.flow import Flow
from raysim.raylibs.serve.records import PHASES, LoadSummary, RequestLog
from raysim.raylibs.serve.run import Running
from raysim.raylibs.serve.timeline import Timeline, area, at
from raysim.raylibs.serve.usage import BUSY, DeploymentUse, proxy_busy, usage_of

SHOWN = 8
"""Rows of the table of replicas over time."""


class Outcome(NamedTuple):
    """What requests came to, and what was busy meanwhile."""

    summary: LoadSummary
    uses: tuple[DeploymentUse, ...]
    proxy_busy: float
    how: tuple[str, ...]
    """What was left out of requests."""
    charts: tuple[Chart, ...]


def of_requests(log: RequestLog, running: Running, span_s: tuple[float, float]) -> Outcome:
    """Of requests one by one, over an interval."""
    return Outcome(
        log.summary(*span_s),
        usage_of(running.instance, running.timeline, *span_s),
        proxy_busy(running.instance, *span_s),
        (),
        over_time.of_requests(log, running.timeline, span_s),
    )


def of_flow(flow: Flow, running: Running, span_s: tuple[float, float]) -> Outcome:
    """Of a flow of them."""
    seconds = span_s[1] - span_s[0]
    return Outcome(
        flow.summary(seconds),
        flow.uses(running.timeline, *span_s),
        flow.proxy_busy(seconds),
        (f"Requests are a flow, of {flow.windows.played} windows whose requests were played.",),
        over_time.of_flow(flow.history, running.timeline, span_s),
    )


class ServeReport:
    """One run, in words and tables."""

    def __init__(
        self, said: Outcome, timeline: Timeline, span_s: tuple[float, float], start_s: float
    ) -> None:
        self.timeline = timeline
        self.span_s = span_s
        self.start_s = start_s
        self.summary, self.uses, self.proxy, self.how, self.charts = said

    def made(self, warnings: tuple[Any, ...]) -> LibraryReport:
        """The report."""
        s, metrics = self.summary, self._metrics()
        asked = s.requests + s.failed
        return LibraryReport(
            kind="serve",
            ok=s.requests > 0,
            text=f"{self._served(asked)}; {metrics['replicas_mean']:,.3g} replicas in the mean.",
            metrics=metrics,
            tables=(
                *([self._latencies()] if asked else []), self._deployments(), *self._over_time(),
            ),
            bound_by=self._bound_by() if asked else "Nothing: no requests came.",
            would_help=tuple(self._would_help()) if asked else (),
            warnings=(*warnings, *(advice.of_run(self.uses, self.proxy) if asked else ())),
            inputs=INPUTS,
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
            charts=self.charts,
        )  # fmt: skip

    def _served(self, asked: int) -> str:
        s = self.summary
        if not asked:
            return "no requests came"
        failed = f"{s.failed:,} of {asked:,} failed" if s.failed else f"all {asked:,} answered"
        return f"{s.rps:,.1f} requests/s, {failed}; median {_ms(s.p50_s)}, p99 {_ms(s.p99_s)}"

    def _metrics(self) -> dict[str, float]:
        s, (from_s, to_s) = self.summary, self.span_s
        replica_s = sum(area(steps, from_s, to_s) for steps in self.timeline.runs.values())
        return {
            "requests_per_s": s.rps, "latency_mean": s.mean_s, "latency_p50": s.p50_s,
            "latency_p90": s.p90_s, "latency_p95": s.p95_s, "latency_p99": s.p99_s,
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
            latest = max(late, key=lambda u: u.wait_max_s)
            what = [f"scaling of {', '.join(u.config.name for u in grew)}"] if grew else []
            if latest not in grew:
                what.append(f"routers to {latest.config.name}")
            said = " and ".join(what)
            return (
                f"{said[0].upper()}{said[1:]}: requests wait up to {latest.wait_max_s:.1f} s for a "
                f"replica of {latest.config.name}, {latest.slots_used:.0%} of its slots are taken."
            )
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
            elif auto is None and use.wait_max_s > advice.LONG_WAIT_S:
                slots = use.config.max_ongoing_requests
                yield f"A larger max_ongoing_requests for {name} (now {slots}): fewer are refused."
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
        rows: list[tuple[str | float, ...]] = []
        for t in times[:-1]:
            ran = [round(self.timeline.mean(n, t, t + times[1] - times[0]), 1) for n in scaled]
            if not rows or list(rows[-1][1:]) != ran:  # while nothing changes there is no new row
                rows.append((f"{t - from_s:,.0f} s", *ran))
        yield Table(
            title="replicas over time",
            columns=(("from", "text"), *((name, "count") for name in scaled)),
            rows=tuple(rows),
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
INPUTS = (
    Input(name="threads of proxies and replicas", value="costs.py", basis="measured", source=_BLOG),
    Input(name="imports of a replica", value="1 s of a core", basis="assumed",
          source="raylibs.serve.defaults"),
)  # fmt: skip
