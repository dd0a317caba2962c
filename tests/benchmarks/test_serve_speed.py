"""CPU time of Ray Serve under load, beside a plain SimPy M/M/c of the same arrivals; never gates.

    pytest tests/benchmarks/test_serve_speed.py -m benchmark --benchmark-enable -s

Request by request, each through proxy, router, replica and back; and as a flow, where windows that
are played stand for millions of requests. The yardstick is a customer of a ``simpy.Resource`` with
as many servers as there are replicas: a request, a timeout, a release. Of a day it is what SimPy
would take at the pace of its first minute.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import simpy

import raysim
from tests.benchmarks.table import cpu_s, law, row

pytestmark = pytest.mark.benchmark

WORK_S = 0.010
DAY_S = 86_400
PER_REPLICA, PER_NODE = 50, 250
"""Requests per second: replicas are half busy, and so are the nodes' proxies."""


def serve_s(
    rate: int, lasting_s: int, fidelity: str, *, daily: bool = False
) -> tuple[float, dict[str, float]]:
    """CPU seconds of an application under a load, and what its users saw.

    A daily load is half as much again by day, and half as much by night.
    """
    replicas = rate // PER_REPLICA * (3 if daily else 2) // 2
    api = {
        "name": "api", "num_replicas": replicas, "max_ongoing_requests": 100,
        "work": {"busy": f"{WORK_S}s", "cv": 0.3},
    }  # fmt: skip
    hours = range(lasting_s // 3600 + 1) if daily else (0,)
    steps = [
        {"at": f"{h}h", "rate": f"{rate * (1 - 0.5 * daily * math.cos(h * math.tau / 24)):.0f}/s"}
        for h in hours
    ]
    load = {"steps": steps, "lasting": f"{lasting_s}s"}
    scenario = raysim.load({
        "name": "steady", "cluster": {"node": "m5.8xlarge", "nodes": max(2, rate // PER_NODE)},
        "jobs": [{"serve": {"deployments": [api], "load": load, "fidelity": fidelity}}],
    })  # fmt: skip
    ended: list[raysim.Result] = []
    spent_s = cpu_s(lambda: ended.append(raysim.run(scenario, record=False)))
    (report,) = ended[0].summary["libraries"]
    return spent_s, report["metrics"]


def mmc_s(rate: int, lasting_s: int) -> float:
    """CPU seconds of as many customers of as many servers in SimPy."""
    draws = np.random.default_rng(0)
    count = rate * lasting_s
    gaps, works = draws.exponential(1 / rate, count), draws.exponential(WORK_S, count)
    env = simpy.Environment()
    servers = simpy.Resource(env, rate // PER_REPLICA)

    def customer(work_s: float) -> Any:
        with servers.request() as turn:
            yield turn
            yield env.timeout(work_s)

    def arrivals() -> Any:
        for gap_s, work_s in zip(gaps.tolist(), works.tolist(), strict=True):
            yield env.timeout(gap_s)
            env.process(customer(work_s))

    env.process(arrivals())
    return cpu_s(env.run)


def test_requests_one_by_one(benchmark: Any) -> None:
    serve_s(100, 1, "requests")  # imports
    for rate, lasting_s in ((1_000, 120), (10_000, 30)):
        spent_s, seen = serve_s(rate, lasting_s, "requests")
        row("Serve, request by request", f"{rate:,} requests/s for {lasting_s} virtual s, "
            f"{rate // PER_REPLICA} replicas (median {seen['latency_p50'] * 1e3:.0f} ms)", spent_s,
            f"{rate * lasting_s / spent_s:,.0f} requests/s", mmc_s(rate, lasting_s) / spent_s,
            "SimPy M/M/c of the same arrivals")  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)


def test_millions_as_a_flow(benchmark: Any) -> None:
    serve_s(100, 1, "requests")  # imports
    for rate, lasting_s, told, daily in (
        (10_000, 600, "10,000 requests/s for 10 minutes", False),
        (1_000, DAY_S, "a day of 500 to 1,500 requests/s", True),
    ):
        spent_s, seen = serve_s(rate, lasting_s, "flow", daily=daily)
        simpy_s = mmc_s(rate, 60) * lasting_s / 60
        row("Serve", f"{told}, as a flow (median {seen['latency_p50'] * 1e3:.0f} ms)", spent_s,
            f"{rate * lasting_s / spent_s:,.0f} requests/s", simpy_s / spent_s,
            "SimPy M/M/c of as many, by its pace over a minute")  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)


def test_longer_loads(benchmark: Any) -> None:
    serve_s(100, 1, "requests")  # imports
    law("CPU seconds of n virtual seconds of Serve at 1,000 requests/s, request by request",
        [(n, serve_s(1_000, n, "requests")[0]) for n in (30, 100, 300)])  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)
