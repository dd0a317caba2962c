"""Primary copies beyond the store: what is spilled when, where to, and back."""

from __future__ import annotations

import pytest

from raysim.raycore.protocol import (
    FreeObjects,
    PinObjectIDs,
    PlasmaCreated,
    PlasmaRelease,
    WorkerFailed,
    object_manager,
    plasma,
)
from tests.hardware_parts import disk
from tests.unit.raycore.object_case import MB, MS, ObjectCase, S, error_types


def put_all(case: ObjectCase, count: int, size: int, *, every_ns: int = 0, first: int = 1):
    me = case.workers[0]
    for k, i in enumerate(range(first, first + count)):
        case.sim.call_later(k * every_ns, lambda i: me.put(i, size), i)


def in_files(case: ObjectCase, node: int = 0) -> list[list[int]]:
    """Objects of each file, in order of writing."""
    files: dict[str, list[int]] = {}
    for spilled in case.managers[node].spills.spilled.values():
        files.setdefault(spilled.file, []).append(spilled.object_id)
    return list(files.values())


def test_spilling_begins_at_80_percent_and_writers_wait_only_for_room():  # litmus 9
    case = ObjectCase()
    put_all(case, 15, 100 * MB, every_ns=10 * MS)
    case.sim.run()
    me = case.workers[0]
    assert case.started[0] == (70 * MS + 1, "SPILL_WORKER")  # with the eighth
    waits = [(t - k * 10 * MS) // MS for k, (t, _, _) in enumerate(me.made)]
    assert waits[:10] == [0] * 10  # two more go in while the first eight are being written
    assert all(wait > 0 for wait in waits[10:])
    assert not any(answer.fallback for _, _, answer in me.made)
    spilled = sorted(i for file in in_files(case) for i in file)
    assert len(spilled) >= 5
    assert case.stores[0].used <= 1000 * MB


def test_below_the_threshold_nothing_is_spilled():
    case = ObjectCase()
    put_all(case, 7, 100 * MB)
    case.sim.run()
    assert case.started == []


def test_one_file_takes_all_that_can_be_spilled():
    case = ObjectCase()
    put_all(case, 8, 100 * MB)
    case.sim.run()
    assert in_files(case) == [[1, 2, 3, 4, 5, 6, 7, 8]]
    # 800 MB at 1 GB/s of one disk.
    assert case.states(8)[-1] == (0.8, 0, "SPILLED")


@pytest.mark.parametrize(
    ("setting", "value", "sizes"),
    [
        ("max_fused_object_count", 3, [3, 3, 2]),
        ("max_spilling_file_size_bytes", 450 * MB, [4, 4]),
    ],
)
def test_files_are_limited(setting, value, sizes):
    case = ObjectCase(config={setting: value, "min_spilling_size": 0})
    put_all(case, 8, 100 * MB)
    case.sim.run()
    assert sorted(map(len, in_files(case)), reverse=True) == sizes


def test_files_go_to_the_disks_in_turn():
    settings = {"max_fused_object_count": 2, "max_io_workers": 1, "min_spilling_size": 0}
    case = ObjectCase(config=settings | {"object_spilling_threshold": 1e-6})
    put_all(case, 8, 100 * MB)
    case.sim.run()
    disks = [d.written_bytes / MB for d in case.env.nodes[0].disks]
    assert disks == [pytest.approx(400, rel=1e-3)] * 2


def test_at_most_four_spill_workers():
    case = ObjectCase(config={"max_fused_object_count": 1})
    put_all(case, 9, 100 * MB)
    case.sim.run()
    assert [kind for _, kind in case.started] == ["SPILL_WORKER"] * 4


def test_a_small_batch_waits_for_a_spill_under_way():
    case = ObjectCase()
    put_all(case, 8, 100 * MB)
    put_all(case, 3, 20 * MB, every_ns=10 * MS, first=9)
    case.sim.run(until=700 * MS)
    assert case.managers[0].spills._active == 1  # 60 MB are not worth a second file yet
    case.sim.run()
    assert in_files(case)[0] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_objects_in_use_are_not_spilled_until_let_go():
    case = ObjectCase()
    me, reader = case.workers[0], case.worker(0)
    refs = [me.put(i, 100 * MB) for i in range(1, 8)]
    case.sim.run()
    reader.get(*refs)
    refs = [me.put(i, 100 * MB, pin=False) for i in (8, 9)]
    reader.get(*refs)
    case.sim.run()
    me.call(object_manager(0), PinObjectIDs((8, 9), me.me), me.pinned)
    case.sim.run(until=1300 * MS)
    assert in_files(case) == []
    reader.send(plasma(0), PlasmaRelease(1, reader.address))
    case.sim.run()
    assert in_files(case) == [[1]]
    assert case.states(1)[-1] == (2.1, 0, "SPILLED")  # found by the look of every second


def test_all_in_use_ends_in_fallback_after_two_seconds():
    case = ObjectCase()
    me, reader = case.workers[0], case.worker(0)
    refs = [me.put(i, 100 * MB) for i in range(1, 8)]
    case.sim.run()
    reader.get(*refs)
    case.sim.run()
    start_ns = case.sim.now_ns
    me.put(8, 400 * MB)
    case.sim.run()
    assert me.made[-1] == (start_ns + 2 * S, 8, PlasmaCreated(fallback=True, fresh_bytes=400 * MB))
    assert case.states(8)[0][1:] == (0, "FALLBACK")


def test_restored_from_its_own_disk():
    case = ObjectCase()
    put_all(case, 15, 100 * MB)
    case.sim.run()
    gone = [i for i in range(1, 16) if i not in case.stores[0].objects]
    me, start_ns = case.workers[0], case.sim.now_ns
    ref = me.owns(gone[0], 100 * MB)
    for _ in range(3):
        me.get(ref, priority="WAIT")
    case.sim.run(until=start_ns + 60 * MS)
    # 100 MB at 2 GB/s, read once however many wait.
    assert [(t - start_ns) / MS for t, _ in me.got] == [pytest.approx(50, abs=1)] * 3
    assert sum(d.read_bytes for d in case.env.nodes[0].disks) == pytest.approx(100 * MB, rel=1e-6)
    assert [kind for _, kind in case.started].count("RESTORE_WORKER") == 1
    assert case.managers[0].local[gone[0]].pins == 0  # the primary is the file


def test_a_restore_worker_maps_the_pages_that_it_reads_into_once():
    costs = {
        "first_touch_bytes_per_s": 1e9, "memcpy_bytes_per_s": 1e15, "mapping_share": 0.5,
        "restore_ns": 7 * MS,
    }  # fmt: skip
    quick = disk(read_bytes_per_s=1e12, write_bytes_per_s=1e12, write_iops=1e9)
    case = ObjectCase(costs=costs, node={"disks": ((quick, 1),)})
    put_all(case, 15, 100 * MB)
    case.sim.run()
    me, took = case.workers[0], []
    for i in [i for i in range(1, 16) if i not in case.stores[0].objects]:
        start_ns = case.sim.now_ns
        me.get(me.owns(i, 100 * MB), priority="WAIT")
        case.sim.run()
        took.append((me.got[-1][0] - start_ns) / MS)
    # six threads provide 1 GB/s, one maps what another wrote in half its own time: 300 ms; the
    # store has room for three, the others take their places
    assert took == pytest.approx([307] * 3 + [7] * 3, abs=1)


def test_of_idle_io_workers_the_last_to_be_free_is_taken():
    case = ObjectCase(config={"max_fused_object_count": 1, "min_spilling_size": 0})
    put_all(case, 8, 100 * MB)
    case.sim.run()
    pool, taken = case.managers[0].spills.spill_workers, []
    assert len(pool.idle) > 1
    for _ in range(2):
        pool.pop(taken.append)
        pool.push(taken[-1])
    assert taken[0] == taken[1]


def test_another_nodes_disk_is_streamed_without_restoring():
    case = ObjectCase(2)
    put_all(case, 15, 100 * MB)
    case.sim.run()
    gone = [i for i in range(1, 16) if i not in case.stores[0].objects]
    a, b = case.workers
    start_ns = case.sim.now_ns
    b.get(a.owns(gone[0], 100 * MB))
    case.sim.run()
    assert [(t - start_ns) / MS for t, _ in b.got] == [pytest.approx(50, abs=1)]
    assert gone[0] not in case.stores[0].objects
    assert gone[0] in case.stores[1].objects


def test_owners_are_told_of_urls():
    case = ObjectCase()
    put_all(case, 8, 100 * MB)
    case.sim.run()
    urls = case.workers[0].urls
    assert [urls[i][0].partition("?")[2] for i in (1, 2)] == [
        "offset=0&size=100000000",
        "offset=100000024&size=100000000",
    ]
    assert len({urls[i][0].partition("?")[0] for i in range(1, 9)}) == 1


def test_a_file_goes_when_all_its_objects_are_freed():
    case = ObjectCase()
    put_all(case, 8, 100 * MB)
    case.sim.run()
    me, spills = case.workers[0], case.managers[0].spills
    me.send(object_manager(0), FreeObjects((1, 2, 3)))
    case.sim.run()
    assert spills.file_bytes == 800 * MB + 8 * 24
    me.send(object_manager(0), FreeObjects((4, 5, 6, 7, 8)))
    case.sim.run()
    assert (spills.file_bytes, spills.spilled, case.stores[0].used) == (0, {}, 0)


def test_what_files_left_is_written_to_again_at_its_own_rate():
    costs = {"spill_bytes_per_s": 0.5e9, "spill_again_bytes_per_s": 4e9}
    quick = disk(read_bytes_per_s=1e12, write_bytes_per_s=1e12, write_iops=1e9)
    case = ObjectCase(costs=costs, node={"disks": ((quick, 1),)})
    me = case.workers[0]

    def ms_to_spill(first: int) -> int:
        put_all(case, 8, 100 * MB, first=first)
        start_ns = case.sim.now_ns
        case.sim.run()
        spilled = next(t for t, _, state in case.states(first)[::-1] if state == "SPILLED")
        me.send(object_manager(0), FreeObjects(tuple(range(first, first + 8))))
        case.sim.run()
        return round(spilled * 1e3 - start_ns / MS)

    assert ms_to_spill(1) == pytest.approx(1600, abs=2)
    assert ms_to_spill(11) == pytest.approx(200, abs=2)


def test_freed_while_being_spilled():
    case = ObjectCase()
    put_all(case, 8, 100 * MB)
    case.sim.run(until=400 * MS)
    me, spills = case.workers[0], case.managers[0].spills
    me.send(object_manager(0), FreeObjects(tuple(range(1, 9))))
    case.sim.run()
    assert (spills.file_bytes, spills.spilled, spills.primary_bytes) == (0, {}, 0)
    assert case.stores[0].used == 0
    assert me.urls == {}


def test_a_spill_worker_that_dies_puts_its_objects_back():
    case = ObjectCase()
    put_all(case, 8, 100 * MB)
    case.sim.run(until=400 * MS)
    case.crash(next(iter(case.io.values())))
    case.sim.run(until=401 * MS)
    spills = case.managers[0].spills
    assert (len(spills.pinned), spills.file_bytes) == (8, 0)
    case.sim.run()  # the look of every second spills them after all
    assert in_files(case) == [[1, 2, 3, 4, 5, 6, 7, 8]]
    assert case.states(1)[-1] == (1.8, 0, "SPILLED")


def test_a_restore_worker_that_dies_is_followed_by_another_try():
    case = ObjectCase()
    put_all(case, 15, 100 * MB)
    case.sim.run()
    gone = [i for i in range(1, 16) if i not in case.stores[0].objects]
    me, start_ns = case.workers[0], case.sim.now_ns
    me.get(me.owns(gone[0], 100 * MB))
    case.sim.run(until=start_ns + 20 * MS)
    for worker in list(case.io.values()):
        if worker.worker_type == "RESTORE_WORKER":
            case.crash(worker)
    case.sim.run()
    assert [round((t - start_ns) / S, 1) for t, _ in me.got] in ([10.0], [10.1])


def test_a_full_disk_refuses_writers_at_once():
    case = ObjectCase(disk=500 * MB)
    case.managers[0].fill_disk(0.96)
    put_all(case, 11, 100 * MB)
    case.sim.run(until=10 * MS)
    me = case.workers[0]
    refused = [answer for _, _, answer in me.made if not isinstance(answer, PlasmaCreated)]
    assert [e.error_type for e in refused] == ["OUT_OF_DISK"]
    case.sim.run()
    assert case.sim.now_ns < 10 * S  # nothing keeps trying for nothing


def test_no_room_on_disk_for_a_batch_ends_in_fallback_where_that_fits():
    case = ObjectCase(disk=600 * MB)
    put_all(case, 9, 100 * MB)
    put_all(case, 1, 150 * MB, first=10)
    case.sim.run()
    t, _, answer = case.workers[0].made[-1]
    assert answer == PlasmaCreated(fallback=True, fresh_bytes=150 * MB)
    assert t == pytest.approx(2 * S, abs=20 * MS)
    assert case.states(10)[0][1:] == (0, "FALLBACK")
    assert case.managers[0].spills.fallback_bytes == 150 * MB


def test_an_owners_death_deletes_its_files():
    case = ObjectCase()
    owner, maker = case.worker(0), case.workers[0]
    for i in range(1, 9):
        maker.put(i, 100 * MB, owner=owner)
    case.sim.run()
    owner.crash(reason="exit")
    case.gcs.send(object_manager(0), WorkerFailed(owner.me, "exit"))
    case.sim.run()
    spills = case.managers[0].spills
    assert (spills.file_bytes, spills.spilled, case.stores[0].used) == (0, {}, 0)
    assert case.managers[0]._owned == {}


@pytest.mark.parametrize(("again", "started"), [(0, 1), (7, 2)])
def test_files_are_deleted_by_restore_workers_unless_more_spill_workers_idle(again, started):
    case = ObjectCase()
    put_all(case, 8, 100 * MB)
    case.sim.run(until=3900 * MS)
    case.gcs.send(object_manager(0), FreeObjects(tuple(range(1, 9))))
    put_all(case, 1 + again, 100 * MB, first=11)  # eight are being written when files are deleted
    case.sim.run()
    assert [kind for _, kind in case.started] == ["SPILL_WORKER", "RESTORE_WORKER"][:started]
    assert case.managers[0].spills.file_bytes == (800 * MB + 8 * 24 if again else 0)


def test_cold_io_workers_delay_the_first_spill():
    case = ObjectCase(start_ns=700 * MS)
    put_all(case, 8, 100 * MB)
    case.sim.run()
    assert case.states(1)[-1] == (1.5, 0, "SPILLED")


def test_a_worker_that_does_not_come_up_is_replaced_after_a_minute():
    case = ObjectCase(start_ns=10_000 * S)
    put_all(case, 8, 100 * MB)
    case.sim.run(until=61 * S)
    assert [t // S for t, _ in case.started] == [0, 60]


def test_lost_bytes_are_lost_with_the_node_only():
    case = ObjectCase(2)
    put_all(case, 8, 100 * MB)
    case.sim.run()
    for room in (case.stores[0], case.managers[0]):
        room.crash(reason="raylet killed")
        room.start()
    assert case.managers[0].spills.spilled == {}
    a, b = case.workers
    b.get(a.owns(1, 100 * MB))
    case.sim.run(until=case.sim.now_ns + 30 * S)
    assert b.got == []
    assert error_types(b.got) == []
