"""Requests for objects: what is answered, when, and who is told."""

from __future__ import annotations

from raysim.raycore.ids import WorkerAddress
from raysim.raycore.protocol import (
    ClientDisconnected,
    FreeObjects,
    LocationUpdate,
    NodeRemoved,
    PinObjectIDs,
    PullStatus,
    WorkerFailed,
    object_manager,
    plasma,
)
from raysim.raycore.tasks import Ref
from tests.unit.raycore.object_case import MB, MS, ObjectCase, S, error_types

LATENCY_NS = 20_000
"""Of the wire between two nodes."""


def test_a_local_object_is_there_at_once():
    case = ObjectCase()
    me = case.workers[0]
    ref = me.put(1, 10 * MB)
    case.sim.run()
    start_ns = case.sim.now_ns
    me.get(ref)
    case.sim.run()
    assert me.got == [(start_ns, (1,))]


def test_arguments_of_a_lease_are_subscribed_to_even_if_they_are_here():
    """Real Ray 2.60: two commands and a publication per task; none for a get or a wait."""
    for priority, known in (("TASK_ARGS", {1: {}}), ("GET", {}), ("WAIT", {})):
        case = ObjectCase()
        me = case.workers[0]
        ref = me.put(1, 10 * MB)
        case.sim.run()
        me.get(ref, priority=priority)
        case.sim.run()
        assert [what for _, what in me.got] == [(1,)], priority
        assert me.subscribers == known, priority


def test_a_remote_object_takes_its_bytes_over_the_wire():
    case = ObjectCase(2)
    a, b = case.workers
    ref = a.put(1, 100 * MB)
    case.sim.run()
    start_ns = case.sim.now_ns
    b.get(ref)
    case.sim.run()
    # 100 MB at 10 GB/s, after the latency.
    assert [(t - start_ns, what) for t, what in b.got] == [(10 * MS + LATENCY_NS, (1,))]
    assert [state for _, node, state in case.states(1) if node == 1] == ["COPY"]


def test_an_object_that_moves_is_work_of_both_raylets():
    case = ObjectCase(2, costs={"transfer_ns": 8 * MS})
    a, b = case.workers
    ref = a.put(1, 100 * MB)
    case.sim.run()
    start_ns = case.sim.now_ns
    b.get(ref)
    case.sim.run()
    # The sender's 3 ms, 10 ms of wire, the receiver's 5 ms.
    assert [t - start_ns for t, _ in b.got] == [18 * MS + LATENCY_NS]


def test_one_wait_for_an_object_not_made_yet():
    case = ObjectCase(2)
    a, b = case.workers
    ref = a.owns(1, 10 * MB)
    b.get(ref)
    case.sim.run()
    assert b.got == []
    assert case.sim.now_ns < S  # nothing ticks while it is being made
    a.put(1, 10 * MB)
    case.sim.run()
    assert [what for _, what in b.got] == [(1,)]


def test_requests_for_one_object_share_its_transfer():
    case = ObjectCase(2)
    a, b = case.workers
    ref = a.put(1, 100 * MB)
    case.sim.run()
    c = case.worker(1)
    for reader in (b, b, c):
        reader.get(ref)
    case.sim.run()
    assert [len(b.got), len(c.got)] == [2, 1]
    link = case.env.nodes[0].nics[0][0]
    assert next(u.carried_bytes for u in case.network.uses() if u.link is link) == 100 * MB


def test_a_wait_is_answered_without_a_use():
    case = ObjectCase(2)
    a, b = case.workers
    b.get(a.put(1, 10 * MB), priority="WAIT")
    case.sim.run()
    assert [what for _, what in b.got] == [(1,)]
    assert case.stores[1].objects[1].uses == {}
    assert case.stores[1].objects[1].reserved == {}


def test_a_lease_keeps_its_arguments_until_cancelled():
    case = ObjectCase(2, capacity=100 * MB)
    a, b = case.workers
    request = b.get(a.put(1, 60 * MB), priority="TASK_ARGS")
    case.sim.run()
    assert [what for _, what in b.got] == [(1,)]
    b.put(2, 60 * MB)  # has no room: argument 1 is pinned
    case.sim.run(until=case.sim.now_ns + S)
    assert b.made == []
    b.cancel(request)
    case.sim.run()
    assert [object_id for _, object_id, _ in b.made] == [2]
    assert case.states(1)[-1][1:] == (1, "EVICTED")


def test_a_lease_with_local_arguments_has_them_pinned():
    case = ObjectCase(1)
    me = case.workers[0]
    request = me.get(me.put(1, MB), me.put(2, MB), priority="TASK_ARGS")
    case.sim.run()
    assert [what for _, what in me.got] == [(1, 2)]
    assert [case.managers[0].local[i].pins for i in (1, 2)] == [2, 2]
    me.cancel(request)
    case.sim.run()
    assert [case.managers[0].local[i].pins for i in (1, 2)] == [1, 1]


def test_a_pull_put_off_while_the_store_has_no_room_is_asked_for_again():
    case = ObjectCase(2, capacity=100 * MB)
    a, b = case.workers
    b.get(b.put(9, 90 * MB))  # in use: nothing else finds room, but by fallback, later
    refs = a.put(1, 60 * MB), a.put(2, 20 * MB)
    case.sim.run(until=S)
    b.get(refs[0], priority="WAIT")
    case.sim.run(until=case.sim.now_ns + S)
    urgent = b.get(refs[1])
    case.sim.run(until=case.sim.now_ns + S)
    b.cancel(urgent)
    case.sim.run(until=case.sim.now_ns + S)
    assert (1,) in [what for _, what in b.got]


def test_a_cancelled_get_stops_its_transfer():
    case = ObjectCase(2)
    a, b = case.workers
    ref = a.put(1, 1000 * MB)
    case.sim.run()
    start_ns = case.sim.now_ns
    request = b.get(ref)
    case.sim.run(until=start_ns + 10 * MS)
    assert case.stores[1].used == 1000 * MB
    b.cancel(request)
    case.sim.run()
    assert case.stores[1].used == 0
    assert [answer.error_type for _, answer in b.got] == ["TASK_CANCELLED"]


def test_no_copy_known_for_ten_minutes_fails_the_get():
    case = ObjectCase(2)
    a, b = case.workers
    ref = a.put(1, MB)
    case.sim.run()
    a.nodes[1].clear()
    a.sizes.pop(1)  # its owner neither has it nor makes it
    start_ns = case.sim.now_ns
    b.get(ref)
    case.sim.run()
    assert error_types(b.got) == ["OBJECT_FETCH_TIMED_OUT"]
    late_ns = b.got[0][0] - start_ns - 600 * S
    assert 0 <= late_ns <= 100 * MS  # found at a tick


def test_a_freed_object_fails_the_get():
    case = ObjectCase(2)
    a, b = case.workers
    ref = a.owns(1, MB)
    b.get(ref)
    case.sim.run()
    a.removed[1] = None
    a.publish(1)
    case.sim.run()
    assert error_types(b.got) == ["OBJECT_FREED"]


def test_a_dead_owner_fails_gets_though_copies_exist():  # litmus 17
    case = ObjectCase(3)
    owner, holder, reader = case.workers
    ref = holder.put(1, MB, owner=owner)
    case.sim.run()
    owner.crash(reason="exit")
    for manager in case.managers:
        case.gcs.send(manager.address, WorkerFailed(owner.me, "exit"))
    case.sim.run()
    assert case.stores[1].objects == {}  # freed with the next batch
    assert case.states(1)[-1][1:] == (1, "FREED")
    reader.get(ref)
    case.sim.run()
    assert error_types(reader.got) == ["OWNER_DIED"]


def test_a_dead_owner_is_noticed_by_whoever_asks_it():
    case = ObjectCase(2)
    owner, reader = case.workers
    ref = owner.owns(1, MB)
    early = reader.get(ref)
    case.sim.run()
    owner.crash(reason="exit")
    case.sim.run()
    assert error_types(reader.got) == ["OWNER_DIED"]
    reader.get(ref)
    case.sim.run()
    assert error_types(reader.got) == ["OWNER_DIED"] * 2
    assert early not in case.managers[1].requests.pulls.bundles


def test_a_dead_node_takes_its_owners_along():
    case = ObjectCase(3)
    owner, holder, reader = case.workers
    holder.put(1, MB, owner=owner)
    reader.get(owner.owns(2, MB))
    case.sim.run()
    case.gcs.send(object_manager(1), NodeRemoved(0, expected=False, reason="died"))
    case.gcs.send(object_manager(2), NodeRemoved(0, expected=False, reason="died"))
    case.sim.run()
    assert case.stores[1].objects == {}
    assert error_types(reader.got) == ["OWNER_DIED"]


def test_objects_sealed_for_a_dead_owner_are_freed():
    case = ObjectCase(2)
    owner, maker = case.workers
    case.gcs.send(object_manager(1), WorkerFailed(owner.me, "exit"))
    case.sim.run()
    maker.put(1, MB, owner=owner)
    case.sim.run()
    assert case.stores[1].objects == {}


def test_a_dead_reader_leaves_nothing_behind():
    case = ObjectCase(2)
    a, reader = case.workers[0], case.worker(1)
    reader.get(a.put(1, MB), priority="TASK_ARGS")
    reader.get(a.owns(2, MB))
    case.sim.run()
    reader.crash(reason="killed")
    for room in (plasma(1), object_manager(1)):
        case.gcs.send(room, ClientDisconnected(reader.address))
    case.sim.run()
    manager = case.managers[1]
    assert (manager.requests.held, manager.requests.pulls.bundles) == ({}, {})
    assert case.stores[1].objects[1].uses == {}


def test_pins_say_what_is_there():
    case = ObjectCase(1)
    me = case.workers[0]
    me.put(1, MB)
    case.sim.run()
    answers = []
    me.call(object_manager(0), PinObjectIDs((1, 2), me.me), answers.append)
    case.sim.run()
    assert answers == [(True, False)]
    assert case.managers[0].local[1].pins == 1  # pinned once, however often asked


def test_a_copy_becomes_primary_when_pinned():
    case = ObjectCase(2)
    a, b = case.workers
    b.get(a.put(1, 60 * MB), priority="WAIT")
    case.sim.run()
    a.call(object_manager(1), PinObjectIDs((1,), a.me), lambda _: None)
    case.sim.run()
    assert case.managers[1].spills.primary_bytes == 60 * MB


def test_freed_objects_go_with_the_next_second():
    case = ObjectCase(2)
    a, b = case.workers
    b.get(a.put(1, MB), priority="WAIT")
    case.sim.run()
    case.sim.run(until=300 * MS)
    for node in (0, 1):
        a.send(object_manager(node), FreeObjects((1,)))
    case.sim.run(until=S - 1)
    assert [list(store.objects) for store in case.stores] == [[1], [1]]
    case.sim.run(until=S + 1)
    assert [list(store.objects) for store in case.stores] == [[], []]


def test_a_hundred_freed_objects_go_at_once():
    case = ObjectCase(1)
    me = case.workers[0]
    for i in range(1, 121):
        me.put(i, 1000)
    case.sim.run()
    me.send(object_manager(0), FreeObjects(tuple(range(1, 121))))
    case.sim.run(until=case.sim.now_ns + 1)
    assert list(case.stores[0].objects) == list(range(101, 121))
    case.sim.run()
    assert case.stores[0].used == 0


def test_freed_while_used_goes_with_the_last_use():
    case = ObjectCase(1)
    me = case.workers[0]
    me.get(me.put(1, MB))
    case.sim.run()
    me.send(object_manager(0), FreeObjects((1,)))
    case.sim.run()
    assert case.stores[0].objects[1].uses == {me.address: 1}
    case.gcs.send(plasma(0), ClientDisconnected(me.address))
    case.sim.run()
    assert case.stores[0].objects == {}


def test_owners_hear_of_copies_in_batches():
    case = ObjectCase(1)
    me = case.workers[0]
    for i in range(1, 4):
        me.put(i, 1000)
    case.sim.run()
    assert [update for _, _, update in me.reports] == [
        LocationUpdate(i, added=True) for i in (1, 2, 3)
    ]
    assert len({t for t, _, _ in me.reports}) == 1
    first_ns = me.reports[0][0]
    me.put(4, 1000)
    case.sim.run()
    me.put(5, 1000)  # within a round trip of the last report
    case.sim.run()
    assert me.reports[-1][0] - me.reports[-2][0] >= 0
    assert len(me.reports) == 5
    assert me.reports[-1][0] >= first_ns


def test_the_raylet_hears_of_bytes_and_of_pulls_that_wait():
    case = ObjectCase(2, capacity=100 * MB)
    a, b = case.workers
    refs = [a.put(i, 45 * MB) for i in (1, 2)]
    b.put(9, 30 * MB)
    case.sim.run()
    assert case.raylets[1].statuses[-1][1] == PullStatus(
        blocked=False, primary_bytes=30 * MB, used_bytes=30 * MB
    )
    first, _ = [b.get(ref, priority="TASK_ARGS") for ref in refs]
    case.sim.run()
    told = [status[1][:3] for status in case.raylets[1].statuses][2:]
    assert told[0] == (True, 30 * MB, 30 * MB)  # 2 does not fit beside 1
    assert told[-1] == (True, 30 * MB, 75 * MB)
    (blocked,) = [s.leases_blocked for _, s in case.raylets[1].statuses if s.leases_blocked]
    assert [what for _, what in b.got] == [(1,)]
    b.cancel(first)  # its lease has a worker
    case.sim.run()
    assert [what for _, what in b.got] == [(1,), (2,)]
    assert [s.leases_unblocked for _, s in case.raylets[1].statuses][-3:].count(blocked) == 1
    assert case.raylets[1].statuses[-1][1][:3] == (False, 30 * MB, 75 * MB)  # 1 was evicted


def test_a_restarted_node_starts_empty():
    case = ObjectCase(2)
    a, b = case.workers
    ref = a.put(1, 100 * MB)
    case.sim.run()
    b.get(ref)
    case.sim.run(until=case.sim.now_ns + 5 * MS)
    for room in (case.stores[1], case.managers[1]):
        room.crash(reason="raylet killed")
    case.sim.run(until=case.sim.now_ns + MS)
    for room in (case.stores[1], case.managers[1]):
        room.start()
    case.sim.run()
    assert case.stores[1].used == 0
    b.get(ref)
    case.sim.run()
    assert (1,) in [what for _, what in b.got]


def test_an_unknown_owner_address_is_data_not_a_crash():
    case = ObjectCase(1)
    me, gone = case.workers[0], case.worker(0)
    gone.crash(reason="exit")
    me.get(Ref(5, WorkerAddress(gone.me.worker_id, gone.address, 0)))
    case.sim.run()
    assert error_types(me.got) == ["OWNER_DIED"]
