"""Fleets: routing, what an ingress costs, prefill and decode apart; and Little's law."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.kernel.simulation import Simulation
from raysim.serving.engine import Request, Served
from raysim.serving.fleet import Fleet, IngressSpec
from raysim.serving.loads import Clients, Lengths, Load
from tests.unit.serving.parts import NO_INGRESS, Linear, engine, fleet

LOAD = Load(prompt=Lengths(mean=200), output=Lengths(mean=50), requests=400, concurrency=16)


def served_by(made: Fleet, load: Load) -> list[Served]:
    clients = Clients(made.simulation, made, load, made.simulation.rng("clients"))
    clients.start()
    made.simulation.run("10h")
    return clients.served


def rate_per_s(served: list[Served]) -> float:
    return len(served) / (max(s.finished_ns for s in served) / 1e9)


def test_nobody_of_a_burst_begins_before_all_templates_are_rendered() -> None:
    slow = replace(NO_INGRESS, render_s=10e-3)
    burst = replace(LOAD, requests=30, concurrency=30)
    late, early = (
        min(s.first_token_ns for s in served_by(fleet(Simulation(), ingress=way), burst))
        for way in (slow, NO_INGRESS)
    )
    assert late - early == 30 * 10_000_000
    # One after another each waits for its own.
    alone = served_by(fleet(Simulation(), ingress=slow), replace(burst, concurrency=1))
    plain = served_by(fleet(Simulation()), replace(burst, concurrency=1))
    waits = [a.ttft_s - b.ttft_s for a, b in zip(alone, plain, strict=True)]
    assert waits == pytest.approx([10e-3] * 30)


@pytest.mark.parametrize("replicas", [0, 1])
@pytest.mark.parametrize("prefill", [0, 1])
@pytest.mark.parametrize("concurrency", [1, 8, 64])
def test_a_closed_loop_serves_n_over_ttft_and_tpot(
    replicas: int, prefill: int, concurrency: int
) -> None:
    ingress = replace(IngressSpec(), replicas=replicas)
    made = fleet(Simulation(), engines=2, prefill=prefill, ingress=ingress)
    load = replace(LOAD, requests=60 * concurrency, concurrency=concurrency)
    served = served_by(made, load)
    ttft_s, tpot_s = (np.mean([getattr(s, k) for s in served]) for k in ("ttft_s", "tpot_s"))
    # By Little's law, but for the last round, in which not all are there.
    busy = sum(s.seconds for s in served) / (max(s.finished_ns for s in served) / 1e9)
    assert busy == pytest.approx(concurrency, rel=0.03)
    assert rate_per_s(served) == pytest.approx(busy / (ttft_s + 49 * tpot_s), rel=0.01)


def test_one_ingress_process_is_the_ceiling_of_a_fleet() -> None:
    slow = replace(IngressSpec(), token_s=1e-3, parse_token_s=0.0, request_s=0.0)
    load = replace(LOAD, requests=2_000, concurrency=200)
    rates = [
        rate_per_s(served_by(fleet(Simulation(), engines=n, ingress=i), load))
        for n, i in ((4, slow), (8, slow), (8, replace(slow, replicas=2)))
    ]
    assert rates[0] == pytest.approx(1_000 / 50, rel=0.02)
    assert rates[1] == pytest.approx(rates[0], rel=0.01)
    assert rates[2] == pytest.approx(2 * rates[0], rel=0.05)


def test_an_idle_ingress_adds_its_latency_and_nothing_else() -> None:
    way = IngressSpec(request_s=0.02, tokenize_token_s=1e-5, parse_token_s=1e-5, token_s=1e-4)
    alone = replace(LOAD, requests=3, concurrency=1)
    bare = served_by(fleet(Simulation()), alone)[0]
    behind = served_by(fleet(Simulation(), ingress=way), alone)[0]
    assert behind.ttft_s - bare.ttft_s == pytest.approx(0.02 + 200 * 2e-5 + 0.5e-4, abs=1e-7)
    assert behind.tpot_s == pytest.approx(bare.tpot_s, rel=0.001)


def test_the_less_busy_of_two_gets_the_request() -> None:
    made = fleet(Simulation(), engines=2)
    for _ in range(10):
        made.submit(Request(prompt_tokens=10, output_tokens=100), lambda _: None)
    made.simulation.run("100ms")
    assert [e.load for e in made.engines] == [5, 5]


def test_keys_and_values_travel_from_prefill_to_decode() -> None:
    # 1,000 bytes per token: 999 tokens take 1 s.
    made = fleet(Simulation(), prefill=1, kv_bytes_per_s=999e3, times=Linear(context_s=0.0))
    [one] = served_by(
        made, Load(prompt=Lengths(mean=1_000), output=Lengths(mean=3), requests=1, concurrency=1)
    )
    prefill_s, decode_s = 10e-3 + 1_000 * 10e-6, 10e-3 + 10e-6
    assert one.ttft_s == pytest.approx(prefill_s + 1.0 + decode_s)
    assert one.tpot_s == pytest.approx(decode_s)
    assert [e.tokens_made for e in (*made.prefill, *made.engines)] == [1, 3]


def test_requests_wait_for_the_first_engine() -> None:
    simulation = Simulation()
    made = Fleet(simulation, NO_INGRESS, simulation.rng("router"))
    clients = Clients(simulation, made, replace(LOAD, requests=20), simulation.rng("clients"))
    clients.start()
    simulation.run("30s")
    assert made.load == 16
    made.add(engine(simulation))
    simulation.run("60s")
    assert len(clients.served) == 20
    assert min(s.ttft_s for s in clients.served[:10]) > 30


def test_arrivals_come_at_their_rate_as_vllm_bench_sends_them() -> None:
    load = Load(prompt=Lengths(mean=10), output=Lengths(mean=1), requests=500, rate_per_s=50.0)
    sent = sorted(s.sent_ns for s in served_by(fleet(Simulation(), engines=4), load))
    gaps = np.diff(sent)
    assert sent[-1] / 1e9 == pytest.approx(10.0, rel=0.02)
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(1.0, abs=0.15)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 5), engines=st.integers(1, 3), prefill=st.integers(0, 2),
    cv=st.sampled_from([0.0, 1.0]), replicas=st.integers(0, 2),
    concurrency=st.one_of(st.none(), st.integers(1, 30)), rate=st.sampled_from([None, 5.0, 200.0]),
)  # fmt: skip
def test_every_request_is_served_once_and_in_order(
    seed: int, engines: int, prefill: int, cv: float, replicas: int, concurrency: int | None,
    rate: float | None,
) -> None:  # fmt: skip
    if concurrency is None and rate is None:
        concurrency = 7
    load = Load(
        prompt=Lengths(mean=100, cv=cv, most=1_500), output=Lengths(mean=20, cv=cv, most=200),
        requests=60, rate_per_s=rate, concurrency=concurrency, prefixes=2, prefix_tokens=48,
    )  # fmt: skip
    results = []
    for _ in range(2):
        made = fleet(
            Simulation(seed=seed), engines=engines, prefill=prefill, blocks=400,
            ingress=replace(IngressSpec(), replicas=replicas),
        )  # fmt: skip
        served = served_by(made, load)
        assert len(served) == 60
        assert made.load == 0
        for s in served:
            assert s.sent_ns < s.first_token_ns <= s.finished_ns
            assert (s.request.output_tokens > 1) or s.tpot_s == 0.0
        results.append(served)
    assert results[0] == results[1]
