"""Processor sharing against its closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from raysim.hardware.server import SharedServer
from raysim.kernel.simulation import Simulation
from raysim.units import to_ns

S = 1_000_000_000


def test_deterministic_processor_sharing():
    # Jobs of 1, 2, 3 at once on a server of 1: shares of 1/3 until the first has its 1 (3 s),
    # 1/2 until the second has 1 more (5 s), then alone for the last 1 (6 s).
    # In general n jobs sorted by size: t_k = t_(k-1) + (n - k + 1) (s_k - s_(k-1)).
    sim = Simulation()
    server = SharedServer(sim, "s", 1.0)
    ends = {}
    for size in (3.0, 1.0, 2.0):
        server.job(size, lambda s: ends.setdefault(s, sim.now_ns / S), size)
    sim.run()
    assert ends == {1.0: 3.0, 2.0: 5.0, 3.0: 6.0}


@pytest.mark.parametrize("service", ["exponential", "deterministic", "hyperexponential"])
def test_mean_number_in_m_g_1_ps_depends_on_the_load_only(service):
    # M/G/1 processor sharing is insensitive: E[N] = rho / (1 - rho) for any service distribution
    # of that mean, and by Little's law E[T] = E[S] / (1 - rho) (Kleinrock 2, 4.4). rho = 0.6.
    rho, jobs = 0.6, 40_000
    sim = Simulation(seed=7)
    server = SharedServer(sim, "s", 1.0)
    rng = sim.rng(service)
    gaps = rng.exponential(1 / rho, jobs)
    sizes = {
        "exponential": lambda: rng.exponential(1.0, jobs),
        "deterministic": lambda: np.ones(jobs),
        "hyperexponential": lambda: np.where(
            rng.random(jobs) < 0.5, rng.exponential(0.2, jobs), rng.exponential(1.8, jobs)
        ),
    }[service]()
    spent = []
    for at, size in zip(np.cumsum(gaps).tolist(), sizes.tolist(), strict=True):
        sim.call_at(
            to_ns(at),
            lambda s: server.job(s, lambda t: spent.append(sim.now_ns - t), sim.now_ns),
            size,
        )
    sim.run()
    sojourn_s = sum(spent) / S / jobs
    assert sojourn_s == pytest.approx(1 / (1 - rho), rel=0.06)
    assert sojourn_s * jobs / (sim.now_ns / S) == pytest.approx(rho / (1 - rho), rel=0.07)
    assert server.busy_ns / sim.now_ns == pytest.approx(rho, rel=0.03)


def test_m_m_c_as_cores():
    # c cores, one thread per job: while n <= c each job has a core, so N behaves as M/M/c, whose
    # mean is c rho + C(c, rho) rho / (1 - rho) with Erlang's C. c = 4, rho = 0.7: C = 0.429, 3.80.
    c, rho, jobs = 4, 0.7, 40_000
    sim = Simulation(seed=11)
    cpu = SharedServer(sim, "cpu", float(c), max_per_s=1.0)
    rng = sim.rng("arrivals")
    arrivals = np.cumsum(rng.exponential(1 / (c * rho), jobs)).tolist()
    spent = []
    for at, size in zip(arrivals, rng.exponential(1.0, jobs).tolist(), strict=True):
        sim.call_at(
            to_ns(at),
            lambda s: cpu.job(s, lambda t: spent.append(sim.now_ns - t), sim.now_ns),
            size,
        )
    sim.run()
    a = c * rho
    last = a**c / math.factorial(c) / (1 - rho)
    erlang_c = last / (sum(a**k / math.factorial(k) for k in range(c)) + last)
    expected = a + erlang_c * rho / (1 - rho)
    assert sum(spent) / S / arrivals[-1] == pytest.approx(expected, rel=0.05)
