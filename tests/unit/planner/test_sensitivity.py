"""Elasticities: what a step is made of moves it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import raysim
from raysim.planner.sensitivity import OF_PROGRAMS, elasticities
from tests.unit.planner.parts import scenario


def test_a_large_model_rests_on_products_and_memory():
    found = {e.input: e.elasticity for e in elasticities(raysim.load("scenarios/llama3_8b_zero3"))}
    # Faster tensor cores keep less of their peak.
    assert -1.0 < found["GPU products, FLOP/s"] < -0.65
    assert -0.3 < found["GPU memory bandwidth"] < -0.05
    assert sum(found.values()) == pytest.approx(-1.0, abs=0.1)


def test_a_small_one_on_its_host_and_links_not_on_products():
    found = elasticities(scenario())
    assert {e.input for e in found if e.elasticity < -0.3} == {
        "links between GPUs of a node", "a host thread's speed",
    }  # fmt: skip
    assert all(e.elasticity < 0 for e in found if e.input != "network latency")


def test_the_strongest_come_first():
    strengths = [abs(e.elasticity) for e in elasticities(scenario())]
    assert strengths == sorted(strengths, reverse=True)


def test_a_program_is_run_once_per_input_and_never_where_its_load_paces_it(monkeypatch):
    rates: list[float] = []

    def counted(changed, **_):
        rates.append(changed.cluster.groups[0].node.nic.bytes_per_s)
        return SimpleNamespace(summary={"run": {"seconds": 50.0}})

    monkeypatch.setattr("raysim.planner.sensitivity.run", counted)
    found = elasticities(raysim.load("scenarios/ray_shuffle_spills"), 100.0)
    assert len(rates) == len(found) == len(OF_PROGRAMS)  # none of it as it is: that is known
    del rates[:]
    assert elasticities(raysim.load("scenarios/llm_fleet"), 840.0) == []
    assert elasticities(raysim.load("scenarios/serve_burst"), 840.0) == []
    assert not rates
