"""Who is told what: nodes that come and go, workers that die, actors that change.

Real counterpart: ``src/ray/pubsub/publisher.cc`` with the channels GCS_NODE_INFO, WORKER_DELTA,
GCS_ACTOR and GCS_JOB. Ray's subscribers poll: a request stays open at the publisher until there is
something to say, and is sent again at once. Publishing is therefore one message per subscriber,
which is what is modelled; the poll that follows each answer costs nobody anything.

Not modelled: the bounded buffer of a slow subscriber, and dropping one that is silent for 300 s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raysim.raycore.ids import ActorID, NodeID
from raysim.raycore.protocol import (
    ActorStateChanged,
    ActorTableData,
    JobFinished,
    NodeAdded,
    NodeRemoved,
    WorkerFailed,
)

if TYPE_CHECKING:
    from raysim.raycore.gcs.server import Gcs


class GcsPublisher:
    """One per GCS."""

    def __init__(self, gcs: Gcs) -> None:
        self._gcs = gcs
        self._all = gcs.tables.subscribers
        self._of_actor = gcs.tables.actor_subscribers
        self._actors_of: dict[str, dict[ActorID, None]] = {}
        """The same the other way round."""
        for actor_id, subscribers in self._of_actor.items():
            for address in subscribers:
                self._actors_of.setdefault(address, {})[actor_id] = None

    def subscribe(self, address: str, *, worker_failures: bool) -> None:
        """Tell this address of nodes, and of workers if it wants."""
        self._all[address] = worker_failures

    def subscribe_actor(self, actor_id: ActorID, address: str) -> None:
        """Tell this address of an actor's changes."""
        self._of_actor.setdefault(actor_id, {})[address] = None
        self._actors_of.setdefault(address, {})[actor_id] = None

    def unsubscribe_actor(self, actor_id: ActorID, address: str) -> None:
        """Do not any more."""
        subscribers = self._of_actor.get(actor_id)
        if subscribers is not None:
            subscribers.pop(address, None)
            if not subscribers:
                del self._of_actor[actor_id]
        self._actors_of.get(address, {}).pop(actor_id, None)

    def publish(self, m: NodeAdded | NodeRemoved) -> None:
        """To everybody."""
        for address in list(self._all):
            self._gcs.send(address, m)

    def publish_worker_failure(self, m: WorkerFailed) -> None:
        """To those who want to know; the dead itself is off the list from now on."""
        self._all.pop(m.worker.address, None)
        for address, wanted in list(self._all.items()):
            if wanted:
                self._gcs.send(address, m)

    def publish_actor(self, row: ActorTableData) -> None:
        """To the actor's owner and callers, as far as they subscribed."""
        subscribers = self._of_actor.get(row.actor_id)
        if subscribers:
            m = ActorStateChanged(row)
            for address in list(subscribers):
                self._gcs.send(address, m)

    def publish_job(self, m: JobFinished) -> None:
        """To every raylet."""
        for node in list(self._gcs.tables.nodes.values()):
            self._gcs.send(node.address, m)

    def drop_node(self, node_id: NodeID) -> None:
        """Forget the subscribers that lived there."""
        prefix = f"node-{node_id}/"
        for address in [a for a in [*self._all, *self._actors_of] if a.startswith(prefix)]:
            self.drop_worker(address)

    def drop_worker(self, address: str) -> None:
        """Forget a dead process."""
        self._all.pop(address, None)
        for actor_id in list(self._actors_of.get(address, ())):
            self.unsubscribe_actor(actor_id, address)
        self._actors_of.pop(address, None)
