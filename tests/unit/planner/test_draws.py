"""What chance decides is the mean of several runs, and how sure that is."""

from __future__ import annotations

import math

import pytest

import raysim
from raysim.planner.choose import Objective, beats, certainty_of
from raysim.planner.draws import DRAWS, mean_of, seeds_of
from raysim.planner.trials import Trial
from tests.unit.planner.parts import scenario, trial

USD = Objective("usd", "minimize")


def run(hours: float, **said: object) -> Trial:
    return trial(0, metrics={"usd": 10 * hours, "seconds": 3600 * hours}, **said)


def test_only_spot_nodes_are_drawn_again() -> None:
    spot = raysim.load("scenarios/llama3_70b_spot")
    assert len({0, *seeds_of(spot, {})}) == DRAWS
    assert seeds_of(spot, {"seed": 3}) == seeds_of(scenario(), {}) == ()


def test_a_trial_is_the_mean_of_its_runs_and_a_target_what_half_of_them_miss() -> None:
    late = {"missed": ("days <= 1",)}
    mean = mean_of([run(10), run(12), run(14, **late)])
    assert mean.metrics["usd"] == pytest.approx(120)
    assert mean.meets
    assert mean.likely == pytest.approx((2 + 1) / (3 + 2))
    assert not mean_of([run(10), run(14, **late)]).meets
    assert mean_of([run(10), run(9, status="failed")]).status == "failed"
    assert mean_of([run(10)]) == run(10)


def test_means_are_told_apart_by_the_deviation_of_one_run_over_the_root_of_their_number() -> None:
    near, far = (mean_of([run(h - 1), run(h), run(h + 1)]) for h in (20, 21))
    assert near.spread is not None
    certainty = certainty_of([near, far], USD)
    assert certainty is not None
    assert certainty.drawn == 3
    deviation = near.spread.deviation
    assert deviation == pytest.approx(1 / 20, rel=0.01)
    assert certainty.low == pytest.approx(200 * math.exp(-1.645 * deviation), rel=1e-3)
    z = math.log(21 / 20) / (math.hypot(1 / 20, 1 / 21) / math.sqrt(3))
    assert beats(near, far, USD) == pytest.approx(0.5 + 0.5 * math.erf(z / math.sqrt(2)), rel=0.01)
