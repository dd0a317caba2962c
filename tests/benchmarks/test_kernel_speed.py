"""CPU time of the clock and of rooms against plain SimPy; ratios, never gates.

    pytest tests/benchmarks/test_kernel_speed.py -m benchmark --benchmark-enable -s

Every ratio is between two things run one after the other in the same process, each the best of a
few rounds, in CPU seconds. What is compared: n actors that each wait a random while again and
again, as SimPy processes on timeouts and as entries of the clock; and a server asked by 50 clients,
as a SimPy process with a store and as rooms.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

import numpy as np
import pytest
import simpy

from raysim.kernel import Clock, Component, InstantTransport, Simulation
from tests.benchmarks.table import best_cpu_s, row

pytestmark = pytest.mark.benchmark

EVENTS = 200_000
CALLS = 20_000
MEAN_NS = 500_000_000


def processes(env: Any, n: int, delay: Callable[[], int]) -> None:
    timeout = env.timeout

    def actor() -> Any:
        while True:
            yield timeout(delay())

    for _ in range(n):
        env.process(actor())


def entries(clock: Any, n: int, delay: Callable[[], int]) -> None:
    later = clock.call_later

    def tick(_: None) -> None:
        later(delay(), tick)

    for _ in range(n):
        later(0, tick)


def waiting(env: Any, fill: Callable[..., None], n: int, run: Callable[..., Any]) -> Any:
    delays = np.random.default_rng(1).integers(1, 2 * MEAN_NS, 2 * EVENTS + n).tolist()
    fill(env, n, iter(delays).__next__)
    run(1)
    return lambda: run(EVENTS * MEAN_NS // n)


@pytest.mark.parametrize("pending", [100, 1_000, 30_000, 100_000])
@pytest.mark.parametrize("what", ["entries", "entries with digest", "processes"])
def test_waiting_against_simpy(benchmark: Any, pending: int, what: str) -> None:
    def stock() -> Any:
        env = simpy.Environment()
        return waiting(env, processes, pending, env.run)

    def ours() -> Any:
        if what == "entries with digest":
            sim = Simulation()
            return waiting(sim.clock, entries, pending, sim.run)
        clock = Clock()
        return waiting(clock, entries if what == "entries" else processes, pending, clock.run)

    stock_s, ours_s = best_cpu_s(stock, rounds=4), best_cpu_s(ours, rounds=4)
    ratio = stock_s / ours_s
    benchmark.extra_info["times_simpy"] = round(ratio, 2)
    row(f"kernel, {what}", f"{pending:>7,} pending", ours_s, f"{EVENTS / ours_s:,.0f} events/s",
        ratio, "SimPy processes")  # fmt: skip
    benchmark.pedantic(lambda run: run(), setup=lambda: ((ours(),), {}), rounds=2)


def bare_heap(n: int) -> Callable[[], object]:
    """No clock at all: a loop over a heap of (time, number, function)."""
    delay = iter(np.random.default_rng(1).integers(1, 2 * MEAN_NS, EVENTS + n).tolist()).__next__
    heap: list[Any] = []
    count = 0

    def tick(now_ns: int) -> None:
        nonlocal count
        count += 1
        heappush(heap, (now_ns + delay(), count, tick))

    def run() -> None:
        for _ in range(EVENTS):
            t_ns, _, fn = heappop(heap)
            fn(t_ns)

    for _ in range(n):
        tick(0)
    return run


@pytest.mark.parametrize("pending", [1_000, 30_000])
def test_entries_against_a_bare_heap(benchmark: Any, pending: int) -> None:
    def ours() -> Any:
        clock = Clock()
        return waiting(clock, entries, pending, clock.run)

    bare_s, ours_s = best_cpu_s(lambda: bare_heap(pending)), best_cpu_s(ours)
    row("kernel, entries", f"{pending:>7,} pending, beside a bare loop", ours_s,
        f"{EVENTS / ours_s:,.0f} events/s", bare_s / ours_s, "heapq and nothing else")  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)


class Question:
    size_bytes = 100


class Server(Component):
    service_ns = {Question: 500}  # noqa: RUF012

    def on_question(self, m: Question, reply: Any) -> None:
        reply(m)


class Client(Component):
    left = CALLS // 50

    def ask(self, _: Any = None) -> None:
        if self.left:
            self.left -= 1
            self.call("server", Question(), self.ask)


def rooms() -> Any:
    sim = Simulation()
    sim.transport = InstantTransport(sim.clock, 1000)
    sim.add(Server(sim, "server"))
    for i in range(50):
        sim.add(Client(sim, f"client-{i}")).ask()
    return sim.run


def store() -> Any:
    env = simpy.Environment()
    inbox = simpy.Store(env)

    def answer(event: Any) -> Any:
        yield env.timeout(1000)
        event.succeed()

    def server() -> Any:
        while True:
            event = yield inbox.get()
            yield env.timeout(500)
            env.process(answer(event))

    def client() -> Any:
        for _ in range(CALLS // 50):
            event = env.event()
            yield env.timeout(1000)
            inbox.put(event)
            yield event

    env.process(server())
    for _ in range(50):
        env.process(client())
    return env.run


def test_rooms_against_simpy_processes(benchmark: Any) -> None:
    rooms_s = best_cpu_s(rooms)
    ratio = best_cpu_s(store) / rooms_s
    benchmark.extra_info["times_simpy"] = round(ratio, 2)
    row("kernel, rooms", f"{CALLS:,} calls of 50 clients, digest included", rooms_s,
        f"{CALLS / rooms_s:,.0f} calls/s", ratio, "a SimPy store and processes")  # fmt: skip
    benchmark.pedantic(lambda run: run(), setup=lambda: ((rooms(),), {}), rounds=2)
