"""Which node: the scheduling policies as pure functions over columns.

Real counterpart: ``src/ray/raylet/scheduling/policy/`` (``hybrid_scheduling_policy.cc``,
``spread_scheduling_policy.cc``, ``node_label_scheduling_policy.cc``, ``random_...``). A column is
a numpy array over node ids; "feasible" and "available" are masks that the caller has made.

Nodes are in order of id, which in Ray is random and here is the order of the cluster file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raysim.raycore.ids import NodeID

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bools = NDArray[np.bool_]
    Floats = NDArray[np.float64]

Draw = Callable[[int], int]
"""A uniform integer below the one given."""


def top_k(nodes: int, fraction: float, absolute: int) -> int:
    """Among how many of the best nodes to choose."""
    return max(absolute, int(nodes * fraction))


def least_used(
    candidates: Bools, scores: Floats, preferred: NodeID, k: int, threshold: float, draw: Draw
) -> NodeID | None:
    """One of the ``k`` least used candidates; the preferred one if none is less used.

    Utilisation below ``threshold`` counts as none. Ties go to the lower id: the order is that of
    a stable sort by score of nodes sorted by id, of which only one place is worked out.
    """
    ids = candidates.nonzero()[0]
    if not len(ids):
        return None
    used = scores[ids]
    used[used < threshold] = 0.0
    best = used.min()
    if preferred >= 0 and candidates[preferred]:
        own = scores[preferred]
        if own < threshold or own <= best:
            return preferred
    k = min(k, len(ids))
    place = draw(k) if k > 1 else 0
    equal = (used == best).nonzero()[0]
    if place >= len(equal):
        ordered = used.copy()
        ordered.partition(place)
        value = ordered[place]
        place -= int((used < value).sum())
        equal = (used == value).nonzero()[0]
    return int(ids[equal[place]])


def hybrid(
    available: Bools,
    feasible: Callable[[], Bools],
    scores: Floats,
    has_gpu: Bools | None,
    *,
    preferred: NodeID,
    k: int,
    threshold: float,
    draw: Draw,
) -> NodeID | None:
    """DEFAULT: pack until the threshold, then among the least used; GPU nodes last.

    ``has_gpu`` is given when GPU nodes are to be avoided. When nothing is available, one that is
    feasible, to wait for.
    """
    if has_gpu is not None:
        without = least_used(available & ~has_gpu, scores, preferred, k, threshold, draw)
        if without is not None:
            return without
    chosen = least_used(available, scores, preferred, k, threshold, draw)
    if chosen is None:
        chosen = least_used(feasible(), scores, preferred, k, threshold, draw)
    return chosen


def spread(available: Bools, feasible: Callable[[], Bools], cursor: NodeID) -> NodeID | None:
    """SPREAD: the next available node from ``cursor`` on, round the ring; else a feasible one."""
    for candidates in (available, feasible()):
        ids = candidates.nonzero()[0]
        if len(ids):
            place = int(ids.searchsorted(cursor))
            return int(ids[place % len(ids)])
    return None


def labelled(
    available: Bools, feasible: Callable[[], Bools], soft: Bools, draw: Draw
) -> NodeID | None:
    """Node labels: any available node, of those that meet the soft expressions if there are any."""
    for nodes in (available, feasible()):
        for candidates in (nodes & soft, nodes):
            chosen = anyone(candidates, draw)
            if chosen is not None:
                return chosen
    return None


def anyone(candidates: Any, draw: Draw) -> NodeID | None:
    """Uniformly random."""
    ids = candidates.nonzero()[0]
    return int(ids[draw(len(ids))]) if len(ids) else None
