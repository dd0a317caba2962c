"""Sending: who shares what, what is sent twice, what ends with a node."""

from __future__ import annotations

import pytest

from raysim.raycore.object_manager.pushes import copy_threads
from raysim.raycore.protocol import NodeRemoved, Pull, object_manager
from tests.unit.raycore.object_case import MB, MS, ObjectCase, S


def carried(case: ObjectCase, node: int, *, out: bool = True) -> float:
    """Bytes through a node's port."""
    link = case.env.nodes[node].nics[0][0 if out else 1]
    return next((u.carried_bytes for u in case.network.uses() if u.link is link), 0.0)


def test_all_who_pull_at_once_share_the_only_holder():  # litmus 12
    case = ObjectCase(5)
    source, *readers = case.workers
    ref = source.put(1, 500 * MB)
    case.sim.run()
    start_ns = case.sim.now_ns
    for reader in readers:
        reader.get(ref)
    case.sim.run()
    # 2 GB leave one port of 10 GB/s; nobody relays.
    for reader in readers:
        assert [(t - start_ns) / MS for t, _ in reader.got] == [pytest.approx(200, rel=1e-3)]
    assert [carried(case, i) / MB for i in range(5)] == [2000, 0, 0, 0, 0]


def test_who_pulls_later_uses_peers():  # litmus 12
    case = ObjectCase(5)
    source, *readers = case.workers
    ref = source.put(1, 500 * MB)
    case.sim.run()
    for reader in readers:
        reader.get(ref)
        case.sim.run()
    assert sum(carried(case, i) for i in range(5)) == 4 * 500 * MB
    assert sum(carried(case, i) for i in range(1, 5)) > 0


def test_copying_threads_limit_a_node():
    case = ObjectCase(3, node={"vcpus": 8}, costs={"copy_bytes_per_s": 1e9, "chunk_ns": 0})
    source, *readers = case.workers
    refs = [source.put(i, 100 * MB) for i in (1, 2)]
    case.sim.run()
    start_ns = case.sim.now_ns
    for reader, ref in zip(readers, refs, strict=True):
        reader.get(ref)
    case.sim.run()
    # Two threads of 1 GB/s at the sender for 200 MB, though the port carries 10 GB/s.
    assert [(r.got[0][0] - start_ns) / MS for r in readers] == [pytest.approx(100, rel=1e-3)] * 2


def test_one_pair_of_nodes_uses_two_connections():
    case = ObjectCase(2, node={"vcpus": 64}, costs={"copy_bytes_per_s": 1e9, "chunk_ns": 0})
    a, b = case.workers
    ref = a.put(1, 200 * MB)
    case.sim.run()
    start_ns = case.sim.now_ns
    b.get(ref)
    case.sim.run()
    assert (b.got[0][0] - start_ns) / MS == pytest.approx(100, rel=1e-3)


def test_a_chunk_is_the_work_of_one_core_at_a_time():
    costs = {"copy_bytes_per_s": 2e9, "grpc_bytes_per_s": 1e9}
    case = ObjectCase(2, node={"vcpus": 2}, costs=costs, host_of=(0, 0))
    a, b = case.workers

    def ms_of(object_id: int, size: int) -> float:
        ref = a.put(object_id, size)
        case.sim.run()
        start_ns = case.sim.now_ns
        b.get(ref)
        case.sim.run()
        return (b.got[-1][0] - start_ns) / MS

    # 2 ns a byte, out of the store, through gRPC and into the other: of one chunk on one of the two
    # cores, of twenty on both.
    assert ms_of(1, 5 * MB) == pytest.approx(10, rel=0.01)
    assert ms_of(2, 100 * MB) == pytest.approx(100, rel=0.01)


@pytest.mark.parametrize(("vcpus", "threads"), [(1, 2), (8, 2), (16, 4), (64, 8)])
def test_a_quarter_of_the_cores_copy(vcpus, threads):
    assert copy_threads(vcpus, 0) == threads
    assert copy_threads(vcpus, 3) == 3


def test_bytes_in_flight_are_limited():
    chunk = 5 * MB
    case = ObjectCase(
        2,
        config={
            "object_manager_default_chunk_size": chunk,
            "object_manager_max_bytes_in_flight": 2 * chunk,
        },
    )
    a, b = case.workers
    refs = [a.put(i, 100 * MB) for i in range(1, 5)]
    case.sim.run()
    for ref in refs:
        b.get(ref)
    case.sim.run(until=case.sim.now_ns + MS)
    pushes = case.managers[0].pushes
    assert (len(pushes.pushes), len(pushes.waiting), pushes.in_flight) == (4, 2, 2 * chunk)
    case.sim.run()
    assert sorted(what for _, what in b.got) == [(1,), (2,), (3,), (4,)]
    assert (pushes.pushes, pushes.in_flight) == ({}, 0)
    assert [case.managers[0].local[i].pins for i in range(1, 5)] == [1, 1, 1, 1]


def test_asked_again_it_sends_again_what_was_sent():
    case = ObjectCase(2)
    a, b = case.workers
    ref = a.put(1, 100 * MB)
    case.sim.run()
    start_ns = case.sim.now_ns
    b.get(ref)
    case.sim.run(until=start_ns + 5 * MS)
    b.send(object_manager(0), Pull(1, 1))
    case.sim.run()
    assert b.got[0][0] - start_ns == pytest.approx(10 * MS, abs=MS // 10)  # the rest goes first
    assert carried(case, 0) == pytest.approx(150 * MB, rel=0.01)


def test_a_dead_receiver_ends_its_pushes():
    case = ObjectCase(3)
    a, b, c = case.workers
    refs = [a.put(i, 1000 * MB // 4) for i in (1, 2)]
    case.sim.run()
    b.get(refs[0])
    c.get(refs[1])
    case.sim.run(until=case.sim.now_ns + 10 * MS)
    case.env.nodes[1].fail()
    case.managers[1].crash(silent=True)
    case.stores[1].crash(silent=True)
    case.gcs.send(object_manager(0), NodeRemoved(1, expected=False, reason="died"))
    case.sim.run()
    manager = case.managers[0]
    assert (manager.pushes.pushes, manager.local[1].pins) == ({}, 1)
    assert [what for _, what in c.got] == [(2,)]


def test_a_receiver_cut_off_is_given_up_when_declared_dead():
    case = ObjectCase(2)
    a, b = case.workers
    ref = a.put(1, 700 * MB)
    case.sim.run()
    b.get(ref)
    case.sim.run(until=case.sim.now_ns + 10 * MS)
    for links in case.env.nodes[1].nics:
        for link in links:
            case.network.fail_link(link)
    case.sim.run(until=S // 2)
    assert len(case.managers[0].pushes.pushes) == 1  # stalled, as TCP is
    case.gcs.send(object_manager(0), NodeRemoved(1, expected=False, reason="unreachable"))
    case.sim.run(until=S)
    assert case.managers[0].pushes.pushes == {}
    assert case.managers[0].local[1].pins == 1


def test_a_sender_that_crashes_sends_nothing_more():
    case = ObjectCase(2)
    a, b = case.workers
    ref = a.put(1, 100 * MB)
    case.sim.run()
    b.get(ref)
    case.sim.run(until=case.sim.now_ns + 5 * MS)
    for room in (case.stores[0], case.managers[0]):
        room.crash(reason="raylet killed")
    case.sim.run(until=5 * S)
    assert b.got == []
    assert carried(case, 0) == pytest.approx(50 * MB, rel=0.01)


def test_what_is_being_sent_is_not_evicted():
    case = ObjectCase(3, capacity=100 * MB)
    a, b, c = case.workers
    ref = a.put(1, 60 * MB)
    case.sim.run()
    b.get(ref, priority="WAIT")
    case.sim.run()
    a.nodes[1] = {1: None}  # the owner sends c to b's copy, which nobody uses
    c.get(ref)
    case.sim.run(until=case.sim.now_ns + MS)
    start_ns = case.sim.now_ns
    b.put(2, 60 * MB)
    case.sim.run()
    assert [what for _, what in c.got] == [(1,)]
    assert b.made[0][0] - start_ns == pytest.approx(10 * MS, abs=MS)  # once it was sent
