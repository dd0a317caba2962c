import math

import numpy as np
import pytest
import simpy

from raysim.kernel import Clock, EventLog, whole_ns
from raysim.kernel import clock as clock_module


def nothing(_):
    pass


@pytest.mark.parametrize(
    ("value", "ns"),
    [
        (3, 3),
        (3.0, 3),
        (2.1, 3),
        (3.0000000001, 3),
        (0.2, 1),
        (np.int64(7), 7),
        (np.float64(1.5), 2),
    ],
)
@pytest.mark.parametrize("way", ["call_at", "call_later", "timeout", "schedule", "run"])
def test_fractions_of_a_nanosecond_round_up_and_the_clock_stays_int(way, value, ns):
    assert whole_ns(value) == ns
    clock = Clock()
    urgent = clock.event()
    urgent._ok, urgent._value = True, None
    ways = {
        "call_at": lambda: clock.call_at(value, nothing),
        "call_later": lambda: clock.call_later(value, nothing),
        "timeout": lambda: clock.timeout(value),
        "schedule": lambda: clock.schedule(urgent, simpy.events.URGENT, value),
        "run": lambda: clock.run(until=value),
    }
    ways[way]()
    clock.run()
    assert clock.now == ns
    assert type(clock.now) is int


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_times_that_are_none_are_refused(value):
    clock = Clock()
    for schedule in (
        lambda: clock.call_at(value, nothing),
        lambda: clock.call_later(value, nothing),
        lambda: clock.timeout(value),
        lambda: clock.run(until=value),
    ):
        with pytest.raises(ValueError, match=r"finite|Negative"):
            schedule()
    assert clock.peek() == math.inf


def test_the_past_is_refused():
    clock = Clock(100)
    for schedule in (
        lambda: clock.call_at(99, nothing),
        lambda: clock.call_later(-1, nothing),
        lambda: clock.timeout(-1),
        lambda: clock.schedule(clock.event(), delay=-1),
        lambda: clock.schedule(clock.event(), 0, delay=-1),
        lambda: clock.run(until=100),
    ):
        with pytest.raises(ValueError, match=r"past|egative|greater"):
            schedule()
    assert clock.peek() == math.inf


def test_a_cancelled_entry_leaves_no_trace():
    log = EventLog()
    clock = Clock(log=log)
    handle = clock.call_later(50, nothing)
    clock.call_later(20, nothing)
    clock.cancel(handle)
    assert clock.peek() == 20
    clock.run()
    assert (clock.now, log.events) == (20, 1)
    clock.cancel(handle)
    assert clock.peek() == math.inf


def test_an_entry_cancelled_in_its_own_instant_does_not_happen():
    clock = Clock()
    done = []
    handles = {}
    clock.call_at(5, lambda _: clock.cancel(handles["late"]))
    handles["late"] = clock.call_at(5, done.append, "late")
    clock.call_at(5, done.append, "other")
    clock.run()
    assert done == ["other"]


def test_cancelled_timers_do_not_pile_up():
    clock = Clock()
    worst = 0

    def call(n):
        nonlocal worst
        timer = clock.call_later(30_000_000_000, nothing)
        clock.call_later(10, clock.cancel, timer)
        worst = max(worst, len(clock._at))
        if n:
            clock.call_later(20, call, n - 1)

    clock.call_later(0, call, 20_000)
    clock.run()
    assert worst < 3 * clock_module._CROWD
    assert clock.now == 20_000 * 20 + 10


def test_crowds_leave_the_heap_and_come_back(monkeypatch):
    monkeypatch.setattr(clock_module, "_CROWD", 100)
    monkeypatch.setattr(clock_module, "_SLOT", 30)
    clock = Clock()
    seen = []
    for i in range(5000):  # three or so at every time
        clock.call_at(1 + (i * 7919) % 1_999 * 5, lambda i: seen.append((clock.now, i)), i)
    clock.call_at(10**9, nothing)
    clock.run(until=5000)
    assert 0 < len(clock._times) + len(clock._run) < 2000, "most wait in slots"
    clock.run()
    assert seen == sorted(seen)
    assert len(seen) == 5000


def test_an_exception_leaves_a_clock_that_goes_on():
    clock = Clock()
    done = []
    clock.call_at(5, done.append, 1)
    clock.call_at(5, lambda _: 1 / 0)
    clock.call_at(5, done.append, 2)
    with pytest.raises(ZeroDivisionError):
        clock.run()
    assert (clock.now, clock.peek(), done) == (5, 5, [1])
    clock.run()
    assert done == [1, 2]


def test_a_handler_may_run_the_clock_itself():
    clock = Clock()
    done = []

    def inner(_):
        clock.run(until=30)
        done.append(clock.now)

    clock.call_at(10, inner)
    clock.call_at(20, done.append, "between")
    clock.call_at(40, done.append, "after")
    clock.run()
    assert done == ["between", 30, "after"]


def test_ties_keep_their_order_when_the_slots_are_respread(monkeypatch):
    monkeypatch.setattr(clock_module, "_CROWD", 10)
    monkeypatch.setattr(clock_module, "_SLOT", 8)
    clock = Clock()
    seen = []

    def respread(_):
        # 15 waits in the open slot, and again on the heap; then enough is cancelled to rebuild.
        assert any(t == 15 for t, _ in clock._run)
        clock.call_at(15, seen.append, "scheduled last")
        assert 15 in clock._at
        for _ in range(200):
            clock.cancel(clock.call_at(16, nothing))
        assert not any(t == 15 for t, _ in clock._run)

    for t in range(1, 200):
        clock.call_at(t, respread if t == 13 else nothing)
    clock.call_at(15, seen.append, "scheduled first")
    clock.run()
    assert seen == ["scheduled first", "scheduled last"]
