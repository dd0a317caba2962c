"""Leases: how many are asked for, where, how long they are kept, and what failures do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raysim.perf.ray_core import RayCosts
from raysim.raycore import protocol as p
from raysim.raycore import scripts as b
from raysim.raycore.config import RayConfig
from raysim.raycore.tasks import NodeAffinity, Payload, RuntimeEnv, TaskError
from tests.unit.raycore.core_worker_parts import MS, NO_TIME, US, House, S, actor, method, options


def many(o, n, args=()):
    def main(_):
        refs = []
        for _i in range(n):
            refs += yield b.submit(o, args)
        return (yield b.get(refs))

    return main


def test_a_task_runs_and_its_lease_goes_back():
    house = House()
    assert house.play(many(options(b.Return([7])), 1)) == [Payload(7)]
    raylet = house.raylets[0]
    assert len(raylet.of(p.RequestWorkerLease)) == 1
    assert [m.worker_exiting for m in raylet.of(p.ReturnWorkerLease)] == [False]


def test_never_more_than_ten_requests_wait_nor_more_than_tasks():
    house = House(workers=1, latency_ns=US)
    house.play(many(options(b.Sleep(MS)), 64))
    assert house.raylets[0].most == 10
    house = House(workers=1)
    house.raylets[0].granting = False
    house.driver.ready(lambda d: b.drive(d, many(options(b.no_op), 3)))
    house.sim.run(S)
    assert house.raylets[0].most == 3


def test_the_limit_is_the_number_of_nodes_if_that_is_more_or_the_setting():
    house = House(nodes=12, workers=0)
    house.driver.ready(lambda d: b.drive(d, many(options(b.no_op), 64)))
    house.sim.run(S)
    assert house.raylets[0].most == 12
    few = RayConfig(max_pending_lease_requests_per_scheduling_category=2)
    house = House(workers=0, config=few)
    house.driver.ready(lambda d: b.drive(d, many(options(b.no_op), 64)))
    house.sim.run(S)
    assert house.raylets[0].most == 2


def test_sixty_four_long_tasks_start_in_waves_of_ten_requests():  # litmus 4
    house = House(workers=64, latency_ns=100 * US, log=True)
    house.play(many(options(b.Sleep(60 * S)), 64))
    starts = sorted(r.t_ns for r in house.env.log.rows if r.state == "RUNNING")
    lease_rtt_ns = 200 * US
    assert house.raylets[0].most <= 10
    assert starts[-1] - starts[0] == (64 - 10 + 9) // 10 * lease_rtt_ns


def test_a_lease_is_given_back_after_500_ms_if_tasks_are_left():
    house = House(workers=1)
    house.play(many(options(b.Sleep(200 * MS)), 6))
    pushes_per_lease = len(house.raylets[0].of(p.ReturnWorkerLease))
    assert pushes_per_lease == 2  # three tasks of 200 ms each: 0, 200 and 400 ms are within 500


def test_a_task_that_waited_for_another_finds_its_worker_gone():
    """Its argument comes in a turn of its own: by then the lease has been given back (real Ray
    2.60: 200 tasks in a chain, 200 requests, 200 returns, nothing cancelled)."""
    house = House()

    def main(_):
        refs = yield b.submit(options(b.no_op))
        for _i in range(3):
            refs = yield b.submit(options(b.no_op), refs)
        return (yield b.get(refs))

    house.play(main)
    raylet = house.raylets[0]
    asked, back, cancelled = (
        len(raylet.of(kind))
        for kind in (p.RequestWorkerLease, p.ReturnWorkerLease, p.CancelWorkerLease)
    )
    assert (asked, back, cancelled) == (4, 4, 0)


def test_surplus_requests_are_cancelled_when_the_queue_is_empty():
    house = House(workers=1)
    house.play(many(options(b.Sleep(MS)), 5))
    raylet = house.raylets[0]
    assert not raylet.queue
    assert len(raylet.of(p.CancelWorkerLease)) == 4


def test_a_synchronous_loop_pays_lease_and_push_an_actor_the_push_only():  # litmus 1
    house = House(workers=1, latency_ns=100 * US)
    o, a, m = options(b.no_op), actor(), method(b.no_op)

    def main(process):
        yield b.get((yield b.submit(o)))
        begin_ns = process.sim.now_ns
        for _ in range(10):
            yield b.get((yield b.submit(o)))
        task_ns = process.sim.now_ns - begin_ns
        actor_id = yield b.create_actor(a)
        yield b.get((yield b.call_actor(actor_id, m)))
        begin_ns = process.sim.now_ns
        for _ in range(10):
            yield b.get((yield b.call_actor(actor_id, m)))
        return task_ns, process.sim.now_ns - begin_ns

    assert house.play(main) == (10 * 400 * US, 10 * 200 * US)


def rate(house, submitters, tasks):
    """Tasks per second of programs that each submit and wait."""

    def burst(_):
        refs = []
        for _i in range(tasks):
            refs += yield b.submit(noop)
        yield b.get(refs)
        return []

    noop = options(b.no_op)
    outer = method(b.script(burst))

    def main(process):
        if submitters == 0:
            begin_ns = process.sim.now_ns
            yield from burst(process)
            return tasks * S / (process.sim.now_ns - begin_ns)
        actors = []
        for _ in range(submitters):
            actors += [(yield b.create_actor(actor()))]
        for a in actors:
            yield b.get((yield b.call_actor(a, method(b.no_op))))
        begin_ns = process.sim.now_ns
        refs = []
        for a in actors:
            refs += yield b.call_actor(a, outer)
        yield b.get(refs)
        return submitters * tasks * S / (process.sim.now_ns - begin_ns)

    return house.play(main)


def test_the_driver_not_the_workers_limits_a_burst():  # litmus 2
    costs = RayCosts()
    one = rate(House(workers=64, costs=costs, latency_ns=90 * US), 0, 500)
    assert one == pytest.approx(S / costs.submit_task_ns, rel=0.1)
    four = rate(House(workers=64, costs=costs, latency_ns=90 * US), 4, 500)
    assert 2 * one < four <= 4 * one


@pytest.mark.parametrize("actors", [1, 32])
def test_calls_of_one_or_many_actors_are_bound_by_the_caller(actors):  # litmus 3
    costs = replace(RayCosts(), execute_ns=60 * US)
    house = House(workers=actors, costs=costs, latency_ns=90 * US)

    def main(process):
        ids = []
        for _ in range(actors):
            ids += [(yield b.create_actor(actor()))]
        m = method(b.no_op)
        for a in ids:
            yield b.get((yield b.call_actor(a, m)))
        begin_ns = process.sim.now_ns
        refs = []
        for i in range(640):
            refs += yield b.call_actor(ids[i % actors], m)
        yield b.get(refs)
        return process.sim.now_ns - begin_ns

    per_call_ns = costs.submit_actor_task_ns + costs.per_ref_get_ns
    assert house.play(main) / 640 == pytest.approx(per_call_ns, rel=0.02)


def test_spillback_goes_where_it_is_sent_and_must_be_decided_there():
    house = House(nodes=2)
    house.raylets[0].answer = lambda _: p.LeaseSpillback(1)
    house.play(many(options(b.no_op), 1))
    (request,) = house.raylets[1].of(p.RequestWorkerLease)
    assert request.grant_or_reject
    assert not house.raylets[0].got[0].grant_or_reject


def test_a_rejected_request_starts_again_at_the_first_raylet():
    house = House(nodes=2)
    answers = [p.LeaseSpillback(1), None]
    house.raylets[0].answer = lambda _: answers.pop(0)
    house.raylets[1].answer = lambda _: p.LeaseRejected()
    house.play(many(options(b.no_op), 1))
    assert [m.grant_or_reject for m in house.raylets[0].of(p.RequestWorkerLease)] == [False] * 2


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        ("RUNTIME_ENV_SETUP_FAILED", "RUNTIME_ENV_SETUP_FAILED"),
        ("PLACEMENT_GROUP_REMOVED", "TASK_PLACEMENT_GROUP_REMOVED"),
        ("UNSCHEDULABLE", "TASK_UNSCHEDULABLE_ERROR"),
    ],
)
def test_a_cancelled_lease_fails_every_task_of_its_key(failure, error):
    house = House()
    house.raylets[0].answer = lambda _: p.LeaseCancelled(failure, "so it is")
    o = options(b.no_op)

    def main(_):
        refs = []
        for _i in range(3):
            refs += yield b.submit(o)
        errors = []
        for ref in refs:
            errors += yield b.get([ref])
        return errors

    assert [(e.error_type, e.message) for e in house.play(main)] == [(error, "so it is")] * 3


def test_a_dead_remote_raylet_means_the_local_one_a_dead_local_one_fails_a_driver():
    house = House(nodes=2)
    house.raylets[1].crash()
    o = options(b.Return([3]), strategy=NodeAffinity(node_id=1, soft=True))
    house.sim.at("20s", house.remove_node, 1)
    assert house.play(many(o, 1)) == [Payload(3)]
    assert house.sim.now_ns >= 20 * S, "until it is declared dead the call is tried again"
    asked = house.raylets[0].of(p.RequestWorkerLease)
    assert len(asked) == 1
    house = House()
    house.sim.run(S)
    house.raylets[0].crash()
    assert house.play(many(options(b.no_op), 2))[0].error_type == "LOCAL_RAYLET_DIED"


def test_locality_most_bytes_of_plasma_arguments_wins():
    house = House(nodes=3)
    big = options(b.Return([2_000_000]), strategy=NodeAffinity(node_id=1))
    small = options(b.Return([1_000_000]), strategy=NodeAffinity(node_id=2))

    def main(_):
        x, y = (yield b.submit(big)), (yield b.submit(small))
        yield b.wait(x + y, 2, fetch_local=False)
        yield b.get((yield b.submit(options(b.no_op), x + y)))

    house.play(main)
    (request,) = [m for m in house.raylets[1].of(p.RequestWorkerLease) if m.spec.dependencies]
    assert request.selected_by_locality


def test_spread_asks_the_local_raylet_whatever_its_arguments():
    house = House(nodes=2)
    big = options(b.Return([2_000_000]), strategy=NodeAffinity(node_id=1))

    def main(_):
        x = yield b.submit(big)
        yield b.wait(x, 1, fetch_local=False)
        yield b.get((yield b.submit(options(b.no_op, strategy="SPREAD"), x)))

    house.play(main)
    assert [m.spec.options.strategy for m in house.raylets[0].of(p.RequestWorkerLease)] == [
        "SPREAD"
    ]


def test_functions_environments_and_plasma_arguments_make_keys_of_their_own():
    house = House(workers=8)

    def main(_):
        x, y = (yield b.put(Payload(10))), (yield b.put(Payload(10)))
        one = options(b.Sleep(MS))
        refs = []
        for o, args in [
            (one, ()), (one, ()), (options(b.Sleep(MS)), ()), (one, (x,)), (one, (y,)),
            (options(b.Sleep(MS), runtime_env=RuntimeEnv(key="e")), ()),
        ]:  # fmt: skip
            refs += yield b.submit(o, args)
        yield b.sleep(MS // 2)
        keys = len(house.driver.leases.entries)
        yield b.get(refs)
        return keys

    assert house.play(main) == 5


def test_the_backlog_is_reported_with_requests_and_every_second():
    house = House(workers=1)
    house.play(many(options(b.Sleep(700 * MS)), 14))
    reports = house.raylets[0].of(p.ReportWorkerBacklog)
    assert reports[0].backlogs[0][2] >= 1
    assert reports[-1].backlogs == () or reports[-1].backlogs[0][2] >= 0
    assert house.driver.leases._backlog_timer is None


# ---- failures ------------------------------------------------------------------------------------


def crash_times(times):
    left = [times]

    def body(running):
        if left[0]:
            left[0] -= 1
            running.exit_process(reason="segfault", intended=False)
        else:
            running.finish([Payload(1)])

    return body


@pytest.mark.parametrize(
    ("max_retries", "deaths", "ok"), [(3, 3, True), (3, 4, False), (0, 1, False), (-1, 9, True)]
)
def test_a_dead_worker_is_retried_max_retries_times(max_retries, deaths, ok):
    house = House(workers=12)
    (value,) = house.play(many(options(crash_times(deaths), max_retries=max_retries), 1))
    if ok:
        assert value == Payload(1)
    else:
        assert (value.error_type, value.message) == ("WORKER_DIED", "segfault")


def test_out_of_memory_kills_have_their_own_count_and_a_growing_delay():
    house = House(workers=12)
    house.raylets[0].causes.extend([(TaskError("OUT_OF_MEMORY"), False)] * 3)
    o = options(crash_times(3), max_retries=1)

    def main(process):
        yield b.get((yield b.submit(options(b.no_op))))
        begin_ns = process.sim.now_ns
        values = yield b.get((yield b.submit(o)))
        return values, process.sim.now_ns - begin_ns

    assert house.play(main) == ([Payload(1)], (1 + 2 + 4 + 3) * S), "and each to the next heartbeat"


def test_an_out_of_memory_kill_of_a_task_without_retries_is_the_end():
    house = House()
    house.raylets[0].causes.append((TaskError("OUT_OF_MEMORY", "much"), False))
    (value,) = house.play(many(options(crash_times(1), max_retries=0), 1))
    assert value.error_type == "OUT_OF_MEMORY"


def test_a_preempted_worker_costs_no_retry():
    house = House(workers=12)
    house.raylets[0].causes.extend([(TaskError("NODE_DIED", "preempted"), False)] * 5)
    assert house.play(many(options(crash_times(5), max_retries=1), 1)) == [Payload(1)]


@pytest.mark.parametrize(
    ("wanted", "runs"), [(False, 1), (True, 4), (("ValueError",), 4), (("KeyError",), 1)]
)
def test_the_programs_own_errors_are_retried_only_if_wanted(wanted, runs):
    count = []

    def body(running):
        count.append(running.spec.attempt)
        running.fail(TaskError("TASK_EXECUTION_EXCEPTION", class_names=("ValueError", "Exception")))

    house = House()
    (value,) = house.play(many(options(body, retry_exceptions=wanted), 1))
    assert value.error_type == "TASK_EXECUTION_EXCEPTION"
    assert count == list(range(runs))


def test_a_node_that_vanished_is_found_out_when_it_is_declared_dead():
    house = House(nodes=2)
    o = options(b.Sleep(10 * S), strategy=NodeAffinity(node_id=1, soft=True))
    house.sim.at("2s", house.remove_node, 1)

    def main(process):
        values = yield b.get((yield b.submit(o)))
        return values, process.sim.now_ns

    assert house.play(main) == ([Payload(0)], 13 * S), "at the heartbeat after two seconds"


def test_max_calls_ends_the_worker_after_so_many():
    house = House(workers=2)
    house.play(many(options(b.no_op, max_calls=2), 3))
    assert house.raylets[0].disconnected == ["max_calls reached"]
    assert [m.worker_exiting for m in house.raylets[0].of(p.ReturnWorkerLease)].count(True) == 1


def test_programs_that_run_ahead_are_taken_in_their_order_of_time():
    house = House(costs=replace(NO_TIME, io_submit_ns=10 * US), log=True)
    house.sim.run(S)

    def begin(driver):
        for lead_us in (300, 100, 200):
            driver.submit_task(options(b.no_op), (), lead_ns=lead_us * US)

    house.driver.ready(begin)
    house.sim.run()
    rows = [r for r in house.env.log.rows if r.state == "PENDING_NODE_ASSIGNMENT"]
    assert [r.t_ns - S for r in rows] == [110 * US, 210 * US, 310 * US]
