"""Short windows of requests, played one by one, that stand for long ones: ``flow.py``'s samples.

What an application with so many replicas does with so many requests per second does not change
while neither does. So a few thousand requests are played on bare processes (``bench.py``) and
kept: histograms of latencies, what is in the system, how busy everything is. Replicas beyond a
few are rounded to a grid of 15 %, at the same load per replica; loads lie between two windows of a
grid, and are mixed of both.

Not modelled: how a system settles after a change, beyond the queue that ``flow.py`` keeps.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from raysim.kernel.simulation import Simulation
from raysim.raylibs.serve.bench import Bench, BenchSpec
from raysim.raylibs.serve.config import ApplicationConfig
from raysim.raylibs.serve.costs import ServeCosts
from raysim.raylibs.serve.defaults import ServeDefaults
from raysim.raylibs.serve.load import ClosedLoop, OpenLoop
from raysim.raylibs.serve.records import PHASES, RequestLog
from raysim.raylibs.serve.timeline import Timeline
from raysim.raylibs.serve.usage import proxy_busy, usage_of

Counts = tuple[int, ...]
"""Replicas of each deployment, in the application's order, and proxies."""
FINEST_S, COARSEST_S, STEP = 1e-5, 1e5, 0.01
EDGES: NDArray[np.float64] = np.concatenate(
    ([0.0], np.exp(np.arange(math.log(FINEST_S), math.log(COARSEST_S), STEP)))
)
"""Of histograms of seconds: 1 % apart."""
ROWS = (*PHASES, "total")
LOADS = (0.0, 0.2, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Shares of the capacity at which windows are played; the first at almost none."""
REQUESTS = 2_000
"""In a window; beside them a third more that do not count."""
BUSIEST, HIGH = LOADS[-1], 0.8
"""From the second on, queues vary for long, and windows are thrice as long."""
FINE, COARSE, COARSEST = 1.15, 1.5, 1.7
"""From one number of replicas to the next, of windows and of capacities; and of proxies."""
FEW = 8
MANY_SLOTS = 40
"""Per replica; more users would only wait longer."""
QUEUES = (0.5, 2.0, 8.0, 32.0)
"""Calls that wait, over slots, at which the capacity is looked for: routers lose time over them."""
SAMPLES = 40
"""Looks at what is in the system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What was seen of one operating point."""

    histograms: NDArray[np.float64]
    """(``ROWS``, bins): shares of the requests that were answered."""
    in_system: NDArray[np.float64]
    """Queued and running calls of each deployment."""
    spread: NDArray[np.float64]
    """Their standard deviation."""
    loop_busy: NDArray[np.float64]
    user_busy: NDArray[np.float64]
    slots_used: NDArray[np.float64]
    wait_s: NDArray[np.float64]
    proxy_busy: float
    failed: float
    """Share of requests that failed."""

    def mixed(self, other: Window, share: float) -> Window:
        """So much of the other."""
        return Window(**{
            name: (1 - share) * getattr(self, name) + share * getattr(other, name)
            for name in self.__slots__
        })  # fmt: skip


class Windows:
    """All windows of one application.

    Parameters
    ----------
    app, costs, defaults
        As deployed.
    seed
        Each window's own streams derive from it and from the operating point.
    models
        Multiplexed models that requests ask for.
    """

    def __init__(
        self, app: ApplicationConfig, costs: ServeCosts, defaults: ServeDefaults, seed: int,
        models: int = 0,
    ) -> None:  # fmt: skip
        self.app = app
        self._spec: Callable[..., BenchSpec] = lambda **more: BenchSpec(
            app=app, costs=costs, defaults=defaults, models=models, **more
        )
        self._seed = seed
        self._capacities: dict[tuple[Counts, int], float] = {}
        self._played: dict[tuple[Counts, int], Window] = {}

    def capacity(self, counts: Counts, queue: float = 0.0) -> float:
        """Requests per second that so many replicas serve while about so many wait."""
        if not all(counts):
            return 0.0
        near = self._rounded(counts, COARSE)
        scale = min(n / m for n, m in zip(counts, near, strict=True))
        return scale * self._between(near, queue / (scale * self._slots(near)))

    def _between(self, near: Counts, queues: float) -> float:
        """Between two of ``QUEUES``, in logarithms; more than the last are as the last."""
        level = bisect_left(QUEUES, queues)
        if not level or level == len(QUEUES):
            return self._saturated(near, min(level, len(QUEUES) - 1))
        low, high = QUEUES[level - 1], QUEUES[level]
        share = math.log(queues / low) / math.log(high / low)
        below, above = self._saturated(near, level - 1), self._saturated(near, level)
        return float(below ** (1 - share) * above**share)

    def at(self, counts: Counts, rate: float) -> Window:
        """What happens at this rate, at most ``BUSIEST`` of the capacity."""
        near = self._rounded(counts, FINE)
        load = min(rate / self.capacity(counts), BUSIEST)
        above = next(i for i, grid in enumerate(LOADS) if grid >= load)
        if not above:
            return self._window(near, 0)
        low, high = LOADS[above - 1], LOADS[above]
        share = (load - low) / (high - low)
        if share == 1.0:
            return self._window(near, above)
        return self._window(near, above - 1).mixed(self._window(near, above), share)

    @staticmethod
    def _rounded(counts: Counts, grid: float) -> Counts:
        return (*(_near(n, grid) for n in counts[:-1]), _near(counts[-1], COARSEST))

    @property
    def played(self) -> int:
        """Windows so far."""
        return len(self._played) + len(self._capacities)

    def _scale(self, counts: Counts, near: Counts) -> float:
        """Of the deployment that changes most by rounding: all are rounded alike or not at all."""
        return min(n / m for n, m in zip(counts, near, strict=True))

    def _bench(self, counts: Counts, load: Any, salt: int) -> Bench:
        *replicas, proxies = counts
        seed = crc32(repr((self._seed, counts, salt)).encode())
        names = (d.name for d in self.app.deployments)
        spec = self._spec(load=load, nodes=proxies)
        return Bench(Simulation(seed=seed), spec, replicas=dict(zip(names, replicas, strict=True)))

    def _slots(self, counts: Counts) -> int:
        """Of the ingress, as many as keep threads busy."""
        return sum(
            n * min(d.max_ongoing_requests, MANY_SLOTS)
            for n, d in zip(counts, self.app.deployments, strict=False)
            if d.name == self.app.ingress
        )

    def _saturated(self, counts: Counts, level: int) -> float:
        """Of a closed loop with users for all slots and for a queue."""
        key = counts, level
        if key not in self._capacities:
            users = max(2, round((1 + QUEUES[level]) * self._slots(counts)))
            most = REQUESTS + 2 * users
            load = ClosedLoop(users=users, duration_s=1e9, requests=most)
            ended_s = np.sort(self._bench(counts, load, 0).run().ended_s)
            first, last = len(ended_s) // 3, len(ended_s) - users
            self._capacities[key] = float((last - first) / (ended_s[last] - ended_s[first]))
        return self._capacities[key]

    def _window(self, counts: Counts, load: int) -> Window:
        key = counts, load
        if key not in self._played:
            self._played[key] = self._play(counts, load)
        return self._played[key]

    def _play(self, counts: Counts, load: int) -> Window:
        rate = max(LOADS[load], 0.02) * self.capacity(counts)
        lasts_s = (REQUESTS if LOADS[load] < HIGH else 3 * REQUESTS) / rate
        begin_s = lasts_s / 3
        end_s = begin_s + lasts_s
        bench = self._bench(counts, OpenLoop(rate=((0.0, rate),), duration_s=end_s), 2 + load)
        seen: list[list[float]] = []
        deployments = [d.name for d in self.app.deployments]

        def look(_: object) -> None:
            seen.append([
                sum(r.queued + sum(r.running.values()) for r in bench.instance.routers[name])
                for name in deployments
            ])  # fmt: skip

        for i in range(SAMPLES):
            at_s = begin_s + lasts_s * (i + 0.5) / SAMPLES
            bench.sim.clock.call_later(round(at_s * 1e9), look)
        log = bench.run()
        timeline = Timeline()
        for name, n in zip(deployments, counts, strict=False):
            timeline.running(name, 0.0, n)
        uses = usage_of(bench.instance, timeline, 0.0, end_s)
        total = sum(log.statuses.values())
        return Window(
            histograms=_histograms(log, begin_s),
            in_system=np.mean(seen, axis=0),
            spread=np.std(seen, axis=0),
            loop_busy=np.array([u.loop_busy for u in uses]),
            user_busy=np.array([u.user_busy for u in uses]),
            slots_used=np.array([u.slots_used for u in uses]),
            wait_s=np.array([u.wait_mean_s for u in uses]),
            proxy_busy=proxy_busy(bench.instance, 0.0, end_s),
            failed=1.0 - len(log) / max(total, 1),
        )


def _near(n: int, grid: float) -> int:
    """The number of replicas that stands for it."""
    return n if n <= FEW else round(FEW * grid ** round(math.log(n / FEW, grid)))


def _histograms(log: RequestLog, since_s: float) -> NDArray[np.float64]:
    inside = log.arrived_s >= since_s
    columns: Mapping[str, NDArray[np.float64]] = {
        **{name: log.phase_s(name) for name in PHASES}, "total": log.latency_s,
    }  # fmt: skip
    counted = [histogram(columns[name][inside]) for name in ROWS]
    return np.array(counted) / max(int(inside.sum()), 1)


def histogram(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """How many of these fall in each bin."""
    where = np.clip(np.searchsorted(EDGES, seconds, side="right") - 1, 0, len(EDGES) - 1)
    return np.bincount(where, minlength=len(EDGES)).astype(np.float64)


def quantile(counts: NDArray[np.float64], q: float) -> float:
    """Seconds below which this share of a histogram lies, within half a per cent."""
    total = counts.sum()
    if not total:
        return 0.0
    i = int(np.searchsorted(np.cumsum(counts), q * total))
    i = min(i, len(EDGES) - 1)
    return float(EDGES[i] * math.exp(STEP / 2)) if i else 0.0


def mean(counts: NDArray[np.float64]) -> float:
    """Seconds in the mean of a histogram."""
    total = counts.sum()
    return float(counts @ (EDGES * math.exp(STEP / 2)) / total) if total else 0.0
