"""Max-min shares after a change in a large component, solved only as far as the change reaches.

What came or went on some links frees the flows on these links; all other flows keep their rates.
The free ones are filled up beside them (``maxmin``'s progressive filling with what is left of each
link). Then every flow must still have its bottleneck: a full link on which nobody is faster
(Bertsekas and Gallager, Data Networks, 6.5.2). Flows that lost theirs are freed too, until there
are none; in the end everybody has one, and there is only one such allocation.

In an all-to-all of a thousand flows a change reaches some tens. Shares agree with ``maxmin.fill``
to rounding, not to the bit, so small components are still solved whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Any

from raysim.hardware.maxmin import Flow, LinkClass, added

_SLACK = 1e-9
"""Relative; two rates or a full link are compared with it."""
_ROUNDING = 1 + 1e-12


def ripple(seeds: Iterable[LinkClass]) -> list[Flow]:
    """Set ``share`` of every flow that a change at ``seeds`` reaches; these flows."""
    free: dict[Flow, None] = {}
    for c in seeds:
        free.update(dict.fromkeys(c.flows))
    while True:
        touched = _what_is_left(free)
        _fill(free, touched)
        without = _without_bottleneck(free, touched)
        if not without:
            return list(free)
        free.update(without)


def _what_is_left(free: dict[Flow, None]) -> dict[LinkClass, None]:
    """The classes of these flows, with what the others leave of them."""
    touched = {c: None for flow in free for c, _ in flow.uses}
    for c in touched:
        taken = weight = 0.0
        count = 0
        for flow, load in c.flows.items():
            if flow in free:
                weight += load
                count += 1
            else:
                taken += flow.rate * load
        c.left = c.capacity - taken
        c.weight = c.total = weight
        c.open = count
    return touched


def _levels(
    free: dict[Flow, None], touched: dict[LinkClass, None]
) -> list[tuple[float, bool, int, Any]]:
    """A heap of the levels at which links fill up, and at which flows stop by themselves."""
    heap: list[tuple[float, bool, int, Any]] = [
        (max(c.left, 0.0) / c.weight, False, c.index, c) for c in touched if c.left < math.inf
    ]
    for flow in free:
        flow.share, flow.stop = -1.0, None
        if flow.top < math.inf:
            heap.append((flow.top, True, flow.index, flow))
    heapify(heap)
    return heap


def _fill(free: dict[Flow, None], touched: dict[LinkClass, None]) -> None:
    """As ``maxmin.fill``, of the free flows only."""
    heap = _levels(free, touched)
    left = len(free)
    while left and heap:
        level, kind, index, item = heappop(heap)
        if item.__class__ is not LinkClass:
            stopped, stop = ([item] if item.share < 0 else []), None
        elif item.open:
            stopped, stop = [f for f in item.flows if f in free and f.share < 0], item
            if item.weight < 1e-6 * item.total:  # cancellation: sum again what is still open
                item.weight = item.total = added(item.flows[f] for f in stopped)
            full_at = max(item.left, 0.0) / item.weight
            if full_at > level * _ROUNDING:  # flows stopped elsewhere since: it fills up later
                heappush(heap, (full_at, kind, index, item))
                continue
        else:
            continue
        for flow in stopped:
            flow.share, flow.stop = level, stop
            for c, load in flow.uses:
                c.open -= 1
                c.left -= level * load
                c.weight -= load
        left -= len(stopped)
    for flow in free:
        if flow.share < 0:  # nothing bounds it
            flow.share = math.inf


def _without_bottleneck(free: dict[Flow, None], touched: dict[LinkClass, None]) -> dict[Flow, None]:
    """Flows that kept their rates and must not: slower or faster than they would be now."""
    without: dict[Flow, None] = {}
    for c in touched:
        kept = [flow for flow in c.flows if flow not in free]
        if not kept:
            continue
        full = c.left <= c.capacity * _SLACK
        moved = [flow for flow in c.flows if flow in free]
        rates = [flow.share for flow in moved] + [flow.rate for flow in kept]
        fastest = max(rates) * (1 - _SLACK)
        stopped_at = max((flow.share for flow in moved if flow.stop is c), default=math.inf)
        for flow in kept:
            lost = flow.stop is c and (not full or flow.rate < fastest)
            if lost or flow.rate > stopped_at * (1 + _SLACK):
                without[flow] = None
    return without
