"""What happened to requests, column by column.

Phases of a request that was answered: ``proxy`` (waiting for the proxy's thread), ``router`` (until
a replica was found), ``replica`` (until the user's method was called), ``service`` (the rest).
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raysim.raylibs.serve.request import Request
from raysim.units import NS_PER_S

PHASES = ("proxy", "router", "replica", "service")


class RequestLog:
    """Requests in the order they ended."""

    def __init__(self) -> None:
        self._arrived = array("q")
        self._ended = array("q")
        self._first = array("q")
        self._phases = tuple(array("q") for _ in PHASES)
        self._bad = array("q")
        """When requests were sent that were not answered well."""
        self.statuses: dict[str, int] = {}

    def add(self, request: Request) -> None:
        """One has ended."""
        status = request.status or "ok"
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if status != "ok":
            self._bad.append(request.arrived_ns)
            return
        call = request.call
        assert call is not None, "answered without a call"
        router_ns = call.assigned_ns - call.created_ns
        replica_ns = call.begun_ns - call.assigned_ns
        service_ns = request.latency_ns - request.proxy_wait_ns - router_ns - replica_ns
        self._arrived.append(request.arrived_ns)
        self._ended.append(request.ended_ns)
        self._first.append(request.first_chunk_ns)
        times = (request.proxy_wait_ns, router_ns, replica_ns, service_ns)
        for column, ns in zip(self._phases, times, strict=True):
            column.append(ns)

    def __len__(self) -> int:
        """Requests answered well."""
        return len(self._arrived)

    def _column(self, column: array[int]) -> NDArray[np.int64]:
        return np.frombuffer(column, dtype=np.int64) if len(column) else np.zeros(0, np.int64)

    @property
    def latency_s(self) -> NDArray[np.float64]:
        """Of each, from the client's send to its answer."""
        return (self._column(self._ended) - self._column(self._arrived)) / NS_PER_S

    @property
    def arrived_s(self) -> NDArray[np.float64]:
        """When each was sent."""
        return self._column(self._arrived) / NS_PER_S

    @property
    def bad_arrived_s(self) -> NDArray[np.float64]:
        """When each was sent that failed or was refused."""
        return self._column(self._bad) / NS_PER_S

    @property
    def ended_s(self) -> NDArray[np.float64]:
        """When each was answered."""
        return self._column(self._ended) / NS_PER_S

    @property
    def first_chunk_s(self) -> NDArray[np.float64]:
        """Of streaming responses: from the send to the first chunk."""
        return (self._column(self._first) - self._column(self._arrived)) / NS_PER_S

    def phase_s(self, name: str) -> NDArray[np.float64]:
        """Of each request."""
        return self._column(self._phases[PHASES.index(name)]) / NS_PER_S

    def summary(self, since_s: float = 0.0, until_s: float | None = None) -> LoadSummary:
        """Of those that ended in this interval."""
        ended = self.ended_s
        last = float(ended.max()) if len(ended) else 0.0
        end_s = last if until_s is None else until_s
        inside = (ended >= since_s) & (ended <= end_s)
        return summarize(
            self.latency_s[inside],
            {name: self.phase_s(name)[inside] for name in PHASES},
            end_s - since_s,
            self.statuses,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSummary:
    """Throughput and latencies of one load."""

    requests: int
    rps: float
    mean_s: float
    p50_s: float
    p90_s: float
    p95_s: float
    p99_s: float
    phases_s: Mapping[str, tuple[float, float]]
    """Median and p99 of each phase."""
    statuses: Mapping[str, int]

    @property
    def failed(self) -> int:
        """Requests that did not get what they asked for."""
        return sum(n for status, n in self.statuses.items() if status != "ok")


def summarize(
    latency_s: NDArray[np.float64],
    phases_s: Mapping[str, NDArray[np.float64]],
    seconds: float,
    statuses: Mapping[str, int],
) -> LoadSummary:
    """Percentiles of what there is; zeros of nothing."""
    n = len(latency_s)
    shares = (50, 90, 95, 99)
    p50, p90, p95, p99 = np.percentile(latency_s, shares) if n else (0.0,) * len(shares)
    return LoadSummary(
        requests=n,
        rps=n / seconds if seconds > 0 else 0.0,
        mean_s=float(latency_s.mean()) if n else 0.0,
        p50_s=float(p50),
        p90_s=float(p90),
        p95_s=float(p95),
        p99_s=float(p99),
        phases_s={
            k: (float(np.median(v)), float(np.percentile(v, 99))) if n else (0.0, 0.0)
            for k, v in phases_s.items()
        },
        statuses=dict(statuses),
    )
