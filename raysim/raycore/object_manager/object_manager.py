"""What a node's raylet does for objects: gets them here, sends them, keeps and spills primaries.

Real counterpart: ``src/ray/object_manager/object_manager.cc``, ``pull_manager.cc`` and
``src/ray/raylet/local_object_manager.cc``, with the object part of ``node_manager.cc``. In Ray they
share the raylet's loop and its chunk-handling threads; here they are one room of their own, so
scheduling and object work of one node do not wait for each other.

A request (``AsyncGetObjects``) is a bundle; ``pulls`` decides which bundles may be pulled. Of an
object that may, the owner's directory says where copies are: a random holder is asked, else the
node that spilled it, else it is restored from this node's disk; asked again after 10 s x 2^n.

Not modelled: cloud spilling, so an object spilled on a node that died is lost; warnings.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from raysim.kernel.component import Component, Failure, NodeDied, Reply, RoomDown
from raysim.raycore.gcs_client import GcsClient
from raysim.raycore.ids import NodeID, ObjectID, WorkerAddress, WorkerID
from raysim.raycore.object_manager.directory import ObjectDirectory
from raysim.raycore.object_manager.io_worker import disk_of
from raysim.raycore.object_manager.pushes import Push, PushManager
from raysim.raycore.object_manager.receiving import Receiver
from raysim.raycore.object_manager.requests import Requests
from raysim.raycore.object_manager.spilling import LocalObjectManager
from raysim.raycore.protocol import (
    AsyncGetObjects,
    CancelGetRequest,
    ClientDisconnected,
    FreeObjects,
    GetStoreUsage,
    LocationUpdate,
    NodeAdded,
    NodeRemoved,
    ObjectDeleted,
    ObjectLocations,
    ObjectSealed,
    PinObjectIDs,
    PlasmaGet,
    PlasmaRelease,
    Pull,
    PullStatus,
    PushBegun,
    PushDone,
    RegisterClient,
    StoreChanged,
    StoreFull,
    StoreUsage,
    SubscribeAll,
    WorkerFailed,
    object_manager,
    plasma,
    raylet,
)
from raysim.raycore.room import Surroundings
from raysim.raycore.tasks import Payload

SENDERS_SHARE = 0.375
"""Of ``transfer_ns``: 45 us of 120."""


class LocalObject:
    """An object sealed in this node's store."""

    __slots__ = (
        "fallback",
        "freed",
        "held",
        "object_id",
        "owner",
        "payload",
        "pins",
        "size",
        "waiting",
    )

    def __init__(self, m: ObjectSealed) -> None:
        self.object_id = m.object_id
        self.size = m.object_size
        self.owner = m.owner
        self.fallback = m.fallback
        self.payload: Payload | None = None
        """Known while pinned."""
        self.pins = 0
        """Reasons to keep it; plasma counts one use for all of them."""
        self.held = False
        """Plasma has counted that use."""
        self.waiting: list[Any] = []
        """Told when it has."""
        self.freed = False


class ObjectManager(Component):
    """One node's objects."""

    runs_ahead = True

    def __init__(self, env: Surroundings, node_id: NodeID, *, disk_capacity_bytes: int) -> None:
        message_ns = env.costs.object_manager_message_ns
        messages = (AsyncGetObjects, CancelGetRequest, PushBegun, FreeObjects, ObjectLocations)
        from_ns = round(SENDERS_SHARE * env.costs.transfer_ns)
        service_ns = {
            **dict.fromkeys(messages, message_ns), PinObjectIDs: env.costs.pin_ns,
            Pull: message_ns + from_ns, PushDone: message_ns + env.costs.transfer_ns - from_ns,
        }  # fmt: skip
        super().__init__(env.sim, object_manager(node_id), service_ns=service_ns)
        self.env = env
        self.node_id = node_id
        self.node = env.nodes[node_id]
        self.plasma = plasma(node_id)
        self._disk_capacity = disk_capacity_bytes
        self.pushes = PushManager(self)
        if env.sim.check:
            env.sim.invariants.register(self.address, self.wrong)

    def started(self) -> None:
        """No objects, no requests, an empty disk."""
        self.start_ns = self.sim.clock.now
        self.capacity = 0
        """Of the store; 0 until it has said."""
        self.local: dict[ObjectID, LocalObject] = {}
        self.made: dict[ObjectID, Payload] = {}
        """Received or restored, and being sealed."""
        self.pushes.reset()
        self.receiver = Receiver(self)
        self.directory = ObjectDirectory(self)
        self.requests = Requests(self)
        self.spills = LocalObjectManager(self, self._disk_capacity)
        self._owned: dict[WorkerID, tuple[WorkerAddress, dict[ObjectID, None]]] = {}
        """Objects here, in memory or on disk, of each owner."""
        self.dead_owners: dict[WorkerID, None] = {}
        self.dead_nodes: dict[NodeID, None] = {}
        self._used_bytes = 0
        self._told = PullStatus(blocked=False, primary_bytes=0, used_bytes=0)
        self._telling = False
        GcsClient(self, self.env, _ignore).call(SubscribeAll(self.address), _ignore)
        self.call(self.plasma, GetStoreUsage(), then=self._store_is_up)

    def _store_is_up(self, answer: Any) -> None:
        if isinstance(answer, StoreUsage):
            self.capacity = answer.capacity_bytes

    def stopped(self, cause: RoomDown | NodeDied) -> None:  # noqa: ARG002
        """Nothing is sent any more."""
        self.pushes.stop_all()

    def fill_disk(self, share: float) -> None:
        """Let something else use so much of the node's disks."""
        self.spills.disk_used_by_others = int(share * self.spills.disk_capacity)

    # ---- what plasma tells -----------------------------------------------------------------------

    def on_object_sealed(self, m: ObjectSealed, reply: Reply) -> None:  # noqa: ARG002
        """An object is here."""
        object_id = m.object_id
        local = self.local[object_id] = LocalObject(m)
        self._used_bytes += m.object_size
        if m.fallback:
            self.spills.fallback_bytes += m.object_size
        self._own(object_id, m.owner)
        self.directory.report(m.owner, LocationUpdate(object_id, added=True))
        if self.env.log.enabled:
            state = "CREATED" if m.primary else "COPY"
            self.note(object_id, state, (m.object_size, m.owner, m.primary))
        payload = self.made.pop(object_id, None)
        if payload is not None:  # made by this room: the use of its making is the pin
            local.payload, local.held = payload, True
        if m.owner.worker_id in self.dead_owners:
            self.spills.free((object_id,))
        for request in self.pushes.remembered(object_id):
            self._push(request)
        self.requests.arrived(object_id, m.object_size)
        if local.held and not local.pins:
            self._let_go(local)
        self.spills.object_local()
        self.status_changed()

    def on_object_deleted(self, m: ObjectDeleted, reply: Reply) -> None:  # noqa: ARG002
        """An object was evicted or deleted."""
        local = self.local.pop(m.object_id, None)
        if local is None:
            return
        self._used_bytes -= local.size
        if local.fallback:
            self.spills.fallback_bytes -= local.size
        self.note(m.object_id, "FREED" if local.freed else "EVICTED")
        self.directory.report(local.owner, LocationUpdate(m.object_id, added=False))
        if m.object_id not in self.spills.spilled:
            self.disown(m.object_id, local.owner)
        self.requests.left(m.object_id)
        self.status_changed()

    def on_store_full(self, m: StoreFull, reply: Reply) -> None:  # noqa: ARG002
        """Spill, if anything can be."""
        self.spills.store_full(reply)

    def on_store_changed(self, m: StoreChanged, reply: Reply) -> None:  # noqa: ARG002
        """What was asked of plasma has changed."""
        if m.spillable:
            self.spills.look_again()
        else:
            self.requests.store_changed()

    # ---- pins ------------------------------------------------------------------------------------

    def pin(self, object_id: ObjectID, then: Any) -> None:
        """Keep an object here; ``then(True)``, or ``then(False)`` if it is not here."""
        local = self.local.get(object_id)
        if local is None:
            then(False)
            return
        local.pins += 1
        if local.held:
            then(True)
            return
        local.waiting.append(then)
        if len(local.waiting) == 1:
            self.call(
                self.plasma,
                PlasmaGet((object_id,), self.address, timeout_ns=0),
                then=partial(self._pinned, local),
            )

    def _pinned(self, local: LocalObject, answer: Any) -> None:
        waiting, local.waiting = local.waiting, []
        payload = None if isinstance(answer, Failure) else answer[0]
        if payload is None:  # evicted, or freed, before the pin
            local.pins = 0
        else:
            local.payload, local.held = payload, True
        for then in waiting:
            then(payload is not None)
        if local.held and not local.pins:
            self._let_go(local)

    def unpin(self, object_id: ObjectID) -> None:
        """One reason less to keep it."""
        local = self.local.get(object_id)
        if local is None or not local.pins:
            return
        local.pins -= 1
        if not local.pins and local.held:
            self._let_go(local)
        elif local.pins == 1 and object_id in self.spills.pinned:
            self.spills.look_again()

    def _let_go(self, local: LocalObject) -> None:
        local.held, local.payload = False, None
        self.send(self.plasma, PlasmaRelease(local.object_id, self.address))

    def on_pin_object_ids(self, m: PinObjectIDs, reply: Reply) -> None:
        """These are primary copies."""
        answers: list[bool | None] = [None] * len(m.object_ids)
        for position, object_id in enumerate(m.object_ids):
            if object_id in self.spills.pinned or object_id in self.spills.spilling:
                answers[position] = True
            else:
                self.pin(object_id, partial(self._primary, answers, position, object_id, reply))
        if None not in answers and not reply.answered:
            reply(tuple(answers))

    def _primary(
        self, answers: list[bool | None], position: int, object_id: ObjectID, reply: Reply,
        pinned: bool,
    ) -> None:  # fmt: skip
        freed = pinned and self.local[object_id].freed
        answers[position] = pinned and not freed
        if freed or (pinned and object_id in self.spills.pinned):  # asked for twice at once
            self.unpin(object_id)
        elif pinned:
            self.spills.pin(self.local[object_id])
        if None not in answers and not reply.answered:
            reply(tuple(answers))

    # ---- requests --------------------------------------------------------------------------------

    def on_async_get_objects(self, m: AsyncGetObjects, reply: Reply) -> None:
        """Get these here."""
        self.requests.get(m, reply)

    def on_cancel_get_request(self, m: CancelGetRequest, reply: Reply) -> None:  # noqa: ARG002
        """Not needed any more."""
        self.requests.cancel(m.request_id)

    def on_object_locations(self, m: ObjectLocations, reply: Reply) -> None:  # noqa: ARG002
        """An owner's news."""
        self.requests.locations_changed(m)

    # ---- receiving and sending -------------------------------------------------------------------

    def on_push_begun(self, m: PushBegun, reply: Reply) -> None:  # noqa: ARG002
        """First chunk: make room if it is wanted."""
        if self.requests.wants(m.object_id):
            self.receiver.begin(m)

    def on_push_done(self, m: PushDone, reply: Reply) -> None:  # noqa: ARG002
        """Last chunk."""
        self.receiver.done(m)

    def on_pull(self, m: Pull, reply: Reply) -> None:  # noqa: ARG002
        """Send an object, now or when it comes."""
        if not self.pushes.resend((m.object_id, m.requester)):
            self._push(m)

    def _push(self, m: Pull) -> None:
        object_id, key = m.object_id, (m.object_id, m.requester)
        spilled = self.spills.spilled.get(object_id)
        if object_id in self.local:
            self.pin(object_id, partial(self._push_pinned, m))
        elif spilled is not None:
            push = Push(key, spilled.size, spilled.owner, spilled.payload, m.through)
            push.from_disk = disk_of(spilled.file)
            self.pushes.start(push)
        else:
            self.pushes.remember(m)

    def _push_pinned(self, m: Pull, pinned: bool) -> None:
        key = (m.object_id, m.requester)
        if not pinned:
            self.pushes.remember(m)
        elif key in self.pushes.pushes:  # asked twice in one instant
            self.unpin(m.object_id)
        else:
            local = self.local[m.object_id]
            assert local.payload is not None, f"{self.address}: {m.object_id} pinned, not known"
            self.pushes.start(Push(key, local.size, local.owner, local.payload, m.through))

    # ---- primary copies --------------------------------------------------------------------------

    def on_free_objects(self, m: FreeObjects, reply: Reply) -> None:  # noqa: ARG002
        """Their owner needs them no more."""
        self.spills.free(m.object_ids)

    def on_register_client(self, m: RegisterClient, reply: Reply) -> None:
        """An IO worker is up."""
        reply()
        spill = m.worker_type == "SPILL_WORKER"
        (self.spills.spill_workers if spill else self.spills.restore_workers).registered(m)

    def _own(self, object_id: ObjectID, owner: WorkerAddress) -> None:
        owned = self._owned.get(owner.worker_id)
        if owned is None:
            owned = self._owned[owner.worker_id] = (owner, {})
        owned[1][object_id] = None

    def disown(self, object_id: ObjectID, owner: WorkerAddress) -> None:
        """The object is here neither in memory nor on disk."""
        owned = self._owned.get(owner.worker_id)
        if owned is not None:
            owned[1].pop(object_id, None)
            if not owned[1]:
                del self._owned[owner.worker_id]

    # ---- deaths ----------------------------------------------------------------------------------

    def on_client_disconnected(self, m: ClientDisconnected, reply: Reply) -> None:  # noqa: ARG002
        """A process of this node has ended."""
        self.requests.client_gone(m.client)
        self.spills.spill_workers.died(m.client)
        self.spills.restore_workers.died(m.client)

    def on_worker_failed(self, m: WorkerFailed, reply: Reply) -> None:  # noqa: ARG002
        """What it owned is freed; who waits for that is told."""
        self.dead_owners[m.worker.worker_id] = None
        owned = self._owned.get(m.worker.worker_id)
        if owned is not None:
            self.spills.free(tuple(owned[1]))
        self.requests.owners_died()

    def on_node_removed(self, m: NodeRemoved, reply: Reply) -> None:  # noqa: ARG002
        """Its copies are gone, and so are the owners that lived there."""
        self.dead_nodes[m.node_id] = None
        self.pushes.stop_all(m.node_id)
        self.receiver.node_removed(m.node_id)
        for owner, objects in list(self._owned.values()):
            if owner.node_id == m.node_id:
                self.dead_owners[owner.worker_id] = None
                self.spills.free(tuple(objects))
        self.requests.owners_died()

    def on_node_added(self, m: NodeAdded, reply: Reply) -> None:  # noqa: ARG002
        """A node, perhaps one that was dead."""
        self.dead_nodes.pop(m.node_id, None)

    # ---- what is told ----------------------------------------------------------------------------

    def status_changed(self) -> None:
        """Tell the raylet, once per instant, if it is news."""
        if not self._telling:
            self._telling = True
            self.after(0, self._tell)

    def _tell(self, _: None) -> None:
        self._telling = False
        status = PullStatus(
            self.requests.pulls.blocked, self.spills.primary_bytes, self._used_bytes
        )
        begun, ceased = self.requests.pulls.lease_news()
        if status != self._told or begun or ceased:
            self._told = status
            status = status._replace(leases_blocked=begun, leases_unblocked=ceased)
            self.send(raylet(self.node_id), status)

    def note(self, object_id: ObjectID, state: str, detail: Any = None) -> None:
        """For the state frames."""
        if self.env.log.enabled:
            self.env.log.note(
                "object", object_id, state, self.now_ns, node_id=self.node_id, detail=detail
            )

    def wrong(self) -> str:
        """What breaks its laws now; empty when all is well."""
        if self.state != "up":
            return ""
        return self.pushes.wrong() or self.spills.wrong() or self.requests.pulls.wrong()


def _ignore(_answer: object = None) -> None:
    """The answer says no more than that it was heard."""
