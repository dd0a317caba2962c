"""CPU time of the clock and of rooms against plain SimPy; ratios, never gates.

    pytest tests/benchmarks/test_kernel_speed.py -m benchmark --benchmark-enable -s

Every ratio is between two things run one after the other in the same process, each the best of a
few rounds, in CPU seconds. What is compared: n actors that each wait a random while again and
again, as SimPy processes on timeouts and as entries of the clock; and a server asked by 50 clients,
as a SimPy process with a store and as rooms.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import simpy

from raysim.kernel import Clock, Component, InstantTransport, Simulation

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


def cpu_s(make: Callable[[], Callable[[], Any]], rounds: int = 4) -> float:
    """Best CPU seconds of what ``make`` returns, set-up excluded."""
    best = float("inf")
    for _ in range(rounds):
        run = make()
        start_s = time.process_time()
        run()
        best = min(best, time.process_time() - start_s)
    return best


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

    ratio = cpu_s(stock) / cpu_s(ours)
    benchmark.extra_info["times_simpy"] = round(ratio, 2)
    print(f"\n{what}, {pending} pending: {ratio:.2f} x SimPy processes")
    benchmark.pedantic(lambda run: run(), setup=lambda: ((ours(),), {}), rounds=2)


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
    ratio = cpu_s(store) / cpu_s(rooms)
    benchmark.extra_info["times_simpy"] = round(ratio, 2)
    print(f"\nrooms: {ratio:.2f} x a SimPy store and process; digest included")
    benchmark.pedantic(lambda run: run(), setup=lambda: ((rooms(),), {}), rounds=2)
