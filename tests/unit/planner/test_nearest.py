"""Where nothing meets the targets, what came nearest."""

from __future__ import annotations

import pytest

from raysim.planner.nearest import nearest
from raysim.scenario.targets import parse_target
from tests.unit.planner.parts import trial

LIMITS = [parse_target("days", "<= 1"), parse_target("tokens_per_s", ">= 1000")]


def test_the_least_of_the_worst_misses_wins():
    trials = [
        trial(0, metrics={"days": 1.2, "tokens_per_s": 100.0}),
        trial(1, metrics={"days": 3.0, "tokens_per_s": 900.0}),
        trial(2, status="out_of_memory", metrics={"days": 1.0, "tokens_per_s": 999.0}),
    ]
    found = nearest(trials, LIMITS)
    assert found["trial"]["number"] == 1
    assert [o["target"] for o in found["off"]] == ["days <= 1", "tokens_per_s >= 1000"]
    assert [o["times"] for o in found["off"]] == pytest.approx([3.0, 1000 / 900])


def test_estimates_count_and_of_equals_the_first():
    trials = [trial(n, status="estimated", metrics={"days": 2.0}) for n in (5, 3)]
    assert nearest(trials, LIMITS)["trial"]["number"] == 3


def test_nothing_that_runs_is_near():
    assert nearest([trial(0, status="refused", metrics={})], LIMITS) is None
