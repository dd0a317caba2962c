"""The node table: who is in the cluster, what it has, and what happens when it goes.

Real counterpart: ``gcs_node_manager.cc``, ``gcs_resource_manager.cc`` and the drain part of
``gcs_autoscaler_state_manager.cc`` in ``src/ray/gcs/``. A node joins with ``RegisterNode``; it
leaves by ``UnregisterNode`` when drained or stopped in good order, or by five failed health checks.
Leaving takes it out of the shared view, tells every subscriber, and lets actors, groups and jobs
that were there end or move.

Resource reports go to the GCS's own copy at once and into the view all raylets share one network
hop later, as the syncer's broadcast does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raysim.kernel.component import Message, NodeDied, Reply
from raysim.raycore.gcs.tables import GcsNode, forget_oldest
from raysim.raycore.ids import NodeID
from raysim.raycore.protocol import (
    DrainNode,
    DrainRaylet,
    NodeAdded,
    NodeRemoved,
    Nodes,
    RegisterNode,
    ReportResources,
    UnregisterNode,
    WatchNodes,
)
from raysim.raycore.resources import NodeResources

if TYPE_CHECKING:
    from raysim.raycore.gcs.server import Gcs


class GcsNodeManager:
    """One per GCS. All calls of the GCS to raylets and workers go through ``call``."""

    def __init__(self, gcs: Gcs) -> None:
        self._gcs = gcs
        self._table = gcs.tables.nodes
        self._dead = gcs.tables.dead_nodes
        self._calls: dict[NodeID, dict[int, Callable[[Any], object]]] = {}
        """Outstanding, by node and number: a node that dies silently will never answer them."""
        self._last_call = 0
        self._version = self._changed_ns = 0
        self._watching: list[Reply] = []
        costs = gcs.env.costs
        self._hop_ns = costs.grpc_same_host_ns + costs.grpc_cross_host_extra_ns

    # Life of a node

    def register(self, m: RegisterNode) -> None:
        """A raylet joins, or one whose node is still thought alive has started again."""
        gcs = self._gcs
        there = self._table.get(m.node_id)
        if there is not None:
            same = there.incarnation == m.incarnation
            if same and not gcs.health.unreachable(m.node_id):
                return  # sent again after a restart of the GCS
            gcs.publisher.drop_node(m.node_id)  # who died with it, not who has just come
            self._gone(m.node_id, expected=False, reason="Its raylet has started again.")
        returns = self._dead.pop(m.node_id, None) is not None
        node = self._table[m.node_id] = GcsNode(m, gcs.sim.now_ns)
        gcs.env.view.join(m.node_id, NodeResources(m.resources, m.labels))
        gcs.health.add(m.node_id)
        self._note(node)
        self._changed()
        if returns:  # of a new node the shared view says all that anyone asks
            gcs.publisher.publish(NodeAdded(m.node_id))
        gcs.actors.on_node_added()
        gcs.groups.on_node_added()

    def unregister(self, m: UnregisterNode) -> None:
        """It leaves in good order."""
        node = self._table.get(m.node_id)
        if node is not None:
            self._gone(m.node_id, expected=node.drain is not None, reason=m.reason)

    def failed_checks(self, node_id: NodeID) -> None:
        """Too many health checks in a row have failed.

        A node past the deadline of its preemption was expected to vanish (``InferDeathInfo``).
        """
        drain = self._table[node_id].drain
        preempted = (
            drain is not None
            and drain.reason == "PREEMPTION"
            and 0 < drain.deadline_ns < self._gcs.sim.now_ns
        )
        reason = (
            drain.message or "node was preempted"
            if preempted and drain is not None
            else "health check failed due to missing too many heartbeats"
        )
        self._gone(node_id, expected=preempted, reason=reason)

    def _gone(self, node_id: NodeID, *, expected: bool, reason: str) -> None:
        gcs = self._gcs
        node = self._table.pop(node_id)
        node.state, node.death_reason, node.end_ns = "DEAD", reason, gcs.sim.now_ns
        self._dead[node_id] = node
        forget_oldest(self._dead, gcs.env.config.maximum_gcs_dead_node_cached_count)
        self._note(node)
        gcs.health.remove(node_id)
        gcs.env.view.leave(node_id)
        self._changed()
        gcs.publisher.publish(NodeRemoved(node_id, expected, reason))
        gcs.publisher.drop_node(node_id)
        gcs.demand.forget(node_id)
        gcs.actors.on_node_dead(node_id, reason)
        gcs.groups.on_node_dead(node_id)
        gcs.jobs.on_node_dead(node_id)
        cause = NodeDied(address=node.address, node=f"node-{node_id}", reason=reason)
        for then in self._calls.pop(node_id, {}).values():
            then(cause)

    # Watching

    def watch(self, m: WatchNodes, reply: Reply) -> None:
        """Answer now if something is new, else at the next change."""
        if m.seen != self._version:
            reply(self._nodes())
        else:
            self._watching.append(reply)

    def _changed(self) -> None:
        """Who is there, or drains, is not what it was."""
        self._version += 1
        self._changed_ns = self._gcs.sim.now_ns
        watching, self._watching = self._watching, []
        for reply in watching:
            reply(self._nodes())

    def _nodes(self) -> Nodes:
        rows = tuple(node.row() for node in self._table.values())
        drains = {n.node_id: n.drain.deadline_ns for n in self._table.values() if n.drain}
        return Nodes(self._version, rows, drains, self._changed_ns)

    # Draining

    def drain(self, m: DrainNode, reply: Reply) -> None:
        """Ask the raylet; a node that is gone needs no draining."""
        node = self._table.get(m.node_id)
        if node is None:
            reply((True, "The node is not alive."))
            return
        message = DrainRaylet(m.reason, m.deadline_ns, m.message)
        self.call(m.node_id, node.address, message, _Drained(self, m, reply).answered)

    def drained(self, m: DrainNode, reply: Reply, answer: Any) -> None:
        """The raylet has accepted or refused, or died."""
        if isinstance(answer, tuple):
            accepted, reason = answer
        else:
            accepted, reason = m.node_id not in self._table, "The raylet did not answer."
        node = self._table.get(m.node_id)
        if accepted and node is not None:
            node.drain, node.state = m, "DRAINING"
            node.changes += 1
            self._note(node)
            self._changed()
            if m.reason == "PREEMPTION":
                self._gcs.actors.set_preempted(m.node_id)
        reply((accepted, reason))

    # Resources

    def report(self, m: ReportResources) -> None:
        """Take the raylet's word for it, and tell everybody one hop later."""
        node = self._table.get(m.node_id)
        if node is None:
            return
        node.available, node.total = dict(m.available), dict(m.total)
        node.idle_since_ns = m.idle_since_ns
        node.changes += 1
        node.demand_waiting = m.demand_waiting
        self._gcs.health.heard_of(m.node_id)
        self._gcs.demand.reported(m.node_id, waiting=m.demand_waiting)
        self._gcs.sim.call_later(self._hop_ns, self._publish, m)

    def _publish(self, m: ReportResources) -> None:
        env = self._gcs.env
        env.view.publish(
            m.node_id, m.available, m.total, draining=m.draining, pulls_blocked=m.pulls_blocked
        )
        if env.log.enabled:
            env.log.note(
                "node", m.node_id, "RESOURCES", self._gcs.sim.now_ns, node_id=m.node_id,
                detail=(m.total, m.available),
            )  # fmt: skip

    # Calls to nodes

    def alive(self, node_id: NodeID) -> GcsNode | None:
        """The row of a node that is not dead."""
        return self._table.get(node_id)

    def call(
        self, node_id: NodeID, address: str, message: Message, then: Callable[[Any], object]
    ) -> None:
        """Call a room of a node; its death answers too, be it silent.

        A raylet that has started again and not registered yet refuses what was meant for the one
        before it: in Ray it listens on another port, under a node id of its own.
        """
        node = self._table.get(node_id)
        if node is None:
            cause = NodeDied(address=address, node=f"node-{node_id}")
            self._gcs.after(0, then, cause)
            return
        self._last_call += 1
        self._calls.setdefault(node_id, {})[self._last_call] = then
        its_raylet = node.incarnation if address == node.address else None
        answered = _Answered(self, node_id, self._last_call).here
        self._gcs.call(address, message, answered, epoch=its_raylet)

    def answered(self, node_id: NodeID, number: int, answer: Any) -> None:
        """An answer has come; of a node dead since, it is not wanted any more."""
        then = self._calls.get(node_id, {}).pop(number, None)
        if then is not None:
            then(answer)

    def recover(self) -> None:
        """After a restart: check everybody again, and believe the view until they report."""
        for node_id, node in self._table.items():
            self._gcs.health.add(node_id)
            self._gcs.demand.reported(node_id, waiting=node.demand_waiting)
            seen = self._gcs.env.view.nodes.get(node_id)
            if seen is not None:
                node.available = dict(seen.resources.available)
                node.total = dict(seen.resources.total)
                node.changes += 1

    def _note(self, node: GcsNode) -> None:
        if self._gcs.env.log.enabled:
            self._gcs.env.log.note(
                "node", node.node_id, node.state, self._gcs.sim.now_ns, node_id=node.node_id,
                detail=node.row(),
            )  # fmt: skip


class _Answered:
    """What becomes of a call to a node."""

    __slots__ = ("_node_id", "_nodes", "_number")

    def __init__(self, nodes: GcsNodeManager, node_id: NodeID, number: int) -> None:
        self._nodes, self._node_id, self._number = nodes, node_id, number

    def here(self, answer: Any) -> None:
        """It has come."""
        self._nodes.answered(self._node_id, self._number, answer)


class _Drained:
    """What becomes of a drain request."""

    __slots__ = ("_message", "_nodes", "_reply")

    def __init__(self, nodes: GcsNodeManager, message: DrainNode, reply: Reply) -> None:
        self._nodes, self._message, self._reply = nodes, message, reply

    def answered(self, answer: Any) -> None:
        """By the raylet."""
        self._nodes.drained(self._message, self._reply, answer)
