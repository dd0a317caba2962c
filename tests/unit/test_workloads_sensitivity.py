"""Elasticities of a training step, and when they are worth their time."""

from __future__ import annotations

import pytest

import raysim
from raysim.scenario.build import build_job
from raysim.workloads import sensitivity
from raysim.workloads.sensitivity import of_step
from raysim.workloads.whatif import quick_step_s


def job(name: str):
    scenario = raysim.load(f"scenarios/{name}")
    return build_job(scenario).plan, scenario.cluster


def test_two_shallow_models_say_what_the_deep_one_says() -> None:
    plan, cluster = job("llama31_8b_fsdp2")
    assert sensitivity._step_s(plan, cluster) == pytest.approx(
        quick_step_s(plan, cluster), rel=0.03
    )
    whole = sensitivity.by_input(
        lambda changed: quick_step_s(plan, changed), cluster, sensitivity.INPUTS
    )
    folded = of_step(plan, cluster)
    assert {e.input for e in folded} == {e.input for e in whole}
    for e in whole:
        near = next(f for f in folded if f.input == e.input)
        assert near.elasticity == pytest.approx(e.elasticity, abs=0.01)


def test_a_run_says_what_its_step_rests_on_and_only_then() -> None:
    scenario = raysim.load("scenarios/llama31_8b_fsdp2")
    found = raysim.run(scenario, record=False).summary["sensitivity"]
    assert found[0]["input"] == "GPU products, FLOP/s"
    # The rest is index arithmetic of kernels between products, which no input here scales.
    assert sum(row["elasticity"] for row in found) == pytest.approx(-1.0, abs=0.08)
    assert raysim.run(scenario, record=False, what_if=False).summary["sensitivity"] is None
    large = scenario.with_({"train.micro_batch": 16})
    assert raysim.run(large, record=False).summary["sensitivity"] is None


def test_what_would_take_long_is_not_computed() -> None:
    plan, _ = job("opt_175b_3d")
    assert not sensitivity.is_cheap(plan, 136_000)
    assert sensitivity.is_cheap(plan, 10_000)
    assert sensitivity.is_cheap(job("llama31_8b_fsdp2")[0], 136_000)


def test_one_node_does_not_ask_its_network() -> None:
    inputs = set(sensitivity._in_reach(*job("llama31_8b_fsdp2")))
    assert not inputs & {"network between nodes", "network latency", "disks"}
    assert "network between nodes" in set(sensitivity._in_reach(*job("llama3_8b_zero3")))
    assert "host memory bandwidth" in set(sensitivity._in_reach(*job("llama31_70b_zero3_offload")))
