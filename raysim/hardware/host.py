"""Several nodes on one machine, and the cores for which their threads contend.

Real counterpart: a laptop, or ``ray.cluster_utils.Cluster``: every raylet counts CPUs of its own,
and all of them run on the same cores and disks.

A thread with a little work (a message to handle, a call to submit) has a core to itself, and waits
for one when all are taken (``turns.py``); its part of a core where jobs (processes starting, users'
functions) are at work too, and less where cores have two threads each (``cores.py``). Jobs get what
such threads leave them, over windows of 10 ms. Linux's fair scheduler gives the same over a
few of its slices (3 ms).

A thread that has slept finds its caches used by others and works longer at first, the more the
longer it slept. Processes that are not followed one by one occupy a part of a core.

Processes that are nice get a thirtieth of what others get beside them: those that run users' tasks
are, and those that start are not yet, so that while processes start on all cores tasks hardly run.

Not modelled: the wait for the end of a slice, affinity; niceness among threads that serve messages
(bursts of calls take as long without it: ray 2.60 on 2 cores); a driver's own computing, and copies
that any process makes, count as nice beside processes that start.
"""

from __future__ import annotations

import math

from raysim.hardware.cores import capacity_of
from raysim.hardware.server import SharedServer
from raysim.hardware.specs import NodeSpec
from raysim.hardware.storage import Disk
from raysim.hardware.topology import Link
from raysim.hardware.turns import Turns
from raysim.kernel.simulation import Simulation

WINDOW_NS = 10_000_000
"""Over which the cores' share for jobs is set anew: a few slices of Linux's scheduler."""

WARM_NS = 300_000
"""Of work, after which a thread has the caches to itself again (assumed)."""

SLICE_NS = 700_000
"""``sysctl_sched_base_slice`` of Linux (6.10 and later) on one core; 1 + log2 of the cores, eight
at most, times as long on more (``kernel/sched/fair.c``). For so long a thread that works keeps its
core from others that wake."""
_SLICE_CORES = 8

MIN_SHARE = 0.1
"""Of the cores, what jobs get at least."""

_FORGOTTEN = 5
"""Times ``cold_ns``, after which a thread is as cold as can be."""

NICE_WEIGHT = 36 / 1024
"""Of a thread at niceness 15 beside one at 0: ``sched_prio_to_weight`` of Linux. 15 is Ray's
``worker_niceness``, seen in ``/proc`` (ray 2.60); a process takes it when it is up."""


class CoreLoad:
    """Who is at work on the cores of a machine."""

    def __init__(self, sim: Simulation, cpu: SharedServer) -> None:
        self.cores = cpu.capacity_per_s
        """That all threads are worth together, less those that are occupied."""
        self._sim = sim
        self._all = cpu.capacity_per_s
        self._cpu = cpu
        self.starting = SharedServer(
            sim, f"{cpu.name}-starting", self._all, max_per_s=1.0, doubling=cpu.doubling
        )
        """Core-seconds of processes that start."""
        self.starting.changed = self._divide
        self.nice: dict[object, None] = {}
        """Threads that are."""
        self._slots = _threads_of(cpu)
        self._slice_ns = SLICE_NS * min(self._slots, _SLICE_CORES).bit_length()
        self._turns = Turns(self._slots)
        self._until: dict[object, int] = {}
        self._used_ns = 0
        self._urgent_ns = 0
        """Of that, by threads that are not nice."""
        self._left = self._all
        """Cores that threads leave to jobs."""
        self._watching = False
        self._links: dict[str, Link] = {}
        self._background: dict[object, float] = {}
        self.cold_factor = 1.0
        """How many times as long work takes a thread that slept long: its caches are others'."""
        self.cold_ns = 0
        """Sleep after which it is so but for 1/e."""
        self.worked_ns: dict[object, int] = {}
        """Work of each thread so far."""

    def link(self, what: str, core_s_per_byte: float) -> Link:
        """The cores as what flows share, each byte being so much work; one link per ``what``."""
        if what not in self._links:
            self._links[what] = Link(
                f"{what} on {self.cores:g} cores", self.cores / core_s_per_byte
            )
        return self._links[what]

    def occupy(self, processes: object, cores: float) -> None:
        """Processes that are not followed one by one use so much, on average; 0: they ended."""
        self._background[processes] = cores
        self.cores = self._left = self._all - sum(self._background.values())
        self.starting.set_capacity(self.cores)

    def takes(self, thread: object, start_ns: int, work_ns: int, *, warm: bool = False) -> int:
        """Nanoseconds that ``work_ns`` of work takes a thread that begins at ``start_ns``.

        ``warm``: no longer after a sleep.
        """
        until = self._until
        last_ns = until.get(thread, 0)
        slept_ns = start_ns - last_ns
        if slept_ns > 0 and self.cold_ns and not warm:
            cold = -math.expm1(-slept_ns / self.cold_ns)
            work_ns += int(min(work_ns, WARM_NS) * (self.cold_factor - 1.0) * cold)
        at_work = min(self._slots, 1.0 + self._turns.busy(start_ns))
        busy = at_work + self._cpu.width
        starting, cores = self.starting.width, self.cores
        if thread not in self.nice:
            self._urgent_ns += work_ns
            share = self._stretch(busy + starting, cores)
        elif starting < cores:
            share = self._stretch(busy, cores - starting)
        else:
            share = (starting / NICE_WEIGHT + busy) / cores
        turn_share = max(1.0, self._stretch(at_work, cores))
        end_ns = self._turns.book(start_ns, int(work_ns * turn_share))
        if share > turn_share:  # what jobs have of its core is not its turn
            end_ns += int(work_ns * share) - int(work_ns * turn_share)
        if last_ns < end_ns:
            until[thread] = end_ns
        self._used_ns += work_ns
        self.worked_ns[thread] = self.worked_ns.get(thread, 0) + work_ns
        if not self._watching:
            self._watching = True
            self._sim.call_later(WINDOW_NS, self._window_over)
        return end_ns - start_ns

    def slice_ns(self, thread: object, at_ns: int) -> int:
        """How long a thread then goes on although others wait for its core; 0: it does not."""
        alone = thread in self.nice or self._turns.busy(at_ns) < self._slots
        return 0 if alone else self._slice_ns

    def serve(self, thread: object, at_ns: int, work_ns: int) -> int:
        """When a thread is through with work that reaches it at ``at_ns``; first come, first."""
        start_ns = max(at_ns, self._until.get(thread, 0))
        return start_ns + self.takes(thread, start_ns, work_ns)

    def _stretch(self, threads: float, cores: float) -> float:
        """How many times as long work takes each of them, if that is more than 1."""
        doubling = self._cpu.doubling
        return threads / cores if doubling is None else 1.0 / doubling.each(cores / threads)

    @property
    def alone(self) -> float:
        """Threads that have a core each."""
        doubling = self._cpu.doubling
        return (
            self.cores
            if doubling is None
            else self.cores * doubling.lone_frac / (1.0 - doubling.gain)
        )

    def _window_over(self, _: object) -> None:
        now_ns = self._sim.now_ns
        self._turns.forget(now_ns)
        awake_ns = now_ns - _FORGOTTEN * self.cold_ns
        self._until = {thread: t for thread, t in self._until.items() if t > awake_ns}
        most = self.cores * (1 - MIN_SHARE)
        self._left = self.cores - min(self._used_ns / WINDOW_NS, most)
        self.starting.set_capacity(self.cores - min(self._urgent_ns / WINDOW_NS, most))
        self._watching = self._used_ns > 0
        self._used_ns = self._urgent_ns = 0
        if self._watching:
            self._sim.call_later(WINDOW_NS, self._window_over)

    def _divide(self) -> None:
        """Jobs get what processes that start leave them."""
        left = self._left - min(self.starting.width, self.starting.capacity_per_s)
        self._cpu.set_capacity(max(left, self._left * NICE_WEIGHT))


def _threads_of(cpu: SharedServer) -> int:
    """That run at one time."""
    if cpu.doubling is None:
        return max(1, round(cpu.capacity_per_s))
    gain, lone_frac = cpu.doubling
    cores = cpu.capacity_per_s * lone_frac / (1.0 - gain)
    return round(cores + (cpu.capacity_per_s - cores) / gain)


class Host:
    """The machine of one or more nodes."""

    def __init__(self, sim: Simulation, spec: NodeSpec, name: str, *, contended: bool) -> None:
        self.capacity = capacity = capacity_of(spec)
        self.cpu = SharedServer(
            sim, f"{name}/cpu", capacity.most, max_per_s=1.0, doubling=capacity.doubling
        )
        """Core-seconds; a job's ``width`` is its threads."""
        self.disks = [
            Disk(sim, disk, f"{name}/disk-{k}")
            for k, disk in enumerate(d for d, count in spec.disks for _ in range(count))
        ]
        self.load = CoreLoad(sim, self.cpu) if contended else None
        """None: there are cores for every thread of Ray's own."""
