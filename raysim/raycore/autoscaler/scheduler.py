"""What shape the cluster should have: which nodes to launch, which to end.

Real counterpart: ``ResourceDemandScheduler`` of ``python/ray/autoscaler/v2/scheduler.py``. A pure
function of the demand, the nodes and the configuration, in this order: nodes of types that changed
or are gone; the least of each type, the most of each type, the most of all; what
``request_resources`` asked for; placement groups, each as a whole or not at all, those with most
constraints and then most bundles first; single requests; and at last nodes that have been idle for
too long and that nothing before needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from raysim.raycore.autoscaler.bin_packing import Availability, Node, Request, Source, pack
from raysim.raycore.autoscaler.config import AutoscalerConfig, NodeTypeConfig
from raysim.raycore.protocol import ClusterResourceState, PlacementGroupTableData
from raysim.raycore.resources import ResourceSet
from raysim.units import NS_PER_S


@dataclass(slots=True)
class Decision:
    """What to do."""

    launch: dict[str, int] = field(default_factory=dict)
    urgent: dict[str, int] = field(default_factory=dict)
    """Of ``launch``: what is not for tasks and actors."""
    terminate: list[Node] = field(default_factory=list)
    infeasible: list[Request] = field(default_factory=list)
    """No node type could hold these, or no more nodes may be launched."""
    infeasible_gangs: list[PlacementGroupTableData] = field(default_factory=list)


def anti_affinity_label(group: PlacementGroupTableData) -> str:
    """What marks a node that holds a bundle of a STRICT_SPREAD group."""
    return f"_PG_{group.group}"


def schedule(
    config: AutoscalerConfig,
    state: ClusterResourceState,
    nodes: Sequence[Node],
    *,
    idle_timeout_s: float,
    availability: Availability,
    head_type: str = "",
) -> Decision:
    """Decide once."""
    plan = _Plan(config, [n.copy() for n in nodes], availability, head_type)
    decision = Decision()
    if not config.disable_launch_config_check:
        plan.end_outdated()
    plan.enforce_min()
    plan.enforce_max()
    if state.constraints:
        plan.place(_counted(state.constraints), "constraint")
    for gang in sorted(state.gangs, key=_gang_order, reverse=True):
        if plan.place(gang_requests(gang), "demand", whole=True):
            decision.infeasible_gangs.append(gang)
    decision.urgent = plan.to_launch()
    demands = [Request(d.resources, d.requests, d.label_selector) for d in state.demands]
    decision.infeasible = plan.place(demands, "demand", whole=False)
    plan.end_idle(idle_timeout_s)
    decision.launch = plan.to_launch()
    decision.terminate = [  # one without an instance never was more than a plan
        n for n in plan.nodes if n.status == "TO_TERMINATE" and n.instance
    ]
    return decision


def _counted(bundles: Sequence[ResourceSet]) -> list[Request]:
    counts: dict[ResourceSet, int] = {}
    for bundle in bundles:
        counts[bundle] = counts.get(bundle, 0) + 1
    return [Request(bundle, n) for bundle, n in counts.items()]


def gang_requests(gang: PlacementGroupTableData) -> list[Request]:
    """A group's bundles that have no node: one request for STRICT_PACK, else one each."""
    bundles = [b for b, node_id in zip(gang.bundles, gang.nodes, strict=True) if node_id < 0]
    if gang.strategy == "STRICT_PACK":
        total = ResourceSet()
        for bundle in bundles:
            total = total.plus(bundle.resources)
        labels = tuple(dict.fromkeys(m for b in bundles for m in b.label_selector))
        return [Request(total, label_selector=labels)] if bundles else []
    apart = anti_affinity_label(gang) if gang.strategy == "STRICT_SPREAD" else ""
    return [Request(b.resources, 1, b.label_selector, apart) for b in bundles]


def _gang_order(gang: PlacementGroupTableData) -> tuple[int, int]:
    """(placement constraints, bundles)."""
    unplaced = sum(node_id < 0 for node_id in gang.nodes)
    return (unplaced if gang.strategy.startswith("STRICT") else 0, unplaced)


class _Plan:
    """The cluster as it should be, so far (``ScheduleContext``)."""

    def __init__(
        self,
        config: AutoscalerConfig,
        nodes: list[Node],
        availability: Availability,
        head_type: str,
    ) -> None:
        self.nodes = nodes
        self._types = {t.name: t for t in config.node_types}
        self._availability = availability
        self._head_type = head_type
        self._max_nodes = None if config.max_workers is None else config.max_workers + 1

    def to_launch(self) -> dict[str, int]:
        """New nodes by type, in the order they were thought of."""
        counts: dict[str, int] = {}
        for node in self.nodes:
            if node.status == "TO_LAUNCH":
                counts[node.node_type] = counts.get(node.node_type, 0) + 1
        return counts

    def end_outdated(self) -> None:
        """End nodes whose type has changed since, or is gone; never the head."""
        for node in self.nodes:
            its = self._types.get(node.node_type)
            old = its is None or (its.launch_config and its.launch_config != node.launch_config)
            if old and not node.is_head:
                node.status, node.cause = "TO_TERMINATE", "OUTDATED"

    def enforce_min(self) -> None:
        """Launch what is missing of each type."""
        new = [
            _to_launch(t)
            for t in self._types.values()
            for _ in range(t.min_workers - self._count(t.name))
        ]
        self.nodes = new + self.nodes

    def enforce_max(self) -> None:
        """End what is too much of a type, then of all.

        The order of nodes decides ties later: it comes out as Ray's.
        """
        ending = [n for n in self.nodes if n.status == "TO_TERMINATE"]
        staying: list[Node] = []
        of_type: dict[str, list[Node]] = {}
        for node in self._staying():
            of_type.setdefault(node.node_type, []).append(node)
        for name, nodes in of_type.items():
            if name in self._types:
                cause = "MAX_NUM_NODE_PER_TYPE"
                ended, kept = _end(nodes, len(nodes) - self._most(name), cause)
                ending += ended
                staying += kept
            else:
                staying += nodes
        if self._max_nodes is not None:
            ended, staying = _end(staying, len(staying) - self._max_nodes, "MAX_NUM_NODES")
            ending += ended
        self.nodes = ending + staying

    def place(
        self, requests: list[Request], source: Source, *, whole: bool = True
    ) -> list[Request]:
        """Find room, launching nodes if need be; ``whole``: for all of them or none."""
        if not requests:
            return []
        launchable = {
            t.name: (self._most(t.name) - self._there(t.name), _to_launch(t))
            for t in self._types.values()
        }
        nodes, left = pack(
            requests, self.nodes, launchable, source, self._availability, self._max_nodes
        )
        if not (whole and left):
            self.nodes = nodes
        return left

    def end_idle(self, idle_timeout_s: float) -> None:
        """Of nodes that nothing needs, those idle for too long, longest first."""
        count: dict[str, int] = {}
        for node in self._staying():
            count[node.node_type] = count.get(node.node_type, 0) + 1
        for node in sorted(self.nodes, key=_termination_order):
            if node.status != "SCHEDULABLE" or node.is_head or node.node_id < 0:
                continue
            its = self._types.get(node.node_type)
            limit_s = idle_timeout_s
            if its is not None and its.idle_timeout_s is not None:
                limit_s = its.idle_timeout_s
            if node.idle_ns <= limit_s * NS_PER_S:
                continue
            if node.needed("demand") or node.needed("constraint"):
                continue
            if count[node.node_type] <= (its.min_workers if its is not None else 0):
                continue
            count[node.node_type] -= 1
            node.status, node.cause = "TO_TERMINATE", "IDLE"

    def _staying(self) -> list[Node]:
        return [n for n in self.nodes if n.status != "TO_TERMINATE"]

    def _count(self, node_type: str) -> int:
        return sum(n.node_type == node_type for n in self._staying())

    def _there(self, node_type: str) -> int:
        return sum(n.node_type == node_type for n in self.nodes)

    def _most(self, node_type: str) -> int:
        """The head counts among nodes of its type, over and above its workers."""
        return self._types[node_type].max_workers + (node_type == self._head_type)


def _to_launch(of_type: NodeTypeConfig) -> Node:
    units = ResourceSet.of(of_type.resources).units
    return Node.new(
        of_type.name, units, units, of_type.labels, status="TO_LAUNCH", priority=of_type.priority
    )


def _end(nodes: list[Node], how_many: int, cause: str) -> tuple[list[Node], list[Node]]:
    """End so many, never the head; those ended, and the rest."""
    if how_many <= 0:
        return [], nodes
    ordered = [n for n in sorted(nodes, key=_termination_order) if not n.is_head]
    for node in ordered[:how_many]:
        node.status, node.cause = "TO_TERMINATE", cause
    return ordered[:how_many], ordered[how_many:] + [n for n in nodes if n.is_head]


def _termination_order(node: Node) -> tuple[bool, int, float]:
    """Without Ray first, then the longest idle, then the least used."""
    free = node.free["demand"]
    used = [(n - free.get(name, 0)) / n for name, n in node.total.items() if n > 0]
    return (node.node_id >= 0, -node.idle_ns, sum(used) / len(used) if used else 0.0)
