"""get, wait and put: what waits for what, what blocks whom, what comes from where."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raysim.perf.ray_core import RayCosts
from raysim.raycore import protocol as p
from raysim.raycore import scripts as b
from raysim.raycore.tasks import NodeAffinity, Payload, TaskError
from tests.unit.raycore.core_worker_parts import MS, NO_TIME, US, House, S, options

BIG = 1_000_000
RAISE = TaskError("TASK_EXECUTION_EXCEPTION", "no")


def fail(running):
    running.sleep(10 * MS, lambda: running.fail(RAISE))


def test_values_of_the_store_take_longer_to_read_than_those_of_replies():
    costs = replace(NO_TIME, per_ref_get_ns=20 * US, per_value_get_ns=2 * US)

    def main(process):
        small, large = [], []
        for _ in range(3):
            small += yield b.submit(options(b.no_op))
            large += [(yield b.put(Payload(10**6)))]
        yield b.get([*small, *large])
        return [process.reading_ns(refs) for refs in (small, large, small + large, small[:1], [])]

    assert House(costs=costs).play(main) == [4 * US, 40 * US, 46 * US, 0, 0]


def test_get_waits_for_the_slowest():
    house = House()

    def main(process):
        refs = []
        for ms in (10, 30, 20):
            refs += yield b.submit(options(b.Sleep(ms * MS)))
        values = yield b.get(refs)
        return len(values), process.sim.now_ns

    assert house.play(main) == (3, 30 * MS)


def test_get_ends_with_the_first_error():
    house = House()

    def main(process):
        refs = yield b.submit(options(b.Sleep(S)))
        refs += yield b.submit(options(fail))
        values = yield b.get(refs)
        return [type(v).__name__ for v in values], process.sim.now_ns

    assert house.play(main) == (["Payload", "TaskError"], 10 * MS)


def test_get_gives_up_after_its_timeout():
    house = House()

    def main(process):
        refs = yield b.submit(options(b.Sleep(S)))
        error = yield b.get(refs, timeout_ns=100 * MS)
        return error.error_type, process.sim.now_ns

    assert house.play(main) == ("GET_TIMEOUT", 100 * MS)


def test_an_error_in_an_argument_is_the_tasks_own():
    house = House()
    ran = []

    def main(_):
        refs = yield b.submit(options(fail))
        refs = yield b.submit(options(lambda r: (ran.append(r), r.finish())), refs)
        return (yield b.get(refs))

    (error,) = house.play(main)
    assert (error.error_type, error.message) == ("TASK_EXECUTION_EXCEPTION", "no")
    assert ran == []


@pytest.mark.parametrize("size_bytes", [100 * 1024, 100 * 1024 + 1])
def test_returns_up_to_100_kib_ride_in_the_reply_larger_ones_go_to_plasma(size_bytes):
    house = House()

    def main(process):
        (x,) = yield b.submit(options(b.Return([size_bytes])))
        (value,) = yield b.get([x])
        return value.size_bytes, x.object_id in house.plasma[0].objects

    assert house.play(main) == (size_bytes, size_bytes > 100 * 1024)


def test_the_returns_of_one_task_are_inlined_up_to_10_mib_in_all():
    house = House()
    n = 110

    def main(_):
        refs = yield b.submit(options(b.Return([100 * 1024] * n), num_returns=n))
        yield b.get(refs)
        return sum(r.object_id in house.plasma[0].objects for r in refs)

    assert house.play(main) == n - 10 * 1024 * 1024 // (100 * 1024)


def test_large_returns_are_written_one_after_the_other():
    house = House(costs=replace(NO_TIME, memcpy_bytes_per_s=1e9, stored_return_ns=0))
    mb = 1_000_000

    def main(process):
        refs = yield b.submit(options(b.Return([mb] * 3), num_returns=3))
        yield b.get(refs)
        return process.sim.now_ns

    assert house.play(main) == pytest.approx(3 * MS, abs=0.1 * MS)


@pytest.mark.parametrize(
    ("size_bytes", "pages", "threads", "copied_s"),
    [
        (2**20, 0, 1, 2**20 / 10e9),  # as fast as several, where no page is new
        (2**20, 2**20, 1, 2**20 / 10e9 + 2**20 * (1 / 4e9 - 1 / 10e9) * 2),
        (2**21, 2**21, 2, 2**21 / 4e9),
    ],
)
def test_several_threads_copy_what_is_larger_than_1_mib(size_bytes, pages, threads, copied_s):
    costs = RayCosts(memcpy_bytes_per_s=10e9, first_touch_bytes_per_s=4e9)
    seconds, width = costs.write_s(size_bytes, pages, 0, 2.0)
    assert (seconds, width) == (pytest.approx(copied_s), threads)
    assert costs.write_s(2**21, 0, 0, 64.0)[1] == 6


def test_a_put_is_pinned_read_and_released():
    house = House()

    def main(_):
        x = yield b.put(Payload(BIG, "data"))
        yield b.sleep(MS)
        pinned = x.object_id in house.managers[0].pinned
        (value,) = yield b.get([x])
        yield b.sleep(MS)
        return pinned, value.data, house.plasma[0].in_use[x.object_id]

    assert house.play(main) == (True, "data", 0)


def test_the_store_that_is_full_of_disk_fails_the_put():
    house = House()

    class Full(type(house.plasma[0])):
        def on_plasma_create(self, m, reply):
            reply(TaskError("OUT_OF_DISK"))

    house.plasma[0].__class__ = Full

    def main(_):
        return (yield b.put(Payload(BIG)))

    assert house.play(main).error_type == "OUT_OF_DISK"


def test_an_object_elsewhere_is_brought_here():
    house = House(nodes=2)
    o = options(b.Return([BIG]), strategy=NodeAffinity(node_id=1))

    def main(_):
        (x,) = yield b.submit(o)
        (value,) = yield b.get([x])
        return value.size_bytes, [x.object_id in h.objects for h in house.plasma]

    assert house.play(main) == (BIG, [True, True])


def test_a_borrower_gets_small_values_from_the_owner():
    house = House()

    def inner(running):
        values = yield b.get(running.args[0].contained)
        return [Payload(v.size_bytes + 1) for v in values]

    def main(_):
        (x,) = yield b.submit(options(b.Sleep(10 * MS)))
        (y,) = yield b.submit(options(b.script(inner)), [Payload(1, None, (x,))])
        return (yield b.get([y]))

    assert house.play(main) == [Payload(1)]


@pytest.mark.parametrize(
    ("num_returns", "timeout_ms", "ready", "ms"),
    [
        (1, None, [0, 1, 0], 10),
        (2, None, [0, 1, 1], 20),
        (3, 25, [0, 1, 1], 25),
        (1, 0, [0, 0, 0], 0),
    ],
)
def test_wait_says_which_are_ready_at_most_as_many_as_asked(num_returns, timeout_ms, ready, ms):
    house = House()

    def main(process):
        refs = []
        for delay_ms in (30, 10, 20):
            refs += yield b.submit(options(b.Sleep(delay_ms * MS)))
        timeout_ns = None if timeout_ms is None else timeout_ms * MS
        answer = yield b.wait(refs, num_returns, timeout_ns)
        return answer, process.sim.now_ns

    assert house.play(main) == (ready, ms * MS)


def test_wait_brings_objects_here_unless_told_not_to():
    for fetch_local in (True, False):
        house = House(nodes=2)
        o = options(b.Return([BIG]), strategy=NodeAffinity(node_id=1))

        def main(_, fetch_local=fetch_local, o=o, house=house):
            (x,) = yield b.submit(o)
            yield b.wait([x], fetch_local=fetch_local)
            return x.object_id in house.plasma[0].objects

        assert house.play(main) is fetch_local


def blocked(house):
    return [
        type(m).__name__.removeprefix("NotifyWorker")
        for m in house.raylets[0].got
        if isinstance(m, (p.NotifyWorkerBlocked, p.NotifyWorkerUnblocked))
    ]


def test_a_task_that_waits_lets_its_raylet_know_a_driver_does_not():
    house = House()

    def parent(_):
        refs = yield b.submit(options(b.Sleep(MS)))
        yield b.get(refs)
        yield b.get(refs)
        return []

    def main(_):
        yield b.get((yield b.submit(options(b.script(parent)))))

    house.play(main)
    assert blocked(house) == ["Blocked", "Unblocked"]


def test_states_of_a_task_as_ray_lists_them():
    house = House(log=True, latency_ns=US)

    def parent(_):
        refs = yield b.submit(options(b.Sleep(MS)))
        yield b.get(refs)
        yield b.wait((yield b.submit(options(b.Sleep(MS)))))
        return []

    def main(_):
        (x,) = yield b.submit(options(b.script(parent)))
        yield b.get([x])
        return x.object_id >> 32

    task_id = house.play(main)
    states = [r.state for r in house.env.log.rows if (r.kind, r.number) == ("task", task_id)]
    assert states == [
        "PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT", "SUBMITTED_TO_WORKER", "RUNNING",
        "RUNNING_IN_RAY_GET", "RUNNING", "RUNNING_IN_RAY_WAIT", "RUNNING", "FINISHED",
    ]  # fmt: skip


def test_locations_are_published_to_who_looks_and_removed_references_too():
    house = House()
    got = []

    class Looker(type(house.managers[0])):
        def on_object_locations(self, m, reply):
            got.append((m.node_ids, m.pending_creation, m.ref_removed))

    house.managers[0].__class__ = Looker

    def main(process):
        (x,) = yield b.submit(options(b.script(lambda _: (yield b.sleep(MS)) or [Payload(BIG)])))
        look = p.SubscribeObjectLocations(x.object_id, house.managers[0].address)
        process.directory.on_subscribe(look)
        yield b.get([x])
        yield b.drop(x)
        yield b.sleep(MS)
        process.directory.on_subscribe(look)
        yield b.sleep(MS)

    house.play(main)
    gone = ((), False, True)
    assert got == [((), True, False), ((0,), False, False), gone, gone]
