"""Rates of the flows on their links, and when each is through; time is only a number here.

``Shares`` keeps them in the flows themselves; ``flow_table`` in arrays, to the bit the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from operator import attrgetter

from raysim.hardware.maxmin import Flow, LinkClass, component, fill, lone_rate
from raysim.hardware.ripple import ripple
from raysim.units import NS_PER_S

MANY = 64
"""Flows of a component above which a change is followed only as far as it reaches."""

_due_ns_of, _due_order = attrgetter("due_ns"), attrgetter("due_ns", "index")


class Shares:
    """Max-min shares, solved again only for what a change can reach."""

    def __init__(self) -> None:
        self.work = 0
        """Flows looked at in all solves so far."""
        self._stamp = 0
        self._due_at: list[tuple[int, int, Flow, list[Flow]]] = []
        """Of flows whose rates were set together only the first, and the others with it."""
        self._sets = 0

    def enter(self, flow: Flow, *, alone: bool) -> None:
        """A flow has come onto its links; ``alone``: and shares none of them."""
        if alone:
            flow.rate = lone_rate(flow)
            self._schedule([flow])

    def leave(self, flow: Flow, now_ns: int, *, whole: bool = False) -> None:
        """A flow goes off its links, with the bytes it moved or all."""
        flow.remaining = 0.0 if whole else flow.left(now_ns)
        flow.due_with = None

    def resize(self, link_class: LinkClass) -> None:
        """The capacity of these links is another."""

    def solve(
        self, seeds: Iterable[LinkClass], now_ns: int, put_off: Callable[[Flow], None]
    ) -> None:
        """Set the rates of the flows that a change at ``seeds`` reaches.

        ``put_off`` takes a flow off its links that has registered ahead of its latency.
        """
        while True:
            self._stamp += 1
            flows, classes = component(seeds, self._stamp, MANY)
            many = len(flows) > MANY
            self.work += len(flows)
            if many:  # who registered ahead was alone on its links, so that only seeds meet it
                flows, classes = list({f: None for c in seeds for f in c.flows}), list(seeds)
            early = [f for f in flows if f.since_ns > now_ns]
            if not early:
                break
            for flow in early:  # registered ahead, when nobody was there: its latency is not over
                put_off(flow)
            seeds = classes
        if many:
            flows = ripple(seeds)
            self.work += len(flows)
        else:
            fill(flows, classes)
        changed = []
        for flow in flows:
            rate, share = flow.rate, flow.share
            if share != rate and not abs(share - rate) <= 1e-12 * rate:
                flow.remaining = flow.left(now_ns)
                flow.since_ns = now_ns
                flow.rate = share
                changed.append(flow)
        self._schedule(changed)

    def first_ns(self) -> int:
        """When the next flow is through; -1: none will be."""
        due = self._due_at
        while due and due[0][2].due_with is not due[0][3]:
            together = heappop(due)[3]  # the first has a new rate: who is first now?
            together[:] = [f for f in together if f.due_with is together]
            self._note_first(together)
        return due[0][0] if due else -1

    def through(self, limit_ns: int) -> list[Flow]:
        """Flows through by then, in order; they are off the books of when flows are through."""
        due = self._due_at
        found: list[Flow] = []
        while due and due[0][0] <= limit_ns:
            together = heappop(due)[3]
            mine = [f for f in together if f.due_with is together]
            found += [f for f in mine if f.due_ns <= limit_ns]
            together[:] = [f for f in mine if f.due_ns > limit_ns]
            self._note_first(together)
        found.sort(key=_due_order)
        return found

    def _schedule(self, flows: Iterable[Flow]) -> None:
        """Work out when these flows are through at their present rates."""
        together: list[Flow] = []
        for flow in flows:
            if len(together) == MANY:
                self._note_first(together)
                together = []
            if flow.rate > 0:
                wait_ns = math.ceil(flow.remaining / flow.rate * NS_PER_S - 1e-6)
                flow.due_ns = flow.since_ns + wait_ns
                flow.due_with = together
                together.append(flow)
            else:
                flow.due_with = None
        self._note_first(together)

    def _note_first(self, together: list[Flow]) -> None:
        if together:
            first = min(together, key=_due_ns_of)
            self._sets += 1
            heappush(self._due_at, (first.due_ns, self._sets, first, together))
