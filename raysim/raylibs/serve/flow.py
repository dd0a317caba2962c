"""Millions of requests as a flow: windows played one by one, a queue between them.

A load at a rate (``OpenLoop``) on an application on a cluster, in steps of a handle's samples.
Controller, autoscaling, replicas and nodes are those of ``controller.py``. Within a step:

- below the capacity, with no queue: what ``windows.py`` has seen at that rate, or at the most that
  it has looked at;
- beyond, or with a queue: as many are answered as the capacity is, first come first served; a
  request waits as long as the queue before it takes, and then is served as at that most.

The queue stands before the deployment that binds, as far as its callers have slots, then before
those, and at last in the proxies. Tests compare with the same load played request by request.

Not modelled: noise of arrivals within a step; calls that hang on a dead node until Ray knows
(their replica counts as working until then); a queue that stands in some of the proxies only;
``max_queued_requests`` of inner deployments. Rough: compositions whose inner deployment binds for
long; times were up to a fifth off where its callers' slots were full, and twice as long where not.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raysim.raylibs.serve.autoscaling import HandleReport
from raysim.raylibs.serve.config import AutoscalingConfig
from raysim.raylibs.serve.event_loop import Timers
from raysim.raylibs.serve.instance import Instance
from raysim.raylibs.serve.load import OpenLoop
from raysim.raylibs.serve.over_time import FlowHistory
from raysim.raylibs.serve.records import PHASES, LoadSummary
from raysim.raylibs.serve.replica import Replica
from raysim.raylibs.serve.timeline import Timeline
from raysim.raylibs.serve.usage import DeploymentUse
from raysim.raylibs.serve.windows import (
    BUSIEST,
    ROWS,
    Counts,
    Window,
    Windows,
    histogram,
    mean,
    quantile,
)
from raysim.units import NS_PER_S, to_ns

SHORTEST_STEP_S, LONGEST_STEP_S = 1e-3, 60.0
GIVEN_UP_S = 3600.0
"""What still waits then, without any replica, has failed."""
STEP_S, QUEUE_CHANGE = 1.0, 0.25
"""A step with a queue lasts until it has changed by this share, or so long."""
LEAST = 1e-6
"""Requests: what a sum of floats leaves."""
POINTS = 32
"""Of a step with a queue: instants of arrival that are looked at."""
BASE = 24
"""Quantiles of the time to be served that their waits are added to."""


class Flow:
    """One load on one application.

    Parameters
    ----------
    instance
        Who runs, and where reports go.
    process
        The clients'.
    load
        At a rate.
    windows
        Of the same application.
    draws
        A stream: what is in the system when a handle looks.
    """

    def __init__(
        self, instance: Instance, process: Timers, load: OpenLoop, windows: Windows, draws: Any
    ) -> None:
        self._instance = instance
        self._process = process
        self._load = load
        self.windows = windows
        self._draws = draws
        self._names = [d.name for d in instance.app.deployments]
        self._paths = _paths(instance)
        self._queue = 0.0
        """Requests beyond what windows have in the system."""
        self._waiting: deque[tuple[float, float, float]] = deque()
        """The queue, oldest first: how many came from when to when."""
        self._binds = instance.app.ingress
        self._now_s = 0.0
        self._begin_ns = 0
        self.answered = self.failed = self.refused = self.died = 0.0
        self._histograms = np.zeros((len(ROWS), len(histogram(np.zeros(0)))))
        self.history = FlowHistory(load.duration_s, self._histograms.shape[1])
        self._busy = np.zeros((4, len(self._names)))
        """Replica-seconds of loops, user threads, slots; waits of calls."""
        self._longest_wait = dict.fromkeys(self._names, 0.0)
        self._longest_at_max = dict.fromkeys(self._names, 0.0)
        self._at_max_since_s: dict[str, float] = {}
        self._proxy_busy_s = 0.0
        self._window: Window | None = None
        self._samples: dict[str, list[tuple[float, float]]] = {}

    def start(self, then: Callable[[], object]) -> None:
        """From now on; ``then()`` once the last request is answered."""
        self._then = then
        self._begin_ns = self._process.now_ns
        self._instance.before_change = self._advance
        self._instance.on_death = self._lose
        for name, config in self._scaled().items():
            self._samples[name] = []
            self._every(config.record_interval_s, partial(self._sample, name, config), name)
            self._every(config.metrics_interval_s, partial(self._report, name), name)
        self._every(LONGEST_STEP_S, lambda: None)
        self._process.after(to_ns(self._load.duration_s), lambda _: self._drain())

    def _scaled(self) -> dict[str, AutoscalingConfig]:
        deployments = self._instance.app.deployments
        return {d.name: d.autoscaling for d in deployments if d.autoscaling is not None}

    def _every(
        self, interval_s: float, fn: Callable[[], object], deployment: str | None = None
    ) -> None:
        """At the instants of the oldest handle's grid."""
        interval_ns, began_ns = to_ns(interval_s), self._process.now_ns
        for router in self._instance.routers.get(deployment or "", []):
            if router.metrics is not None:
                began_ns = router.metrics.began_ns
                break

        def again(_: object) -> None:
            self._advance()
            fn()
            if self._now_s < self._load.duration_s or self._queue:
                self._process.after(interval_ns, again)

        first_ns = interval_ns - (self._process.now_ns - began_ns) % interval_ns
        self._process.after(first_ns, again)

    def _drain(self) -> None:
        """No more requests come: until the queue is empty."""
        self._advance()
        rate = self._capacity(self._counts())
        if not rate and self._now_s > self._load.duration_s + GIVEN_UP_S:
            self.failed += self._queue
            self._queue = 0.0
        if self._queue <= 0:
            self._instance.before_change = self._instance.on_death = None
            self._then()
        else:
            wait_s = min(self._queue / rate, LONGEST_STEP_S) if rate else LONGEST_STEP_S
            self._process.after(to_ns(wait_s) + 1, lambda _: self._drain())

    # ---- time passes

    def _counts(self) -> Counts:
        running = self._instance.running
        return (*(len(running[n]) for n in self._names), max(len(self._instance.proxies), 0))

    def _advance(self) -> None:
        """Up to now, with the replicas there have been since the last time."""
        now_s = (self._process.now_ns - self._begin_ns) / NS_PER_S
        counts = self._counts()
        self._note_maxima(counts)
        while self._now_s < now_s - 1e-9:
            knots = [t for t, _ in self._load.rate if t > self._now_s + 1e-9]
            end_s = min([now_s, self._now_s + LONGEST_STEP_S, *knots, *self._last(self._now_s)])
            begun_s, self._now_s = self._now_s, self._step(counts, self._now_s, end_s)
            within_s = min(self._now_s, self._load.duration_s)
            came = self._load.expected(begun_s, within_s) if within_s > begun_s else 0.0
            self.history.passed(self._now_s, came, self._queue)

    def _note_maxima(self, counts: Counts) -> None:
        running = dict(zip(self._names, counts, strict=False))
        for name, config in self._scaled().items():
            if running[name] < config.max_replicas:
                self._at_max_since_s.pop(name, None)
            else:
                self._at_max_since_s.setdefault(name, self._now_s)

    def _last(self, at_s: float) -> list[float]:
        return [self._load.duration_s] if self._load.duration_s > at_s + 1e-9 else []

    def _step(self, counts: Counts, from_s: float, to_s: float) -> float:
        """One step, or less of it if a queue has gone by then: until when."""
        length_s = to_s - from_s
        came = self._load.expected(from_s, to_s) if from_s < self._load.duration_s else 0.0
        capacity = self._capacity(counts)
        if not capacity:
            self._window = None
            self._enqueue(came, counts, (from_s, to_s))
            return to_s
        rate = came / length_s
        if self._queue <= 0 and rate <= capacity:
            self._window = self.windows.at(counts, rate)
            self._account(self._window, counts, length_s)
            self._answer(came, self._window.histograms, self._window)
            return to_s
        change = rate - capacity
        if self._queue > 0:  # as long as it stays about as long
            to_s = min(to_s, from_s + max(QUEUE_CHANGE * self._queue / abs(change or 1.0), STEP_S))
            length_s = to_s - from_s
        if change < 0 and self._queue + change * length_s < 0:
            to_s = from_s + max(self._queue / -change, SHORTEST_STEP_S)
        elif change > 0 and self._queue < self._most(counts):  # until it is full
            full_s = from_s + (self._most(counts) - self._queue) / change
            to_s = min(to_s, max(full_s, from_s + SHORTEST_STEP_S))
        self._queued(counts, rate, capacity, (from_s, to_s))
        return to_s

    def _queued(
        self, counts: Counts, rate: float, capacity: float, span_s: tuple[float, float]
    ) -> None:
        """A step with a queue: the oldest are served, as many as the capacity is."""
        full = self.windows.at(counts, BUSIEST * capacity)
        self._window = full
        self._binds = self._binding(full)
        length_s = span_s[1] - span_s[0]
        self._enqueue(rate * length_s, counts, span_s)
        served = min(capacity * length_s, self._queue)
        left_s = np.linspace(*span_s, POINTS)
        came_s = self._serve(served)
        waits = np.maximum(left_s - came_s, 0.0)
        for name in self._paths[self._binds]:
            self._longest_wait[name] = max(self._longest_wait[name], float(waits.max()))
            since_s = self._at_max_since_s.get(name, np.inf)
            late = float(waits[came_s >= since_s].max(initial=0.0))
            self._longest_at_max[name] = max(self._longest_at_max[name], late)
        self._account(full, counts, length_s)
        self._fill(full, counts, length_s)
        self._busy[3][self._names.index(self._binds)] += served * float(waits.mean())
        self._answer(served, _waited(full.histograms, waits), full)

    def _enqueue(self, more: float, counts: Counts, span_s: tuple[float, float]) -> None:
        """These came evenly; too many are refused."""
        capacity = self._capacity(counts)
        room = max(0.0, self._most(counts) + capacity * (span_s[1] - span_s[0]) - self._queue)
        self.refused += max(0.0, more - room)
        more = min(more, room)
        if more > 0:
            self._waiting.append((more, *span_s))
            self._queue += more

    def _capacity(self, counts: Counts) -> float:
        """With the queue that there is."""
        return self.windows.capacity(counts, self._queue)

    def _most(self, counts: Counts) -> float:
        """``max_queued_requests`` of the ingress, in every proxy."""
        ingress = self._instance.app.deployment(self._instance.app.ingress)
        if ingress.max_queued_requests < 0:
            return math.inf
        return float(ingress.max_queued_requests * max(counts[-1], 1))

    def _serve(self, requests: float) -> NDArray[np.float64]:
        """Take the oldest: when ``POINTS`` of them, evenly spread, had come."""
        passed, came_s = [0.0], [self._waiting[0][1] if self._waiting else 0.0]
        left = requests
        while self._waiting and left > 1e-12:
            count, first_s, last_s = self._waiting.popleft()
            taken = min(count, left)
            end_s = first_s + (last_s - first_s) * taken / count
            if taken < count:
                self._waiting.appendleft((count - taken, end_s, last_s))
            passed += [passed[-1] + 1e-12, passed[-1] + taken]
            came_s += [first_s, end_s]
            left -= taken
        self._queue = sum(count for count, _, _ in self._waiting)
        if self._queue < LEAST:
            self._waiting.clear()
            self._queue = 0.0
        return np.interp(np.linspace(0.0, requests, POINTS), passed, came_s)

    def _answer(self, requests: float, histograms: NDArray[np.float64], window: Window) -> None:
        self.answered += requests * (1 - window.failed)
        self.failed += requests * window.failed
        answered = requests * (1 - window.failed) * histograms
        self._histograms += answered
        self.history.answered(answered[ROWS.index("total")])
        self._busy[3] += requests * window.wait_s

    def _account(self, window: Window, counts: Counts, length_s: float) -> None:
        replica_s = np.array(counts[:-1]) * length_s
        self._busy[0] += window.loop_busy * replica_s
        self._busy[1] += window.user_busy * replica_s
        self._busy[2] += window.slots_used * replica_s
        self._proxy_busy_s += window.proxy_busy * length_s

    def _fill(self, full: Window, counts: Counts, length_s: float) -> None:
        """The queue takes slots of those who call the deployment that binds."""
        for name in self._paths[self._binds][:-1]:
            i = self._names.index(name)
            slots = counts[i] * self._instance.app.deployment(name).max_ongoing_requests
            taken = min(1.0, full.slots_used[i] + self._queue / slots)
            self._busy[2][i] += (taken - full.slots_used[i]) * counts[i] * length_s

    def _binding(self, full: Window) -> str:
        """The deployment that is fullest, of several the one called last."""
        used = np.maximum(np.maximum(full.loop_busy, full.user_busy), full.slots_used)
        best = max(range(len(used)), key=lambda i: (used[i] >= 0.95 * used.max(), self._depth(i)))
        return self._names[best]

    def _depth(self, i: int) -> int:
        return len(self._paths[self._names[i]])

    def _lose(self, replica: Replica) -> None:
        """Calls that a replica had when it died fail."""
        self._advance()
        name = replica.config.name
        if self._window is not None and self._instance.running[name]:
            calls = self._window.in_system[self._names.index(name)]
            lost = min(calls / len(self._instance.running[name]), self.answered)
            self.died += lost
            self.answered -= lost

    # ---- what handles say

    def _in_system(self, name: str) -> float:
        """Calls of a deployment, queued and running, as a look would find them."""
        i = self._names.index(name)
        total = 0.0
        if self._window is not None:
            total = self._window.in_system[i] + self._window.spread[i] * self._draws.normal()
        if self._queue > 0 and name in self._paths[self._binds]:
            total += min(self._queue, self._room(name))
        return max(0.0, round(total))

    def _room(self, name: str) -> float:
        """Calls that its callers can have under way."""
        path = self._paths[name]
        if len(path) == 1:
            return np.inf
        caller = self._instance.app.deployment(path[-2])
        return caller.max_ongoing_requests * max(len(self._instance.running[caller.name]), 1)

    def _sample(self, name: str, config: AutoscalingConfig) -> None:
        at_s = self._process.now_ns / NS_PER_S
        points = self._samples[name]
        points.append((at_s, self._in_system(name)))
        while points[0][0] < at_s - config.look_back_period_s:
            del points[0]

    def _report(self, name: str) -> None:
        assert self._instance.push is not None, "nobody scales what says how"
        at_s = self._process.now_ns / NS_PER_S
        points = tuple(self._samples[name])
        self._instance.push(
            name, HandleReport(handle_id=f"flow/{name}", at_s=at_s, queued=points, running={})
        )

    # ---- what came of it

    def summary(self, seconds: float) -> LoadSummary:
        """Of all requests."""
        total = self._histograms[ROWS.index("total")]
        answered = round(self.answered)
        statuses = {
            "ok": answered, "user_error": round(self.failed), "backpressure": round(self.refused),
            "replica_died": round(self.died),
        }  # fmt: skip
        return LoadSummary(
            requests=answered, rps=answered / seconds, mean_s=mean(total),
            p50_s=quantile(total, 0.5), p90_s=quantile(total, 0.9),
            p95_s=quantile(total, 0.95), p99_s=quantile(total, 0.99),
            phases_s={
                name: (quantile(row, 0.5), quantile(row, 0.99))
                for name, row in zip(PHASES, self._histograms, strict=False)
            },
            statuses={k: n for k, n in statuses.items() if n or k == "ok"},
        )  # fmt: skip

    def uses(self, timeline: Timeline, from_s: float, to_s: float) -> tuple[DeploymentUse, ...]:
        """Of every deployment, as ``usage_of``."""
        found = []
        for i, config in enumerate(self._instance.app.deployments):
            replicas = timeline.mean(config.name, from_s, to_s)
            replica_s = max(replicas * (to_s - from_s), 1e-9)
            steps = timeline.runs.get(config.name, [])
            loop, user, slots, waited = self._busy[:, i].tolist()
            wait_s = waited / max(self.answered, 1.0)
            found.append(
                DeploymentUse(
                    config=config, requests=round(self.answered), replicas_mean=replicas,
                    replicas_max=max((n for t, n in steps if t <= to_s), default=0),
                    loop_busy=loop / replica_s, user_busy=user / replica_s,
                    slots_used=slots / replica_s, wait_mean_s=wait_s,
                    wait_max_s=max(self._longest_wait[config.name], wait_s),
                    wait_at_max_s=self._longest_at_max[config.name],
                )
            )  # fmt: skip
        return tuple(found)

    def proxy_busy(self, seconds: float) -> float:
        """Of the busiest proxy."""
        return self._proxy_busy_s / max(seconds, 1e-9)


def _paths(instance: Instance) -> dict[str, list[str]]:
    """By deployment: from the ingress to it."""
    app = instance.app
    paths = {app.ingress: [app.ingress]}
    waiting = [app.ingress]
    while waiting:
        name = waiting.pop(0)
        for group in app.deployment(name).work.calls:
            for callee in group:
                if callee not in paths:
                    paths[callee] = [*paths[name], callee]
                    waiting.append(callee)
    return {d.name: paths.get(d.name, [d.name]) for d in app.deployments}


def _waited(base: NDArray[np.float64], waits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Histograms with these waits before a replica is found."""
    shares = (np.arange(BASE) + 0.5) / BASE
    made = base.copy()
    for row in ("router", "total"):
        i = ROWS.index(row)
        served = np.array([quantile(base[i], q) for q in shares])
        sums = (served[:, None] + waits[None, :]).ravel()
        made[i] = histogram(sums) / len(sums)
    return made
