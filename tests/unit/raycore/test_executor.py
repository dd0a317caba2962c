"""The executing side: functions, the thread, cores, leaving, cancellation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raysim.raycore import protocol as p
from raysim.raycore import scripts as b
from raysim.raycore.resources import ResourceSet
from raysim.raycore.tasks import Payload, TaskError
from tests.unit.raycore.core_worker_parts import MS, NO_TIME, US, House, S, actor, method, options


def test_a_function_is_exported_once_and_fetched_once_per_process():
    house = House(workers=2)
    o = options(b.Sleep(MS))

    def main(_):
        refs = []
        for _i in range(8):
            refs += yield b.submit(o)
        yield b.get(refs)

    house.play(main)
    kinds = [type(m) for m in house.gcs.got]
    assert kinds.count(p.InternalKVPut) == 1
    assert kinds.count(p.InternalKVGet) == 2


def test_a_process_unpickles_a_function_before_its_first_call():
    house = House(workers=1, costs=replace(NO_TIME, import_function_ns=3 * MS))

    def main(process):
        ends = []
        one, other = options(b.Sleep(MS)), options(b.Sleep(2 * MS))
        for o in (one, one, other):
            yield b.get((yield b.submit(o)))
            ends.append(process.sim.now_ns)
        return ends

    assert house.play(main) == [4 * MS, 5 * MS, 10 * MS]


def test_a_process_pickles_a_function_once():
    house = House(workers=1, costs=replace(NO_TIME, export_function_ns=3 * MS))
    first, second = options(b.Sleep(MS)).function, options(b.Sleep(2 * MS)).function

    def main(process):
        yield b.sleep(0)
        return [process.export_ns(function) for function in (first, first, second)]

    assert house.play(main) == [3 * MS, 0, 3 * MS]


def five_async_calls_ns(costs, body):
    """What five calls of an async actor take that has answered one."""

    def main(process):
        a = yield b.create_actor(actor(is_async=True))
        yield b.get((yield b.call_actor(a, method(b.no_op))))
        begin_ns = process.sim.now_ns
        refs = []
        for _ in range(5):
            refs += yield b.call_actor(a, method(body))
        yield b.get(refs)
        return process.sim.now_ns - begin_ns

    return House(costs=costs).play(main)


def test_the_execution_thread_is_one_for_all_concurrent_calls():
    costs = replace(NO_TIME, execute_ns=10 * US)
    assert five_async_calls_ns(costs, b.Sleep(MS)) == MS + 5 * 10 * US


@pytest.mark.parametrize("wait_ns", [0, 30 * US])
def test_calls_of_an_async_actor_wait_for_their_threads_turns(wait_ns):
    costs = replace(NO_TIME, execute_async_ns=20 * US, execute_async_wait_ns=wait_ns)
    assert five_async_calls_ns(costs, b.no_op) == 5 * (20 * US + wait_ns)


@pytest.mark.parametrize(("count", "reads_us"), [(0, 0), (1, 58), (5, 58)])
def test_arguments_are_read_by_who_is_called(count, reads_us):
    costs = replace(NO_TIME, execute_args_ns=58 * US)

    def main(process):
        a = yield b.create_actor(actor(b.no_op))
        yield b.get((yield b.call_actor(a, method(b.no_op))))
        begun = process.sim.now_ns
        args = [Payload(8)] * (1 + count) if count else []  # the first names them
        yield b.get((yield b.call_actor(a, method(b.no_op), args)))
        return process.sim.now_ns - begun

    assert House(costs=costs).play(main) == reads_us * US


def test_what_follows_an_answer_delays_only_the_next_call():
    costs = replace(NO_TIME, execute_ns=10 * US, execute_after_ns=7 * US)

    def main(process):
        a = yield b.create_actor(actor(b.no_op))
        yield b.get((yield b.call_actor(a, method(b.no_op))))
        yield b.sleep(MS)
        begun, took = process.sim.now_ns, []
        refs = []
        for _ in range(3):
            refs += yield b.call_actor(a, method(b.no_op))
        for ref in refs:
            yield b.get([ref])
            took.append(process.sim.now_ns - begun)
        return took

    assert House(costs=costs).play(main) == [10 * US, 27 * US, 44 * US]


def test_the_first_call_of_a_process_waits_until_it_can_read_values():
    house = House(workers=1, costs=replace(NO_TIME, first_value_core_s=0.1))

    def main(process):
        ends = []
        for _ in range(2):
            refs = yield b.submit(options(b.Sleep(MS)))
            yield b.get(refs)
            ends.append(process.sim.now_ns)
        return ends

    assert house.play(main) == [101 * MS, 102 * MS]


@pytest.mark.parametrize("n", [0, 1])
def test_a_constructor_without_arguments_reads_no_value(n):
    house = House(workers=1, costs=replace(NO_TIME, first_value_core_s=0.1))

    def main(process):
        a = yield b.create_actor(actor(b.Sleep(MS)), *[Payload(8)] * n)
        yield b.sleep(50 * MS)
        begun = process.sim.now_ns
        yield b.get((yield b.call_actor(a, method(b.no_op))))
        return process.sim.now_ns - begun

    assert house.play(main) == (51 * MS if n else 100 * MS)


@pytest.mark.parametrize("n", [0, 1])
def test_without_arguments_the_first_value_is_what_it_returns(n):
    house = House(workers=1, costs=replace(NO_TIME, first_value_core_s=0.1))
    began = []

    def body(running):
        began.append(house.sim.now_ns)
        running.sleep(MS, running.finish)

    def main(process):
        yield b.get((yield b.submit(options(body), *[Payload(8)] * n)))
        return process.sim.now_ns

    assert house.play(main) == 101 * MS
    assert began == [100 * MS if n else 0]


@pytest.mark.parametrize("n", [0, 1])
def test_it_can_be_cancelled_before_its_process_has_had_a_value(n):
    house = House(workers=1, costs=replace(NO_TIME, first_value_core_s=0.1))

    def main(process):
        refs = yield b.submit(options(b.Sleep(S)), *[Payload(8)] * n)
        yield b.sleep(10 * MS)
        yield b.cancel(refs[0])
        (error,) = yield b.get(refs)
        return error.error_type, process.sim.now_ns

    assert house.play(main) == ("TASK_CANCELLED", 100 * MS if n else 110 * MS)


def test_computations_share_the_nodes_cores():
    house = House(workers=8)
    o = options(b.Compute(1.0))

    def main(process):
        refs = []
        for _ in range(8):
            refs += yield b.submit(o)
        yield b.get(refs)
        wide = yield b.submit(options(b.Compute(1.0, width=8)))
        yield b.get(wide)
        return process.sim.now_ns

    assert house.play(main) == 4 * S  # 8 core-seconds, then 8 threads of one, on 4 cores


def test_a_process_that_dies_leaves_the_cores_to_others():
    house = House(workers=2)

    def main(process):
        refs = yield b.submit(options(b.Compute(1.0, width=4), max_retries=0))
        refs += yield b.submit(options(b.Compute(1.0, width=4)))
        yield b.sleep(S)
        victim = next(
            w for w in house.processes.values() if refs[0].object_id >> 32 in w.executor.running
        )
        process.env.launcher.kill(victim.me.worker_id, reason="kill -9")
        (value,) = yield b.get(refs[1:])
        return value, process.sim.now_ns

    assert house.play(main) == (Payload(0), 3 * S // 2)


def test_an_actor_that_exits_by_itself_answers_the_call_and_is_dead():
    house = House()

    def exit_actor(running):
        running.exit_process(reason="exit_actor", intended=True)

    def main(_):
        a = yield b.create_actor(actor())
        (error,) = yield b.get((yield b.call_actor(a, method(exit_actor))))
        return error.error_type

    assert house.play(main) == "ACTOR_DIED"
    assert house.raylets[0].disconnected == ["exit_actor"]


def test_a_worker_that_owns_objects_may_refuse_to_exit():
    house = House()
    kept = []

    def body(running):
        kept.append((yield b.put(Payload(10))))
        return []

    def main(_):
        yield b.get((yield b.submit(options(b.script(body)))))
        return kept[0]

    x = house.play(main)
    answers = []
    worker = house.processes[x.owner.worker_id]
    ask = house.raylets[0].call
    ask(worker.address, p.ExitWorker(), answers.append)
    house.sim.run(house.sim.now_ns + S)
    worker.remove_local_reference(x.object_id)
    ask(worker.address, p.ExitWorker(), answers.append)
    house.sim.run(house.sim.now_ns + S)
    assert answers == [False, True]
    assert worker.state == "crashed"


def test_a_worker_told_to_leave_waits_until_its_objects_are_not_needed():
    house = House(workers=2)

    def body(_):
        x = yield b.put(Payload(10))
        return [Payload(1, None, (x,))]

    def main(process):
        o = options(b.script(body), max_calls=1)
        refs = yield b.submit(o)
        ((value,), begin) = (yield b.get(refs)), len(house.processes)
        (x,) = value.contained
        yield b.keep(x)
        yield b.get([x])
        worker = house.processes[x.owner.worker_id]
        yield b.drop(*refs, x)
        worker.remove_local_reference(x.object_id)
        yield b.sleep(MS)
        return begin - len(house.processes)

    assert house.play(main) == 1


def test_a_graceful_kill_lets_calls_that_are_here_finish():
    house = House()

    def main(_):
        a = yield b.create_actor(actor())
        refs = yield b.call_actor(a, method(b.Sleep(S)))
        refs += yield b.call_actor(a, method(b.Sleep(S)))
        yield b.sleep(MS)
        kill = p.KillActor(a, force_kill=False, no_restart=True)
        house.gcs.send(house.gcs.rows[a].address.address, kill)
        values = yield b.get(refs)
        yield b.sleep(MS)
        return values, house.gcs.rows[a].state

    assert house.play(main) == ([Payload(0)] * 2, "DEAD")


def test_early_calls_wait_for_those_before_them_at_most_30_s():
    house = House()
    order = []
    worker = house.raylets[0].idle[0]

    def record(running):
        order.append((running.spec.seq_no, house.sim.now_ns // S))
        running.finish()

    def main(process):
        a = yield b.create_actor(actor())
        refs = yield b.call_actor(a, method(record))
        yield b.get(refs)
        process.actors.actors[a].seq_no = 3
        refs = yield b.call_actor(a, method(record))
        return (yield b.get(refs))

    house.play(main)
    assert order == [(0, 0), (3, 30)]
    assert worker.executor.actor_id == worker.executor.actor.actor_id > 0


# ---- cancellation --------------------------------------------------------------------------------


def cancelled(house, *, while_, force=False, workers_kept=True):
    def main(process):
        busy = yield b.submit(options(b.Sleep(S), resources=ResourceSet()))
        if while_ == "arguments":
            refs = yield b.submit(options(b.no_op), busy)
        else:
            refs = yield b.submit(options(b.Sleep(100 * S)))
        yield b.sleep(10 * MS)
        yield b.cancel(refs[0], force=force)
        (error,) = yield b.get(refs)
        at_ns = process.sim.now_ns
        yield b.get(busy)
        return error.error_type, at_ns // MS

    return house.play(main)


def test_a_task_that_waits_for_arguments_for_a_worker_or_runs_can_be_cancelled():
    assert cancelled(House(), while_="arguments") == ("TASK_CANCELLED", 10)
    assert cancelled(House(workers=1), while_="queued") == ("TASK_CANCELLED", 10)
    assert cancelled(House(), while_="running") == ("TASK_CANCELLED", 10)


def test_force_kills_the_worker_and_is_not_retried():
    house = House()
    before = len(house.processes)
    assert cancelled(house, while_="running", force=True) == ("TASK_CANCELLED", 10)
    assert len(house.processes) == before - 1


def test_children_are_cancelled_with_their_parent_unless_told_not_to():
    for recursive, alive in [(True, 0), (False, 1)]:
        house = House()

        def parent(_):
            refs = yield b.submit(options(b.Sleep(100 * S)))
            yield b.get(refs)
            return []

        def main(_, recursive=recursive, house=house, parent=parent):
            refs = yield b.submit(options(b.script(parent)))
            yield b.sleep(MS)
            yield b.cancel(refs[0], recursive=recursive)
            yield b.get(refs)
            yield b.sleep(MS)
            return sum(len(w.executor.running) for w in house.processes.values())

        assert house.play(main) == alive


def test_a_call_of_an_actor_is_cancelled_in_its_queue():
    house = House()

    def main(_):
        a = yield b.create_actor(actor())
        refs = yield b.call_actor(a, method(b.Sleep(S)))
        refs += yield b.call_actor(a, method(b.Sleep(S)))
        yield b.sleep(MS)
        yield b.cancel(refs[1])
        (error,) = yield b.get(refs[1:])
        values = yield b.get(refs[:1])
        return error.error_type, values

    assert house.play(main) == ("TASK_CANCELLED", [Payload(0)])


def test_a_borrower_can_cancel():
    house = House()

    def body(running):
        yield b.cancel(running.args[0].contained[0])
        return []

    def main(_):
        (x,) = yield b.submit(options(b.Sleep(100 * S)))
        yield b.sleep(MS)
        yield b.get((yield b.submit(options(b.script(body)), [Payload(1, None, (x,))])))
        (error,) = yield b.get([x])
        return error.error_type

    assert house.play(main) == "TASK_CANCELLED"


@pytest.mark.parametrize("n", [1, 3])
def test_missing_returns_are_none_values(n):
    house = House()

    def main(_):
        refs = yield b.submit(options(b.no_op, num_returns=n))
        return (yield b.get(refs))

    assert house.play(main) == [Payload(0)] * n


def test_ending_twice_is_our_bug():
    house = House()

    def body(running):
        running.finish()
        with pytest.raises(AssertionError, match="ended twice"):
            running.fail(TaskError("WORKER_DIED"))

    def main(_):
        return (yield b.get((yield b.submit(options(body)))))

    assert house.play(main) == [Payload(0)]
