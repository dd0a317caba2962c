"""Spot nodes: taken back by the cloud, with or without notice, at random times.

Every node of a spot group, the first ones and those that come later, lives for an exponential time
drawn from a stream of its own (``spot/<node>``). With notice it is drained with a deadline
(``raycore.faults.Faults.preempt``): the GCS's node table says so, its raylet takes no more leases,
and whoever polls (Ray Train every 5 s, Serve) can leave in time. Without, health checks find out.

Who replaces it: the autoscaler, when Ray has noticed; or KubeRay's operator, which sees that a pod
is missing and makes another after its requeue.

Not modelled: markets (nodes of one zone go together), a machine taken back while it boots.
"""

from __future__ import annotations

from collections.abc import Mapping

from raysim.raycore.cluster import Cluster
from raysim.raycore.faults import Faults
from raysim.raycore.ids import NodeID
from raysim.raycore.protocol import raylet
from raysim.units import NS_PER_S, to_ns
from raysim.workloads.program import FaultEvent, SpotSpec

REQUEUE_S = 2.0
"""``RayClusterReconciler``: default requeue (kuberay, raycluster_controller.go)."""
FORGOTTEN_S = 80.0
"""When a lost node's number is used again: the GCS knows by then (health checks, 62-65 s)."""


class Spot:
    """Takes nodes back.

    Parameters
    ----------
    cluster, faults
        What is broken, and how.
    groups
        By name; other groups stay.
    operator
        Pods that are lost are made again.
    """

    def __init__(
        self, cluster: Cluster, faults: Faults, groups: Mapping[str, SpotSpec], *, operator: bool
    ) -> None:
        self._cluster, self._faults = cluster, faults
        self._groups = groups
        self._operator = operator
        self.events: list[FaultEvent] = []
        """What was taken back, by now."""
        if groups:
            for node_id in range(len(cluster.groups)):
                if cluster.is_up(node_id):
                    self._lives(node_id)
            cluster.machine_came.append(self._lives)

    def _lives(self, node_id: NodeID) -> None:
        """A node has come; decide how long it stays."""
        its = self._groups.get(self._cluster.groups[node_id].name)
        if its is None or not its.per_hour:
            return
        node = self._cluster.env.nodes[node_id]
        hours = self._cluster.sim.rng(f"spot/{node.name}").exponential(1 / its.per_hour)
        warned_ns = to_ns(hours * 3600)
        epoch = self._epoch(node_id)
        self._cluster.sim.call_later(warned_ns, self._taken, (node_id, epoch, its))

    def _epoch(self, node_id: NodeID) -> int:
        return self._cluster.sim.components[raylet(node_id)].epoch

    def _taken(self, taken: tuple[NodeID, int, SpotSpec]) -> None:
        node_id, epoch, its = taken
        if not self._cluster.is_up(node_id) or self._epoch(node_id) != epoch:
            return  # given back before
        kind = "preempt" if its.notice_s else "fail_node"
        at_s = self._cluster.sim.now_ns / NS_PER_S
        self.events.append(FaultEvent(at_s=at_s, kind=kind, node_id=node_id, notice_s=its.notice_s))
        if its.notice_s:
            self._faults.preempt(node_id, f"{its.notice_s!r}s")
        else:
            self._faults.fail_node(node_id)
        if self._operator:
            self._cluster.sim.call_later(to_ns(its.notice_s), self._lost, node_id)

    def _lost(self, node_id: NodeID) -> None:
        """The operator finds a pod missing."""
        sim, cloud = self._cluster.sim, self._cluster.cloud
        name = self._cluster.groups[node_id].name
        sim.call_later(to_ns(REQUEUE_S), lambda _: cloud.launch(name, _whoever))
        sim.call_later(to_ns(FORGOTTEN_S), cloud.gone, node_id)


def _whoever(_node_id: NodeID | None) -> None:
    """The operator only counts pods."""
