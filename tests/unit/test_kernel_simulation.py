import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from raysim.errors import InvariantViolation
from raysim.kernel import (
    Clock,
    ColumnRecorder,
    Component,
    EventLog,
    InstantTransport,
    Simulation,
    compare,
    first_divergence,
    simulation,
)
from raysim.kernel.simulation import AT_EASE, collector_at_ease, what_exists_stays


class Hello:
    size_bytes = 10


class Room(Component):
    """Answers after a random while."""

    def on_hello(self, m, reply):
        self.after(int(self.sim.rng(self.address).integers(1, 1000)), reply)


def busy_run(sim: Simulation, *, rooms=("a", "b", "c", "d"), calls=200) -> Simulation:
    """Rooms calling each other, and a SimPy script among them."""
    sim.transport = InstantTransport(sim.clock, 100)
    for name in rooms:
        sim.add(Room(sim, name, service_ns={Hello: 30}))

    def script():
        draw = sim.rng("script")
        for _ in range(calls):
            yield sim.clock.timeout(int(draw.exponential(50)))
            src, dst = draw.choice(rooms, size=2)
            sim.components[src].call(dst, Hello(), then=lambda _: None, timeout_ns=900)

    sim.clock.process(script())
    sim.at("1us", lambda: None)
    return sim


def test_a_transport_is_told_where_rooms_are_in_its_own_words():
    class Lengths(InstantTransport):
        """An address is where its length says; a message takes the difference."""

        def end(self, address):
            return len(address)

        def deliver(self, src, dst, message_bytes, fn, arg, lead_ns=0):
            self.latency_ns = abs(dst - src)
            super().deliver(src, dst, message_bytes, fn, arg, lead_ns)

    sim = Simulation()
    sim.transport = Lengths(sim.clock)
    near, far = sim.add(Room(sim, "b")), sim.add(Room(sim, "somewhere"))
    near.send(far.address, Hello())
    sim.run()
    assert sim.now_ns - 8 in range(1, 1000)
    assert (near.end, far.end) == (1, 9)


def test_text_and_numbers_are_times_from_the_start():
    sim = Simulation()
    seen = []
    sim.at("2ms", lambda *a: seen.append((sim.now_ns, *a)), 1, 2)
    sim.at(70, seen.append, "ns")
    sim.run(until="1ms")
    assert (seen, sim.now_ns) == (["ns"], 1_000_000)
    sim.run(until="1ms")
    sim.run(until=10)
    assert sim.now_ns == 1_000_000, "running to the past does nothing"
    sim.run()
    assert seen[1:] == [(2_000_000, 1, 2)]


@pytest.fixture
def nothing_stays(monkeypatch):
    """As in any process; the tests' own says that what exists stays."""
    monkeypatch.setattr(simulation, "_stays", False)
    gc.unfreeze()
    yield
    gc.freeze()


def test_the_collector_is_as_before_after_a_run_even_one_that_fails(nothing_stays):
    own = gc.get_threshold()
    gc.set_threshold(701, 11, 12)
    try:
        frozen = gc.get_freeze_count()
        sim = Simulation()
        during = []
        sim.at(1, lambda: during.append((gc.get_threshold()[0], gc.get_freeze_count())))
        sim.at(2, lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            sim.run()
        assert (gc.get_threshold(), gc.get_freeze_count()) == ((701, 11, 12), frozen)
    finally:
        gc.set_threshold(*own)
    assert during[0][0] > 10_000
    assert during[0][1] > frozen


def test_what_is_said_to_stay_is_not_looked_at_again(monkeypatch):
    class Cycle:
        def __init__(self):
            self.me = self

    monkeypatch.setattr(simulation, "_stays", False)
    before = weakref.ref(Cycle())
    what_exists_stays(look=False)
    frozen = gc.get_freeze_count()
    during = []
    sim = Simulation()
    sim.at(1, lambda: during.append((gc.get_threshold(), gc.get_freeze_count() <= frozen)))
    sim.run()
    after = weakref.ref(Cycle())
    gc.collect()
    assert during == [(AT_EASE, True)]
    assert before() is not None
    assert after() is None
    gc.unfreeze()
    what_exists_stays()
    assert before() is None


def test_what_runs_leave_behind_is_collected_when_it_is_much(monkeypatch):
    class Cycle:
        def __init__(self):
            self.me = self

    gc.collect()
    monkeypatch.setattr(simulation, "_left", 0)
    with collector_at_ease():
        gone = weakref.ref(Cycle())
    assert gone() is not None, "no look at what is new on the way out"
    monkeypatch.setattr(simulation, "_left", AT_EASE[0] + 1)
    with collector_at_ease():
        pass
    assert gone() is None


def test_the_digest_does_not_depend_on_recording_checking_or_slicing():
    plain = busy_run(Simulation(seed=7))
    plain.run()
    recorded = busy_run(Simulation(seed=7, recorder=ColumnRecorder()))
    recorded.run()
    checked = busy_run(Simulation(seed=7, check=True))
    checked.run()
    sliced = busy_run(Simulation(seed=7, log=EventLog(every=4096)))
    for t_ns in range(0, plain.now_ns, 3_000):
        sliced.run(until=t_ns)
        assert sliced.digest != plain.digest, "reading it half-way changes nothing"
    sliced.run()
    assert len(recorded.recorder) > 100
    assert plain.digest == recorded.digest == checked.digest == sliced.digest


@pytest.mark.parametrize(
    "change",
    [
        lambda: busy_run(Simulation(seed=8)),
        lambda: busy_run(Simulation(seed=7), calls=201),
        lambda: busy_run(Simulation(seed=7), rooms=("a", "b", "d", "c")),
    ],
    ids=["seed", "one call more", "order of rooms"],
)
def test_the_digest_tells_runs_apart(change):
    plain, other = busy_run(Simulation(seed=7)), change()
    plain.run()
    other.run()
    assert plain.digest != other.digest


def test_the_digest_sees_a_draw_that_changed_nothing_else():
    digests = []
    for draws in (1, 2):
        sim = Simulation()
        sim.rng("x").random(draws)
        digests.append(sim.digest)
    assert digests[0] != digests[1]


def test_the_digest_sees_which_room_of_a_kind_was_served_first():
    digests = []
    for order in (("a", "b"), ("b", "a")):
        sim = Simulation()
        for name in ("a", "b"):
            sim.add(Room(sim, name))
        for name in order:
            sim.components["a"].send(name, Hello())
        sim.run(until=1)
        digests.append(sim.log.digest)
    assert digests[0] != digests[1]


SCRIPT = """
from raysim.kernel import Simulation, ColumnRecorder
from tests.unit.test_kernel_simulation import busy_run
names = {"node-%d" % i for i in range(9)}           # a set: its order changes with the hash seed
for recorder in (None, ColumnRecorder()):
    sim = busy_run(Simulation(seed=3, recorder=recorder), rooms=tuple(sorted(names)))
    sim.run()
    print(sim.digest)
"""


def test_the_digest_is_the_same_under_three_hash_seeds():
    root = Path(__file__).parents[2]
    lines = []
    for hash_seed in ("0", "1", "4242"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root)}
        run = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=True
        )
        lines += run.stdout.split()
    assert len(lines) == 6
    assert len(set(lines)) == 1


def test_a_violated_invariant_says_when_and_after_what():
    sim = Simulation(check=True)
    free = {"GPU": 2}

    def take(_):
        free["GPU"] -= 1

    sim.invariants.register("resources", lambda: free["GPU"] < 0 and f"GPU = {free['GPU']}")
    for t in (5, 6, 7, 8):
        sim.call_at(t, take)
    with pytest.raises(InvariantViolation, match=r"resources: GPU = -1; after event 3 \(.*take\)"):
        sim.run()
    assert sim.now_ns == 7


def test_checkers_may_assert_and_some_wait_for_the_end():
    def leaves_open():
        if open_leases:
            raise AssertionError(f"{len(open_leases)} leases open")

    open_leases = [1]
    for check in (False, True):
        sim = Simulation(check=check)
        sim.invariants.register("leases", leaves_open, at_end=True)
        sim.at(5, lambda: None)
        sim.run(until=6)
        if check:
            with pytest.raises(InvariantViolation, match="leases: 1 leases open; at the end"):
                sim.run()
        else:
            sim.run()
    with pytest.raises(ValueError, match="leases"):
        sim.invariants.register("leases", leaves_open)


def counting(log: EventLog, *, odd_at: int | None = None, events: int = 1000) -> None:
    """A run of ticks, one of which is late in some runs."""
    sim = Simulation(log=log)

    def tick(i):
        if i < events:
            sim.call_later(10 + (i == odd_at), tick, i + 1)

    sim.call_later(10, tick, 1)
    sim.run()


@pytest.mark.parametrize("every", [1, 7, 64, 4096])
@pytest.mark.parametrize("odd_at", [1, 63, 64, 500, 999])
def test_the_first_event_that_differs_is_found(every, odd_at):
    found = first_divergence(counting, lambda log: counting(log, odd_at=odd_at), every=every)
    assert found is not None
    assert (found.event, found.events_in_window) == (odd_at, 1)
    assert (found.left_t_ns, found.right_t_ns) == (odd_at * 10 + 10, odd_at * 10 + 11)
    assert "tick" in str(found)
    assert str(found.left_t_ns) in str(found)


def test_equal_runs_do_not_diverge_and_a_shorter_one_does():
    assert first_divergence(counting, counting, every=16) is None
    found = first_divergence(counting, lambda log: counting(log, events=900), every=16)
    assert found is not None
    assert (found.event, found.left_t_ns, found.right) == (900, 9010, None)
    assert "ended" in str(found)


def test_comparing_two_logs_names_the_window():
    left, right = EventLog(every=100), EventLog(every=100)
    counting(left)
    counting(right, odd_at=250)
    found = compare(left, right)
    assert found is not None
    assert (found.event, found.events_in_window) == (200, 100)
    assert "200..299" in str(found)


def test_a_clock_alone_keeps_no_log():
    clock = Clock()
    clock.call_later(1, lambda _: None)
    clock.run()
    assert clock.log.events == 0
