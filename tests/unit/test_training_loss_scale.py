"""Dynamic loss scaling: skipped steps against DeepSpeed's rule, and what they take off a run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import raysim
from raysim.errors import ScenarioError
from raysim.scenario.build import build_job
from raysim.scenario.load import Scenario, from_mapping
from raysim.training.settings.loss_scale import LossScale
from tests.unit.test_scenario_fsdp import MODEL


def by_steps(scaler: LossScale, steps: int) -> int:
    """``DynamicLossScaler.update_scale``, step by step."""
    scale, last, hysteresis, skipped = scaler.initial_power, -1, scaler.hysteresis, 0
    for step in range(steps):
        if scale > scaler.stable_power:
            skipped += 1
            if hysteresis == 1:
                scale -= 1
            else:
                hysteresis -= 1
            last = step
        else:
            stable = step - last - 1
            if stable > 0 and stable % scaler.window == 0:
                hysteresis, scale = scaler.hysteresis, scale + 1
    return skipped


@given(
    initial=st.integers(0, 20), window=st.integers(1, 12), hysteresis=st.integers(1, 4),
    stable=st.integers(0, 20), steps=st.integers(0, 150),
)  # fmt: skip
def test_skips_are_those_of_the_rule(
    initial: int, window: int, hysteresis: int, stable: int, steps: int
) -> None:
    scaler = LossScale(
        initial_power=initial, window=window, hysteresis=hysteresis, stable_power=stable
    )
    assert scaler.skipped(steps) == by_steps(scaler, steps)


def test_defaults_skip_two_steps_at_first_and_two_in_a_thousand_later() -> None:
    assert LossScale().skipped(100) == 2
    assert LossScale().skipped(100_000) == pytest.approx(200, abs=3)
    assert LossScale(initial_power=32).skipped(100) == 18


def scenario(config: dict[str, Any] | None, **train: Any) -> Scenario:
    said: dict[str, Any] = {"seq_len": 64, "steps": 50} | train
    if config is not None:
        zero = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
        said["deepspeed"] = zero | config
    found = from_mapping(
        {
            "cluster": {"node": "hgx-h100-8", "nodes": 1},
            "model": {"from": MODEL},
            "jobs": [{"train": said}],
        }
    )
    assert isinstance(found, Scenario)
    return found


def test_each_engine_has_a_scaler_of_its_own() -> None:
    def scaler(config: dict[str, Any] | None, **train: Any) -> LossScale | None:
        return build_job(scenario(config, **train)).plan.loss_scale

    fp16 = {"enabled": True, "initial_scale_power": 12, "loss_scale_window": 500}
    assert scaler({"fp16": fp16}) == LossScale(initial_power=12, window=500)
    assert scaler({"fp16": fp16 | {"loss_scale": 128}}) is None
    assert scaler({"bf16": {"enabled": True}}) is None
    torch = {"micro_batch": 1, "ddp": {"autocast": "fp16"}}
    assert scaler(None, **torch) == LossScale(window=2000, hysteresis=1)
    megatron = {"megatron": {"micro_batch_size": 1, "fp16": True}}
    assert scaler(None, **megatron) == LossScale(initial_power=32)


def test_a_skipped_step_ends_at_the_overflow_check() -> None:
    """Half of the scaler's range is above what the gradients bear: steps without an update."""
    config = {"fp16": {"enabled": True}}
    plain = raysim.run(scenario(config, stable_scale_power=16)).summary["run"]
    skipping = raysim.run(scenario(config, stable_scale_power=7)).summary["run"]
    assert (plain["skipped_steps"], skipping["skipped_steps"]) == (0, 10)
    assert 0.5 < skipping["seconds"] / plain["seconds"] < 1


def test_a_scale_needs_a_scaler() -> None:
    with pytest.raises(ScenarioError, match="needs fp16 with a dynamic loss scale"):
        build_job(scenario({"bf16": {"enabled": True}}, stable_scale_power=10))
