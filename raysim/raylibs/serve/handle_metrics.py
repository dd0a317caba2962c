"""What a handle tells the autoscaler: how many calls it has queued and running.

Real counterpart: ``RouterMetricsManager`` of ``_private/router.py`` (ray 2.60): a sample every
``record_interval_s``, a report of the look-back every ``metrics_interval_s``, one at once when a
call finds no replica at all. A handle without calls does nothing: after a look-back of zeros its
reports could not change a decision.

Not modelled: metrics that replicas collect themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raysim.raylibs.serve.autoscaling import HandleReport
from raysim.raylibs.serve.config import AutoscalingConfig
from raysim.units import NS_PER_S, to_ns

if TYPE_CHECKING:
    from raysim.raylibs.serve.router import Router

Push = Callable[[str, HandleReport], object]
"""Deployment, report."""


class HandleMetrics:
    """Samples and reports of one router."""

    def __init__(self, router: Router, config: AutoscalingConfig, push: Push) -> None:
        self.asleep = True
        self._router = router
        self._config = config
        self._push = push
        self.began_ns = router.process.now_ns
        self._queued: deque[tuple[float, float]] = deque()
        self._running: dict[str, deque[tuple[float, float]]] = {}

    def wake(self) -> None:
        """Calls have come."""
        if self.asleep:
            self.asleep = False
            self._next(self._config.record_interval_s, self._record)
            self._next(self._config.metrics_interval_s, self._report)

    def push_now(self) -> None:
        """A call waits, and there is no replica."""
        self._sample()
        self._send()

    def _next(self, interval_s: float, fn: Callable[[Any], object]) -> None:
        """At the next instant of its grid."""
        process, interval_ns = self._router.process, to_ns(interval_s)
        process.after(interval_ns - (process.now_ns - self.began_ns) % interval_ns, fn)

    def _record(self, _: object) -> None:
        if not self.asleep:
            self._sample()
            self._next(self._config.record_interval_s, self._record)

    def _report(self, _: object) -> None:
        self._send()
        if any(v for _, v in self._queued) or any(v for p in self._running.values() for _, v in p):
            self._next(self._config.metrics_interval_s, self._report)
        else:
            self.asleep = True

    def _sample(self) -> None:
        router = self._router
        now_s = router.process.now_ns / NS_PER_S
        since_s = now_s - self._config.look_back_period_s
        self._queued.append((now_s, router.queued))
        for replica_id, n in router.running.items():
            self._running.setdefault(replica_id, deque()).append((now_s, n))
        for points in (self._queued, *self._running.values()):
            while points and points[0][0] < since_s:
                points.popleft()
        self._running = {k: points for k, points in self._running.items() if points}

    def _send(self) -> None:
        router = self._router
        report = HandleReport(
            handle_id=router.handle_id,
            at_s=router.process.now_ns / NS_PER_S,
            queued=tuple(self._queued),
            running={k: tuple(points) for k, points in self._running.items()},
        )
        self._push(router.config.name, report)
