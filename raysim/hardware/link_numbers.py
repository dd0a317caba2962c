"""Links by number: what thousands of groups of GPUs put on the links of a cluster, in arrays.

Groups that sit alike load alike. What one of them puts on which link is found link by link
(``Topology.shares``, ``Topology.path``); where another has nodes of the same kinds, as far apart as
they are, and so their islands and leaf switches, it is the same so many nodes further on. All is
summed in the order of groups, so that the sums are ``Topology.sibling_loads``' to the bit.

All calls of a job on 100,000 GPUs tell some hundred links apart: ``told_apart`` has one link stand
for all of its rate that carry the same of every call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from raysim.hardware.maxmin import Loads
from raysim.hardware.node_links import Link, NodeLinks
from raysim.hardware.topology import Member, Share, Topology, links_of

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Places = Integers
"""By group, member, and (node, local index)."""
Shares = Callable[[Sequence[Member]], list[Share]]


@dataclass(frozen=True, eq=False)
class Ways:
    """Bytes on links, by number, each of which comes up once."""

    numbers: Integers
    bytes_on: Floats

    @cached_property
    def levels(self) -> tuple[int, Integers]:
        """How many bytes there are that differ, and which of them each link has."""
        values, of = np.unique(self.bytes_on, return_inverse=True)
        return len(values), of


@dataclass(frozen=True, slots=True)
class _Pattern:
    """What a group puts on links, one after the other; numbers as if it began at node 0."""

    numbers: Integers
    per_node: Integers
    """By how much a number grows from a node to the next."""
    per_pod: Integers
    inter: npt.NDArray[np.bool_]
    times: Floats
    parts: Floats

    def bytes_on(self, intra_bytes: float, inter_bytes: float) -> Floats:
        """On each of its links, in order."""
        found: Floats = np.where(self.inter, inter_bytes, intra_bytes) * self.times / self.parts
        return found

    def numbers_from(self, nodes: Integers, pod_size: int) -> Integers:
        """Links of groups that begin at these nodes, one row each."""
        node = nodes[:, None]
        found: Integers = self.numbers + node * self.per_node + node // pod_size * self.per_pod
        return found


class LinkNumbers:
    """Numbers for a topology's links: those of the nodes, of leaf switches, the backplane.

    Parameters
    ----------
    topology
        As it stays: what is narrowed has been narrowed.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        specs, fabric = topology.specs, topology.fabric
        self._pod_size = 1 if fabric.kind == "star" else fabric.nodes_per_leaf
        first_of_pod = (n - n % self._pod_size for n in range(len(specs)))
        kinds: dict[tuple[int, int], int] = {}
        self._kind = np.array([
            kinds.setdefault((id(spec), id(specs[first])), len(kinds))
            for spec, first in zip(specs, first_of_pod, strict=True)
        ])  # fmt: skip
        """Of each node, its spec and that which says what its leaf switches are."""
        self._island = np.array(topology.island)
        self._links: dict[int, tuple[Link, ...]] = {}
        self._numbers: dict[Link, int] = {}
        firsts = np.unique(self._kind, return_index=True)[1].tolist()
        self._width = max(len(topology.node_links(node)) for node in firsts)
        self._rails = max(spec.nic_count for spec in specs)
        self._leaves = len(specs) * self._width
        """The first number of a leaf switch."""
        pods = 0 if fabric.kind == "star" else -(-len(specs) // self._pod_size)
        self._last = self._leaves + 2 * self._rails * pods
        if topology.backplane is not None:
            self._numbers[topology.backplane] = self._last
        self._switches = topology.leaves()
        for (pod, rail), links in self._switches.items():
            for side, link in enumerate(links):
                self._numbers[link] = self._leaves + 2 * (pod * self._rails + rail) + side
        self._patterns: dict[tuple[Shares, bytes], _Pattern] = {}
        self._classes = self._by_rate(firsts)

    def _by_rate(self, firsts: Sequence[int]) -> Integers:
        """Of each link a class: those of equal rate; each that is narrowed is one of its own."""
        rates: dict[float, int] = {}
        found = np.zeros(self._last + 1, dtype=np.int64)
        for link, number in self._numbers.items():
            found[number] = rates.setdefault(link.bytes_per_s, len(rates))
        of_kind = np.zeros((len(firsts), self._width), dtype=np.int64)
        for kind, node in enumerate(firsts):
            datasheet = NodeLinks(node, self.topology.specs[node], ())
            for slot, link in enumerate(links_of(datasheet)):
                of_kind[kind, slot] = rates.setdefault(link.bytes_per_s, len(rates))
        found[: self._leaves] = of_kind[self._kind].ravel()
        for number, (link, node) in enumerate(self.topology.narrowed.items(), len(rates)):
            self._of_node(node)
            found[self._numbers[link]] = number
        return found

    # ---- links and numbers -----------------------------------------------------------------------

    def _of_node(self, node: int) -> tuple[Link, ...]:
        """The links of a node, whose numbers are known from then on."""
        links = self._links.get(node)
        if links is None:
            links = self._links[node] = self.topology.node_links(node)
            self._numbers.update(zip(links, range(node * self._width, self._leaves), strict=False))
        return links

    def link(self, number: int) -> Link:
        """The link of a number."""
        if number < self._leaves:
            node, slot = divmod(number, self._width)
            return self._of_node(node)[slot]
        if number == self._last:
            assert self.topology.backplane is not None, "no other link has the last number"
            return self.topology.backplane
        leaf, side = divmod(number - self._leaves, 2)
        pod, rail = divmod(leaf, self._rails)
        return self._switches[pod, rail][side]

    def loads(self, ways: Ways) -> Loads:
        """The same with every link by itself."""
        pairs = zip(ways.numbers.tolist(), ways.bytes_on.tolist(), strict=True)
        return Loads((self.link(number), size) for number, size in pairs)

    def bytes_on(self, ways: Ways, links: Mapping[Link, int]) -> list[tuple[Link, float]]:
        """Of some links, given with a node each is at: those that carry something, and what."""
        for node in links.values():
            self._of_node(node)
        of = {self._numbers[link]: link for link in links}
        at = np.flatnonzero(np.isin(ways.numbers, list(of)))
        numbers, sizes = ways.numbers[at].tolist(), ways.bytes_on[at].tolist()
        return [(of[number], size) for number, size in zip(numbers, sizes, strict=True)]

    # ---- groups ----------------------------------------------------------------------------------

    def ways(self, groups: Iterable[Places], intra_bytes: float, inter_bytes: float) -> Ways:
        """What collectives of groups that run at once put on links: ``Topology.sibling_loads``."""
        shares = self.topology.shares
        found = [self._contributions(shares, g, intra_bytes, inter_bytes) for g in groups]
        return _summed(*(np.concatenate(side) for side in zip(*found, strict=True)))

    def routes(self, pairs: Places) -> Ways:
        """How often each link is on the routes of pairs."""
        return _summed(*self._contributions(self._route, pairs, 1.0, 0.0))

    def _route(self, pair: Sequence[Member]) -> list[Share]:
        source, target = pair
        path = self.topology.path(("gpu", *source), ("gpu", *target))
        return [(link, False, 1.0, 1.0) for link in path]

    def alike(self, places: Places) -> dict[bytes, list[int]]:
        """Numbers of groups that sit alike, by what says how they sit."""
        nodes, local = places[..., 0], places[..., 1]
        apart = [of - of[:, :1] for of in (nodes, self._island[nodes], nodes // self._pod_size)]
        key = np.concatenate((*apart, local, self._kind[nodes]), axis=1, dtype=np.int32)
        data, size = key.tobytes(), key.shape[1] * key.itemsize
        found: dict[bytes, list[int]] = {}
        for number in range(len(key)):
            found.setdefault(data[number * size : (number + 1) * size], []).append(number)
        return found

    def _contributions(
        self, shares: Shares, places: Places, intra_bytes: float, inter_bytes: float
    ) -> tuple[Integers, Floats]:
        """Links and bytes on them, one group after the other."""
        sizes = np.zeros(len(places), dtype=np.int64)
        found = []
        for key, groups in self.alike(places).items():
            pattern = self._pattern(shares, key, places[groups[0]])
            bytes_on = pattern.bytes_on(intra_bytes, inter_bytes)
            some = bytes_on != 0.0
            numbers = pattern.numbers_from(places[groups, 0, 0], self._pod_size)
            found.append((groups, numbers[:, some], bytes_on[some]))
            sizes[groups] = np.count_nonzero(some)
        starts = np.cumsum(sizes) - sizes
        all_numbers, all_bytes = np.empty(sizes.sum(), dtype=np.int64), np.empty(sizes.sum())
        for groups, numbers, bytes_on in found:
            at = starts[groups][:, None] + np.arange(len(bytes_on))
            all_numbers[at] = numbers
            all_bytes[at] = bytes_on
        return all_numbers, all_bytes

    def _pattern(self, shares: Shares, key: bytes, group: Integers) -> _Pattern:
        """What groups that sit as ``key`` says put on links: what one of them does."""
        known = self._patterns.get((shares, key))
        if known is None:
            members = [(int(node), int(local)) for node, local in group]
            for node, _ in members:
                self._of_node(node)
            found = shares(members)
            numbers = np.array([self._numbers[link] for link, *_ in found], dtype=np.int64)
            per_node = np.where(numbers < self._leaves, self._width, 0)
            on_leaf = (numbers >= self._leaves) & (numbers < self._last)
            per_pod = np.where(on_leaf, 2 * self._rails, 0)
            first = members[0][0]
            known = self._patterns[shares, key] = _Pattern(
                numbers - first * per_node - first // self._pod_size * per_pod,
                per_node,
                per_pod,
                np.array([inter for _, inter, _, _ in found], dtype=np.bool_),
                np.array([times for _, _, times, _ in found]),
                np.array([parts for _, _, _, parts in found]),
            )
        return known

    def told_apart(self, every: Sequence[Ways]) -> list[Loads]:
        """What each puts on links, where one link stands for its likes.

        Those are of one rate and carry the same of each of ``every``: the most loaded of them is as
        full as any.
        """
        of = self._classes.copy()
        count = int(of.max()) + 1
        for ways in every:
            levels, level = ways.levels
            own = of[ways.numbers] * levels + level
            firsts = _first_of_each(own)
            new = np.zeros(count * levels, dtype=np.int64)
            new[own[firsts]] = np.arange(count, count + len(firsts))
            of[ways.numbers] = new[own]
            count += len(firsts)
        links: dict[int, Link] = {}
        found = []
        for ways in every:
            firsts = _first_of_each(of[ways.numbers])
            classes = of[ways.numbers[firsts]].tolist()
            for link_class, number in zip(classes, ways.numbers[firsts].tolist(), strict=True):
                if link_class not in links:
                    links[link_class] = self.link(number)
            bytes_on = ways.bytes_on[firsts].tolist()
            found.append(Loads(zip(map(links.__getitem__, classes), bytes_on, strict=True)))
        return found


def _summed(numbers: Integers, bytes_on: Floats) -> Ways:
    """Bytes on each link, added up in order."""
    if not len(numbers):
        return Ways(numbers, bytes_on)
    low = numbers.min()
    firsts = _first_of_each(numbers - low)
    links = numbers[firsts]
    return Ways(links, np.bincount(numbers - low, bytes_on)[links - low])


def _first_of_each(values: Integers) -> Integers:
    """Where each of some small numbers comes up first, in order."""
    if not len(values):
        return values
    first = np.full(values.max() + 1, len(values))
    first[values[::-1]] = np.arange(len(values) - 1, -1, -1)
    return np.sort(first[first < len(values)])
