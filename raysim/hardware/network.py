"""Transfers over shared links in virtual time, at two fidelities behind one interface.

``FlowNetwork``: flows share links by weighted max-min (``maxmin``). Rates are solved again only for
the flows that a change can reach, once per instant; a transfer that shares nothing is one event.
``ConstantNetwork``: every transfer goes at the rate of its narrowest link, whoever else is there.

A flow waits for its latency, then moves its bytes through all its links at one rate (a pipeline:
nothing is stored and forwarded). A link may be cut (flows over it stall, as TCP and InfiniBand
retry) or cut with a cause (they end with that cause as data, as when a node dies).

Not modelled: slow start and congestion control's transients, packet headers, chunks of collectives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from raysim.hardware.constant_network import ConstantNetwork
from raysim.hardware.maxmin import Flow, LinkClass, Loads, even_s
from raysim.hardware.shares import Shares
from raysim.hardware.topology import Link, Topology
from raysim.hardware.transfer import Failed, LinkUse, Network, Then, check_size
from raysim.kernel.clock import Handle
from raysim.kernel.simulation import Simulation
from raysim.units import NS_PER_S, to_ns

Moved = Callable[[Flow, int], object]

BUSY, FEW = 50_000, 2
"""Flows looked at, but for a few in each solve, until compiled code is worth loading: half a second
of work. With two flows in each solve Python is as fast."""

CROWD = 256
"""Flows under way above which ``settle_frac`` counts: with fewer, a solve takes 0.1 ms at most."""

__all__ = ["ConstantNetwork", "Flow", "FlowNetwork", "LinkUse", "Loads", "Network"]


class FlowNetwork(Network):
    """Max-min fair sharing.

    Parameters
    ----------
    sim
        The run; its clock, its recorder, its invariants.
    topology
        Needed for ``send``.
    tolerance_ns
        Flows due within this of one that finishes, finish with it.
    settle_frac
        In a crowd of flows, the others notice one that comes or goes after this share of the time
        that it takes at most, and it waits as long for its own rate: a transport needs some round
        trips to find its rate, and one solve then does for many changes. 0: at once.
    """

    def __init__(
        self,
        sim: Simulation,
        topology: Topology | None = None,
        *,
        tolerance_ns: int = 1,
        settle_frac: float = 0.0,
    ) -> None:
        super().__init__(sim, topology)
        self.tolerance_ns = tolerance_ns
        self.settle_frac = settle_frac
        self.solves = 0
        """Times a component was solved."""
        self.active: dict[Flow, None] = {}
        """Flows on their links now, in order of arrival."""
        self._clock = sim.clock
        self._shares = Shares()
        self._busy: float = BUSY
        self._timer: Handle | None = None
        self._timer_ns = -1
        self._dirty: dict[LinkClass, None] = {}
        self._solving: Handle | None = None
        self._solving_ns = -1
        """When what is dirty is solved."""
        self._watched: dict[Link, float] = {}
        self.moved: Moved | None = None
        """Told of every flow that leaves its links, with the bytes of its size that it moved."""
        if sim.check:
            sim.invariants.register("network", self.wrong)

    # ---- what callers do -------------------------------------------------------------------------

    def start(
        self,
        loads: Loads | Iterable[tuple[Link, float]],
        size_bytes: float,
        *,
        latency_ns: int = 0,
        max_bytes_per_s: float = math.inf,
        then: Then,
        arg: Any = None,
        failed: Failed | None = None,
    ) -> Flow:
        """As ``Network.start``; nothing is called before this returns.

        Raises
        ------
        ValueError
            A size, load, latency or limit makes no sense.
        """
        check_size(size_bytes, latency_ns, max_bytes_per_s)
        if not isinstance(loads, Loads):
            loads = Loads(loads)
        now_ns = self._clock.now
        self._count += 1
        flow = Flow(
            self._count, loads, size_bytes, max_bytes_per_s, now_ns,
            then=then, arg=arg, failed=failed,
        )  # fmt: skip
        flow.since_ns = now_ns + latency_ns
        if not size_bytes or not loads.links:
            wait_ns = latency_ns + to_ns(size_bytes / max_bytes_per_s)
            flow.handle = self.sim.call_at(now_ns + wait_ns, self._through, flow)
            return flow
        for c, _ in self._links.uses(loads):
            if (latency_ns and c.flows) or c.cause is not None:
                flow.handle = self.sim.call_at(flow.since_ns, self._join, flow)
                return flow
        self._join(flow)  # nobody there: on its links ahead of time, one event in all
        return flow

    def cancel(self, flow: Flow) -> None:
        """As ``Network.cancel``."""
        if flow.state == "active":
            self._mark(self._take_off(flow))
            self._arm()
        elif flow.state == "waiting" and flow.handle is not None:
            self.sim.cancel(flow.handle)
        else:
            return
        flow.state = "cancelled"

    def set_bytes_per_s(self, link: Link, bytes_per_s: float) -> None:
        """Make a link slower or faster than its datasheet, from now on."""
        link_class = self._links.alone(link)
        link_class.capacity = bytes_per_s
        self._shares.resize(link_class)
        if link_class.flows:
            self._mark((link_class,))

    def fail_link(self, link: Link, cause: Any = None) -> None:
        """As ``Network.fail_link``."""
        self.set_bytes_per_s(link, 0.0)
        self.messages.cut[link] = None
        link_class = self._links.alone(link)
        link_class.cause = cause
        if cause is not None:
            for flow in list(link_class.flows):
                if flow.state == "active":  # not ended meanwhile, by what another one's end did
                    self._fail(flow, cause)
            self._arm()

    def restore(self, link: Link) -> None:
        """As ``Network.restore``."""
        self._links.alone(link).cause = None
        self.messages.cut.pop(link, None)
        self.set_bytes_per_s(link, link.bytes_per_s)

    def watch(self, links: Iterable[Link]) -> None:
        """Record each change of these links' rates as a counter, if anything is recorded."""
        if self.sim.recorder.enabled:
            self._watched.update((link, 0.0) for link in links)

    def wrong(self) -> str:
        """What breaks the laws of a network now, for invariant checking; empty when all is well."""
        now_ns = self._clock.now
        if self._dirty and self._solving_ns == now_ns:  # rates are solved later in this instant
            return ""
        for c in dict.fromkeys(c for flow in self.active for c, _ in flow.uses):
            rate = sum(f.rate * load for f, load in c.flows.items())
            if rate > c.capacity * (1 + 1e-9):
                return f"{next(iter(c.links)).name} carries {rate} of {c.capacity} bytes/s"
        for flow in self.active:
            late_s = (now_ns - flow.since_ns) * 1e-9
            if late_s > 0 and flow.rate * late_s > flow.remaining + flow.rate * 2e-9 + 1e-6:
                return f"flow {flow.index} moved more than its {flow.size_bytes} bytes"
        return ""

    # ---- how it goes -----------------------------------------------------------------------------

    def _join(self, flow: Flow) -> None:
        """The first byte reaches the links."""
        flow.handle = None
        for link_class, _ in self._links.uses(flow.loads):
            if link_class.cause is not None:
                self._fail(flow, link_class.cause)
                return
        flow.state = "active"
        self.active[flow] = None
        alone = self._links.enter(flow, flow.since_ns)
        self._shares.enter(flow, alone=alone)
        if alone:
            self._arm()
            if self._watched:
                self._sample()
        else:
            takes_ns = even_s(flow) * NS_PER_S if self._settles else 0
            self._mark([c for c, _ in flow.uses], takes_ns)

    @property
    def _settles(self) -> bool:
        return self.settle_frac > 0.0 and len(self.active) > CROWD

    def _mark(self, classes: Sequence[LinkClass], lasting_ns: float = 0) -> None:
        """Have the flows that these classes reach solved again, later in this instant.

        Or soon, if what has changed was or will be there for ``lasting_ns``.
        """
        if not classes:
            return
        for c in classes:
            self._dirty[c] = None
        at_ns = self._clock.now + int(lasting_ns * self.settle_frac)
        if self._solving is not None:
            if self._solving_ns <= at_ns:
                return
            self.sim.cancel(self._solving)
        self._solving_ns = at_ns
        self._solving = self.sim.call_at(at_ns, self._solve)

    def _solve(self, _: None) -> None:
        """Solve what has changed since the last time."""
        self._solving = None
        self._shares.solve(self._dirty, self._clock.now, self._put_off)
        self._dirty = {}
        self.solves += 1
        if self._shares.work - FEW * self.solves > self._busy:
            self._take_table()
        self._arm()
        if self._watched:
            self._sample()

    def _put_off(self, flow: Flow) -> None:
        """A flow that registered ahead is no longer alone, and its latency is not over."""
        self._shares.leave(flow, self._clock.now)
        self._links.leave(flow, self._clock.now, 0.0)
        del self.active[flow]
        flow.rate = 0.0
        flow.state = "waiting"
        flow.handle = self.sim.call_at(flow.since_ns, self._join, flow)

    def _take_table(self) -> None:
        """Have compiled code go on, if there is any; it finds the same."""
        self._busy = math.inf
        try:
            from raysim.hardware.flow_table import FlowTable
        except (ImportError, RuntimeError):  # no numba, or none for this numpy, or no cache for it
            return
        table = FlowTable(self.active)
        self._shares, self._links.told_of = table, table.split

    def _arm(self) -> None:
        """Keep one entry on the clock: when the next flow is through."""
        next_ns = self._shares.first_ns()
        if next_ns == self._timer_ns:
            return
        if self._timer is not None:
            self.sim.cancel(self._timer)
        self._timer_ns = next_ns
        self._timer = self.sim.call_at(next_ns, self._due) if next_ns >= 0 else None

    def _due(self, _: None) -> None:
        """Flows are through; those within the tolerance together."""
        self._timer = None
        self._timer_ns = -1
        through = self._shares.through(self._clock.now + self.tolerance_ns)
        now_ns, lasted_ns = self._clock.now, 0
        if self._settles:
            lasted_ns = min((now_ns - flow.start_ns for flow in through), default=0)
        shared: list[LinkClass] = []
        for flow in through:
            shared += self._take_off(flow, whole=True)
        self._mark([c for c in shared if c.flows], lasted_ns)
        for flow in through:
            self._through(flow)
        self._arm()
        if self._watched:
            self._sample()

    def _through(self, flow: Flow) -> None:
        flow.state = "done"
        flow.handle = None
        self._clock.note(flow.then)
        flow.then(flow.arg)

    def _take_off(self, flow: Flow, *, whole: bool = False) -> list[LinkClass]:
        """Take an active flow off its links, with the bytes it moved or all; who shared them."""
        now_ns = self._clock.now
        self._shares.leave(flow, now_ns, whole=whole)
        flow.since_ns = now_ns
        del self.active[flow]
        if self.moved is not None:
            self.moved(flow, now_ns)
        return self._links.leave(flow, now_ns, flow.size - flow.remaining)

    def _fail(self, flow: Flow, cause: Any) -> None:
        if flow.state == "active":
            self._mark(self._take_off(flow))
        flow.state = "failed"
        flow.failure = cause
        if flow.failed is not None:
            self._clock.note(flow.failed)
            flow.failed(flow.arg, cause)

    def _sample(self) -> None:
        """Record the watched links whose rate has changed."""
        if self._dirty:
            return
        now_ns = self._clock.now
        for link, before in self._watched.items():
            link_class = self._links.of.get(link)
            flows = link_class.flows if link_class else {}
            rate = sum(f.rate * load for f, load in flows.items())
            if rate != before:
                self._watched[link] = rate
                *track, name = link.name.split("/")
                self.sim.recorder.counter(tuple(track), f"link/{name}", now_ns, rate)
