"""Waiting in front of a room, against queueing theory.

Poisson arrivals at rate l, service at rate m, load r = l/m. Mean wait before service, from
Pollaczek and Khinchine: W = r / (m - l) * (1 + c2) / 2, where c2 is the squared coefficient of
variation of the service time: 1 for exponential service (M/M/1), 0 for constant (M/D/1).

Tolerance: the run is cut into batches long against the queue's memory; their means are nearly
independent, so the mean lies within 4 standard errors of the truth but for one run in 16,000, and
the standard error must be small enough for that to say something.
"""

import math

import pytest

from raysim.kernel import Component, Simulation

SERVICE_NS = 10_000
MESSAGES = 80_000
BATCHES = 40


class Query:
    size_bytes = 0

    def __init__(self, sent_ns: int, cost_ns: int) -> None:
        self.sent_ns, self.cost_ns = sent_ns, cost_ns


class Server(Component):
    service_ns = {Query: lambda m: m.cost_ns}  # noqa: RUF012
    waits_ns: list[int]

    def on_query(self, m: Query, reply) -> None:
        self.waits_ns.append(self.sim.now_ns - m.sent_ns - m.cost_ns)


def waits(load: float, exponential: bool) -> list[int]:
    """Wait of every message, from a seeded run."""
    sim = Simulation(seed=2024)
    server = sim.add(Server(sim, "server"))
    server.waits_ns = []
    client = sim.add(Component(sim, "client"))
    gaps_ns = sim.rng("gaps").exponential(SERVICE_NS / load, MESSAGES).round().astype(int).tolist()
    costs_ns = [SERVICE_NS] * MESSAGES
    if exponential:
        costs_ns = sim.rng("costs").exponential(SERVICE_NS, MESSAGES).round().astype(int).tolist()

    def arrive(i: int) -> None:
        client.send("server", Query(sim.now_ns, costs_ns[i]))
        if i + 1 < MESSAGES:
            sim.call_later(gaps_ns[i + 1], arrive, i + 1)

    sim.call_later(gaps_ns[0], arrive, 0)
    sim.run()
    assert len(server.waits_ns) == MESSAGES
    return server.waits_ns


@pytest.mark.parametrize("load", [0.3, 0.7])
@pytest.mark.parametrize(("exponential", "c2"), [(True, 1.0), (False, 0.0)], ids=["MM1", "MD1"])
def test_mean_wait_is_pollaczek_khinchine(load, exponential, c2):
    theory_ns = load / (1 - load) * SERVICE_NS * (1 + c2) / 2
    size = MESSAGES // BATCHES
    all_ns = waits(load, exponential)
    means = [sum(all_ns[i : i + size]) / size for i in range(0, MESSAGES, size)]
    mean = sum(means) / BATCHES
    error = math.sqrt(sum((m - mean) ** 2 for m in means) / (BATCHES - 1) / BATCHES)
    assert abs(mean - theory_ns) < 4 * error
    assert error < 0.04 * theory_ns, "the run is too short to say anything"


def test_the_share_of_messages_that_wait_is_the_load():
    # PASTA: Poisson arrivals see time averages, and the server is busy a share r of the time.
    waiting = [w > 0 for w in waits(0.7, exponential=False)]
    assert sum(waiting) / len(waiting) == pytest.approx(0.7, abs=0.02)
