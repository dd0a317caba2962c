"""The store: who gets room, when, and at whose expense."""

from __future__ import annotations

import pytest

from raysim.kernel.component import Component
from raysim.raycore.ids import WorkerAddress
from raysim.raycore.plasma import PlasmaStore
from raysim.raycore.protocol import (
    ClientDisconnected,
    GetStoreUsage,
    IsObjectSpillable,
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
    object_manager,
    plasma,
)
from raysim.raycore.tasks import Payload, TaskError
from tests.unit.raycore.object_case import MS, ObjectCase

ME = WorkerAddress(1, "node-0/worker-1", 0)
OTHER = "node-0/worker-2"


class Manager(Component):
    """A scripted object manager."""

    def started(self):
        self.status = SpillStatus(spilling=False, disk_full=False)
        self.full: list[int] = []
        self.sealed: list[int] = []
        self.deleted: list[int] = []
        self.changed: list[bool] = []

    def on_store_full(self, m, reply):
        self.full.append(self.sim.now_ns)
        reply(self.status)

    def on_object_sealed(self, m, reply):
        self.sealed.append(m.object_id)

    def on_object_deleted(self, m, reply):
        self.deleted.append(m.object_id)

    def on_store_changed(self, m, reply):
        self.changed.append(m.spillable)


class World:
    """A store of 100 bytes."""

    def __init__(self, capacity: int = 100) -> None:
        case = ObjectCase(0)
        self.sim = case.sim
        self.manager = self.sim.add(Manager(self.sim, object_manager(0)))
        self.store = self.sim.add(PlasmaStore(case.env, 0, capacity_bytes=capacity))
        self.me = self.sim.add(Component(self.sim, ME.address))
        self.other = self.sim.add(Component(self.sim, OTHER))
        self.answers: list[tuple[int, object, object]] = []

    def ask(self, message, tag=None, by=None):
        def then(answer):
            self.answers.append((self.sim.now_ns, tag, answer))

        (by or self.me).call(plasma(0), message, then)

    def create(self, object_id, size, **changes):
        message = PlasmaCreate(object_id, size, ME, ME.address)._replace(**changes)
        self.ask(message, object_id)

    def run(self, until=None):
        self.sim.run(until=until)

    def put(self, object_id, size, *, used=False, **changes):
        """A sealed object, used by nobody unless said otherwise."""
        self.create(object_id, size, **changes)
        self.ask(PlasmaSeal(object_id, Payload(size, f"v{object_id}")))
        if not used:
            self.me.send(plasma(0), PlasmaRelease(object_id, ME.address))
        self.run()
        self.answers.clear()

    def here(self):
        return list(self.store.objects)


@pytest.fixture
def w():
    return World()


def test_a_get_waits_until_all_are_sealed(w):
    w.put(1, 10)
    w.ask(PlasmaGet((1, 2), OTHER), "get", w.other)
    w.create(2, 10)
    w.run()
    assert [tag for _, tag, _ in w.answers] == [2]
    w.ask(PlasmaSeal(2, Payload(10, "v2")))
    w.run()
    assert [p.data for p in w.answers[-1][2]] == ["v1", "v2"]
    assert w.manager.sealed == [1, 2]


def test_a_get_with_timeout_answers_what_is_here(w):
    w.put(1, 10)
    w.ask(PlasmaGet((1, 2), OTHER, timeout_ns=5 * MS), "get", w.other)
    w.ask(PlasmaGet((2, 1), OTHER, timeout_ns=0), "now", w.other)
    w.run()
    assert [(t, tag) for t, tag, _ in w.answers] == [(1, "now"), (5 * MS + 1, "get")]
    assert w.answers[0][2] == (None, Payload(10, "v1"))
    assert w.answers[1][2] == (Payload(10, "v1"), None)
    w.put(2, 10)  # nobody waits any more
    assert w.store.objects[2].uses == {}


def test_eviction_takes_least_recently_used_first_and_a_fifth_at_least(w):
    for i in range(1, 11):
        w.put(i, 10)
    w.ask(PlasmaGet((1,), OTHER), by=w.other)  # used again: now the most recent
    w.other.send(plasma(0), PlasmaRelease(1, OTHER))
    w.create(11, 5)
    w.run()
    assert w.here() == [1, 4, 5, 6, 7, 8, 9, 10, 11]  # 5 needed, 20 freed
    assert w.manager.deleted == [2, 3]


def test_what_is_used_is_never_evicted_and_the_head_blocks_the_rest(w):
    w.put(1, 60, used=True)
    w.put(2, 30)
    w.create(3, 50)
    w.create(4, 10)  # would fit
    w.run(until=5 * MS)
    assert w.answers == []
    assert w.here() == [1]  # 2 was evicted in vain, as in Ray
    w.me.send(plasma(0), PlasmaRelease(1, ME.address))
    w.run(until=20 * MS)
    # First failure at 1 ns; Ray looks again every 10 ms from there.
    assert [(t, tag) for t, tag, _ in w.answers] == [(10 * MS + 1, 3), (10 * MS + 1, 4)]


ON_DISK = PlasmaCreated(fallback=True, fresh_bytes=50)


def test_fallback_after_two_seconds_without_a_spill(w):
    w.put(1, 90, used=True)
    w.create(2, 50)
    w.create(3, 50)
    w.run()
    assert w.answers == [
        (2000 * MS + 1, 2, ON_DISK),
        (2000 * MS + 1, 3, ON_DISK),  # the grace is over for it too
    ]
    assert (w.store.used, w.store.in_use) == (90, 190)


def test_a_running_spill_starts_the_grace_anew(w):
    w.put(1, 90, used=True)
    w.manager.status = SpillStatus(spilling=True, disk_full=False)
    w.create(2, 50)
    w.run(until=5000 * MS)
    assert w.answers == []
    w.manager.status = SpillStatus(spilling=False, disk_full=False)
    w.manager.send(plasma(0), w.manager.status)
    w.run()
    assert w.answers == [(7000 * MS + 1, 2, ON_DISK)]


def test_a_full_disk_fails_the_head_at_once(w):
    w.put(1, 90, used=True)
    w.manager.status = SpillStatus(spilling=False, disk_full=True)
    w.create(2, 50)
    w.create(3, 10)
    w.run()
    assert [(t, tag) for t, tag, _ in w.answers] == [(1, 2), (1, 3)]
    assert isinstance(w.answers[0][2], TaskError)
    assert w.answers[0][2].error_type == "OUT_OF_DISK"
    assert w.answers[1][2] == PlasmaCreated()


def test_larger_than_the_store_ends_on_disk(w):
    w.put(1, 90)
    w.create(2, 101)
    w.run()
    assert w.answers == [(2000 * MS + 1, 2, PlasmaCreated(fallback=True, fresh_bytes=101))]


def test_try_immediately_does_not_queue(w):
    w.put(1, 90, used=True)
    w.create(2, 50)
    w.create(3, 50, try_immediately=True)
    w.run(until=2)
    assert w.answers == [(1, 3, ON_DISK)]


def test_what_exists_is_not_made_again(w):
    w.put(1, 10)
    w.create(1, 10)
    w.run()
    assert w.answers == [(1, 1, PlasmaCreated(existed=True))]


@pytest.mark.parametrize("sealed", [True, False])
def test_what_another_makes_is_answered_for_when_it_is_sealed_or_made_when_it_is_not(w, sealed):
    w.create(1, 60, client=OTHER)
    w.create(1, 60)
    w.ask(PlasmaCreate(2, 60, ME, ME.address), 2)
    w.run(until="100us")
    assert [(tag, a.existed) for _, tag, a in w.answers] == [(1, False)]
    if sealed:
        w.ask(PlasmaSeal(1, Payload(60, "theirs")), by=w.other)
    else:
        w.other.send(plasma(0), PlasmaAbort(1))
    w.run(until="50ms")
    assert [a.existed for _, tag, a in w.answers if tag == 1] == [False, sealed]
    assert w.store.objects[1].uses == ({OTHER: 1} if sealed else {ME.address: 1})


def test_what_a_dead_client_was_making_is_made_by_the_other(w):
    w.create(1, 60, client=OTHER)
    w.create(1, 60)
    w.run(until="100us")
    w.me.send(plasma(0), ClientDisconnected(OTHER))
    w.run(until="50ms")
    assert w.store.objects[1].uses == {ME.address: 1}
    w.create(1, 60, client=OTHER)
    w.run(until="60ms")
    w.me.send(plasma(0), ClientDisconnected(OTHER))  # nor does a dead client wait
    w.me.send(plasma(0), PlasmaAbort(1))
    w.run(until="90ms")
    assert w.here() == []


def test_deletion_waits_for_the_last_user(w):
    w.put(1, 10)
    w.ask(PlasmaGet((1,), OTHER), by=w.other)
    w.run()
    w.me.send(plasma(0), PlasmaDelete((1,)))
    w.run()
    assert w.here() == [1]
    w.other.send(plasma(0), PlasmaRelease(1, OTHER))
    w.run()
    assert w.here() == []
    assert w.manager.deleted == [1]


def test_deleted_in_the_making_goes_once_sealed_and_let_go(w):
    w.create(1, 10)
    w.me.send(plasma(0), PlasmaDelete((1,)))
    w.ask(PlasmaSeal(1, Payload(10)))
    w.ask(PlasmaGet((1,), object_manager(0), timeout_ns=0), "pin", w.manager)
    w.run()
    assert w.answers[-1][1:] == ("pin", (None,))
    assert w.here() == []


def test_aborted_is_as_if_never_made(w):
    w.create(1, 90)
    w.create(2, 90)
    w.run(until=2)
    w.me.send(plasma(0), PlasmaAbort(1))
    w.run()
    assert w.here() == [2]
    assert w.manager.deleted == []


def test_the_managers_pin_replaces_the_makers_use(w):
    w.put(1, 60, used=True)
    w.ask(PlasmaGet((1,), object_manager(0), timeout_ns=0), "pin", w.manager)
    w.run()
    assert w.store.objects[1].uses == {object_manager(0): 1}
    w.me.send(plasma(0), PlasmaRelease(1, ME.address))  # more than needed: harmless
    w.create(2, 60)
    w.run(until=2)
    assert w.here() == [1]
    w.manager.send(plasma(0), PlasmaRelease(1, object_manager(0)))
    w.run()
    assert w.here() == [2]


def test_what_its_maker_reads_before_the_pin_is_not_the_makers_use(w):
    w.put(1, 60, used=True)
    w.ask(PlasmaGet((1,), ME.address))
    w.run()
    w.me.send(plasma(0), PlasmaRelease(1, ME.address))
    w.run()
    assert w.store.objects[1].uses == {ME.address: 1}
    w.ask(PlasmaGet((1,), object_manager(0), timeout_ns=0), "pin", w.manager)
    w.run()
    assert w.store.objects[1].uses == {object_manager(0): 1}


def test_a_reserved_place_lasts_until_the_client_gets_it(w):
    w.put(1, 60)
    w.ask(PlasmaReserve((1, 2), OTHER), "reserve", w.manager)
    w.create(2, 60)
    w.run(until=2)
    assert w.answers == [(1, "reserve", (True, False))]
    assert w.here() == [1]
    w.ask(PlasmaGet((1,), OTHER), by=w.other)
    w.other.send(plasma(0), PlasmaRelease(1, OTHER))
    w.run()
    assert w.here() == [2]


def test_a_dead_client_leaves_nothing(w):
    w.put(1, 10, used=True)
    w.ask(PlasmaReserve((1,), ME.address), by=w.manager)
    w.create(2, 80)  # never sealed
    w.create(3, 50)  # waits
    w.ask(PlasmaGet((9,), ME.address))
    w.create(4, 100, client=OTHER)
    w.run(until=2)
    w.other.send(plasma(0), ClientDisconnected(ME.address))
    w.run()
    assert w.here() == [4]
    assert [(t, tag) for t, tag, _ in w.answers][-1] == (10 * MS + 1, 4)
    w.put(9, 0)
    assert w.store.objects[9].uses == {}


def test_the_manager_is_told_once_when_more_can_be_spilled(w):
    w.put(1, 10, used=True)
    w.put(2, 10, used=True)
    for i in (1, 2):
        w.ask(PlasmaGet((i,), object_manager(0), timeout_ns=0), by=w.manager)
    w.ask(PlasmaGet((1,), OTHER), by=w.other)
    w.ask(IsObjectSpillable((1, 2, 3)), "spillable", w.manager)
    w.run()
    assert w.answers[-1][1:] == ("spillable", (False, True, False))
    for _ in range(2):
        w.other.send(plasma(0), PlasmaRelease(1, OTHER))
    w.run()
    assert w.manager.changed == [True]


def test_the_manager_is_told_once_when_the_room_has_changed(w):
    w.put(1, 10)
    w.ask(GetStoreUsage(), "usage", w.manager)
    w.put(2, 10, used=True)
    w.put(3, 10, used=True)
    assert w.manager.changed == [False]
    w.ask(GetStoreUsage(), "usage", w.manager)
    w.ask(PlasmaContains((1, 2, 9)), "contains")
    w.run()
    assert w.answers[-2][2].available_bytes == 80  # 1 may be evicted
    assert w.answers[-1][2] == (True, True, False)


def test_requests_take_their_turn_on_the_stores_thread():
    case = ObjectCase(1, costs={"plasma_request_ns": 15_000})
    me = case.workers[0]
    for i in (1, 2, 3):
        me.put(i, 10, pin=False)
    case.sim.run()
    assert [t - 1 for t, _, _ in me.made] == [15_000, 30_000, 45_000]
