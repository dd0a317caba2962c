"""A load over time: percentiles of latency, requests, replicas; from records or from a flow.

Real counterpart: the Serve panels of the dashboard. A window's percentiles are of the requests
*sent* in it, so that they stand beside the rate that made them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from raysim.raylibs.charts import (
    PERCENTILES,
    WINDOWS,
    Chart,
    Line,
    against,
    edges,
    percentiles,
    rates,
    steps,
    under_way,
)
from raysim.raylibs.serve.records import RequestLog
from raysim.raylibs.serve.timeline import Steps, Timeline, at
from raysim.raylibs.serve.windows import quantile

Span = tuple[float, float]
"""Seconds from when to when the load came."""


class FlowHistory:
    """What a flow answered, in about ``WINDOWS`` parts.

    Parameters
    ----------
    lasts_s
        How long the load lasts.
    bins
        Of histograms.
    """

    def __init__(self, lasts_s: float, bins: int) -> None:
        self._every_s = lasts_s / WINDOWS
        self._now = np.zeros(bins)
        self._since_s = self._came = 0.0
        self.rows: list[tuple[float, float, float, float, tuple[float, ...]]] = []
        """(Middle, sent per second, answered per second, queue, seconds of ``PERCENTILES``)."""

    def answered(self, histogram: NDArray[np.float64]) -> None:
        """So many requests in each bin of the whole latency."""
        self._now += histogram

    def passed(self, to_s: float, came: float, queue: float) -> None:
        """The flow is there, and has this queue."""
        self._came += came
        length_s = to_s - self._since_s
        if length_s < self._every_s:
            return
        seen = tuple(quantile(self._now, q / 100) for q in PERCENTILES)
        answered = float(self._now.sum())
        middle_s = self._since_s + length_s / 2
        self.rows.append((middle_s, self._came / length_s, answered / length_s, queue, seen))
        self._since_s, self._came = to_s, 0.0
        self._now[:] = 0.0


def of_requests(log: RequestLog, timeline: Timeline, span_s: Span) -> tuple[Chart, ...]:
    """Of requests played one by one."""
    windows = edges(*span_s)
    sent = np.concatenate([log.arrived_s, log.bad_arrived_s])
    came = rates("sent", sent, windows)
    requests = [came, rates("answered", log.ended_s, windows)]
    if len(log.bad_arrived_s):
        requests.append(rates("failed", log.bad_arrived_s, windows))
    latency = percentiles(log.arrived_s, log.latency_s, windows)
    routed_s = log.arrived_s + log.phase_s("proxy")
    found_s = routed_s + log.phase_s("router")
    waiting = (
        under_way("wait for a replica", routed_s, found_s, windows),
        under_way("in replicas", found_s, log.ended_s, windows),
    )
    return tuple(_charts(latency, requests, waiting, timeline, span_s))


def of_flow(history: FlowHistory, timeline: Timeline, span_s: Span) -> tuple[Chart, ...]:
    """Of requests as a flow."""
    begin_s, rows = span_s[0], history.rows

    def line(name: str, values: Sequence[float]) -> Line:
        points = zip((begin_s + row[0] for row in rows), values, strict=True)
        return Line(name=name, points=tuple(points))

    latency = tuple(
        Line(
            name=f"p{q}",
            points=tuple((begin_s + r[0], r[4][k]) for r in rows if r[2]),
        )
        for k, q in enumerate(PERCENTILES)
    )
    requests = [line("sent", [r[1] for r in rows]), line("answered", [r[2] for r in rows])]
    waiting = (line("wait beyond what replicas hold", [r[3] for r in rows]),)
    return tuple(_charts(latency, requests, waiting, timeline, span_s))


def _charts(
    latencies: tuple[Line, ...], requests: list[Line], waiting: tuple[Line, ...],
    timeline: Timeline, span_s: Span,
) -> Iterator[Chart]:  # fmt: skip
    yield Chart(
        key="latency", title="Latency", unit="seconds", lines=latencies,
        about="Of the requests sent in each window, from the send to the answer.",
    )  # fmt: skip
    yield Chart(key="requests", title="Requests", unit="per_s", lines=tuple(requests))
    yield Chart(
        key="latency-load", title="Latency against load", unit="seconds",
        x=("requests sent", "per_s"), lines=against(requests[0].points, latencies),
        about="A point is a window: where the cloud bends upwards, replicas are too few.",
    )  # fmt: skip
    yield Chart(
        key="under-way", title="Requests under way", lines=waiting,
        about="ongoing and queued requests, in the mean of each window.",
    )  # fmt: skip
    running = [steps(f"{name}, running", _steps(s, span_s)) for name, s in timeline.runs.items()]
    wanted = [
        steps(f"{name}, wanted", _steps(s, span_s))
        for name, s in timeline.targets.items()
        if _steps(s, span_s) != _steps(timeline.runs.get(name, []), span_s)
    ]
    yield Chart(
        key="replicas", title="Replicas", lines=(*running, *wanted),
        about="Replicas that run, and what the controller wants (target_num_replicas).",
    )  # fmt: skip


def _steps(found: Steps, span_s: Span) -> list[tuple[float, float]]:
    first = (span_s[0], float(at(found, span_s[0])))
    later = [(t, float(n)) for t, n in found if span_s[0] < t <= span_s[1]]
    return [first, *later, (span_s[1], later[-1][1] if later else first[1])]
