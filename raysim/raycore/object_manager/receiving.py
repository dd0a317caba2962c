"""Objects on their way into this node's store.

Real counterpart: ``ObjectManager::HandlePush``, ``src/ray/object_manager/object_buffer_pool.cc``:
the first chunk makes room for the whole object, the last seals it; chunks of what is not wanted any
more are dropped.

Pages that nobody has written to yet take their work once all chunks are here, not chunk by chunk.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from raysim.raycore.ids import NodeID, ObjectID
from raysim.raycore.object_manager.pushes import CONNECTIONS
from raysim.raycore.protocol import (
    PlasmaAbort,
    PlasmaCreate,
    PlasmaCreated,
    PlasmaSeal,
    PushBegun,
    PushDone,
)
from raysim.raycore.tasks import Payload

if TYPE_CHECKING:
    from raysim.raycore.object_manager.object_manager import ObjectManager


class _Arrival:
    """One object in transfer."""

    __slots__ = ("cancelled", "object_id", "pages_core_s", "payload", "room_made", "sources")

    def __init__(self, object_id: ObjectID) -> None:
        self.object_id = object_id
        self.sources: dict[NodeID, None] = {}
        """Who sends it: more than one after a retry."""
        self.room_made = False
        self.pages_core_s = 0.0
        """Work of the pages that are new, to all or to this process."""
        self.payload: Payload | None = None
        """Set when all chunks are here."""
        self.cancelled = False
        """Not wanted any more, but plasma has not answered yet."""


class Receiver:
    """What this node receives."""

    def __init__(self, room: ObjectManager) -> None:
        self.room = room
        self.arrivals: dict[ObjectID, _Arrival] = {}

    def receives(self, object_id: ObjectID) -> bool:
        """It is on its way, and still wanted."""
        arrival = self.arrivals.get(object_id)
        return arrival is not None and not arrival.cancelled

    def begin(self, m: PushBegun) -> None:
        """A first chunk of what is wanted."""
        arrival = self.arrivals.get(m.object_id)
        if arrival is not None:
            arrival.cancelled = False
            arrival.sources[m.source] = None
            return
        if m.object_id in self.room.spills.restoring or m.object_id in self.room.made:
            return
        arrival = self.arrivals[m.object_id] = _Arrival(m.object_id)
        arrival.sources[m.source] = None
        room = self.room
        room.call(
            room.plasma,
            PlasmaCreate(m.object_id, m.object_size, m.owner, room.address, primary=False),
            then=partial(self._room_made, arrival),
        )

    def _room_made(self, arrival: _Arrival, answer: Any) -> None:
        object_id = arrival.object_id
        if not isinstance(answer, PlasmaCreated) or answer.existed:
            del self.arrivals[object_id]  # no disk, or somebody else makes it; asked for again
        elif arrival.cancelled:
            del self.arrivals[object_id]
            self.room.send(self.room.plasma, PlasmaAbort(object_id))
        else:
            arrival.room_made = True
            node = self.room.env.nodes[self.room.node_id]
            arrival.pages_core_s = self.room.env.costs.pages_s(
                answer.fresh_bytes, answer.unmapped_bytes, node.spec.vcpus
            )
            if arrival.payload is not None:
                self._provide(arrival)

    def done(self, m: PushDone) -> None:
        """All chunks of one sender have come."""
        arrival = self.arrivals.get(m.object_id)
        if arrival is None or m.source not in arrival.sources:
            return
        arrival.payload = m.payload
        if arrival.room_made:
            self._provide(arrival)

    def _provide(self, arrival: _Arrival) -> None:
        """Pages for what has come."""
        payload, room = arrival.payload, self.room
        assert payload is not None, f"{room.address}: {arrival.object_id} is not complete"
        if not arrival.pages_core_s:
            self._seal(arrival)
            return
        chunks = -(-payload.size_bytes // room.env.config.object_manager_default_chunk_size)
        room.env.nodes[room.node_id].cpu.job(
            arrival.pages_core_s, self._provided, (room.epoch, arrival),
            width=min(CONNECTIONS, chunks),
        )  # fmt: skip

    def _provided(self, provided: tuple[int, _Arrival]) -> None:
        epoch, arrival = provided
        if epoch == self.room.epoch and self.arrivals.get(arrival.object_id) is arrival:
            self._seal(arrival)

    def _seal(self, arrival: _Arrival) -> None:
        object_id, payload = arrival.object_id, arrival.payload
        assert payload is not None, f"{self.room.address}: {object_id} is not complete"
        del self.arrivals[object_id]
        self.room.made[object_id] = payload
        self.room.send(self.room.plasma, PlasmaSeal(object_id, payload))

    def cancel(self, object_id: ObjectID) -> None:
        """It is not wanted any more."""
        arrival = self.arrivals.get(object_id)
        if arrival is None:
            return
        if arrival.room_made:
            del self.arrivals[object_id]
            self.room.send(self.room.plasma, PlasmaAbort(object_id))
        else:
            arrival.cancelled = True
            arrival.payload = None
            arrival.sources.clear()

    def node_removed(self, node_id: NodeID) -> None:
        """Nothing more comes from there; what nobody else sends is given up, to be asked anew."""
        for arrival in list(self.arrivals.values()):
            if arrival.sources.pop(node_id, self) is None and not arrival.sources:
                self.cancel(arrival.object_id)
