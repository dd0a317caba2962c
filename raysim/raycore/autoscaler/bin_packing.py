"""How many nodes of which type hold a list of requests: greedy, without a second thought.

Real counterpart: ``SchedulingNode`` and ``ResourceDemandScheduler._try_schedule`` of
``python/ray/autoscaler/v2/scheduler.py``. Requests are sorted, the hard ones first; then every
candidate node is filled with all it can take, the node that scores best keeps them, and so on with
the rest: existing nodes first, then one new node of each type that may still be launched.

A node's score, compared from left to right: whether it meets a label selector; that it is not a GPU
node taking no GPU request; how many of the requested resources it has; the least, then the mean
over its resources of total x utilisation^3.

Equal requests are one line with a count here, and nodes that look the same are tried once: the
result is that of Ray's loop over single requests and nodes, in the time of the shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from raysim.raycore.ids import NodeID
from raysim.raycore.resources import GPU, ResourceSet
from raysim.raycore.tasks import LabelMatch

Source = Literal["demand", "constraint"]


class Request(NamedTuple):
    """``how_many`` equal requests."""

    resources: ResourceSet
    how_many: int = 1
    label_selector: tuple[LabelMatch, ...] = ()
    anti_affinity: str = ""
    """Not on a node that has this label; one placed gives its node the label."""

    def order(self) -> tuple[Any, ...]:
        """Sort by this, descending."""
        units = self.resources.units
        return (
            1 if self.anti_affinity else 0,
            len(self.label_selector),
            len(units),
            sum(units.values()),
            sorted(units.items()),
        )


@dataclass(slots=True)
class Node:
    """A node that is there, is coming, or would be launched."""

    node_type: str
    total: dict[str, int]
    free: dict[Source, dict[str, int]]
    """For demand, what is available; for ``request_resources``, everything."""
    labels: dict[str, str]
    status: Literal["SCHEDULABLE", "TO_LAUNCH", "TO_TERMINATE"] = "SCHEDULABLE"
    instance: int = 0
    """Of the autoscaler's table; 0: none yet."""
    node_id: NodeID = -1
    """-1: Ray does not run on it yet."""
    is_head: bool = False
    idle_ns: int = 0
    priority: int = 0
    cause: str = ""
    """Why it is to be terminated."""
    launch_config: str = ""
    """Of its type when it was started."""
    kinds: dict[Source, dict[str, None]] = field(
        default_factory=lambda: {"demand": {}, "constraint": {}}
    )
    """Resources asked for by what was put here."""
    by_label: dict[Source, bool] = field(
        default_factory=lambda: {"demand": False, "constraint": False}
    )
    """Whether something with a selector was put here."""

    @classmethod
    def new(
        cls,
        node_type: str,
        total: Mapping[str, int],
        available: Mapping[str, int],
        labels: Mapping[str, str],
        **more: Any,
    ) -> Node:
        """With room for both sources."""
        free: dict[Source, dict[str, int]] = {
            "demand": dict(available), "constraint": dict(total),
        }  # fmt: skip
        return cls(node_type, dict(total), free, dict(labels), **more)

    def copy(self) -> Node:
        """To try something on."""
        return Node(
            self.node_type, self.total, {s: dict(f) for s, f in self.free.items()},
            dict(self.labels), self.status, self.instance, self.node_id, self.is_head,
            self.idle_ns, self.priority, self.cause, self.launch_config,
            {s: dict(k) for s, k in self.kinds.items()}, dict(self.by_label),
        )  # fmt: skip

    def needed(self, source: Source) -> bool:
        """Whether anything was put here."""
        return bool(self.kinds[source])

    def fill(self, requests: Sequence[Request], source: Source) -> list[Request]:
        """Take all that fits, in order; what is left."""
        left: list[Request] = []
        for request in requests:
            n = self._room(request, source)
            if n:
                self._take(request, n, source)
            if n < request.how_many:
                left.append(request._replace(how_many=request.how_many - n))
        return left

    def holds_any(self, requests: Sequence[Request], source: Source) -> bool:
        """Whether one of them might fit, labels apart."""
        free = self.free[source]
        return any(
            all(free.get(name, 0) >= n for name, n in r.resources.units.items()) for r in requests
        )

    def _room(self, request: Request, source: Source) -> int:
        """How many of them fit."""
        if request.label_selector and not self._meets(request.label_selector):
            return 0
        free = self.free[source]
        room = request.how_many
        for name, n in request.resources.units.items():
            room = min(room, max(0, free.get(name, 0)) // n)
        if request.anti_affinity:
            room = 0 if request.anti_affinity in self.labels else min(room, 1)
        return room

    def _take(self, request: Request, n: int, source: Source) -> None:
        free = self.free[source]
        for name, units in request.resources.units.items():
            free[name] = free.get(name, 0) - n * units
            self.kinds[source][name] = None
        if not request.resources:
            self.kinds[source][""] = None
        if request.label_selector:
            self.by_label[source] = True
        if request.anti_affinity:
            self.labels[request.anti_affinity] = ""

    def _meets(self, selector: tuple[LabelMatch, ...]) -> bool:
        """Ray's autoscaler knows ``in`` and ``!in`` only."""
        return all(m.operator in ("in", "!in") and m.matches(self.labels) for m in selector)

    def score(self, source: Source) -> tuple[bool, bool, int, float, float]:
        """Higher is better."""
        kinds, free = self.kinds[source], self.free[source]
        used = [
            total * ((total - free.get(name, 0)) / total) ** 3
            for name, total in self.total.items()
            if total
        ]
        wastes_gpu = self.total.get(GPU, 0) > 0 and GPU not in kinds
        return (
            self.by_label[source],
            not wastes_gpu,
            sum(name in self.total for name in kinds),
            min(used, default=0.0),
            sum(used) / len(used) if used else 0.0,
        )

    def look(self, source: Source, names: _Names) -> tuple[Any, ...]:
        """Equal for nodes that would take the same and score the same."""
        labels = self.labels
        return (
            self.node_type, names.of(self.total), names.of(self.free[source]),
            tuple([labels.get(key) for key in names.labels]), tuple(self.kinds[source]),
            self.by_label[source],
        )  # fmt: skip


class _Names:
    """What requests mention, of that which tells nodes apart.

    Each node has a resource with its own name (``node:10.0.0.1``) and may have a label with its id.
    """

    def __init__(self, requests: Sequence[Request]) -> None:
        self._by_address = any(n.startswith("node:") for r in requests for n in r.resources)
        keys = [m.key for r in requests for m in r.label_selector]
        keys += [r.anti_affinity for r in requests if r.anti_affinity]
        self.labels = tuple(dict.fromkeys(keys))

    def of(self, units: dict[str, int]) -> tuple[Any, ...]:
        """The resources that matter, and how many there are in all."""
        by_address = self._by_address
        kept = sorted((k, n) for k, n in units.items() if by_address or not k.startswith("node:"))
        return (*kept, len(units))


class Availability(NamedTuple):
    """How likely the cloud has a type: 1 unless it failed before."""

    recoverable: Mapping[str, float]
    relative: Mapping[str, float]


def pack(
    requests: Sequence[Request],
    nodes: Sequence[Node],
    launchable: Mapping[str, tuple[int, Node]],
    source: Source,
    availability: Availability,
    max_nodes: int | None = None,
) -> tuple[list[Node], list[Request]]:
    """Put the requests on copies of the nodes and on new ones.

    Parameters
    ----------
    requests
        In any order.
    nodes
        All there are or will be.
    launchable
        By type: how many more, and what one looks like.
    source
        Whose room is used.
    availability
        Breaks ties between types.
    max_nodes
        Of all types together.

    Returns
    -------
    tuple
        Every node with what was put on it, and the requests that fit nowhere.
    """
    left = sorted(requests, key=Request.order, reverse=True)
    names = _Names(left)
    full = {id(n): n for n in nodes if n.node_id >= 0 and not n.holds_any(left, source)}
    candidates = [(n.look(source, names), n) for n in nodes if id(n) not in full]
    placed: list[Node] = []
    while left and candidates:
        best, left = _best(left, candidates, source, availability)
        if best is None:
            break
        placed.append(best)
    placed += [n.copy() for _, n in candidates]
    placed += [n.copy() for n in full.values()]  # last, as Ray has them: order breaks ties later
    rest = {name: n for name, (n, _) in launchable.items() if n > 0}
    new = {name: (launchable[name][1].look(source, names), launchable[name][1]) for name in rest}
    pool = list(new.values())
    while left and pool and (max_nodes is None or len(placed) < max_nodes):
        best, left = _best(left, pool, source, availability)
        if best is None:
            break
        placed.append(best)
        rest[best.node_type] -= 1
        if rest[best.node_type] > 0:
            pool.append(new[best.node_type])
    return placed, left


def _best(
    requests: list[Request],
    nodes: list[tuple[tuple[Any, ...], Node]],
    source: Source,
    availability: Availability,
) -> tuple[Node | None, list[Request]]:
    """The node that does best, filled and taken off the list; and what it leaves."""
    found: tuple[tuple[Any, ...], int, Node, list[Request]] | None = None
    seen: dict[tuple[Any, ...], None] = {}
    for i, (look, node) in enumerate(nodes):
        if look in seen:
            continue
        seen[look] = None
        trial = node.copy()
        left = trial.fill(requests, source)
        if left == requests:
            continue
        key = (
            trial.score(source),
            availability.recoverable.get(node.node_type, 1.0),
            node.priority,
            availability.relative.get(node.node_type, 1.0),
        )
        if found is None or key > found[0]:
            found = (key, i, trial, left)
    if found is None:
        return None, requests
    del nodes[found[1]]
    return found[2], found[3]
