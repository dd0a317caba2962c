"""The store under any order of clients' requests, spills and deaths.

Always: used + free = capacity and what is used is not evicted (the store's own checker, after every
event); creates are answered in the order they came; nothing that a client uses or the object
manager pins disappears; a get waits only for what is not sealed. At the end: everybody lets go, and
every create has been answered.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raysim.kernel.component import Component
from raysim.raycore.ids import WorkerAddress
from raysim.raycore.protocol import (
    ClientDisconnected,
    PlasmaAbort,
    PlasmaCreate,
    PlasmaCreated,
    PlasmaDelete,
    PlasmaGet,
    PlasmaRelease,
    PlasmaReserve,
    PlasmaSeal,
    SpillStatus,
    object_manager,
    plasma,
)
from raysim.raycore.tasks import Payload, TaskError
from tests.unit.raycore.object_case import MS, S
from tests.unit.raycore.test_plasma import World

CLIENTS = 3
OBJECTS = st.integers(1, 12)
WHO = st.integers(0, CLIENTS - 1)
MANAGER = object_manager(0)


class PlasmaMachine(RuleBasedStateMachine):
    """Three clients and an object manager."""

    def __init__(self) -> None:
        super().__init__()
        self.w = World(capacity=100)
        self.generation = 0
        self.clients: list[Component] = []
        for _ in range(CLIENTS):
            self.clients.append(self.new_client())
        self.asked: list[tuple[int, str, bool]] = []
        """Creates not answered yet, oldest first: object, client, and whether another makes it or
        wants to, and may hold this one up."""
        self.making: dict[int, str] = {}
        self.uses: dict[tuple[int, str], int] = {}
        """What clients were given and have not released."""
        self.gets = 0
        self.got = 0
        self.dead: dict[str, None] = {}

    def new_client(self) -> Component:
        self.generation += 1
        return self.w.sim.add(Component(self.w.sim, f"node-0/worker-{100 + self.generation}"))

    def settle(self) -> None:
        self.w.sim.run(until=self.w.sim.now_ns + 1)

    @rule(who=WHO, object_id=OBJECTS, size=st.integers(0, 60), primary=st.booleans())
    def create(self, who, object_id, size, primary):
        client = self.clients[who]
        rival = object_id in self.making or object_id in [m[0] for m in self.asked]
        mark = (object_id, client.address, rival)

        def answered(answer):
            at = next(i for i, other in enumerate(self.asked) if other is mark)
            before = [m for m in self.asked[:at] if not m[2] and m[1] not in self.dead]
            assert rival or not before, "answered out of turn"
            del self.asked[at]
            if isinstance(answer, PlasmaCreated):
                if not answer.existed:
                    self.making[object_id] = client.address
            else:
                assert isinstance(answer, TaskError)

        self.asked.append(mark)
        owner = WorkerAddress(1, "node-0/worker-1", 0)
        client.call(
            plasma(0),
            PlasmaCreate(object_id, size, owner, client.address, primary=primary),
            answered,
        )
        self.settle()

    @precondition(lambda self: self.making)
    @rule(data=st.data(), seal=st.booleans())
    def finish_making(self, data, seal):
        object_id = data.draw(st.sampled_from(sorted(self.making)))
        address = self.making.pop(object_id)
        client = self.w.sim.components[address]
        if seal:
            size = self.w.store.objects[object_id].size
            key = (object_id, address)
            self.uses[key] = self.uses.get(key, 0) + 1
            client.call(plasma(0), PlasmaSeal(object_id, Payload(size, object_id)), lambda _: None)
        else:
            client.send(plasma(0), PlasmaAbort(object_id))
        self.settle()

    @rule(
        who=WHO,
        ids=st.lists(OBJECTS, min_size=1, max_size=3, unique=True),
        timeout_ns=st.sampled_from([None, 0, 5 * MS]),
    )
    def get(self, who, ids, timeout_ns):
        client = self.clients[who]
        self.gets += 1

        def got(payloads):
            self.got += 1
            for object_id, payload in zip(ids, payloads, strict=True):
                assert payload is None or payload.data == object_id
                assert payload is not None or timeout_ns is not None
                if payload is not None:
                    key = (object_id, client.address)
                    self.uses[key] = self.uses.get(key, 0) + 1

        client.call(plasma(0), PlasmaGet(tuple(ids), client.address, timeout_ns), got)
        self.settle()

    @precondition(lambda self: self.uses)
    @rule(data=st.data())
    def release(self, data):
        object_id, address = data.draw(st.sampled_from(sorted(self.uses)))
        self.let_go(object_id, address)
        self.settle()

    def let_go(self, object_id: int, address: str) -> None:
        key = (object_id, address)
        self.uses[key] -= 1
        if not self.uses[key]:
            del self.uses[key]
        self.w.sim.components[address].send(plasma(0), PlasmaRelease(object_id, address))

    @rule(object_id=OBJECTS)
    def pin(self, object_id):
        stored = self.w.store.objects.get(object_id)
        maker = stored.maker if stored is not None and stored.payload is not None else ""

        def pinned(payloads):
            if maker:  # the pin, or its refusal, replaces the making
                key = (object_id, maker)
                self.uses[key] = self.uses.get(key, 0) - 1
                if self.uses[key] <= 0:
                    del self.uses[key]
            if payloads[0] is not None:
                self.uses[object_id, MANAGER] = self.uses.get((object_id, MANAGER), 0) + 1

        self.w.manager.call(plasma(0), PlasmaGet((object_id,), MANAGER, timeout_ns=0), pinned)
        self.settle()

    @rule(object_id=OBJECTS, who=WHO)
    def reserve(self, object_id, who):
        message = PlasmaReserve((object_id,), self.clients[who].address)
        self.w.manager.call(plasma(0), message, lambda _: None)
        self.settle()

    @rule(object_id=OBJECTS)
    def delete(self, object_id):
        self.w.manager.send(plasma(0), PlasmaDelete((object_id,)))
        self.settle()

    @rule(spilling=st.booleans(), disk_full=st.booleans())
    def spill(self, spilling, disk_full):
        self.w.manager.status = SpillStatus(spilling, disk_full)
        self.w.manager.send(plasma(0), self.w.manager.status)
        self.settle()

    @rule(who=WHO)
    def die(self, who):
        client = self.clients[who]
        client.crash(reason="killed")
        self.dead[client.address] = None
        self.uses = {k: n for k, n in self.uses.items() if k[1] != client.address}
        self.making = {k: a for k, a in self.making.items() if a != client.address}
        self.w.manager.send(plasma(0), ClientDisconnected(client.address))
        self.clients[who] = self.new_client()
        self.settle()

    @rule(wait_ns=st.sampled_from([MS, 10 * MS, 100 * MS, 2 * S]))
    def wait(self, wait_ns):
        self.w.sim.run(until=self.w.sim.now_ns + wait_ns)

    @invariant()
    def what_is_used_is_here(self):
        for object_id, address in self.uses:
            stored = self.w.store.objects.get(object_id)
            assert stored is not None, f"{object_id} is gone, though {address} uses it"
        for object_id in self.making:
            assert object_id in self.w.store.objects

    @invariant()
    def gets_wait_for_what_is_missing(self):
        for object_id, waiting in self.w.store._waiting.items():
            stored = self.w.store.objects.get(object_id)
            assert waiting
            assert stored is None or stored.payload is None

    def teardown(self):
        self.w.manager.status = SpillStatus(spilling=False, disk_full=False)
        self.w.manager.send(plasma(0), self.w.manager.status)
        for _ in range(50):
            for object_id, address in list(self.uses):
                self.let_go(object_id, address)
            for object_id, address in list(self.making.items()):
                self.w.sim.components[address].send(plasma(0), PlasmaAbort(object_id))
            self.making.clear()
            self.w.sim.run()
            self.asked = [mark for mark in self.asked if mark[1] not in self.dead]
            if not self.asked and not self.uses and not self.making:
                break
        assert not self.asked, f"creates that nobody answered: {self.asked}"
        assert not self.w.store._creates


PlasmaMachine.TestCase.settings = settings(
    settings.default, max_examples=min(60, settings.default.max_examples), stateful_step_count=40
)
TestPlasma = PlasmaMachine.TestCase
