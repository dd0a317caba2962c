"""Calls of actors: order, restarts, death, limits, scope."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from raysim.raycore import protocol as p
from raysim.raycore import scripts as b
from raysim.raycore.ids import actor_handle
from raysim.raycore.tasks import ActorOptions, Payload, Ref, TaskError
from tests.unit.raycore.core_worker_parts import (
    MS,
    NO_TIME,
    US,
    House,
    S,
    actor,
    method,
    options,
)


def die(running):
    running.exit_process(reason="boom", intended=False)


def recording(order, delay_ns=0):
    def body(running):
        order.append(running.args[0].data)
        running.sleep(delay_ns, running.finish)

    return body


def each(refs):
    values = []
    for ref in refs:
        values += yield b.get([ref])
    return values


def test_calls_run_in_the_order_they_were_made_one_at_a_time():
    order, house = [], House(latency_ns=US, log=True)
    call = method(recording(order, MS))

    def main(process):
        a = yield b.create_actor(actor())
        refs = []
        for i in range(5):
            refs += yield b.call_actor(a, call, [Payload(1, i)])
        yield b.get(refs)
        return process.sim.now_ns

    house.play(main)
    assert order == list(range(5))
    runs = [r.t_ns for r in house.env.log.rows if r.state == "RUNNING"]
    assert [y - x for x, y in pairwise(runs[1:])] == [MS] * 4


def test_a_call_with_a_missing_argument_holds_up_those_after_it():
    order, house = [], House()
    call = method(recording(order))
    slow = options(b.script(lambda _: (yield b.sleep(S)) or [Payload(1, "slow")]))

    def main(_):
        a = yield b.create_actor(actor())
        (x,) = yield b.submit(slow)
        refs = yield b.call_actor(a, call, [x])
        refs += yield b.call_actor(a, call, [Payload(1, "fast")])
        yield b.get(refs)

    house.play(main)
    assert order == ["slow", "fast"]


def test_out_of_order_execution_does_not_wait_for_arguments():
    order, house = [], House()
    call = method(recording(order))
    slow = options(b.script(lambda _: (yield b.sleep(S)) or [Payload(1, "slow")]))

    def main(_):
        a = yield b.create_actor(actor(allow_out_of_order_execution=True))
        yield b.get((yield b.call_actor(a, call, [Payload(1, "first")])))
        (x,) = yield b.submit(slow)
        refs = yield b.call_actor(a, call, [x])
        refs += yield b.call_actor(a, call, [Payload(1, "fast")])
        yield b.get(refs)

    house.play(main)
    assert order == ["first", "fast", "slow"]


def test_two_callers_each_keep_their_own_order():
    order, house = [], House(workers=4, latency_ns=US)
    call = method(recording(order))

    def caller(running):
        handle = running.args[0].contained[0]
        a = -handle.object_id
        running.worker.add_actor_handle(a, handle.owner)
        refs = []
        for i in range(3):
            refs += yield b.call_actor(a, call, [Payload(1, (running.spec.task_id, i))])
        yield b.get(refs)
        yield b.drop(*refs)
        yield b.drop_actor(a)
        return []

    def main(process):
        a = yield b.create_actor(actor())
        handle = Payload(1, None, (Ref(actor_handle(a), process.me),))
        o = options(b.script(caller))
        refs = yield b.submit(o, [handle])
        refs += yield b.submit(o, [handle])
        yield b.get(refs)

    house.play(main)
    assert len(order) == 6
    for caller_id in {c for c, _ in order}:
        assert [i for c, i in order if c == caller_id] == [0, 1, 2]


@pytest.mark.parametrize(
    ("kwargs", "ms"),
    [
        ({}, 400),
        ({"max_concurrency": 2}, 200),
        ({"is_async": True}, 100),
        ({"is_async": True, "max_concurrency": 1}, 400),
    ],
)
def test_concurrency_is_one_or_as_many_threads_or_a_thousand_coroutines(kwargs, ms):
    house = House()
    call = method(b.Sleep(100 * MS))

    def main(process):
        a = yield b.create_actor(actor(**kwargs))
        yield b.get((yield b.call_actor(a, method(b.no_op))))
        begin_ns = process.sim.now_ns
        refs = []
        for _ in range(4):
            refs += yield b.call_actor(a, call)
        yield b.get(refs)
        return (process.sim.now_ns - begin_ns) // MS

    assert house.play(main) == ms


def test_concurrency_groups_have_limits_of_their_own():
    house = House()
    slow = b.Sleep(100 * MS)
    compute, io = method(slow), method(slow, concurrency_group="io")

    def main(process):
        a = yield b.create_actor(actor(concurrency_groups=(("io", 2),)))
        yield b.get((yield b.call_actor(a, method(b.no_op))))
        begin_ns = process.sim.now_ns
        done = []
        for m in (compute, compute, io, io):
            refs = yield b.call_actor(a, m)
            process.get(refs, lambda _, m=m: done.append((process.sim.now_ns - begin_ns) // MS))
        yield b.sleep(S)
        return sorted(done)

    assert house.play(main) == [100, 100, 100, 200]


def test_death_without_restarts_fails_calls_with_its_cause():
    house = House()

    def main(_):
        a = yield b.create_actor(actor())
        refs = yield b.call_actor(a, method(die))
        refs += yield b.call_actor(a, method(b.no_op))
        values = yield from each(refs)
        values += yield b.get((yield b.call_actor(a, method(b.no_op))))
        return [(v.error_type, v.message) for v in values]

    assert house.play(main) == [("ACTOR_DIED", "boom")] * 3


def test_restart_calls_in_flight_are_unavailable_or_retried_calls_not_sent_wait():
    house = House()

    def main(process):
        a = yield b.create_actor(actor(max_restarts=1))
        yield b.get((yield b.call_actor(a, method(b.no_op))))
        begin_ns = process.sim.now_ns
        refs = yield b.call_actor(a, method(b.Sleep(S)))
        refs += yield b.call_actor(a, method(b.Sleep(S), retries=1))
        yield b.sleep(10 * MS)
        process.env.launcher.kill(house.gcs.rows[a].address.worker_id, reason="boom")
        yield b.sleep(10 * MS)
        refs += yield b.call_actor(a, method(b.Return([5])))
        values = yield from each(refs)
        return [
            getattr(v, "error_type", v.size_bytes) for v in values
        ], process.sim.now_ns - begin_ns

    values, took_ns = house.play(main)
    assert values == ["ACTOR_UNAVAILABLE", 0, 5]
    assert took_ns == 2 * S, "the retry leaves with the first heartbeat, and sleeps for one second"


def test_a_constructor_that_raises_is_final():
    house = House()

    def body(running):
        running.fail(TaskError("ACTOR_CREATION_FAILED", "no"))

    def main(_):
        a = yield b.create_actor(actor(body, max_restarts=5))
        return (yield b.get((yield b.call_actor(a, method(b.no_op)))))

    (error,) = house.play(main)
    assert (error.error_type, error.message) == ("ACTOR_CREATION_FAILED", "no")
    assert [row.num_restarts for row in house.gcs.rows.values()] == [0]


def test_kill_without_restart_and_with():
    for no_restart, restarts, outcome in [(True, 1, "ACTOR_DIED"), (False, 1, 0)]:
        house = House()

        def main(_, restarts=restarts, no_restart=no_restart):
            a = yield b.create_actor(actor(max_restarts=restarts))
            yield b.get((yield b.call_actor(a, method(b.no_op))))
            yield b.kill(a, no_restart=no_restart)
            yield b.sleep(S)
            return (yield b.get((yield b.call_actor(a, method(b.no_op)))))

        (value,) = house.play(main)
        assert getattr(value, "error_type", value.size_bytes) == outcome


@pytest.mark.parametrize("since_ms", [0, 3, 6])
def test_a_killed_process_looks_for_children_and_loses_what_comes_meanwhile(since_ms):
    house = House(costs=replace(NO_TIME, force_exit_ns=5 * MS))

    def main(process):
        a = yield b.create_actor(actor(max_task_retries=0))
        yield b.get((yield b.call_actor(a, method(b.no_op))))
        kill = p.KillActor(a, force_kill=True, no_restart=True)
        house.gcs.send(house.gcs.rows[a].address.address, kill)
        yield b.sleep(since_ms * MS)
        asked = process.sim.now_ns
        (error,) = yield b.get((yield b.call_actor(a, method(b.no_op))))
        return error.error_type, (process.sim.now_ns - asked) // MS

    assert house.play(main) == ("ACTOR_DIED", max(0, 5 - since_ms))


def test_max_pending_calls_refuses_the_next():
    house = House()
    m = method(b.Sleep(S), actor=ActorOptions(max_pending_calls=2))

    def main(_):
        a = yield b.create_actor(actor())
        answers = []
        for _i in range(3):
            answers += [(yield b.call_actor(a, m))]
        yield b.get(answers[0] + answers[1])
        answers.append((yield b.call_actor(a, m)))
        return [type(x).__name__ for x in answers]

    assert house.play(main) == ["list", "list", "TaskError", "list"]


def test_an_actor_ends_when_its_last_handle_goes_after_the_calls_it_has():
    house = House()

    def main(process):
        a = yield b.create_actor(actor())
        refs = yield b.call_actor(a, method(b.Sleep(S)))
        yield b.drop_actor(a)
        values = yield b.get(refs)
        yield b.drop(*refs)
        yield b.sleep(S)
        return values, len(process.references.table), house.gcs.rows[a].state

    assert house.play(main) == ([Payload(0)], 0, "DEAD")
    assert [type(m) for m in house.gcs.got].count(p.ReportActorOutOfScope) == 1


def test_a_handle_in_another_process_keeps_the_actor():
    house = House()

    def holder(running):
        handle = running.args[0].contained[0]
        running.worker.add_actor_handle(-handle.object_id, handle.owner)
        running.keep(-handle.object_id)
        return []
        yield

    def use(running):
        refs = yield b.call_actor(running.state, method(b.Return([9])))
        values = yield b.get(refs)
        yield b.drop(*refs)
        return values

    def let_go(running):
        yield b.drop_actor(running.state)

    def main(process):
        a = yield b.create_actor(actor())
        other = yield b.create_actor(actor())
        handle = Payload(1, None, (Ref(actor_handle(a), process.me),))
        yield b.get((yield b.call_actor(other, method(b.script(holder)), [handle])))
        yield b.drop_actor(a)
        yield b.sleep(S)
        values = yield b.get((yield b.call_actor(other, method(b.script(use)))))
        before = house.gcs.rows[a].state
        yield b.get((yield b.call_actor(other, method(b.script(let_go)))))
        yield b.sleep(S)
        return values, before, house.gcs.rows[a].state

    assert house.play(main) == ([Payload(9)], "ALIVE", "DEAD")


def test_a_node_that_is_declared_dead_takes_its_actors():
    house = House(nodes=2, workers=2)
    house.raylets[0].idle.clear()
    house.raylets[0].idle.extend(house.raylets[1].idle)

    def main(_):
        a = yield b.create_actor(actor())
        refs = yield b.call_actor(a, method(b.Sleep(100 * S)))
        return (yield b.get(refs))

    house.sim.at("2s", house.remove_node, 1)
    house.sim.at("2500ms", lambda: house.gcs.died(*house.gcs.rows, "its node died"))
    (error,) = house.play(main)
    assert (error.error_type, error.message) == ("ACTOR_DIED", "its node died")
    assert house.sim.now_ns >= 2500 * MS


def test_without_word_of_its_death_a_call_is_unavailable_after_a_second():
    house = House(nodes=2, workers=2)
    house.raylets[0].idle.clear()
    house.raylets[0].idle.extend(house.raylets[1].idle)

    def main(process):
        a = yield b.create_actor(actor())
        refs = yield b.call_actor(a, method(b.Sleep(100 * S)))
        (error,) = yield b.get(refs)
        return error.error_type, process.sim.now_ns

    house.sim.at("2500ms", house.remove_node, 1)
    assert house.play(main) == ("ACTOR_UNAVAILABLE", 4 * S), "heartbeats look once a second"
