"""Targets and references against a summary; cost and the bottleneck's sentence."""

from __future__ import annotations

import math

import pytest

from raysim.results import targets
from raysim.results.bottleneck import bound_by
from raysim.results.cost import cost
from raysim.scenario.targets import METRICS, parse_target
from tests.unit.result_cases import summary


def evaluate(summary_: dict, **conditions: str) -> dict[str, tuple[bool, float | None]]:
    rows = targets.evaluate([parse_target(k, v) for k, v in conditions.items()], summary_)
    return {r["name"]: (r["passed"], r["value"]) for r in rows}


def test_every_metric_a_scenario_may_name_is_known_here() -> None:
    assert set(METRICS) <= set(targets.METRICS)


def test_limits_are_compared_in_the_users_units() -> None:
    assert evaluate(summary(), days="<= 10", usd="< 11520", mfu=">= 40%", step_seconds="<= 9s") == {
        "days": (True, 10.0),
        "usd": (False, 11520.0),
        "mfu": (True, 0.45),
        "step_seconds": (False, 10.0),
    }


def test_peak_memory_is_a_share_or_a_size() -> None:
    assert evaluate(summary(), gpu_mem_peak="<= 37%")["gpu_mem_peak"] == (False, 0.375)
    assert evaluate(summary(), gpu_mem_peak="<= 30GiB")["gpu_mem_peak"] == (True, 30 * 2**30)


def test_a_metric_the_run_does_not_have_is_missed() -> None:
    row = targets.evaluate([parse_target("epoch_seconds", "<= 60")], summary())[0]
    assert (row["passed"], row["value_text"]) == (False, "not reached")


def test_a_job_that_does_not_fit_misses_what_needs_it_to_run() -> None:
    small = summary(verdict={"fits": False}, memory={"frac": 1.5})
    got = evaluate(small, days="<= 100", gpu_mem_peak="<= 90%")
    assert got == {"days": (False, None), "gpu_mem_peak": (False, 1.5)}
    assert targets.missed(small)


def test_missed_says_what_the_exit_code_says() -> None:
    assert not targets.missed(summary())
    assert not targets.missed(summary(targets=[{"passed": True}]))
    assert targets.missed(summary(targets=[{"passed": True}, {"passed": False}]))


def test_measured_values_stand_beside_the_predicted_ones() -> None:
    measured = {"step_seconds": 12.5, "epoch_seconds": 60.0, "memory_peak": 15 * 2**30}
    reference = targets.compare(measured, summary(), source="a real run")
    errors = {row["name"]: row["error_frac"] for row in reference["values"]}
    assert errors == {
        "step_seconds": pytest.approx(-0.2),
        "epoch_seconds": None,
        "memory_peak": 1.0,
    }


def test_cost_is_rent_times_hours_for_every_gpu_rented() -> None:
    got = cost(gpus=16, seconds=7200, usd_per_hour=48.0, tokens=3e6)
    assert got == {
        "gpu_hours": 32.0,
        "usd": 96.0,
        "usd_per_gpu_hour": 3.0,
        "usd_per_million_tokens": 32.0,
    }


def test_without_a_price_there_are_hours_and_no_dollars() -> None:
    got = cost(gpus=4, seconds=3600, usd_per_hour=None)
    assert got["gpu_hours"] == 4.0
    assert {got["usd"], got["usd_per_gpu_hour"], got["usd_per_million_tokens"]} == {None}


def _breakdown(**shares: float) -> list[dict]:
    return [{"key": k, "name": k, "seconds": v, "frac": v} for k, v in shares.items()]


def test_the_largest_part_binds() -> None:
    got = bound_by(_breakdown(compute=0.97, exposed_collectives=0.03), hidden_collectives_frac=0.84)
    assert got["text"] == (
        "GPU kernels, 97 % of the step; collectives are 84 % hidden behind them."
    )
    assert math.isclose(got["frac"], 0.97)


def test_a_close_second_is_named_and_the_first_gets_a_remedy() -> None:
    text = bound_by(_breakdown(compute=0.4, exposed_collectives=0.6))["text"]
    assert text.startswith("Collectives, 60 % of the step; more bandwidth")
    assert text.endswith("then GPU kernels, 40 %.")
