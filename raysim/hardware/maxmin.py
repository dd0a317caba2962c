"""Max-min fair shares of links, by progressive filling; no clock here.

A flow moves ``size_bytes`` and puts ``load`` bytes on each of its links per byte of size, so one
variable stands for a transfer along a route (loads 1) and for a collective over thousands of links.
Fairness compares the bytes that flows put on *their own tightest link* (largest load over
capacity): for plain transfers this is the textbook max-min, and it does not depend on the unit in
which a collective's size is given. All flows rise together; a link that fills up, or a flow at its
own limit, stops there (Bertsekas and Gallager, Data Networks, 6.5.2).

Links that carry the same of every flow seen so far need one constraint, that of the narrowest: they
form a class, split when a transfer tells them apart (partition refinement). A collective over
1,024 GPUs then costs a handful of classes.

Not modelled: TCP's bias against long round trips, InfiniBand's credit loops, packet loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any

from raysim.hardware.node_links import Link

_ROUNDING = 1 + 1e-12


class LinkClass:
    """Links with one history; ``flows`` holds the load of each active flow.

    All carry the same, so that only the narrowest can be full: its ``capacity`` is theirs.
    """

    __slots__ = (
        "busy_ns", "busy_since_ns", "capacity", "carried", "cause", "flows", "index", "left",
        "links", "open", "parts", "seen", "single", "total", "weight",
    )  # fmt: skip

    def __init__(self, index: int, links: Iterable[Link]) -> None:
        self.index = index
        self.links = dict.fromkeys(links)
        self.single = len(self.links) == 1
        """It cannot be split, and its capacity may be set."""
        self.capacity = min(link.bytes_per_s for link in self.links)
        self.parts: list[tuple[int, LinkClass]] = []
        """Classes split off from it, and the versions of the partition that began with them."""
        self.flows: dict[Flow, float] = {}
        self.carried = 0.0
        self.busy_ns = 0
        self.busy_since_ns = 0
        self.cause: Any = None
        self.seen = 0
        self.left = self.weight = self.total = 0.0
        self.open = 0

    def lose(self, links: Iterable[Link]) -> None:
        """Some of its links are told apart from the others."""
        for link in links:
            del self.links[link]
        self.single = len(self.links) == 1
        self.capacity = min(link.bytes_per_s for link in self.links)

    def since(self, version: int) -> Iterator[LinkClass]:
        """What was this class in a version of the partition: itself, and what was split off."""
        yield self
        for began, part in self.parts:
            if began > version:
                yield from part.since(version)


class Loads:
    """Bytes per byte of size on each link, made once and started many times."""

    __slots__ = ("links", "of", "scale", "uses", "version")

    def __init__(self, loads: Iterable[tuple[Link, float]]) -> None:
        links: dict[Link, float] = {}
        for link, load in loads:
            if not 0 <= load < math.inf:
                raise ValueError(f"load on {link.name} must be finite and not negative: {load}")
            if load:
                links[link] = links.get(link, 0.0) + load
        tightest = max(
            ((load / link.bytes_per_s if link.bytes_per_s else 0.0, load)
             for link, load in links.items()),
            default=(0.0, 1.0),
        )  # fmt: skip
        self.scale = tightest[1]
        """Load on the tightest link; the solver's unit is bytes on that link."""
        self._load({link: load / self.scale for link, load in links.items()})

    @classmethod
    def along(cls, path: Iterable[Link]) -> Loads:
        """A load of 1 on each link of a path, and again where it comes by again."""
        path = tuple(path)
        links = dict.fromkeys(path, 1.0)
        if len(links) < len(path):
            return cls((link, 1.0) for link in path)
        made = cls.__new__(cls)
        made.scale = 1.0
        made._load(links)  # noqa: SLF001
        return made

    def _load(self, links: dict[Link, float]) -> None:
        self.links = links
        self.of: Partition | None = None
        self.uses: list[tuple[LinkClass, float]] = []
        """In the partition ``of``, as of its ``version``: what split off since then is missing."""
        self.version = 0


class Flow:
    """One transfer under way; quantities inside are bytes on its tightest link."""

    __slots__ = (
        "arg", "due_ns", "due_with", "failed", "failure", "handle", "index", "loads", "rate",
        "remaining", "row", "seen", "share", "since_ns", "size", "start_ns", "state", "stop",
        "table", "then", "top", "uses",
    )  # fmt: skip

    def __init__(
        self,
        index: int,
        loads: Loads,
        size_bytes: float,
        max_bytes_per_s: float,
        now_ns: int,
        *,
        then: Callable[[Any], object],
        arg: Any,
        failed: Callable[[Any, Any], object] | None,
    ) -> None:
        self.index = index
        self.loads = loads
        self.size = self.remaining = size_bytes * loads.scale
        self.top = max_bytes_per_s * loads.scale
        self.start_ns = self.since_ns = now_ns
        self.then = then
        self.arg = arg
        self.failed = failed
        self.failure: Any = None
        """Why it ended early; None while it runs and when it is through."""
        self.state = "waiting"
        self.handle: Any = None
        self.uses: list[tuple[LinkClass, float]] = []
        self.rate = self.share = 0.0
        self.stop: LinkClass | None = None
        """Its bottleneck: a full class on which nobody is faster; None: its own limit."""
        self.due_ns = 0
        """When it is through at this rate, if it goes on like this."""
        self.due_with: list[Flow] | None = None
        """Flows whose rates were set with its own."""
        self.seen = 0
        self.row = 0
        self.table: Any = None
        """The ``FlowTable`` in which its numbers are, and where."""

    @property
    def size_bytes(self) -> float:
        """Size as it was asked for."""
        return self.size / self.loads.scale

    @property
    def bytes_per_s(self) -> float:
        """Current rate, in bytes of size."""
        return self.rate / self.loads.scale

    def moved_bytes(self, now_ns: int) -> float:
        """How much of the size is through."""
        return (self.size - self.left(now_ns)) / self.loads.scale

    def left(self, now_ns: int) -> float:
        """What remains on the tightest link."""
        if now_ns <= self.since_ns or self.state != "active":
            return self.remaining
        return max(0.0, self.remaining - self.rate * (now_ns - self.since_ns) * 1e-9)


class Partition:
    """Which class each link is in; refined as transfers tell links apart."""

    def __init__(self) -> None:
        self.of: dict[Link, LinkClass] = {}
        self.told_of: Callable[[LinkClass, LinkClass], None] | None = None
        """Told of classes that have lost links, and to which new ones."""
        self._count = 0
        self._version = 0

    def uses(self, loads: Loads) -> list[tuple[LinkClass, float]]:
        """The classes that make up ``loads``, splitting those it covers in part."""
        if loads.of is not self:
            loads.of, loads.uses = self, self._refine(loads.links)
        elif loads.version != self._version:
            # What has left a class that these loads cover carries as much of them.
            loads.uses = [(part, load) for c, load in loads.uses for part in c.since(loads.version)]
        loads.version = self._version
        return loads.uses

    def alone(self, link: Link) -> LinkClass:
        """The class of one link and no other."""
        return self._refine({link: 1.0})[0][0]

    def enter(self, flow: Flow, since_ns: int) -> bool:
        """Put a flow on its links from ``since_ns`` on; whether it has them to itself."""
        flow.uses = list(self.uses(flow.loads))
        alone = True
        for c, load in flow.uses:
            if c.flows:
                alone = False
                c.busy_since_ns = min(c.busy_since_ns, since_ns)
            else:
                c.busy_since_ns = since_ns
            c.flows[flow] = load
        return alone

    @staticmethod
    def leave(flow: Flow, now_ns: int, moved: float) -> list[LinkClass]:
        """Take a flow off its links; the classes where others remain."""
        shared = []
        for c, load in flow.uses:
            del c.flows[flow]
            c.carried += load * moved
            if c.flows:
                shared.append(c)
            elif now_ns > c.busy_since_ns:
                c.busy_ns += now_ns - c.busy_since_ns
        return shared

    def use(self, link: Link, now_ns: int) -> tuple[float, int]:
        """Bytes a link has carried, and nanoseconds in which it had at least one flow."""
        c = self.of.get(link)
        if c is None:
            return 0.0, 0
        flying = sum(load * (f.size - f.left(now_ns)) for f, load in c.flows.items())
        since_ns = max(0, now_ns - c.busy_since_ns) if c.flows else 0
        return c.carried + flying, c.busy_ns + since_ns

    def _refine(self, links: dict[Link, float]) -> list[tuple[LinkClass, float]]:
        groups: dict[tuple[LinkClass | None, float], list[Link]] = {}
        uses: list[tuple[LinkClass, float]] = []
        of = self.of
        for link, load in links.items():
            owner = of.get(link)
            if owner is not None and owner.single:
                uses.append((owner, load))
            else:
                groups.setdefault((owner, load), []).append(link)
        for (owner, load), members in groups.items():
            if owner is not None and len(members) == len(owner.links):
                uses.append((owner, load))
            else:
                uses.append((self._make(owner, members), load))
        return uses

    def _make(self, owner: LinkClass | None, members: list[Link]) -> LinkClass:
        """A class of new links, or of some taken from ``owner`` with its history."""
        self._count += 1
        made = LinkClass(self._count, members)
        for link in members:
            self.of[link] = made
        if owner is not None:
            self._version += 1
            owner.parts.append((self._version, made))
            owner.lose(members)
            made.carried = owner.carried
            made.busy_ns, made.busy_since_ns = owner.busy_ns, owner.busy_since_ns
            made.cause = owner.cause
            made.flows = dict(owner.flows)
            for flow, load in made.flows.items():
                flow.uses.append((made, load))
            if self.told_of is not None:
                self.told_of(owner, made)
        return made


def component(
    seeds: Iterable[LinkClass], stamp: int, most: float = math.inf
) -> tuple[list[Flow], list[LinkClass]]:
    """Flows and classes that can influence ``seeds``; ``stamp`` must be new and not 0.

    With more than ``most`` flows only some of them: then there are more.
    """
    flows: list[Flow] = []
    classes: list[LinkClass] = []
    for seed in seeds:
        if seed.seen != stamp:
            seed.seen = stamp
            classes.append(seed)
    for link_class in classes:  # grows while it is walked: breadth first
        if len(flows) > most:
            break
        for flow in link_class.flows:
            if flow.seen != stamp:
                flow.seen = stamp
                flows.append(flow)
                for other, _ in flow.uses:
                    if other.seen != stamp:
                        other.seen = stamp
                        classes.append(other)
    return flows, classes


def added(loads: Iterable[float]) -> float:
    """Their sum, one after the other; Python's own ``sum`` rounds otherwise from 3.12 on."""
    total = 0.0
    for load in loads:
        total += load
    return total


def lone_rate(flow: Flow) -> float:
    """Rate of a flow that shares no link."""
    rate = flow.top
    for link_class, load in flow.uses:
        if link_class.capacity < rate * load:
            rate = link_class.capacity / load
    return rate


def even_s(flow: Flow) -> float:
    """Seconds a flow takes if all on each of its links have as much of it; 0 if one is cut."""
    rate = flow.top
    for c, load in flow.uses:
        rate = min(rate, c.capacity / (load * len(c.flows)))
    return flow.size / rate if rate else 0.0


def fill(flows: list[Flow], classes: list[LinkClass]) -> None:
    """Set ``share`` of every flow to its max-min fair rate; ``classes`` holds all their classes."""
    heap = _levels(flows, classes)
    left = len(flows)
    while left and heap:
        level, kind, index, item = heappop(heap)
        if item.__class__ is not LinkClass:
            if item.share >= 0:
                continue
            stopped, stop = [item], None
        elif item.open:
            if item.weight < 1e-6 * item.total:  # cancellation: sum again what is still open
                item.weight = item.total = added(w for f, w in item.flows.items() if f.share < 0)
            full_at = item.left / item.weight if item.left > 0.0 else 0.0
            if full_at > level * _ROUNDING:  # flows stopped elsewhere since: it fills up later
                heappush(heap, (full_at, kind, index, item))
                continue
            stopped, stop = [f for f in item.flows if f.share < 0], item
        else:
            continue
        for flow in stopped:
            flow.share = level
            flow.stop = stop
            for c, load in flow.uses:
                c.open -= 1
                c.left -= level * load
                c.weight -= load
        left -= len(stopped)
    for flow in flows:
        if flow.share < 0:  # nothing bounds it
            flow.share, flow.stop = math.inf, None


def _levels(flows: list[Flow], classes: list[LinkClass]) -> list[tuple[float, bool, int, Any]]:
    """A heap of the levels at which shared links fill up, and at which flows stop by themselves."""
    heap: list[tuple[float, bool, int, Any]] = []
    for c in classes:
        c.open = count = len(c.flows)
        if count > 1 and c.capacity < math.inf:
            c.left = capacity = c.capacity
            c.weight = c.total = weight = added(c.flows.values())
            heap.append((capacity / weight, False, c.index, c))
    for flow in flows:
        flow.share = -1.0
        limit = flow.top
        for c, load in flow.uses:
            if c.open == 1 and c.capacity < limit * load:
                limit = c.capacity / load
        if limit < math.inf:
            heap.append((limit, True, flow.index, flow))
    heapify(heap)
    return heap
