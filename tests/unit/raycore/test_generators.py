"""Streaming generators: one report per item, backpressure, ends, retries, dropped ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raysim.raycore import scripts as b
from raysim.raycore.tasks import Payload, TaskError
from tests.unit.raycore.core_worker_parts import MS, NO_TIME, US, House, S, options


def counting(n, pace_ns=10 * MS, made=None, size_bytes=10):
    def body(running):
        for i in range(n):
            yield b.sleep(pace_ns)
            if made is not None:
                made.append((i, running.core.sim.now_ns))
            yield b.yield_item(Payload(size_bytes, i))

    return b.script(body)


def read_all(generator, pause_ns=0):
    out = []
    while (item := (yield b.next_item(generator))) is not None:
        if isinstance(item, TaskError):
            out.append(item.error_type)
            continue
        (value,) = yield b.get([item])
        out.append(value.data)
        yield b.drop(item)
        if pause_ns:
            yield b.sleep(pause_ns)
    return out


def stream(body, **kwargs):
    return options(body, num_returns="streaming", **kwargs)


@pytest.mark.parametrize("size_bytes", [10, 500_000])
def test_items_come_one_by_one_in_order_while_the_task_runs(size_bytes):
    house = House(latency_ns=US)

    def main(process):
        (g,) = yield b.submit(stream(counting(4, size_bytes=size_bytes)))
        yield b.next_item(g)
        first_ns = process.sim.now_ns
        out = yield from read_all(g)
        yield b.drop(g)
        return first_ns < 20 * MS, out

    early, out = house.play(main)
    assert early
    assert out == [1, 2, 3]


def test_an_item_is_work_of_its_process():
    house = House(costs=replace(NO_TIME, generator_item_ns=2 * MS))

    def main(process):
        (g,) = yield b.submit(stream(counting(5, pace_ns=0)))
        yield from read_all(g)
        yield b.drop(g)
        return process.sim.now_ns

    assert house.play(main) == pytest.approx(5 * 2 * MS, abs=0.1 * MS)


@pytest.mark.parametrize(
    ("backpressure", "made_ms"), [(-1, [10, 20, 30, 40]), (2, [10, 20, 1010, 2010])]
)
def test_backpressure_holds_the_executor_up(backpressure, made_ms):
    made, house = [], House()

    def main(_):
        o = stream(counting(4, made=made), generator_backpressure_num_objects=backpressure)
        (g,) = yield b.submit(o)
        yield b.sleep(S)
        return (yield from read_all(g, pause_ns=S))

    assert house.play(main) == [0, 1, 2, 3]
    assert [t // MS for _, t in made] == made_ms


def test_an_error_comes_after_the_items_before_it_then_the_end():
    def body(_):
        yield b.yield_item(Payload(1, "one"))
        return TaskError("TASK_EXECUTION_EXCEPTION", "no")

    house = House()

    def main(_):
        (g,) = yield b.submit(stream(b.script(body)))
        return (yield from read_all(g))

    assert house.play(main) == ["one", "TASK_EXECUTION_EXCEPTION"]


def test_a_retried_generator_does_not_repeat_what_was_read():
    tries = []

    def body(running):
        tries.append(running.spec.attempt)
        for i in range(4):
            if i == 2 and len(tries) == 1:
                yield b.sleep(S)
                running.exit_process(reason="segfault", intended=False)
                yield b.sleep(S)
            yield b.yield_item(Payload(1, i))

    house = House()

    def main(_):
        (g,) = yield b.submit(stream(b.script(body)))
        return (yield from read_all(g))

    assert house.play(main) == [0, 1, 2, 3]
    assert tries == [0, 1]


def test_a_dropped_generator_leaves_nothing():
    house = House()

    def main(process):
        (g,) = yield b.submit(stream(counting(6, size_bytes=500_000)))
        item = yield b.next_item(g)
        yield b.sleep(25 * MS)
        yield b.drop(g, item)
        yield b.sleep(S)
        return process.streams.streams

    assert house.play(main) == {}
    assert house.leftovers() == {}
    assert house.plasma[0].objects == {}


def test_references_inside_items_stay_valid():
    house = House(latency_ns=US)

    def body(_):
        for i in range(3):
            x = yield b.put(Payload(1_000 + i))
            yield b.yield_item(Payload(1, i, (x,)))
            yield b.drop(x)

    def main(_):
        (g,) = yield b.submit(stream(b.script(body)))
        sizes = []
        while (item := (yield b.next_item(g))) is not None:
            (value,) = yield b.get([item])
            (x,) = value.contained
            yield b.keep(x)
            yield b.drop(item)
            yield b.sleep(S)
            (inner,) = yield b.get([x])
            sizes.append(inner.size_bytes)
            yield b.drop(x)
        yield b.drop(g)
        yield b.sleep(S)
        return sizes

    assert house.play(main) == [1_000, 1_001, 1_002]
    assert house.leftovers() == {}
