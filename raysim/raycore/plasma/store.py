"""The object store of one node: room for objects, who uses them, what may be evicted.

Real counterpart: ``src/ray/object_manager/plasma/`` (``store.cc``, ``create_request_queue.cc``,
``eviction_policy.cc``, ``object_lifecycle_manager.cc``, ``get_request_queue.cc``): one thread in
the raylet's process.

A request to create waits in one FIFO queue whose head blocks the rest: it takes free room; else
unused objects are evicted, least recently used first; else the object manager is asked to spill;
and after ``oom_grace_period_s`` without any spill the object goes to a file outside the capacity
(fallback allocation). Ray retries every ``object_store_full_delay_ms``; so do we, but only at those
of the instants before which something changed. What another makes already is answered for when it
is sealed, and made after all when that is aborted.

A primary copy is used by its maker until the object manager pins it, and by the object manager from
then on: what nobody uses may be evicted, so what is pinned never is.

Not modelled: metadata; garbage collection of Python's reference cycles when the store is full
(references here have no cycles). Page faults are the writer's to pay.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from raysim.kernel.clock import Handle
from raysim.kernel.component import Component, Reply
from raysim.raycore.ids import NodeID, ObjectID
from raysim.raycore.plasma.arena import Arena
from raysim.raycore.plasma.objects import StoredObject, WaitingGet, one_less
from raysim.raycore.protocol import (
    ClientDisconnected,
    GetStoreUsage,
    IsObjectSpillable,
    ObjectDeleted,
    ObjectSealed,
    PlasmaAbort,
    PlasmaContains,
    PlasmaCreate,
    PlasmaCreated,
    PlasmaDelete,
    PlasmaGet,
    PlasmaRelease,
    PlasmaReserve,
    PlasmaSeal,
    SpillStatus,
    StoreChanged,
    StoreFull,
    StoreUsage,
    object_manager,
    plasma,
)
from raysim.raycore.room import Surroundings
from raysim.raycore.tasks import TaskError
from raysim.units import NS_PER_MS, NS_PER_S

EVICTED_SHARE = 5
"""An eviction frees at least one fifth of the capacity (``eviction_policy.cc``)."""


class PlasmaStore(Component):
    """The store's thread."""

    runs_ahead = True

    def __init__(self, env: Surroundings, node_id: NodeID, *, capacity_bytes: int) -> None:
        request_ns = env.costs.plasma_request_ns
        requests = (PlasmaCreate, PlasmaSeal, PlasmaGet, PlasmaRelease, PlasmaDelete,
                    PlasmaContains)  # fmt: skip
        super().__init__(env.sim, plasma(node_id), service_ns=dict.fromkeys(requests, request_ns))
        assert capacity_bytes > 0, f"{self.address}: capacity of {capacity_bytes} bytes"
        self.env = env
        self.node_id = node_id
        self.capacity = capacity_bytes
        self.objects: dict[ObjectID, StoredObject] = {}
        self._manager = object_manager(node_id)
        self._retry_ns = env.config.object_store_full_delay_ms * NS_PER_MS
        self._grace_ns = int(env.config.oom_grace_period_s * NS_PER_S)
        if env.sim.check:
            env.sim.invariants.register(self.address, self.wrong)

    def started(self) -> None:
        """An empty store."""
        self.objects.clear()
        self.used = 0
        """Bytes allocated within the capacity."""
        self._arena = Arena(self.capacity)
        self.in_use = 0
        """Bytes of objects that some client uses or makes, on disk or not."""
        self.unsealed = 0
        """Of those, bytes in the making."""
        self._unused: dict[ObjectID, StoredObject] = {}
        """Sealed, used by nobody; least recently used first."""
        self._creates: deque[tuple[PlasmaCreate, Reply]] = deque()
        self._rivals: dict[ObjectID, list[tuple[PlasmaCreate, Reply]]] = {}
        """Requests to create what another is making."""
        self._waiting: dict[ObjectID, dict[tuple[WaitingGet, int], None]] = {}
        self._asked = False
        """The object manager has been told that the store is full and has not answered yet."""
        self._disk_full = False
        self._blocked_ns = -1
        """When the head of the queue first did not fit; later attempts count from there."""
        self._oom_ns = -1
        """Since when no spill has been under way while it did not fit."""
        self._retry: Handle | None = None
        self._retry_at_ns = -1
        self._watched_usage = self._watched_spillable = False

    # ---- create ----------------------------------------------------------------------------------

    def on_plasma_create(self, m: PlasmaCreate, reply: Reply) -> None:
        """Queue it."""
        if m.try_immediately and m.object_id not in self.objects:
            fits = self._make_room(m.object_size)
            if not fits and self._disk_full:
                reply(self._out_of_disk(m))
            else:
                self._make(m, reply, fallback=not fits)
            return
        self._creates.append((m, reply))
        if len(self._creates) == 1:
            self._process()

    def _process(self) -> None:
        """Serve the queue until its head does not fit."""
        queue = self._creates
        while queue:
            m, reply = queue[0]
            there = self.objects.get(m.object_id)
            if there is not None and there.payload is None:
                self._rivals.setdefault(m.object_id, []).append((m, reply))
            elif there is not None:
                reply(PlasmaCreated(existed=True))
            elif self._make_room(m.object_size):
                self._oom_ns = -1
                self._make(m, reply, fallback=False)
            else:
                if self._blocked_ns < 0:
                    self._blocked_ns = self.now_ns
                self._asked = True
                self.call(self._manager, StoreFull(m.object_size), then=self._told)
                return
            queue.popleft()
        self._blocked_ns = -1
        self._disarm()

    def _told(self, answer: Any) -> None:
        """The object manager knows that the head does not fit."""
        self._asked = False
        if not isinstance(answer, SpillStatus):  # it died, and this process with it
            return
        self._disk_full = answer.disk_full
        queue = self._creates
        if not queue:
            self._blocked_ns = -1
            return
        now_ns = self.now_ns
        m, reply = queue[0]
        if m.object_id in self.objects or self.used + m.object_size <= self.capacity:
            self._changed()
        elif answer.disk_full:
            queue.popleft()
            reply(self._out_of_disk(m))
            self._process()
        elif answer.spilling:
            self._oom_ns = -1
        elif self._oom_ns >= 0 and now_ns - self._oom_ns >= self._grace_ns:
            queue.popleft()
            self._make(m, reply, fallback=True)
            self._process()
        else:
            if self._oom_ns < 0:
                self._oom_ns = now_ns
            self._try_again(self._oom_ns + self._grace_ns)

    def on_spill_status(self, m: SpillStatus, reply: Reply) -> None:  # noqa: ARG002
        """Spills have ended."""
        self._disk_full = m.disk_full
        self._changed()

    def _changed(self) -> None:
        """What may let the head of the queue in has changed."""
        if self._creates and not self._asked:
            self._try_again(self.now_ns + 1)

    def _try_again(self, not_before_ns: int) -> None:
        """Try at the first instant of Ray's retries that is late enough."""
        wait_ns = max(not_before_ns, self.now_ns + 1) - self._blocked_ns
        at_ns = self._blocked_ns + -(-wait_ns // self._retry_ns) * self._retry_ns
        if self._retry is not None:
            if self._retry_at_ns <= at_ns:
                return
            self.sim.cancel(self._retry)
        self._retry_at_ns = at_ns
        self._retry = self.after(at_ns - self.now_ns, self._due)

    def _due(self, _: None) -> None:
        self._retry = None
        if not self._asked:
            self._process()

    def _disarm(self) -> None:
        if self._retry is not None:
            self.sim.cancel(self._retry)
            self._retry = None

    def _make_room(self, size_bytes: int) -> bool:
        """Whether it fits, after evicting what may be."""
        needed = self.used + size_bytes - self.capacity
        if needed <= 0:
            return True
        target, freed = max(needed, self.capacity // EVICTED_SHARE), 0
        chosen: list[StoredObject] = []
        for stored in self._unused.values():
            if freed >= target:
                break
            chosen.append(stored)
            freed += 0 if stored.fallback else stored.size
        for stored in chosen:
            self._drop(stored)
        return freed >= needed

    def _make(self, m: PlasmaCreate, reply: Reply, *, fallback: bool) -> None:
        stored = self.objects[m.object_id] = StoredObject(m, fallback=fallback)
        self.in_use += stored.size
        self.unsealed += stored.size
        if not fallback:
            self.used += stored.size
            assert self.used <= self.capacity, f"{self.address}: {self.used} of {self.capacity}"
        elif self.env.log.enabled:
            self.env.log.note("object", m.object_id, "FALLBACK", self.now_ns, node_id=self.node_id)
        self._usage_changed()
        fresh_bytes, unmapped_bytes = stored.size, 0
        if not fallback:
            stored.start = self._arena.place(stored.size)
            fresh_bytes, unmapped_bytes = self._arena.write(
                m.writer or m.client, stored.start, stored.size
            )
        reply(PlasmaCreated(fallback, fresh_bytes=fresh_bytes, unmapped_bytes=unmapped_bytes))

    def _out_of_disk(self, m: PlasmaCreate) -> TaskError:
        return TaskError(
            "OUT_OF_DISK",
            f"Local disk is full: object of {m.object_size} bytes cannot be created; the store of"
            f" node {self.node_id} has {self.used} of {self.capacity} bytes allocated",
        )

    # ---- seal, abort, delete ---------------------------------------------------------------------

    def on_plasma_seal(self, m: PlasmaSeal, reply: Reply) -> None:
        """Readable from now on."""
        stored = self.objects.get(m.object_id)
        reply()
        if stored is None or stored.payload is not None:
            return  # aborted meanwhile, with its client
        stored.payload = m.payload
        self.unsealed -= stored.size
        self._usage_changed()
        for _, rival in self._rivals.pop(m.object_id, ()):
            rival(PlasmaCreated(existed=True))
        self.send(
            self._manager,
            ObjectSealed(
                m.object_id, stored.size, stored.owner, stored.primary, stored.fallback
            ),
        )  # fmt: skip
        for get, position in self._waiting.pop(m.object_id, ()):
            self._give(get, position, stored)

    def on_plasma_abort(self, m: PlasmaAbort, reply: Reply) -> None:  # noqa: ARG002
        """Forget an object that was not sealed."""
        stored = self.objects.get(m.object_id)
        if stored is not None and stored.payload is None:
            self._drop(stored)
            self._changed()

    def on_plasma_delete(self, m: PlasmaDelete, reply: Reply) -> None:  # noqa: ARG002
        """Delete, or doom what is used."""
        for object_id in m.object_ids:
            stored = self.objects.get(object_id)
            if stored is None:
                continue
            stored.doomed = True
            if not stored.uses:
                self._drop(stored)
        self._changed()

    def _drop(self, stored: StoredObject) -> None:
        """Free an object's room."""
        del self.objects[stored.object_id]
        if self._unused.pop(stored.object_id, None) is None:
            self.in_use -= stored.size
        if not stored.fallback:
            self.used -= stored.size
            self._arena.free(stored.start, stored.size)
        if stored.payload is None:
            self.unsealed -= stored.size
            rivals = self._rivals.pop(stored.object_id, ())
            self._creates.extendleft(reversed(rivals))
            if rivals and self._blocked_ns < 0:
                self._blocked_ns = self.now_ns
        else:
            self.send(self._manager, ObjectDeleted(stored.object_id))
        self._usage_changed()

    # ---- get, release ----------------------------------------------------------------------------

    def on_plasma_get(self, m: PlasmaGet, reply: Reply) -> None:
        """Give what is here, wait for the rest."""
        get = WaitingGet(m, reply)
        wait = m.timeout_ns != 0
        for position, object_id in enumerate(m.object_ids):
            stored = self.objects.get(object_id)
            if stored is not None and stored.payload is not None:
                self._take(get, position, stored)
            elif wait:
                get.missing += 1
                self._waiting.setdefault(object_id, {})[get, position] = None
        if not get.missing:
            reply(tuple(get.found))
        elif m.timeout_ns is not None:
            get.timer = self.after(m.timeout_ns, self._give_what_is_here, get)

    def _give(self, get: WaitingGet, position: int, stored: StoredObject) -> None:
        self._take(get, position, stored)
        get.missing -= 1
        if not get.missing:
            if get.timer is not None:
                self.sim.cancel(get.timer)
            get.reply(tuple(get.found))

    def _take(self, get: WaitingGet, position: int, stored: StoredObject) -> None:
        client = get.message.client
        if client == self._manager and stored.maker:  # a pin; what was freed before is not pinned
            maker, stored.maker = stored.maker, ""
            if not stored.doomed:
                self._use(stored, client)
                get.found[position] = stored.payload
            self._unuse(stored, maker)
            return
        self._use(stored, client)
        get.found[position] = stored.payload

    def _give_what_is_here(self, get: WaitingGet) -> None:
        self._forget(get)
        get.reply(tuple(get.found))

    def _forget(self, get: WaitingGet) -> None:
        for position, object_id in enumerate(get.message.object_ids):
            waiting = self._waiting.get(object_id)
            if waiting is not None and waiting.pop((get, position), 0) is None and not waiting:
                del self._waiting[object_id]

    def _use(self, stored: StoredObject, client: str) -> None:
        if self._unused.pop(stored.object_id, None) is not None:
            self.in_use += stored.size
            self._usage_changed()
        stored.uses[client] = stored.uses.get(client, 0) + 1
        if stored.reserved:
            one_less(stored.reserved, client)

    def _unuse(self, stored: StoredObject, client: str) -> None:
        """One use less; of a client that has none, one place kept for it."""
        if stored.payload is None:
            return  # its maker must seal or abort it
        if client in stored.uses:
            one_less(stored.uses, client)
        else:
            one_less(stored.reserved, client)
        self._used_less(stored)

    def _used_less(self, stored: StoredObject) -> None:
        if stored.uses:
            if self._watched_spillable and self._is_spillable(stored):
                self._watched_spillable = False
                self.send(self._manager, StoreChanged(spillable=True))
            self._changed()
        elif stored.doomed:
            self._drop(stored)
            self._changed()
        elif not stored.reserved and stored.object_id not in self._unused:
            self._unused[stored.object_id] = stored
            self.in_use -= stored.size
            self._usage_changed()
            self._changed()

    def on_plasma_release(self, m: PlasmaRelease, reply: Reply) -> None:  # noqa: ARG002
        """One use less."""
        stored = self.objects.get(m.object_id)
        if stored is not None:
            last = stored.uses.get(m.client, 0) <= 1
            if last and stored.maker == m.client and stored.payload is not None:
                stored.maker = ""  # before, it only read what it had made
            self._unuse(stored, m.client)

    def on_plasma_contains(self, m: PlasmaContains, reply: Reply) -> None:
        """Which are sealed here."""
        here = map(self.objects.get, m.object_ids)
        reply(tuple(stored is not None and stored.payload is not None for stored in here))

    # ---- for the object manager ------------------------------------------------------------------

    def on_plasma_reserve(self, m: PlasmaReserve, reply: Reply) -> None:
        """Keep a place for a client that is about to get these."""
        here = []
        for object_id in m.object_ids:
            stored = self.objects.get(object_id)
            if stored is not None and stored.payload is not None:
                if self._unused.pop(object_id, None) is not None:
                    self.in_use += stored.size
                    self._usage_changed()
                stored.reserved[m.client] = stored.reserved.get(m.client, 0) + 1
                here.append(True)
            else:
                here.append(False)
        reply(tuple(here))

    def on_get_store_usage(self, m: GetStoreUsage, reply: Reply) -> None:  # noqa: ARG002
        """How much is not in use; one note when that has changed."""
        self._watched_usage = True
        in_use = self.in_use - self.unsealed
        reply(StoreUsage(self.capacity, max(0, self.capacity - in_use)))

    def on_is_object_spillable(self, m: IsObjectSpillable, reply: Reply) -> None:
        """Which of these only the object manager uses; one note when one more is."""
        answers = []
        for object_id in m.object_ids:
            stored = self.objects.get(object_id)
            answers.append(stored is not None and self._is_spillable(stored))
        self._watched_spillable = not all(answers)
        reply(tuple(answers))

    def _is_spillable(self, stored: StoredObject) -> bool:
        return stored.payload is not None and len(stored.uses) == 1 and self._manager in stored.uses

    def _usage_changed(self) -> None:
        if self._watched_usage:
            self._watched_usage = False
            self.send(self._manager, StoreChanged(spillable=False))

    def on_client_disconnected(self, m: ClientDisconnected, reply: Reply) -> None:  # noqa: ARG002
        """A process has gone: so has all it used, waited for and was making."""
        self._forget_creates(m.client)
        self._arena.forget(m.client)
        waiting = dict.fromkeys(get for gets in self._waiting.values() for get, _ in gets)
        for get in waiting:
            if get.message.client == m.client:
                if get.timer is not None:
                    self.sim.cancel(get.timer)
                self._forget(get)
                get.reply()
        for stored in list(self.objects.values()):
            if stored.maker == m.client:
                stored.maker = ""
            mine = m.client in stored.uses
            if stored.payload is None:
                if mine:
                    self._drop(stored)
            elif stored.reserved.pop(m.client, 0) or mine:
                stored.uses.pop(m.client, 0)
                self._used_less(stored)
        if self._creates:
            self._changed()
        elif not self._asked:
            self._blocked_ns = -1
            self._disarm()

    def _forget_creates(self, client: str) -> None:
        """Answer them, for the books; it does not hear."""
        for queue in (self._creates, *self._rivals.values()):
            for request in [c for c in queue if c[0].client == client]:
                queue.remove(request)
                request[1]()

    # ---- checks ----------------------------------------------------------------------------------

    def wrong(self) -> str:
        """What breaks the store's laws now; empty when all is well."""
        if self.state != "up":
            return ""
        used = sum(o.size for o in self.objects.values() if not o.fallback)
        in_use = sum(o.size for o in self.objects.values() if o.uses or o.reserved)
        if used != self.used or not 0 <= used <= self.capacity:
            return f"{self.used} of {self.capacity} bytes counted, {used} there"
        if in_use != self.in_use:
            return f"{self.in_use} bytes counted as in use, {in_use} are"
        for stored in self.objects.values():
            idle = not stored.uses and not stored.reserved
            if idle != (stored.object_id in self._unused) or (idle and stored.payload is None):
                return f"object {stored.object_id} may be evicted: {not idle}, used {stored.uses}"
        if self._creates and not self._asked and self._blocked_ns < 0:
            return f"{len(self._creates)} requests wait and nobody knows"
        return ""
