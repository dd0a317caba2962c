"""Who sends requests, and when: users that wait for their answers, or arrivals that do not.

Real counterpart: load generators (locust, wrk: closed loops), the world (open loops). Every
source draws from a stream of its own.

Not modelled: clients that give up or retry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from raysim.raylibs.serve.event_loop import Timers
from raysim.raylibs.serve.request import Request
from raysim.units import NS_PER_S, to_ns

Send = Callable[[Callable[[Request], object]], object]
"""Send one request; the callback with its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """Users that send, wait for the answer, think, and send again."""

    users: int
    think_s: float = 0.0
    duration_s: float = 60.0
    ramp_s: float = 0.0
    """The users come one after another over so long."""
    requests: int = 0
    """They stop when so many have been sent; 0: at the end of ``duration_s`` only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoop:
    """Arrivals at a rate that does not care for answers."""

    rate: tuple[tuple[float, float], ...]
    """(Second, requests per second): linear between, constant before and after."""
    duration_s: float
    poisson: bool = True
    """False: evenly spaced."""

    def rate_at(self, at_s: float) -> float:
        """Requests per second."""
        times, rates = zip(*self.rate, strict=True)
        return float(np.interp(at_s, times, rates))

    def expected(self, from_s: float, to_s: float) -> float:
        """Requests expected between two times."""
        edges = [t for t, _ in self.rate if from_s < t < to_s]
        times = [from_s, *edges, to_s]
        rates = [self.rate_at(t) for t in times]
        return float(np.trapezoid(rates, times))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Arrivals at given seconds."""

    times_s: tuple[float, ...]

    @property
    def duration_s(self) -> float:
        """Until the last one."""
        return self.times_s[-1] if self.times_s else 0.0


Load = ClosedLoop | OpenLoop | Trace


class Source(Protocol):
    """A load on the clock."""

    def start(self, then: Callable[[], object]) -> None:
        """Begin; ``then()`` when all has been sent and answered."""


def source_of(load: Load, process: Timers, send: Send, rng: Any) -> Source:
    """What plays it in a process."""
    if isinstance(load, ClosedLoop):
        return _Users(load, process, send)
    return _Arrivals(load, process, send, rng)


class _Users:
    """Plays a closed loop."""

    def __init__(self, load: ClosedLoop, process: Timers, send: Send) -> None:
        self._load = load
        self._process = process
        self._send = send
        self._active = 0
        self._sent = 0
        self._end_ns = 0

    def start(self, then: Callable[[], object]) -> None:
        """All users begin within the ramp."""
        load = self._load
        self._then = then
        self._active = load.users
        self._end_ns = self._process.now_ns + to_ns(load.duration_s)
        for i in range(load.users):
            self._process.after(to_ns(load.ramp_s * i / load.users), self._next)

    def _next(self, _: Any = None) -> None:
        most = self._load.requests
        if self._process.now_ns < self._end_ns and (not most or self._sent < most):
            self._sent += 1
            self._send(self._answered)
            return
        self._active -= 1
        if not self._active:
            self._then()

    def _answered(self, request: Request) -> None:
        think_ns = to_ns(self._load.think_s)
        if request.status != "ok" and not think_ns:
            think_ns = NS_PER_S  # a user that is refused does not come back in the same instant
        self._process.after(think_ns, self._next)


class _Arrivals:
    """Plays an open loop or a trace, some thousand arrivals drawn at a time."""

    _SLICE_S = 60.0
    _SLICE_REQUESTS = 5_000

    def __init__(self, load: OpenLoop | Trace, process: Timers, send: Send, rng: Any) -> None:
        self._load = load
        self._process = process
        self._send = send
        self._rng = rng
        self._open = 0
        self._times: list[int] = []
        self._drawn_s = 0.0
        self._all_drawn = False
        self._begin_ns = 0

    def start(self, then: Callable[[], object]) -> None:
        """From now on."""
        self._then = then
        self._begin_ns = self._process.now_ns
        self._arm()

    def _arm(self) -> None:
        while not self._times and not self._all_drawn:
            self._draw()
        if self._times:
            at_ns = self._begin_ns + self._times.pop()
            self._process.after(max(at_ns - self._process.now_ns, 0), self._arrive)
        elif not self._open:
            self._then()

    def _draw(self) -> None:
        load = self._load
        if isinstance(load, Trace):
            times: Sequence[float] = load.times_s
            self._all_drawn = True
        else:
            begin_s = self._drawn_s
            rate = max(load.rate_at(begin_s), load.rate_at(begin_s + self._SLICE_S), 1e-9)
            length_s = min(self._SLICE_S, self._SLICE_REQUESTS / rate, load.duration_s - begin_s)
            self._drawn_s = begin_s + max(length_s, 1e-6)
            times = arrivals_of(load, begin_s, self._drawn_s, self._rng)
            self._all_drawn = self._drawn_s >= load.duration_s
        self._times = [to_ns(float(t)) for t in reversed(times)]

    def _arrive(self, _: Any) -> None:
        self._open += 1
        self._send(self._answered)
        self._arm()

    def _answered(self, _: Request) -> None:
        self._open -= 1
        if not self._open and not self._times and self._all_drawn:
            self._then()


def arrivals_of(load: OpenLoop, from_s: float, to_s: float, rng: Any) -> Sequence[float]:
    """Times of arrivals in an interval: of a Poisson process by its integrated rate, inverted."""
    times, rates = zip(*load.rate, strict=True)
    knots = [t for t in times if from_s < t < to_s]
    grid = np.unique(np.concatenate((np.linspace(from_s, to_s, 17), knots)))
    at = np.interp(grid, times, rates)
    area = np.concatenate(([0.0], np.cumsum((at[1:] + at[:-1]) / 2 * np.diff(grid))))
    if area[-1] <= 0:
        return []
    if load.poisson:
        marks = np.sort(rng.random(rng.poisson(area[-1]))) * area[-1]
    else:
        before = load.expected(0.0, from_s)
        first = np.ceil(before - 1e-9)
        marks = np.arange(first, before + area[-1] - 1e-9) - before
    found: list[float] = np.interp(marks, area, grid).tolist()
    return found
