"""Breaking things: what a scenario or a test does to a running cluster.

Real counterparts: ``kill -9``, a machine losing power, a cable pulled, a spot instance taken back,
a full disk, a throttled NIC. Each is a plain method, for ``sim.at("3h", faults.fail_node, 2)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from raysim.kernel.component import NodeDied
from raysim.raycore.cluster import Cluster
from raysim.raycore.core_worker.worker import CoreWorker
from raysim.raycore.ids import NodeID, WorkerID
from raysim.raycore.object_manager.object_manager import ObjectManager
from raysim.raycore.protocol import (
    GCS,
    DrainNode,
    ReachabilityChanged,
    object_manager,
    raylet,
    raylet_process,
)
from raysim.units import NS_PER_MS, NS_PER_S, parse_seconds, to_ns

Reach = Literal["answers", "refuses", "silent"]


class Faults:
    """What can be done to one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.sim = cluster.sim

    def kill_worker(self, worker_id: WorkerID) -> None:
        """SIGKILL to a worker process; nothing if it has gone."""
        self.cluster.kill(worker_id, reason="killed by SIGKILL")

    def kill_some_worker(self, node_id: NodeID) -> None:
        """SIGKILL to the first process of a node that is not a driver."""
        for worker_id, process in self.cluster.processes.items():
            is_worker = isinstance(process, CoreWorker) and process.kind == "WORKER"
            if process.me.node_id == node_id and is_worker:
                self.kill_worker(worker_id)
                return

    def kill_raylet(self, node_id: NodeID) -> None:
        """SIGKILL to a raylet: connections are refused, its workers notice and exit."""
        cause = NodeDied(address=raylet(node_id), node=f"node-{node_id}", reason="raylet killed")
        for address in raylet_process(node_id):
            self.sim.components[address].crash(cause)
        interval_ms = self.cluster.env.config.raylet_death_check_interval_milliseconds
        orphans = [w for w, p in self.cluster.processes.items() if p.me.node_id == node_id]
        self.sim.call_later(interval_ms * NS_PER_MS, self._orphans_exit, orphans)
        self._reachability(node_id, "refuses")

    def fail_node(self, node_id: NodeID) -> None:
        """Power off: everything on it is gone and nobody is told.

        Without the head, every other process gives up when it has had no word of the GCS for
        ``gcs_rpc_server_reconnect_timeout_s``.
        """
        self.cluster.env.nodes[node_id].fail()
        self.cluster.end_processes(node_id, "node lost power", silent=True)
        self.cluster.wire.lose(node_id)
        if node_id == self.cluster.head:
            self.cluster.gcs.crash(reason="head node lost power", silent=True)
            patience_s = self.cluster.env.config.gcs_rpc_server_reconnect_timeout_s
            epoch = self.cluster.gcs.epoch
            self.sim.call_later(patience_s * NS_PER_S, self._without_gcs, epoch)
        self._reachability(node_id, "silent")

    def restart_node(self, node_id: NodeID) -> None:
        """Power on again: a new raylet registers; on the head, after the GCS, if it has Redis."""
        self.cluster.env.nodes[node_id].restore()
        if node_id == self.cluster.head and self.cluster.gcs.state != "up":
            self.cluster.gcs.break_silence()
            self._restart_gcs(None)
        self.cluster.start_node(node_id)

    def partition(self, node_id: NodeID) -> None:
        """Pull its cable; what runs on it goes on."""
        self.cluster.wire.cut(node_id)
        for other in self._seen_through(node_id):
            if other != self.cluster.head:
                self._reachability(other, "silent")
                if self.cluster.is_up(other):
                    cut_off = ReachabilityChanged(node_id=other, how="silent")
                    self.cluster.tell(raylet(other), cut_off)

    def heal(self, node_id: NodeID) -> None:
        """Plug it in again."""
        self.cluster.wire.join(node_id)
        for other in self._seen_through(node_id):
            if not self.cluster.wire.is_cut(other):
                self._answers_again(other)
                # what a raylet sent before it died may only now register it
                self.sim.call_later(NS_PER_S, self._answers_again, other)

    def _seen_through(self, node_id: NodeID) -> Sequence[NodeID]:
        """Nodes that the GCS sees through this node's cable: itself, or all through the head's."""
        return range(len(self.cluster.env.nodes)) if node_id == self.cluster.head else [node_id]

    def _answers_again(self, node_id: NodeID) -> None:
        if not self.cluster.wire.is_cut(node_id) or self.cluster.wire.is_cut(self.cluster.head):
            up = self.cluster.is_up(node_id)
            self._reachability(node_id, "answers" if up else "refuses")

    def kill_gcs(self, restart_after: str | None = None) -> None:
        """SIGKILL to the GCS server; with Redis it can come back and knows what it knew."""
        self.cluster.gcs.crash(reason="GCS killed")
        if restart_after is not None:
            self.sim.call_later(to_ns(parse_seconds(restart_after)), self._restart_gcs, None)

    def preempt(self, node_id: NodeID, notice: str = "2min") -> None:
        """Take a spot instance back: a drain with a deadline, and then power off."""
        notice_ns = to_ns(parse_seconds(notice))
        self.cluster.tell(
            GCS,
            DrainNode(
                node_id=node_id, reason="PREEMPTION", deadline_ns=self.sim.now_ns + notice_ns,
                message="spot instance taken back",
            ),
        )  # fmt: skip
        self.sim.call_later(notice_ns, self.fail_node, node_id)

    def slow_links(self, node_id: NodeID, share: float) -> None:
        """Leave a node so much of its network bandwidth: 0.1 is a tenth."""
        node, network = self.cluster.env.nodes[node_id], self.cluster.env.network
        for pair in node.nics:
            for link in pair:
                network.set_bytes_per_s(link, link.bytes_per_s * share)

    def fill_disk(self, node_id: NodeID, share: float = 1.0) -> None:
        """Let something else use so much of a node's disks."""
        manager = self.sim.components[object_manager(node_id)]
        assert isinstance(manager, ObjectManager), f"{manager.address} is no object manager"
        manager.fill_disk(share)

    def _orphans_exit(self, orphans: list[WorkerID]) -> None:
        """They end; a raylet that has been started meanwhile has nothing to do with them."""
        for worker_id in orphans:
            process = self.cluster.processes.pop(worker_id, None)
            if process is not None:
                process.crash(reason="its raylet has died")

    def _restart_gcs(self, _: None) -> None:
        cluster = self.cluster
        if cluster.env.config.gcs_storage == "memory":
            return
        cluster.gcs.restart()
        for node_id in range(len(cluster.env.nodes)):  # its checks of them begin anew
            if cluster.wire.is_cut(node_id) != cluster.wire.is_cut(cluster.head):
                self._reachability(node_id, "silent")
            elif not cluster.is_up(node_id):
                self._reachability(node_id, "refuses")

    def _without_gcs(self, epoch: int) -> None:
        """Its head has not come back in time: raylets exit, and all their processes with them."""
        if self.cluster.gcs.epoch == epoch and self.cluster.gcs.state != "up":
            for node_id in range(len(self.cluster.env.nodes)):
                if self.cluster.is_up(node_id):
                    self.cluster.end_processes(node_id, "the GCS cannot be reached")

    def _reachability(self, node_id: NodeID, how: Reach) -> None:
        self.cluster.tell(GCS, ReachabilityChanged(node_id=node_id, how=how))
