"""Transfers without sharing: each takes its latency and its size over its narrowest link.

For quick looks and for telling what contention costs, by comparing with ``FlowNetwork``.

Not modelled: contention, on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from raysim.hardware.maxmin import Flow, Loads, lone_rate
from raysim.hardware.topology import Link, Topology
from raysim.hardware.transfer import Failed, Network, Then, check_size
from raysim.kernel.simulation import Simulation
from raysim.units import to_ns


class ConstantNetwork(Network):
    """No sharing: each transfer takes its latency and its size over its narrowest link.

    A transfer started over a cut link waits until it is restored; one under way gets through, or
    ends with the cause if there is one.
    """

    def __init__(self, sim: Simulation, topology: Topology | None = None) -> None:
        super().__init__(sim, topology)
        self._held: dict[Flow, int] = {}
        """Transfers that wait for a link, and their latency."""

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
        """As ``Network.start``: one event.

        Raises
        ------
        ValueError
            A size, load, latency or limit makes no sense.
        """
        check_size(size_bytes, latency_ns, max_bytes_per_s)
        if not isinstance(loads, Loads):
            loads = Loads(loads)
        self._count += 1
        now_ns = self.sim.now_ns
        flow = Flow(
            self._count, loads, size_bytes, max_bytes_per_s, now_ns,
            then=then, arg=arg, failed=failed,
        )  # fmt: skip
        self._go(flow, latency_ns)
        return flow

    def _go(self, flow: Flow, latency_ns: int) -> None:
        flow.since_ns = self.sim.now_ns + latency_ns
        causes = [c.cause for c, _ in self._links.uses(flow.loads) if c.cause is not None]
        if causes:
            flow.failure = causes[0]
            flow.handle = self.sim.call_at(flow.since_ns, self._fail, flow)
            return
        self._links.enter(flow, flow.since_ns)
        flow.rate = lone_rate(flow)
        if flow.size and not flow.rate:
            self._links.leave(flow, self.sim.now_ns, 0.0)
            self._held[flow] = latency_ns
            return
        flow.state = "active"
        wait_ns = to_ns(flow.size / flow.rate)
        flow.handle = self.sim.call_at(flow.since_ns + wait_ns, self._due, flow)

    def _due(self, flow: Flow) -> None:
        flow.state = "done"
        flow.remaining = 0.0
        self._links.leave(flow, self.sim.now_ns, flow.size)
        self.sim.clock.note(flow.then)
        flow.then(flow.arg)

    def _fail(self, flow: Flow) -> None:
        flow.state = "failed"
        if flow.failed is not None:
            self.sim.clock.note(flow.failed)
            flow.failed(flow.arg, flow.failure)

    def cancel(self, flow: Flow) -> None:
        """As ``Network.cancel``."""
        if flow.state == "active":
            self._take_off(flow)
        elif flow.state != "waiting":
            return
        if flow.handle is not None:
            self.sim.cancel(flow.handle)
        self._held.pop(flow, None)
        flow.state = "cancelled"

    def _take_off(self, flow: Flow) -> None:
        now_ns = self.sim.now_ns
        flow.remaining = flow.left(now_ns)
        flow.since_ns = now_ns
        self._links.leave(flow, now_ns, flow.size - flow.remaining)

    def fail_link(self, link: Link, cause: Any = None) -> None:
        """As ``Network.fail_link``, but what is under way gets through unless there is a cause."""
        link_class = self._links.alone(link)
        link_class.capacity, link_class.cause = 0.0, cause
        self.messages.cut[link] = None
        if cause is not None:
            for flow in [f for f in self._held if link in f.loads.links]:
                if self._held.pop(flow, None) is not None:
                    flow.failure = cause
                    self._fail(flow)
            for flow in list(link_class.flows):
                if flow.state == "active":
                    self.sim.cancel(flow.handle)
                    self._take_off(flow)
                    flow.failure = cause
                    self._fail(flow)

    def set_bytes_per_s(self, link: Link, bytes_per_s: float) -> None:
        """As ``Network.set_bytes_per_s``, for transfers that start after it."""
        self._links.alone(link).capacity = bytes_per_s

    def restore(self, link: Link) -> None:
        """As ``Network.restore``; what waited for the link starts now."""
        link_class = self._links.alone(link)
        link_class.capacity, link_class.cause = link.bytes_per_s, None
        self.messages.cut.pop(link, None)
        held, self._held = self._held, {}
        for flow, latency_ns in held.items():
            self._go(flow, latency_ns)
