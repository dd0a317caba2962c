"""Elasticities: what a step is made of moves it."""

from __future__ import annotations

import pytest

import raysim
from raysim.planner.sensitivity import elasticities
from tests.unit.planner.parts import scenario


def test_a_large_model_rests_on_products_and_memory():
    found = {e.input: e.elasticity for e in elasticities(raysim.load("scenarios/llama3_8b_zero3"))}
    assert -1.0 < found["GPU products, FLOP/s"] < -0.7
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
