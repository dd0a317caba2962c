"""Which nodes the bundles of a placement group go to: the four strategies.

Real counterpart: ``bundle_scheduling_policy.cc`` and ``scorer.cc`` of
``src/ray/raylet/scheduling/policy/``.

All four take bundles with scarce resources first (GPU, then custom ones, object store memory,
memory, CPU; more before less) and give a bundle to the node that it leaves emptiest: the score is
the sum over the bundle's resources of (available - asked) / available.

- PACK fills the best node for the first bundle with all others that fit, then goes on without it.
- SPREAD gives each bundle a node of its own while it can, then uses chosen nodes again.
- STRICT_PACK needs one node for the sum; STRICT_SPREAD a node of its own for each bundle.

Of equally good nodes the first by id is taken; Ray takes whichever its hash map has first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from raysim.raycore.gcs.tables import GcsNode, fits
from raysim.raycore.ids import NodeID
from raysim.raycore.protocol import Bundle
from raysim.raycore.resources import CPU, GPU, MEMORY, OBJECT_STORE_MEMORY, ResourceSet
from raysim.raycore.tasks import LabelMatch

Failed = Literal["FAILED", "INFEASIBLE"]
"""FAILED: not now, try again. INFEASIBLE: not on these nodes, ever."""

_PREDEFINED = frozenset({CPU, GPU, MEMORY, OBJECT_STORE_MEMORY})


class Candidate:
    """A node while one group is being placed: what earlier bundles left of it."""

    __slots__ = ("available", "draining", "labels", "node_id", "total")

    def __init__(self, node: GcsNode) -> None:
        self.node_id = node.node_id
        self.available = dict(node.available)
        self.total = node.total
        self.labels = node.labels
        self.draining = node.state != "ALIVE"

    def has_labels(self, selector: tuple[LabelMatch, ...]) -> bool:
        """Whether it meets them all."""
        return all(match.matches(self.labels) for match in selector)

    def score(self, request: ResourceSet, selector: tuple[LabelMatch, ...]) -> float:
        """-1 if it does not fit; else higher for the emptier node (``LeastResourceScorer``)."""
        free = self.available
        if self.draining or not fits(free, request) or not self.has_labels(selector):
            return -1.0
        return sum((free[name] - n) / free[name] for name, n in request.units.items())

    def take(self, request: ResourceSet) -> None:
        """One more bundle is here."""
        for name, n in request.units.items():
            self.available[name] -= n


def place(
    strategy: str,
    bundles: Sequence[Bundle],
    nodes: Sequence[GcsNode],
    *,
    in_use: frozenset[NodeID] = frozenset(),
    soft_target: NodeID | None = None,
) -> list[NodeID] | Failed:
    """A node for each bundle, or why not.

    Parameters
    ----------
    strategy
        PACK, SPREAD, STRICT_PACK or STRICT_SPREAD.
    bundles
        Those of the group that have no node.
    nodes
        The living.
    in_use
        Nodes that hold other bundles of this group: STRICT_SPREAD avoids them.
    soft_target
        STRICT_PACK takes it if it can.
    """
    candidates = {n.node_id: Candidate(n) for n in sorted(nodes, key=lambda n: n.node_id)}
    if strategy == "STRICT_SPREAD":
        candidates = {i: c for i, c in candidates.items() if i not in in_use}
    if not candidates:
        return "INFEASIBLE"
    if strategy == "STRICT_PACK":
        return _strict_pack(bundles, candidates, soft_target)
    if strategy == "STRICT_SPREAD" and len(bundles) > len(candidates):
        return "INFEASIBLE"
    if not _room_for_all(bundles, candidates):
        return "FAILED"
    order = _scarce_first(bundles)
    if strategy == "PACK":
        return _pack(bundles, order, candidates)
    return _spread(bundles, order, candidates, again=strategy == "SPREAD")


def _scarce_first(bundles: Sequence[Bundle]) -> list[int]:
    """Indices in the order of placement (``SortRequiredResources``)."""
    custom = sorted({name for b in bundles for name in b.resources if name not in _PREDEFINED})
    priority = [GPU, *custom, OBJECT_STORE_MEMORY, MEMORY, CPU]
    return sorted(
        range(len(bundles)),
        key=lambda i: [-bundles[i].resources.units.get(name, 0) for name in priority],
    )


def _room_for_all(bundles: Sequence[Bundle], candidates: dict[NodeID, Candidate]) -> bool:
    """False if bundles that are all alike cannot all have room: known without placing any.

    A group that waits is tried once per second, a large one for long.
    """
    units = bundles[0].resources.units
    if not units or any(b.resources.units != units for b in bundles):
        return True
    return len(bundles) <= sum(
        min(c.available.get(name, 0) // n for name, n in units.items() if n)
        for c in candidates.values()
        if not c.draining
    )


def _best(
    request: ResourceSet, selector: tuple[LabelMatch, ...], candidates: dict[NodeID, Candidate]
) -> Candidate | None:
    best, best_score = None, -1.0
    for candidate in candidates.values():
        score = candidate.score(request, selector)
        if score > best_score:
            best, best_score = candidate, score
    return best


def _pack(
    bundles: Sequence[Bundle], order: list[int], candidates: dict[NodeID, Candidate]
) -> list[NodeID] | Failed:
    chosen = [-1] * len(bundles)
    left = order
    while left:
        first = bundles[left[0]]
        best = _best(first.resources, first.label_selector, candidates)
        if best is None:
            return "FAILED"
        stay: list[int] = []
        for i in left:
            bundle = bundles[i]
            if best.score(bundle.resources, bundle.label_selector) >= 0:
                best.take(bundle.resources)
                chosen[i] = best.node_id
            else:
                stay.append(i)
        left = stay
        del candidates[best.node_id]
    return chosen


def _spread(
    bundles: Sequence[Bundle],
    order: list[int],
    candidates: dict[NodeID, Candidate],
    *,
    again: bool,
) -> list[NodeID] | Failed:
    chosen = [-1] * len(bundles)
    used: dict[NodeID, Candidate] = {}
    for i in order:
        bundle = bundles[i]
        best = _best(bundle.resources, bundle.label_selector, candidates)
        if best is None and again:
            best = _best(bundle.resources, bundle.label_selector, used)
        if best is None:
            return "FAILED"
        best.take(bundle.resources)
        chosen[i] = best.node_id
        used[best.node_id] = best
        candidates.pop(best.node_id, None)
    return chosen


def _strict_pack(
    bundles: Sequence[Bundle], candidates: dict[NodeID, Candidate], soft_target: NodeID | None
) -> list[NodeID] | Failed:
    total = ResourceSet()
    for bundle in bundles:
        total = total.plus(bundle.resources)
    selector = tuple(match for bundle in bundles for match in bundle.label_selector)
    if not any(fits(c.total, total) and c.has_labels(selector) for c in candidates.values()):
        return "INFEASIBLE"
    best = None
    if soft_target in candidates:
        best = _best(total, selector, {soft_target: candidates[soft_target]})
    best = best or _best(total, selector, candidates)
    return "FAILED" if best is None else [best.node_id] * len(bundles)
