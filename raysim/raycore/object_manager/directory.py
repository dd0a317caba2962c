"""Where objects are: what owners tell this node, and what it tells them.

Real counterpart: ``src/ray/object_manager/ownership_object_directory.cc``. While something here
waits for an object, the owner sends its locations at every change; whatever comes to or leaves this
node's store is reported to its owner, in batches of at most ``max_object_report_batch_size``.

Simplified: Ray has one report per owner under way and sends the next when it is answered; here the
next goes a round trip later.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from raysim.kernel.component import Failure
from raysim.raycore.ids import ObjectID, WorkerAddress
from raysim.raycore.protocol import (
    LocationUpdate,
    ObjectLocations,
    SubscribeObjectLocations,
    UpdateObjectLocationBatch,
)

if TYPE_CHECKING:
    from raysim.raycore.object_manager.object_manager import ObjectManager


class ObjectDirectory:
    """Subscriptions, and reports to owners."""

    def __init__(self, room: ObjectManager) -> None:
        self.room = room
        self.locations: dict[ObjectID, ObjectLocations] = {}
        """As last told, of objects subscribed to."""
        self._owners: dict[ObjectID, WorkerAddress] = {}
        self._reports: dict[WorkerAddress, list[LocationUpdate]] = {}
        """Of owners to whom a report has gone less than a round trip ago, or goes now."""

    def subscribe(self, object_id: ObjectID, owner: WorkerAddress) -> None:
        """Hear of it from now on, or that the owner is dead."""
        if object_id in self._owners:
            return
        self._owners[object_id] = owner
        room = self.room
        room.call(
            owner.address,
            SubscribeObjectLocations(object_id, room.address),
            then=partial(self._answered, object_id),
        )

    def unsubscribe(self, object_id: ObjectID) -> None:
        """Hear no more."""
        owner = self._owners.pop(object_id, None)
        self.locations.pop(object_id, None)
        if owner is not None:
            room = self.room
            room.send(
                owner.address,
                SubscribeObjectLocations(object_id, room.address, unsubscribe=True),
            )

    def _answered(self, object_id: ObjectID, answer: Any) -> None:
        if object_id not in self._owners:
            return
        if isinstance(answer, Failure):
            del self._owners[object_id]
            self.room.requests.owner_refused(object_id)
        elif isinstance(answer, ObjectLocations):
            self.room.requests.locations_changed(answer)

    def heard(self, m: ObjectLocations) -> bool:
        """News from an owner; whether anybody wants to know."""
        if m.object_id not in self._owners:
            return False
        self.locations[m.object_id] = m
        return True

    def report(self, owner: WorkerAddress, update: LocationUpdate) -> None:
        """Have the owner told, with what else there is to tell."""
        updates = self._reports.get(owner)
        if updates is not None:
            updates.append(update)
            return
        self._reports[owner] = [update]
        self.room.after(0, self._flush, owner)

    def _flush(self, owner: WorkerAddress) -> None:
        updates = self._reports.pop(owner)
        if not updates:
            return
        room = self.room
        most = room.env.config.max_object_report_batch_size
        room.send(owner.address, UpdateObjectLocationBatch(room.node_id, tuple(updates[:most])))
        self._reports[owner] = updates[most:]
        costs = room.env.costs
        hop_ns = costs.grpc_same_host_ns
        if owner.node_id != room.node_id:
            hop_ns += costs.grpc_cross_host_extra_ns
        room.after(2 * hop_ns, self._flush, owner)
