"""A shared server: what is there is divided among whoever works (processor sharing).

Real counterpart: cores under Linux's fair scheduler, a disk under many readers. A job of ``width``
w has w equal shares (threads); each share runs at ``capacity / total width``, at most at
``max_per_s``, less where two threads have one core (``doubling``). Equal shares mean one virtual
clock for all jobs, so a job costs one event and a heap entry whatever the load (Kleinrock, Queueing
Systems 2, 4.4; as in fluid fair queueing).

Not modelled: priorities, time slices, the cost of switching.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from raysim.hardware.cores import Doubling
from raysim.kernel.clock import Handle
from raysim.kernel.simulation import Simulation
from raysim.units import NS_PER_S


class Job:
    """One piece of work on a server."""

    __slots__ = ("arg", "failed", "failure", "size", "state", "then", "width")

    def __init__(
        self,
        size: float,
        width: float,
        then: Callable[[Any], object],
        arg: Any,
        failed: Callable[[Any, Any], object] | None,
    ) -> None:
        self.size = size
        self.width = width
        self.then = then
        self.arg = arg
        self.failed = failed
        self.failure: Any = None
        """Why it ended early; None while it runs and when it is done."""
        self.state = "active"


class SharedServer:
    """Processor sharing.

    Parameters
    ----------
    sim
        The run.
    name
        As the digest and reports call it: ``"node-3/cpu"``.
    capacity_per_s
        Units of work per second in all: core-seconds, bytes.
    max_per_s
        Most that one share can use; 1 for cores.
    doubling
        Of cores whose threads do less together than so many cores.
    """

    def __init__(
        self,
        sim: Simulation,
        name: str,
        capacity_per_s: float,
        *,
        max_per_s: float = math.inf,
        doubling: Doubling | None = None,
    ) -> None:
        assert capacity_per_s > 0, f"{name}: capacity {capacity_per_s}"
        assert max_per_s > 0, f"{name}: at most {max_per_s} per share"
        self.sim = sim
        self.name = name
        self.capacity_per_s = capacity_per_s
        self.max_per_s = max_per_s
        self.doubling = doubling
        self.failure: Any = None
        """Why it does not work; None while it does."""
        self.done_units = 0.0
        """Work finished."""
        self.busy_ns = 0
        """Nanoseconds in which there was work."""
        self._width = 0.0
        self._count = 0
        self._virtual = 0.0
        self._rate = 0.0
        self._since_ns = sim.now_ns
        self._heap: list[tuple[float, int, Job]] = []
        self._timer: Handle | None = None
        self._timer_ns = -1
        self._jobs: dict[Job, None] = {}
        self.changed: Callable[[], object] | None = None
        """Told when the work on it has changed."""

    def __len__(self) -> int:
        """Jobs at work."""
        return len(self._jobs)

    @property
    def width(self) -> float:
        """Shares at work: those of all jobs."""
        return self._width

    def job(
        self,
        size: float,
        then: Callable[[Any], object],
        arg: Any = None,
        *,
        width: float = 1.0,
        failed: Callable[[Any, Any], object] | None = None,
    ) -> Job:
        """Start ``size`` units of work, then ``then(arg)``; ``failed(arg, cause)`` if it fails.

        Raises
        ------
        ValueError
            The size or the width makes no sense.
        """
        if not (0 <= size < math.inf and 0 < width < math.inf):
            raise ValueError(f"{self.name}: job of size {size} and width {width}")
        job = Job(size, width, then, arg, failed)
        if self.failure is not None:
            self.sim.call_later(0, self._fail, job)
            return job
        self._advance()
        self._count += 1
        heappush(self._heap, (self._virtual + size / width, self._count, job))
        self._jobs[job] = None
        self._width += width
        self._set_rate()
        return job

    def cancel(self, job: Job) -> None:
        """End a job without telling anyone; harmless when it has ended."""
        if job.state != "active":
            return
        job.state = "cancelled"
        if job in self._jobs:
            self._advance()
            self._remove(job)
            self._set_rate()

    def set_capacity(self, capacity_per_s: float) -> None:
        """Make it slower or faster from now on."""
        assert capacity_per_s > 0, f"{self.name}: capacity {capacity_per_s}"
        self._advance()
        self.capacity_per_s = capacity_per_s
        self._set_rate()

    def fail(self, cause: Any) -> None:
        """Stop working: every job, present and future, ends with the cause."""
        self._advance()
        self.failure = cause
        jobs = list(self._jobs)
        for job in jobs:
            self._remove(job)
        self._set_rate()
        for job in jobs:
            self._fail(job)

    def restore(self) -> None:
        """Work again, with nothing to do."""
        self.failure = None

    def _fail(self, job: Job) -> None:
        if job.state == "active":
            job.state = "failed"
            job.failure = self.failure
            if job.failed is not None:
                self.sim.clock.note(job.failed)
                job.failed(job.arg, self.failure)

    def _remove(self, job: Job) -> None:
        del self._jobs[job]
        self._width = self._width - job.width if self._jobs else 0.0

    def _advance(self) -> None:
        """Bring the virtual clock to now: units served per share since the server was empty."""
        now_ns = self.sim.clock.now
        if self._jobs:
            self._virtual += self._rate * (now_ns - self._since_ns) * 1e-9
            self.busy_ns += now_ns - self._since_ns
        else:
            self._virtual = 0.0
            self._heap.clear()
        self._since_ns = now_ns

    def _set_rate(self) -> None:
        """Share the capacity anew and wait for whoever is through first."""
        if self.changed is not None:
            self.changed()
        heap = self._heap
        while heap and heap[0][2] not in self._jobs:
            heappop(heap)
        next_ns = -1
        if heap:
            each = self.capacity_per_s / self._width
            if self.doubling is not None:
                each = self.doubling.each(each)
            self._rate = min(self.max_per_s, each)
            wait_s = max(0.0, heap[0][0] - self._virtual) / self._rate
            next_ns = self._since_ns + math.ceil(wait_s * NS_PER_S - 1e-6)
        if next_ns == self._timer_ns:
            return
        if self._timer is not None:
            self.sim.cancel(self._timer)
        self._timer = self.sim.call_at(next_ns, self._due) if heap else None
        self._timer_ns = next_ns

    def _due(self, _: None) -> None:
        """Jobs are through; those within a nanosecond together."""
        self._timer, self._timer_ns = None, -1
        self._advance()
        limit = max(self._virtual + self._rate * 1e-9, self._heap[0][0])
        done = []
        while self._heap and self._heap[0][0] <= limit:
            job = heappop(self._heap)[2]
            if job in self._jobs:
                self._remove(job)
                job.state = "done"
                self.done_units += job.size
                done.append(job)
        self._set_rate()
        for job in done:
            self.sim.clock.note(job.then)
            job.then(job.arg)


class Share:
    """What one node has of a server that several nodes use; they fail one by one.

    Called as a ``SharedServer`` is.
    """

    def __init__(self, whole: SharedServer) -> None:
        self.whole = whole
        self.failure: Any = None
        """Why this node does not work; None while it does."""
        self.done_units = 0.0
        """Work finished for this node."""
        self._jobs: dict[Job, None] = {}

    @property
    def busy_ns(self) -> int:
        """Nanoseconds in which there was work, of whichever node."""
        return self.whole.busy_ns

    def job(
        self,
        size: float,
        then: Callable[[Any], object],
        arg: Any = None,
        *,
        width: float = 1.0,
        failed: Callable[[Any, Any], object] | None = None,
    ) -> Job:
        """As ``SharedServer.job``; ``failed`` also when this node fails."""
        order: list[Any] = [then, arg, failed]
        job = self.whole.job(size, self._through, order, width=width, failed=self._failed)
        order.append(job)
        if self.failure is None:
            self._jobs[job] = None
        else:
            self.whole.cancel(job)
            self.whole.sim.call_later(0, self._refuse, order)
        return job

    def cancel(self, job: Job) -> None:
        """As ``SharedServer.cancel``."""
        self._jobs.pop(job, None)
        self.whole.cancel(job)

    def fail(self, cause: Any) -> None:
        """Every job of this node, present and future, ends with the cause."""
        self.failure = cause
        jobs, self._jobs = self._jobs, {}
        for job in jobs:
            self.whole.cancel(job)
        for job in jobs:
            self._refuse(job.arg)

    def restore(self) -> None:
        """Work again, with nothing to do."""
        self.failure = None

    def _through(self, order: list[Any]) -> None:
        then, arg, _, job = order
        self._jobs.pop(job, None)
        self.done_units += job.size
        self.whole.sim.clock.note(then)
        then(arg)

    def _failed(self, order: list[Any], cause: Any) -> None:
        """The server itself has failed."""
        _, arg, failed, job = order
        self._jobs.pop(job, None)
        if failed is not None:
            failed(arg, cause)

    def _refuse(self, order: list[Any]) -> None:
        _, arg, failed, _ = order
        if failed is not None:
            self.whole.sim.clock.note(failed)
            failed(arg, self.failure)
