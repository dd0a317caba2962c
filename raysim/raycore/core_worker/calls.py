"""Calls to other nodes, and word of nodes and processes that come and go.

Real counterpart: the client pools of ``src/ray/rpc/``, and the GCS's channels of node and worker
changes as ``CoreWorker`` subscribes to them.

Not modelled: connections; a call needs none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raysim.kernel.component import Failure, NodeDied
from raysim.perf.ray_core import RayCosts
from raysim.raycore import protocol as p
from raysim.raycore.ids import NodeID
from raysim.raycore.protocol import (
    LeaseGranted,
    NodeRemoved,
    ReturnWorkerLease,
    SubscribeAll,
    WorkerFailed,
    raylet,
)

if TYPE_CHECKING:
    from raysim.raycore.core_worker.worker import CoreWorker

_RETRIED = frozenset({p.RequestWorkerLease, p.PinObjectIDs})
"""``raylet_client.cc`` gives these to a ``RetryableGrpcClient``: it keeps what is refused, looks
each second whether it can connect, and fails it when the GCS has declared the node dead. A raylet
that starts again does so under another name and port, so that is how it always ends."""
_MIN_PENDING_REQUESTS = 10
"""``max_pending_lease_requests_per_scheduling_category`` = -1 means max(10, alive nodes)."""


class Calls:
    """Of one process."""

    def __init__(self, core: CoreWorker) -> None:
        self.core = core
        self._subscribed = False
        self.hears = False
        """The GCS tells us of nodes that die."""
        self._out: dict[NodeID, dict[_Remote, None]] = {}
        self._view = core.env.view
        self.preempted: dict[NodeID, None] = {}
        """Nodes that were taken away: what they fail is not charged."""
        self._limit = core.config.max_pending_lease_requests_per_scheduling_category

    def subscribe(self) -> None:
        """Hear of nodes and processes that come and go, from the first time it matters."""
        if not self._subscribed:
            self._subscribed = True
            self.core.gcs.call(SubscribeAll(self.core.address), self._heard)

    def _heard(self, _: object) -> None:
        """Nodes that died before the GCS knew that we want to know."""
        self.hears = True
        refused = [call for calls in self._out.values() for call in calls if call.refusal]
        asked = [n for n, calls in self._out.items() if calls]
        for node_id in dict.fromkeys([*asked, *self.core.leases.nodes()]):
            if node_id not in self._view.nodes:
                self.node_removed(NodeRemoved(node_id, expected=False, reason="node died"))
        for call in refused:  # its node may have died and come back before that
            call.over(call.refusal)

    @property
    def request_limit(self) -> int:
        """Lease requests that one scheduling key may have waiting."""
        if self._limit > 0:
            return self._limit
        nodes = len(self._view.nodes)
        return nodes if nodes > _MIN_PENDING_REQUESTS else _MIN_PENDING_REQUESTS

    def call(
        self, node_id: NodeID, address: str, message: Any, then: Callable[[Any], object]
    ) -> None:
        """A call that fails when the GCS declares the callee's node dead, if not before."""
        core = self.core
        if node_id == core.me.node_id:  # this process would die with it
            core.call(address, message, then)
            return
        if node_id not in self._view.nodes:
            core.after(0, then, NodeDied(address=address, node=f"node-{node_id}"))
            return
        self.subscribe()
        call = _Remote(self, node_id, then)
        if message.__class__ in _RETRIED:
            call.retried, call.heard = True, self.hears
        self._out.setdefault(node_id, {})[call] = None
        core.call(address, message, call.answered)

    def ended(self, call: _Remote) -> None:
        """It was answered."""
        self._out[call.node_id].pop(call, None)

    def node_removed(self, m: NodeRemoved) -> None:
        """Nothing there will answer; copies and processes there are gone."""
        core, node_id = self.core, m.node_id
        if m.expected:
            self.preempted[node_id] = None
        cause = NodeDied(address=f"node-{node_id}", node=f"node-{node_id}", reason=m.reason)
        for call in list(self._out.get(node_id, ())):
            call.over(cause)
        core.leases.node_removed(node_id, cause)
        core.actors.node_removed(node_id)
        core.directory.node_removed(node_id)
        core.borrowing.owner_died(lambda owner: owner.node_id == node_id)

    def worker_failed(self, m: WorkerFailed) -> None:
        """A process has died: what it owned is lost to us."""
        dead = m.worker.worker_id
        self.core.borrowing.owner_died(lambda owner: owner.worker_id == dead)


class Told:
    """Calls a program back, when the clock is where this process is."""

    __slots__ = ("core", "then")

    def __init__(self, core: CoreWorker, then: Callable[[Any], object]) -> None:
        self.core = core
        self.then = then

    def __call__(self, answer: Any) -> None:
        """The answer to what the program asked."""
        if self.core.lead_ns:
            self.core.after(0, self.then, answer)
        else:
            self.then(answer)


class _Remote:
    """A call to another node, which may be declared dead before it answers."""

    __slots__ = ("calls", "heard", "node_id", "refusal", "retried", "then")

    def __init__(self, calls: Calls, node_id: NodeID, then: Callable[[Any], object]) -> None:
        self.calls = calls
        self.node_id = node_id
        self.then: Callable[[Any], object] | None = then
        self.retried = False
        self.heard = False
        """It was made when its process heard of every node that dies."""
        self.refusal: Failure | None = None
        """Of one that is retried: it is dead already, but not yet declared so."""

    def answered(self, answer: Any) -> None:
        """The callee's answer; a refusal is final only once the node has been declared dead."""
        if self.retried and isinstance(answer, Failure) and self.heard >= self.calls.hears:
            self.refusal = answer
        else:
            self.over(answer)

    def over(self, answer: Any) -> None:
        """The answer, or the cause why there is none; what comes first."""
        then, self.then = self.then, None
        if then is not None:
            self.calls.ended(self)
            then(answer)
        elif answer.__class__ is LeaseGranted:  # of a node that came back; nobody uses it
            self.calls.core.send(
                raylet(answer.worker.node_id),
                ReturnWorkerLease(answer.lease_id, answer.worker.worker_id, disconnect_worker=True),
            )


def is_node_failure(cause: Failure) -> bool:
    """Whether the whole node went."""
    return isinstance(cause, NodeDied)


def ignore(_answer: object) -> None:
    """Nothing depends on the answer."""


def service_ns(costs: RayCosts) -> dict[type, int]:
    """What each message and answer costs the io thread."""
    other = costs.io_message_ns
    return {
        p.PushTaskReply: costs.io_reply_ns,
        p.LeaseGranted: costs.io_lease_reply_ns,
        p.LeaseSpillback: costs.io_lease_reply_ns,
        p.LeaseRejected: costs.io_lease_reply_ns,
        p.LeaseCancelled: costs.io_lease_reply_ns,
        p.PushTask: other,
        p.CancelTask: other,
        p.CancelRemoteTask: other,
        p.KillActor: other,
        p.ExitWorker: other,
        p.ReportGeneratorItemReturns: other,
        p.GetObjectLocationsOwner: other,
        p.GetObjectStatus: other,
        p.ObjectStatus: other,
        p.WaitForRefRemoved: other,
        p.AddBorrower: other,
        p.SubscribeObjectLocations: other,
        p.UpdateObjectLocationBatch: costs.io_object_ns,
        p.ActorStateChanged: other,
        p.ActorTableData: other,
        p.NodeAdded: other,
        p.NodeRemoved: other,
        p.WorkerFailed: other,
    }
