"""What the cluster lacks: the demand that the autoscaler reads.

Real counterpart: ``gcs_autoscaler_state_manager.cc``, ``gcs_resource_load_puller.cc`` of
``src/ray/gcs/``. Every second the GCS asks raylets what waits there (queued and infeasible leases,
backlogs of owners); placement groups that wait are its own; ``request_resources`` is told by the
program.

Only raylets that said something waits are asked, and no timer runs while there are none; those that
run fall on whole seconds since the start of the GCS, as Ray's do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raysim.kernel.clock import Handle
from raysim.kernel.component import Failure
from raysim.raycore.ids import NodeID
from raysim.raycore.protocol import (
    ClusterResourceState,
    GetResourceLoad,
    RequestClusterResourceConstraint,
    ResourceDemand,
)
from raysim.raycore.resources import ResourceSet
from raysim.raycore.tasks import LabelMatch
from raysim.units import NS_PER_MS

if TYPE_CHECKING:
    from raysim.raycore.gcs.server import Gcs

MAX_GROUPS = 1_000
"""``max_placement_group_load_report_size``."""


class GcsAutoscalerStateManager:
    """One per GCS."""

    def __init__(self, gcs: Gcs) -> None:
        self._gcs = gcs
        self._period_ns = gcs.env.config.gcs_pull_resource_loads_period_milliseconds * NS_PER_MS
        self._waiting: dict[NodeID, None] = {}
        """Raylets that said something waits."""
        self._load: dict[NodeID, tuple[ResourceDemand, ...]] = {}
        """Their last answers."""
        self._asked: dict[NodeID, int] = {}
        """How far their changes had come when they were last asked."""
        self._timer: Handle | None = None
        """None while no raylet can have anything new to say."""
        self._seen: tuple[object, ...] = ()
        """What the last state was made of."""
        self._state: ClusterResourceState | None = None
        gcs.env.changes.wake = None

    def reported(self, node_id: NodeID, *, waiting: bool) -> None:
        """What a resource report says."""
        if not waiting:
            if node_id in self._waiting:
                self.forget(node_id)
        elif node_id not in self._waiting:
            self._waiting[node_id] = None
            self._arm()

    def forget(self, node_id: NodeID) -> None:
        """Nothing waits there (any more)."""
        self._waiting.pop(node_id, None)
        self._load.pop(node_id, None)
        self._asked.pop(node_id, None)
        if not self._waiting and self._timer is not None:
            self._gcs.sim.cancel(self._timer)
            self._timer = None

    def constrain(self, m: RequestClusterResourceConstraint) -> None:
        """The cluster shall be able to hold these, in place of what was asked before."""
        self._gcs.tables.constraints = m.bundles

    def state(self) -> ClusterResourceState:
        """Everything the autoscaler looks at; the same object as before, if nothing has changed."""
        nodes = list(self._gcs.tables.nodes.values())
        demands = self._demands()
        gangs = tuple(g.row() for g in self._gcs.groups.waiting()[:MAX_GROUPS])
        constraints = self._gcs.tables.constraints
        of_nodes = [(n.node_id, n.incarnation, n.changes) for n in nodes]
        seen = (of_nodes, demands, gangs, constraints)
        if self._state is None or seen != self._seen:
            self._seen = seen
            self._state = ClusterResourceState(
                nodes=tuple(n.row() for n in nodes),
                idle_since_ns=tuple(n.idle_since_ns for n in nodes),
                demands=demands,
                gangs=gangs,
                constraints=constraints,
            )
        return self._state

    def _demands(self) -> tuple[ResourceDemand, ...]:
        """Equal shapes of all raylets together."""
        total: dict[tuple[ResourceSet, tuple[LabelMatch, ...]], int] = {}
        for load in self._load.values():
            for demand in load:
                shape = (demand.resources, demand.label_selector)
                total[shape] = total.get(shape, 0) + demand.requests
        return tuple(ResourceDemand(r, n, labels) for (r, labels), n in total.items())

    def _arm(self) -> None:
        if self._timer is not None or not self._waiting:
            return
        since_ns = (self._gcs.sim.now_ns - self._gcs.started_ns) % self._period_ns
        self._timer = self._gcs.after(self._period_ns - since_ns, self._pull)

    def _pull(self, _: object) -> None:
        self._timer = None
        changes = self._gcs.env.changes
        for node_id in list(self._waiting):
            node = self._gcs.nodes.alive(node_id)
            if node is not None and self._asked.get(node_id, -1) != changes.of.get(node_id, 0):
                self._arm()
                self._asked[node_id] = changes.of.get(node_id, 0)
                self._gcs.nodes.call(
                    node_id, node.address, GetResourceLoad(), _Pulled(self, node_id).answered
                )
        if self._timer is None:
            changes.wake = self._arm

    def pulled(self, node_id: NodeID, answer: Any) -> None:
        """A raylet has said what waits there."""
        if isinstance(answer, Failure):
            self._asked.pop(node_id, None)
            self._arm()
        elif node_id in self._waiting:
            self._load[node_id] = answer


class _Pulled:
    """What becomes of one question."""

    __slots__ = ("_manager", "_node_id")

    def __init__(self, manager: GcsAutoscalerStateManager, node_id: NodeID) -> None:
        self._manager, self._node_id = manager, node_id

    def answered(self, answer: Any) -> None:
        """By the raylet."""
        self._manager.pulled(self._node_id, answer)
