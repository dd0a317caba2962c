"""Which bundles are pulled: admission, priorities, sources, retries."""

from __future__ import annotations

from raysim.raycore.ids import WorkerAddress
from raysim.raycore.object_manager.pulls import Bundle, PullManager
from raysim.raycore.protocol import FreeObjects, NodeRemoved, PlasmaDelete, object_manager, plasma
from raysim.raycore.tasks import Ref
from tests.unit.raycore.object_case import MB, MS, ObjectCase, S

OWNER = WorkerAddress(1, "node-0/worker-1", 0)


class Admission:
    """A pull manager alone, with objects of known sizes."""

    def __init__(self, available: int) -> None:
        self.available = available
        self.manager = PullManager()
        self.on: list[int] = []
        self.off: list[int] = []

    def add(self, name: str, priority: str, **sizes: int) -> Bundle:
        bundle = Bundle((name, 0), priority, None)
        ids = [int(k[1:]) for k in sizes]
        self.manager.add(bundle, tuple(Ref(i, OWNER) for i in ids))
        for i, size in zip(ids, sizes.values(), strict=True):
            if size >= 0:
                self.manager.size_is(self.manager.pulls[i], size)
        return bundle

    def update(self) -> list[str]:
        """Names of the active bundles."""
        on, off = self.manager.update(self.available)
        self.on, self.off = [p.object_id for p in on], [p.object_id for p in off]
        assert self.manager.wrong() == ""
        return [name for (name, _), b in self.manager.bundles.items() if b.active]


def test_bundles_are_activated_in_order_while_they_fit():
    a = Admission(100)
    a.add("one", "TASK_ARGS", o1=60)
    a.add("two", "TASK_ARGS", o2=60)
    a.add("three", "TASK_ARGS", o3=10)  # would fit, but two is before it
    assert a.update() == ["one"]
    assert a.manager.blocked
    a.available = 200
    assert a.update() == ["one", "two", "three"]


def test_leases_hear_once_that_they_wait_for_room_and_once_that_they_do_not():
    a = Admission(100)
    for i in (1, 2, 3):
        bundle = Bundle(("raylet", i), "TASK_ARGS", None)
        a.manager.add(bundle, (Ref(i, OWNER),))
        a.manager.size_is(a.manager.pulls[i], 60)
    a.update()
    assert a.manager.lease_news() == ((2, 3), ())
    a.update()
    assert a.manager.lease_news() == ((), ())
    a.manager.remove(a.manager.bundles["raylet", 3])
    a.manager.remove(a.manager.bundles["raylet", 1])
    a.update()
    assert a.manager.lease_news() == ((), (3, 2))


def test_shared_objects_count_once():
    a = Admission(100)
    a.add("one", "TASK_ARGS", o1=60)
    a.add("two", "TASK_ARGS", o1=60, o2=40)
    assert a.update() == ["one", "two"]
    assert a.manager.bytes_being_pulled == 100


def test_the_first_is_always_admitted():
    a = Admission(10)
    a.add("one", "TASK_ARGS", o1=60)
    a.add("two", "TASK_ARGS", o2=5)
    assert a.update() == ["one"]


def test_unknown_sizes_hold_a_bundle_up_but_not_those_behind():
    a = Admission(100)
    unknown = a.add("one", "TASK_ARGS", o1=-1)
    a.add("two", "TASK_ARGS", o2=60)
    assert a.update() == ["two"]
    a.manager.size_is(a.manager.pulls[1], 60)
    assert a.update() == ["two"]
    a.manager.remove(a.manager.bundles["two", 0])
    a.add("three", "TASK_ARGS", o3=60)
    assert a.update() == ["one"]  # back at its place, before three
    assert unknown.active


def test_a_get_deactivates_others_newest_arguments_first():  # litmus 11
    a = Admission(100)
    for i, name in enumerate(["one", "two", "three"], 1):
        a.add(name, "TASK_ARGS", **{f"o{i}": 30})
    a.add("wait", "WAIT", o4=10)
    assert a.update() == ["one", "two", "three", "wait"]
    a.add("get", "GET", o5=50)
    assert a.update() == ["one", "wait", "get"]
    assert (a.on, a.off) == ([5], [3, 2])
    a.add("huge", "GET", o6=500)
    assert a.update() == ["get", "huge"]  # a get is admitted whatever the quota
    assert a.off == [1, 4]


def test_a_wait_pre_empts_arguments_only():
    a = Admission(100)
    a.add("get", "GET", o1=60)
    a.add("args", "TASK_ARGS", o2=40)
    a.update()
    a.add("wait", "WAIT", o3=50)
    assert a.update() == ["get", "args"]  # it would not fit without args either
    assert (a.on, a.off) == ([2], [])
    a.manager.remove(a.manager.bundles["get", 0])
    assert a.update() == ["args", "wait"]


def test_less_room_deactivates_but_keeps_one():
    a = Admission(100)
    a.add("one", "TASK_ARGS", o1=50)
    a.add("two", "TASK_ARGS", o2=50)
    a.update()
    a.available = 60
    assert a.update() == ["one"]
    a.available = 0
    assert a.update() == ["one"]


def test_pinned_bytes_no_longer_count():
    a = Admission(100)
    a.add("one", "TASK_ARGS", o1=60, o2=40)
    a.update()
    a.available = 40  # 60 have arrived
    a.manager.pin(a.manager.pulls[1], pinned=True)
    assert a.update() == ["one"]
    assert a.manager.remaining(a.available) == 0


def test_a_get_pre_empts_the_transfer_of_arguments():  # litmus 11
    case = ObjectCase(2)
    a, b = case.workers
    args, wanted = a.put(1, 400 * MB), a.put(2, 100 * MB)
    b.put(9, 550 * MB)
    case.sim.run()
    start_ns = case.sim.now_ns
    b.get(args, priority="TASK_ARGS")
    case.sim.run(until=start_ns + 10 * MS)
    assert case.stores[1].used == 950 * MB
    b.get(wanted)
    case.sim.run(until=start_ns + 35 * MS)
    assert [(t < start_ns + 35 * MS, what) for t, what in b.got] == [(True, (2,))]
    assert 1 not in case.stores[1].objects  # cancelled: its room is free
    assert 9 in case.stores[1].objects
    case.sim.run()
    assert [what for _, what in b.got] == [(2,), (1,)]


def test_a_pull_is_asked_for_again_after_10_20_40_seconds():
    case = ObjectCase(2)
    a, b = case.workers
    ref = a.owns(1, MB)
    a.nodes[1] = {0: None}  # its owner believes that node 0 has it
    asked = []
    case.managers[0].pushes.remember = lambda m: asked.append(case.sim.now_ns // S)
    b.get(ref)
    case.sim.run(until=100 * S)
    assert asked == [0, 10, 30, 70]


def test_a_request_that_comes_too_early_is_remembered_for_ten_seconds():
    case = ObjectCase(3)
    a, b, c = case.workers
    ref = a.owns(1, MB)
    a.nodes[1] = {1: None}
    c.get(ref)
    case.sim.run(until=9 * S)
    assert c.got == []
    b.put(1, MB, owner=a)
    case.sim.run(until=9 * S + 10 * MS)
    assert [what for _, what in c.got] == [(1,)]


def test_a_source_that_dies_is_replaced_at_the_next_try():
    case = ObjectCase(3)
    a, b, c = case.workers
    ref = a.put(1, 100 * MB)
    case.sim.run()
    b.put(1, 100 * MB, owner=a)
    case.sim.run(until=S)
    a.nodes[1] = {1: None}
    c.get(ref)
    case.sim.run(until=S + 5 * MS)  # half way
    case.env.nodes[1].fail()
    case.stores[1].crash(silent=True)
    case.managers[1].crash(silent=True)
    a.nodes[1] = {0: None}
    case.gcs.send(object_manager(2), NodeRemoved(1, expected=False, reason="died"))
    case.gcs.send(object_manager(0), NodeRemoved(1, expected=False, reason="died"))
    a.publish(1)
    case.sim.run()
    assert [(round(t / S, 2), what) for t, what in c.got] == [(11.01, (1,))]


def test_evicted_while_its_bundle_waits_is_pulled_again():
    case = ObjectCase(2, capacity=100 * MB)
    a, b = case.workers
    small, large = a.put(1, 20 * MB), a.put(2, 70 * MB)
    case.sim.run()
    b.get(small, priority="WAIT")
    b.put(9, 50 * MB, pin=False)
    case.sim.run()
    b.get(small, large, priority="TASK_ARGS")
    b.send(plasma(1), PlasmaDelete((1,)))
    case.sim.run()
    assert [what for _, what in b.got] == [(1,), (1, 2)]


def test_the_source_is_drawn_among_the_holders():
    chosen = set()
    for seed in range(12):
        case = ObjectCase(4, seed=seed, check=False)
        a = case.workers[0]
        ref = a.put(1, MB)
        case.sim.run()
        for b in case.workers[1:3]:
            b.get(ref, priority="WAIT")
        case.sim.run()
        case.workers[3].get(ref)
        case.sim.run()
        for i in range(3):
            out = case.env.nodes[i].nics[0][0]
            carried = next((u.carried_bytes for u in case.network.uses() if u.link is out), 0)
            extra = carried - (2 * MB if i == 0 else 0)
            if extra > 0:
                chosen.add(i)
    assert chosen == {0, 1, 2}


def test_freed_in_transfer_is_not_kept():
    case = ObjectCase(2)
    a, b = case.workers
    b.get(a.put(1, 100 * MB), priority="WAIT")
    case.sim.run(until=5 * MS)
    for node in (0, 1):
        a.send(object_manager(node), FreeObjects((1,)))
    case.sim.run()
    assert [store.used for store in case.stores] == [0, 0]
