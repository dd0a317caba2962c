"""One thread of a Serve process, its tasks' turns, and what varies in the work it does.

Real counterpart: the asyncio loops of proxies and replicas, and a replica's user code thread. What
is given to a loop runs in the order it came, each for its cost: Lindley's recurrence, as in
``kernel.component``. A dead process's loop runs nothing more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from raysim.units import NS_PER_S


class Timers(Protocol):
    """A process, as far as clients are concerned."""

    @property
    def now_ns(self) -> int:
        """The clock's time."""

    def after(self, delay_ns: int, fn: Callable[[Any], object], arg: Any = None) -> Any:
        """Call ``fn(arg)`` later, unless it dies first."""


class ServeProcess(Timers, Protocol):
    """A process, as far as requests are concerned: a core worker, or a bare one."""

    me: Any
    """``me.node_id``: where it runs."""
    state: Any
    """``up`` while it lives."""


def deliver(process: ServeProcess, delay_ns: int, fn: Callable[[Any], object], arg: Any) -> None:
    """What another process sends it: nothing, if it is dead by then."""
    if process.state == "up":
        process.after(delay_ns, fn, arg)


class EventLoop:
    """A thread: one thing at a time, first come first served, as many a turn as are there.

    A turn looks at sockets and at what other threads have handed in: what is alone in its turn pays
    all of it. In the next turn is what came during the one before.
    """

    __slots__ = ("_turn_until", "busy_ns", "busy_until", "process")

    def __init__(self, process: Timers) -> None:
        self.process = process
        self.busy_until = 0
        self.busy_ns = 0
        """Of all that was given to it."""
        self._turn_until = 0
        """When the turn that goes on ends, and the next begins."""

    def run(
        self, cost_ns: int, fn: Callable[[Any], object], arg: Any = None, turn_ns: int = 0
    ) -> None:
        """``fn(arg)`` after its turn and its cost; ``turn_ns``: more for the first of a turn."""
        process = self.process
        now_ns = process.now_ns
        begin_ns = self.busy_until
        if begin_ns <= now_ns:  # it sleeps
            begin_ns = now_ns
            cost_ns += turn_ns
            self._turn_until = begin_ns + cost_ns
        elif self._turn_until <= now_ns:  # what was the next turn goes on by now
            self._turn_until = begin_ns
            cost_ns += turn_ns
        elif self._turn_until == begin_ns:  # the next turn was empty
            cost_ns += turn_ns
        self.busy_until = begin_ns + cost_ns
        self.busy_ns += cost_ns
        process.after(self.busy_until - now_ns, fn, arg)


class Turns:
    """A task of a loop: one piece of its work a turn, so that tasks go round.

    A coroutine that takes items from a stream gives way at each, whether the next is there or not:
    what has piled up for one request does not hold up the others.
    """

    __slots__ = ("_loop", "_runs", "_waits")

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._runs = False
        self._waits: deque[tuple[int, Callable[[Any], object], Any, int]] = deque()

    def run(
        self, cost_ns: int, fn: Callable[[Any], object], arg: Any = None, turn_ns: int = 0
    ) -> None:
        """``fn(arg)`` after what the task has to do already, its turn and its cost."""
        if self._runs:
            self._waits.append((cost_ns, fn, arg, turn_ns))
        else:
            self._runs = True
            self._loop.run(cost_ns, self._ran, (fn, arg), turn_ns)

    def _ran(self, piece: tuple[Callable[[Any], object], Any]) -> None:
        fn, arg = piece
        fn(arg)
        if self._waits:
            cost_ns, fn, arg, turn_ns = self._waits.popleft()
            self._loop.run(cost_ns, self._ran, (fn, arg), turn_ns)
        else:
            self._runs = False


class Jitter:
    """What varies in a thread's work: factors with mean 1, and pauses of its garbage collector."""

    __slots__ = ("_drawn", "_every_ns", "_left_ns", "_pause_ns", "_rng", "_shape", "cv")

    def __init__(
        self, rng: Any, cv: float, *, pause_s: float = 0.0, pause_every_s: float = 0.0
    ) -> None:
        self._rng = rng
        self.cv = cv
        self._shape = 1.0 / (cv * cv) if cv > 0 else 0.0
        self._drawn: list[float] = []
        self._pause_ns = round(pause_s * NS_PER_S)
        self._every_ns = pause_every_s * NS_PER_S
        self._left_ns = rng.exponential(self._every_ns) if self._pause_ns else 0.0
        """Of work, until the next pause."""

    def ns(self, mean_s: float) -> int:
        """Nanoseconds of one piece of work around this mean: gamma distributed."""
        cost_ns = round(mean_s * NS_PER_S)
        if self.cv and cost_ns:
            if not self._drawn:  # a thousand at a time
                self._drawn = self._rng.gamma(self._shape, 1.0 / self._shape, 1000).tolist()
            cost_ns = round(cost_ns * self._drawn.pop())
        if self._pause_ns:
            self._left_ns -= cost_ns
            if self._left_ns < 0:
                self._left_ns = self._rng.exponential(self._every_ns)
                cost_ns += self._pause_ns
        return cost_ns
