"""The clock is SimPy to the letter, and its own entries keep time, order and cancellations."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.kernel import Clock
from raysim.kernel import clock as clock_module

Log = list[tuple[Any, ...]]


class Program:
    """One random SimPy program: what every process does is decided by its own seed."""

    def __init__(self, env: Any, seed: int) -> None:
        self.env, self.seed, self.log = env, seed, []
        self.procs: list[Any] = []
        self.shared = [env.event() for _ in range(4)]
        self.resource = simpy.PriorityResource(env, capacity=2)
        self.store = simpy.Store(env, capacity=3)
        r = random.Random(seed)
        self.scale = r.choice([1, 3, 20, 1000])
        self.fragile = r.random() < 0.15
        for i in range(r.randint(1, 7)):
            self.spawn(f"p{i}", r.randint(0, 10**6), depth=0)
        if r.random() < 0.5:
            self.plain_events(r)

    def plain_events(self, r: random.Random) -> None:
        """Events scheduled by hand, with priorities of their own."""
        for i in range(r.randint(1, 6)):
            event = self.env.event()
            event._ok, event._value = True, i
            event.callbacks.append(lambda e: self.note("plain", e.value))
            self.env.schedule(event, r.choice([0, 1, 2]), r.randint(0, 3) * self.scale)

    def note(self, *what: Any) -> None:
        self.log.append((self.env.now, *what))

    def spawn(self, name: str, seed: int, depth: int) -> Any:
        proc = self.env.process(self.life(name, random.Random(seed), depth))
        self.procs.append(proc)
        return proc

    def delay(self, r: random.Random) -> int:
        return r.choice([0, 0, 1, 2, r.randint(0, 5) * self.scale, r.randint(0, 50)])

    def life(self, name: str, r: random.Random, depth: int) -> Any:
        for step in range(r.randint(1, 6)):
            try:
                value = yield from self.act(name, r, depth)
                self.note(name, step, repr(value))
            except simpy.Interrupt as e:
                self.note(name, step, "interrupted", e.cause)
            except ValueError as e:
                self.note(name, step, "caught", str(e))
        if r.random() < 0.2 and (depth or self.fragile):
            raise ValueError(name)
        return name

    def act(self, name: str, r: random.Random, depth: int) -> Any:
        kind = r.choice("ttttseefiicacrqp")
        env = self.env
        if kind == "t":
            return (yield env.timeout(self.delay(r), value=r.randint(0, 9)))
        if kind == "s":
            child = self.spawn(f"{name}.{len(self.procs)}", r.randint(0, 10**6), depth + 1)
            return (yield child)
        if kind in "ef":
            return (yield from self.share(kind, r))
        if kind == "i":
            victim = r.choice(self.procs)
            if victim.is_alive and victim is not env.active_process:
                victim.interrupt((name, env.now))
            return (yield env.timeout(r.randint(0, 1)))
        if kind in "ca":
            parts = [env.timeout(self.delay(r), value=i) for i in range(r.randint(0, 3))]
            parts += r.sample(self.shared, r.randint(0, 1))
            both = env.any_of(parts) if kind == "c" else env.all_of(parts)
            done = yield both | env.timeout(30 * self.scale)
            return sorted(str(v) for v in done.values())
        if kind == "r":
            with self.resource.request(priority=r.randint(0, 2)) as held:
                yield held | env.timeout(self.delay(r))
                yield env.timeout(self.delay(r))
            return held.triggered
        if kind == "q":
            yield self.store.put(name) | env.timeout(3)
            return None
        return (yield self.store.get() | env.timeout(2)).todict().__len__()

    def share(self, kind: str, r: random.Random) -> Any:
        i = r.randrange(len(self.shared))
        event = self.shared[i]
        if event.triggered:
            self.shared[i] = self.env.event()
        elif r.random() < 0.4:
            return (yield event | self.env.timeout(40 * self.scale)).__class__
        elif kind == "f":
            event.fail(ValueError("shared"))
            event.defused = True
        else:
            event.succeed(i)
        yield self.env.timeout(self.delay(r))
        return None

    def play(self) -> Log:
        """Drive it in several ways, noting what ``run``, ``step`` and ``peek`` say."""
        r = random.Random(self.seed + 1)
        env = self.env
        try:
            for _ in range(r.randint(0, 4)):
                self.note("peek", env.peek())
                self.drive(r)
            env.run()
        except (ValueError, RuntimeError, simpy.Interrupt, simpy.core.EmptySchedule) as e:
            self.note("stopped", type(e).__name__, str(e)[:14])
        self.note("end", env.peek())
        return self.log

    def drive(self, r: random.Random) -> None:
        env = self.env
        way = r.choice(["time", "event", "step", "process"])
        if way == "time":
            self.note(env.run(until=env.now + r.randint(1, 20) * self.scale))
        elif way == "event":
            stop = env.timeout(r.randint(0, 9), value="stop")
            stop.callbacks.append(lambda e: self.note("after stop"))
            self.note(env.run(until=stop))
        elif way == "process":
            self.note(repr(env.run(until=r.choice(self.procs))))
        else:
            for _ in range(r.randint(1, 9)):
                env.step()


def shrink(patch: pytest.MonkeyPatch, crowd: int, slot: int, block: int) -> None:
    """Have a few entries count as a crowd, so that small programs see slots opened and respread."""
    patch.setattr(clock_module, "_CROWD", crowd)
    patch.setattr(clock_module, "_SLOT", slot)
    patch.setattr(clock_module, "_BLOCK", block)


@pytest.mark.parametrize("sizes", [(1024, 256, 4096), (2, 1, 8), (4, 3, 64)], ids=str)
def test_thousands_of_simpy_programs_play_alike(monkeypatch: pytest.MonkeyPatch, sizes):
    shrink(monkeypatch, *sizes)
    stopped = long = 0
    for seed in range(1000):
        expected = Program(simpy.Environment(), seed).play()
        assert Program(Clock(), seed).play() == expected, f"program {seed}"
        stopped += any("stopped" in row for row in expected)
        long += len(expected) > 20
    assert stopped > 40, "too few programs fail to say anything about failures"
    assert long > 200, "programs too short to say anything about order"


class Scheduler:
    """The definition: a list of (time, sequence) searched for its minimum."""

    def __init__(self) -> None:
        self.now, self.sequence = 0, 0
        self.pending: list[tuple[int, int, list[Any]]] = []

    def call_later(self, delay_ns: int, fn: Callable[[Any], object], arg: Any) -> list[Any]:
        entry = [fn, arg]
        self.sequence += 1
        self.pending.append((self.now + delay_ns, self.sequence, entry))
        return entry

    def cancel(self, entry: list[Any]) -> None:
        self.pending = [row for row in self.pending if row[2] is not entry]

    def run(self) -> None:
        while self.pending:
            first = min(self.pending, key=lambda row: row[:2])
            self.pending.remove(first)
            self.now, _, (fn, arg) = first
            fn(arg)


def play(sim: Any, delays: list[int], cancels: list[int], fanout: int) -> Log:
    """Entries that schedule others and cancel earlier ones, as the lists say."""
    log: Log = []
    handles: list[Any] = []

    def happen(i: int) -> None:
        log.append((sim.now, i))
        for _ in range(fanout):
            if len(handles) < len(delays):
                add()
        if i < len(cancels) and cancels[i] < len(handles):
            sim.cancel(handles[cancels[i]])

    def add() -> None:
        i = len(handles)
        handles.append(None)
        handles[i] = sim.call_later(delays[i], happen, i)

    for _ in range(min(len(delays), 1 + len(delays) // 2)):
        add()
    sim.run()
    log.append((sim.now, len(log)))
    return log


DELAYS = st.one_of(st.integers(0, 3), st.integers(0, 60), st.integers(0, 10**12))


@given(
    st.lists(DELAYS, min_size=1, max_size=120),
    st.lists(st.integers(0, 119), max_size=120),
    st.integers(0, 3),
    st.sampled_from([(1024, 256, 4096), (3, 2, 4), (1, 1, 1), (2, 1, 16), (5, 3, 50)]),
)
@settings(max_examples=250, deadline=None)
def test_entries_happen_as_a_sorted_list_would_have_them(delays, cancels, fanout, sizes):
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, *sizes)
        assert play(Clock(), delays, cancels, fanout) == play(Scheduler(), delays, cancels, fanout)


@given(st.lists(st.tuples(DELAYS, st.booleans()), min_size=1, max_size=80), st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_stepping_and_peeking_see_what_run_sees(rows, crowd):
    def fill(clock: Clock, log: Log) -> None:
        handles = [
            clock.call_at(t, lambda i: log.append((clock.now, i)), i)
            for i, (t, _) in enumerate(rows)
        ]
        for handle, (_, dropped) in zip(handles, rows, strict=True):
            if dropped:
                clock.cancel(handle)

    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, crowd, slot=2, block=8)
        run_log: Log = []
        step_log: Log = []
        whole, stepped = Clock(), Clock()
        fill(whole, run_log)
        fill(stepped, step_log)
        whole.run()
        while (t := stepped.peek()) < float("inf"):
            stepped.step()
            assert stepped.now == t
    assert (
        run_log == step_log == sorted((t, i) for i, (t, dropped) in enumerate(rows) if not dropped)
    )
    assert stepped.now == whole.now
