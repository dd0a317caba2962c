"""Autoscaling without a cluster: the policy, its delays, and the looks between reports."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.raylibs.serve.autoscaling import DeploymentAutoscaling, HandleReport
from raysim.raylibs.serve.config import AutoscalingConfig
from raysim.raylibs.serve.policy import NO_WISH, decide, desired_replicas
from raysim.raylibs.serve.timeseries import merged

DEFAULT = AutoscalingConfig(max_replicas=100)


@pytest.mark.parametrize(
    ("total", "running", "factor", "wanted"),
    [(20.0, 2, 1.0, 10), (20.0, 2, 0.5, 6), (3.0, 10, 1.0, 2), (19.0, 10, 1.0, 10), (0.0, 4, 1, 0)],
)
def test_replicas_wanted(total: float, running: int, factor: float, wanted: int) -> None:
    config = AutoscalingConfig(max_replicas=100, upscaling_factor=factor)
    assert desired_replicas(total, running, config) == wanted


def test_a_wish_lasts_for_its_delay_and_the_latest_counts() -> None:
    state, target = NO_WISH, 1
    seen = []
    for tenth in range(400):
        total = 4.0 if tenth < 100 else 9.0
        target, state = decide(total, 1, target, DEFAULT, state, tenth / 10)
        seen.append(target)
    assert seen[299] == 1
    assert seen[300] == 5, "what 9 requests ask for, not what 4 did thirty seconds ago"


def test_a_change_of_direction_starts_again() -> None:
    state = NO_WISH
    for second, total in [(0, 9.0), (20, 9.0), (25, 0.0), (26, 9.0), (40, 9.0), (55, 9.0)]:
        target, state = decide(total, 2, 2, DEFAULT, state, second)
        assert target == 2
    target, _ = decide(9.0, 2, 2, DEFAULT, state, 56.0)
    assert target == 5


def test_only_the_last_replica_goes_to_zero() -> None:
    config = AutoscalingConfig(min_replicas=0, max_replicas=5, downscale_delay_s=0.0)
    target, _ = decide(0.0, 3, 3, config, NO_WISH, 0.0)
    assert target == 1
    target, _ = decide(0.0, 1, 1, config, NO_WISH, 0.0)
    assert target == 0


def test_the_mean_is_over_the_window_all_series_share() -> None:
    total = merged([((0.0, 4.0), (10.0, 2.0)), ((5.0, 1.0),)])
    assert total.at(20.0, "mean") == pytest.approx((5 * 5.0 + 10 * 3.0) / 15)
    assert total.at(20.0, "max") == 5.0


def test_a_handle_that_is_silent_no_longer_counts() -> None:
    state = DeploymentAutoscaling(DEFAULT)
    state.set_running(("a",))
    state.report(HandleReport(handle_id="h", at_s=10.0, queued=((10.0, 6.0),), running={}))
    assert state.total_requests(29.0) == 6.0
    assert state.total_requests(30.0) == 0.0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 3.0, 30.0]), st.sampled_from([5.0, 60.0]))
def test_looks_that_are_worked_out_decide_as_a_look_every_tenth_of_a_second(
    seed: int, up_s: float, down_s: float
) -> None:
    """Ray asks ten times a second; ``next_look_s`` names the only times that can matter."""
    draws = random.Random(seed)
    config = AutoscalingConfig(max_replicas=40, upscale_delay_s=up_s, downscale_delay_s=down_s)
    every, few = DeploymentAutoscaling(config), DeploymentAutoscaling(config)
    targets, next_look = {"every": 1, "few": 1}, 0.0
    looks = 0
    for tenth in range(3_000):
        now_s = tenth / 10
        if tenth % 100 == 0 and draws.random() < 0.9:
            points = tuple(
                (now_s - 24 + 6 * i, draws.choice([0, 2, 9, 30]) * draws.random()) for i in range(5)
            )
            report = HandleReport(handle_id="h", at_s=now_s, queued=points, running={})
            every.report(report)
            few.report(report)
            next_look = now_s
        running = tuple(f"r{i}" for i in range(targets["every"]))
        if running != few.running:
            every.set_running(running)
            few.set_running(running)
            next_look = now_s
        targets["every"] = every.decide(targets["every"], now_s)
        if next_look is not None and now_s >= next_look - 1e-9:
            looks += 1
            targets["few"] = few.decide(targets["few"], now_s)
            look_s = few.next_look_s(targets["few"], now_s)
            next_look = look_s if look_s is not None else float("inf")
        assert targets["few"] == targets["every"], now_s
    assert looks < 400
