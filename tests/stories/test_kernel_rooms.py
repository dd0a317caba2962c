"""Small timelines of rooms, as [(t, what)]."""

from dataclasses import dataclass

import pytest

from raysim.errors import InvariantViolation
from raysim.kernel import (
    Component,
    InstantTransport,
    NodeDied,
    RoomDown,
    Simulation,
    Timeout,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    n: int
    size_bytes: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    size_bytes: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    n: int
    size_bytes: int = 50


class Raylet(Component):
    """Grants a lease ``work_ns`` after the request was handled."""

    work_ns = 0

    def started(self) -> None:
        self.log: list = getattr(self, "log", [])
        self.granted = 0
        self.log.append((self.sim.now_ns, "started"))

    def stopped(self, cause) -> None:
        self.log.append((self.sim.now_ns, cause.reason))

    def on_lease(self, m: Lease, reply) -> None:
        self.log.append((self.sim.now_ns, f"handle {m.n}"))
        self.granted += 1
        if self.work_ns:
            self.after(self.work_ns, reply, Granted(n=m.n))
        else:
            reply(Granted(n=m.n))

    def on_ping(self, m: Ping, reply) -> None:
        self.log.append((self.sim.now_ns, "ping"))


class Driver(Component):
    def started(self) -> None:
        self.log: list = getattr(self, "log", [])

    def ask(self, n: int, timeout_ns: int | None = None) -> None:
        self.call("head/raylet", Lease(n=n), self.heard, timeout_ns=timeout_ns)

    def heard(self, answer) -> None:
        self.log.append((self.sim.now_ns, answer))


@pytest.fixture
def sim():
    sim = Simulation(check=True)
    sim.transport = InstantTransport(sim.clock, latency_ns=10)
    return sim


@pytest.fixture
def raylet(sim):
    return sim.add(Raylet(sim, "head/raylet", service_ns={Lease: 100}))


@pytest.fixture
def driver(sim):
    return sim.add(Driver(sim, "head/driver"))


def test_messages_are_served_first_in_first_out(sim, raylet, driver):
    for n in range(3):
        driver.ask(n)
    sim.at(350, driver.ask, 3)
    sim.run()
    assert raylet.log == [
        (0, "started"), (110, "handle 0"), (210, "handle 1"), (310, "handle 2"), (460, "handle 3"),
    ]  # fmt: skip
    assert driver.log == [
        (120, Granted(n=0)), (220, Granted(n=1)), (320, Granted(n=2)), (470, Granted(n=3)),
    ]  # fmt: skip
    assert not raylet.unanswered


def test_a_free_message_does_not_overtake_one_due_in_the_same_instant(sim, raylet, driver):
    # The ping is on the wire before the lease is served, and arrives as the service ends.
    sim.transport = InstantTransport(sim.clock, latency_ns=110)
    driver.send("head/raylet", Ping())  # arrives at 110
    sim.transport = InstantTransport(sim.clock, latency_ns=10)
    driver.ask(0)  # arrives at 10, is served at 110
    sim.run()
    assert raylet.log == [(0, "started"), (110, "handle 0"), (110, "ping")]


def test_an_answer_may_come_later_and_in_another_order(sim, raylet, driver):
    raylet.work_ns = 1000
    driver.ask(0)
    sim.at(150, setattr, raylet, "work_ns", 0)
    sim.at(200, driver.ask, 1)
    sim.run()
    assert driver.log == [(320, Granted(n=1)), (1120, Granted(n=0))]


def test_answers_wait_while_the_caller_is_busy(sim, raylet):
    driver = sim.add(Driver(sim, "head/driver", service_ns={Granted: 500}))
    driver.ask(0)
    driver.ask(1)
    sim.run()
    assert driver.log == [(620, Granted(n=0)), (1120, Granted(n=1))]


def test_cost_may_depend_on_the_message(sim, driver):
    raylet = sim.add(Raylet(sim, "head/raylet", service_ns={Lease: lambda m: 100 * (1 + m.n)}))
    driver.ask(0)
    driver.ask(3)
    sim.run()
    assert raylet.log[1:] == [(110, "handle 0"), (510, "handle 3")]


def test_a_crash_answers_every_caller_with_its_cause(sim, raylet, driver):
    raylet.work_ns = 1000
    for n in range(3):  # at 250, call 0 is being worked on, 1 handled too, 2 queued
        driver.ask(n)
    sim.at(245, driver.ask, 3)  # on the wire at 250
    sim.at(250, raylet.crash)
    sim.at(300, driver.ask, 4)  # to a dead room
    sim.run()
    down = RoomDown(address="head/raylet", reason="crashed")
    assert raylet.log == [
        (0, "started"), (110, "handle 0"), (210, "handle 1"), (250, "crashed"),
    ]  # fmt: skip
    assert driver.log == [(260, down), (260, down), (260, down), (265, down), (320, down)]
    assert not raylet.unanswered


def test_a_node_that_dies_silently_is_noticed_by_timeouts_only(sim, raylet, driver):
    cause = NodeDied(address="head/raylet", node="head")
    raylet.work_ns = 1000
    driver.ask(0)
    driver.ask(1, timeout_ns=700)
    sim.at(500, raylet.crash, cause)
    silent = Simulation()
    silent.transport = InstantTransport(silent.clock, latency_ns=10)
    quiet = silent.add(Raylet(silent, "head/raylet"))
    caller = silent.add(Driver(silent, "head/driver"))
    quiet.work_ns = 1000
    caller.ask(0)
    caller.ask(1, timeout_ns=700)
    silent.at(500, lambda: quiet.crash(cause, silent=True))
    sim.run()
    silent.run()
    assert driver.log == [(510, cause), (510, cause)]
    assert caller.log == [(700, Timeout(address="head/raylet", after_ns=700))]


def test_a_timeout_answers_once_and_the_late_answer_is_dropped(sim, raylet, driver):
    raylet.work_ns = 1000
    driver.ask(0, timeout_ns=600)
    sim.at(2000, driver.ask, 1, 5000)
    sim.run()
    assert driver.log == [
        (600, Timeout(address="head/raylet", after_ns=600)), (3120, Granted(n=1)),
    ]  # fmt: skip
    assert sim.now_ns == 3120, "a timer that was cancelled must not hold up the end of the run"


def test_a_restarted_room_starts_empty_and_free(sim, raylet, driver):
    for n in range(9):
        driver.ask(n)
    sim.at(250, raylet.restart)
    sim.at(295, driver.ask, 9)
    sim.run()
    assert raylet.log == [
        (0, "started"), (110, "handle 0"), (210, "handle 1"),
        (250, "restarted"), (250, "started"), (405, "handle 9"),
    ]  # fmt: skip
    assert raylet.granted == 1
    assert driver.log[-1] == (415, Granted(n=9))
    assert [type(what) for _, what in driver.log] == [Granted, Granted] + [RoomDown] * 7 + [Granted]


def test_what_was_on_the_wire_to_a_room_dies_with_it(sim, raylet, driver):
    driver.ask(0)  # arrives at 10; by then the room that listens is another one
    sim.at(5, raylet.restart)
    sim.run()
    assert raylet.log == [(0, "started"), (5, "restarted"), (5, "started")]
    assert driver.log == [(20, RoomDown(address="head/raylet", reason="restarted"))]


def test_a_stopped_room_finishes_what_it_accepted(sim, raylet, driver):
    driver.ask(0)
    driver.ask(1)
    sim.at(50, raylet.stop)
    sim.at(60, driver.ask, 2)
    sim.run()
    assert driver.log == [
        (80, RoomDown(address="head/raylet", reason="stopped")),
        (120, Granted(n=0)), (220, Granted(n=1)),
    ]  # fmt: skip


def test_a_dead_caller_hears_nothing_and_its_timers_are_gone(sim, raylet, driver):
    raylet.work_ns = 500
    driver.ask(0, timeout_ns=5000)
    driver.after(300, driver.heard, "timer")
    sim.at(200, driver.restart)
    sim.at(400, driver.ask, 1)
    sim.run()
    assert driver.log == [(1020, Granted(n=1))]


def test_a_script_waits_for_an_answer_as_for_any_event(sim, raylet, driver):
    def script():
        yield sim.clock.timeout(1000)
        answer = sim.clock.event()
        driver.call("head/raylet", Lease(n=7), then=answer.succeed)
        value = yield answer
        log.append((sim.now_ns, value))

    log: list = []
    sim.run(until=sim.clock.process(script()))
    assert log == [(1120, Granted(n=7))]


def test_answering_twice_is_our_fault(sim, driver):
    seen = []

    class Eager(Raylet):
        def on_lease(self, m, reply):
            seen.append(reply.answered)
            reply(1)
            seen.append(reply.answered)
            reply(2)

    sim.add(Eager(sim, "head/raylet"))
    driver.ask(0)
    with pytest.raises(InvariantViolation, match=r"head/raylet answered .* twice"):
        sim.run()
    assert seen == [False, True]


def test_an_unknown_message_and_an_unknown_address_are_named(sim, raylet, driver):
    with pytest.raises(KeyError, match="head/gcs"):
        driver.send("head/gcs", Ping())
    driver.send("head/raylet", Granted(n=1))
    with pytest.raises(TypeError, match=r"head/raylet got Granted.*on_granted"):
        sim.run()
