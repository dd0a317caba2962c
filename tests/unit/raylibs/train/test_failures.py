"""Three budgets, notices of preemption, elastic sizes, and what each costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.raylibs.train.config import FailureConfig, ScalingConfig
from raysim.raylibs.train.loop import ConstantStep
from raysim.raylibs.train.policies import Cause, FailurePolicy, possible_workers
from tests.train_parts import CHECKPOINT, Played, loop, play, trainer

S = 10**9
LONG = loop(steps=300, checkpoint_every=50)


@given(
    limits=st.tuples(*[st.integers(-1, 3)] * 3),
    causes=st.lists(st.sampled_from(["worker", "start", "preemption"]), max_size=12),
)
def test_each_cause_has_its_own_budget(limits: tuple[int, int, int], causes: list[Cause]) -> None:
    policy = FailurePolicy(
        FailureConfig(
            max_failures=limits[0], controller_failure_limit=limits[1],
            max_preemption_failures=limits[2],
        )
    )  # fmt: skip
    limit = dict(zip(("worker", "start", "preemption"), limits, strict=True))
    for i, cause in enumerate(causes):
        so_far = causes[: i + 1].count(cause)
        retries = limit[cause] == -1 or so_far <= limit[cause]
        assert policy.decide(cause) == ("RETRY" if retries else "RAISE")


@pytest.mark.parametrize(("allowed", "attempts"), [(0, 1), (1, 2), (-1, 4)])
def test_restarts_go_on_while_the_budget_lasts(allowed: int, attempts: int) -> None:
    def kill(sim: Any, faults: Any) -> None:
        for at in ("100s", "180s", "260s"):
            sim.at(at, faults.kill_some_worker, 1)

    played = play(trainer(LONG, failures=FailureConfig(max_failures=allowed)), faults=kill)
    assert len(played.record.attempts) == attempts
    assert played.outcome.ok == (allowed == -1)
    parts = played.parts_s()
    assert sum(parts.values()) == pytest.approx(
        (played.record.end_ns - played.record.begin_ns) / S, abs=0.02
    )
    if allowed == -1:
        assert parts["steps"] == 300.0


def preempted(notice: str, how: str, **failures: float) -> Played:
    def take(sim: Any, faults: Any) -> None:
        sim.at("120s", faults.preempt, 1, notice)
        sim.at("400s", faults.restart_node, 1)

    a_loop = loop(steps=300, checkpoint_every=100, on_preemption=how)
    return play(trainer(a_loop, failures=FailureConfig(**failures)), faults=take)


def test_a_node_that_is_taken_back_costs_no_failure_of_workers() -> None:
    played = preempted("30s", "ignore", max_failures=0)
    assert played.outcome.ok
    (stop,) = played.record.stops
    assert stop.cause == "preemption"
    assert played.record.group_waits == 4  # until the node is back
    assert "PREEMPTING" in played.states()
    assert played.states()[-1] == "FINISHED"


def test_preemptions_have_a_budget() -> None:
    played = preempted("30s", "ignore", max_failures=-1, max_preemption_failures=0)
    assert (played.outcome.ok, played.outcome.cause) == (False, "preemption")


def test_the_notice_is_seen_within_its_poll_and_saves_what_it_can() -> None:
    played = preempted("60s", "checkpoint")
    (at,) = [t for t, state in played.record.states if state == "PREEMPTING"]
    # Watched every 5 s, told to the workers, found by the controller's own poll of 2 s.
    assert 120.0 < at / S < 120.0 + 5.0 + 2.1
    (early,) = [s for s in played.record.saved if s.step % 100]
    assert 120.0 < early.reported_ns / S < 127.0
    assert played.record.attempts[1].resume_step == early.step
    assert played.parts_s()["lost"] < 60.0  # it went on for the rest of the notice


def test_without_warning_the_lag_is_the_health_checks() -> None:
    def cut(sim: Any, faults: Any) -> None:
        sim.at("120s", faults.fail_node, 1)
        sim.at("300s", faults.restart_node, 1)

    played = play(trainer(LONG, failures=FailureConfig(max_failures=1)), faults=cut)
    assert played.outcome.ok
    assert 15 < played.parts_s()["detection"] < 70


@given(
    nodes=st.lists(st.integers(0, 9), max_size=6), least=st.integers(1, 5),
    more=st.integers(0, 30), need=st.sampled_from([1.0, 2.0]),
)  # fmt: skip
def test_workers_fit_node_by_node(nodes: list[int], least: int, more: int, need: float) -> None:
    config = ScalingConfig(
        num_workers=(least, least + more), use_gpu=True, resources_per_worker={"GPU": need}
    )
    fit = possible_workers(config, [{"GPU": float(n), "CPU": 8.0} for n in nodes])
    assert fit == min(least + more, sum(int(n // need) for n in nodes))


def elastic(faults: Callable[[Any, Any], None], **more: Any) -> Played:
    a_loop = loop(steps=400, checkpoint_every=50, **more)
    spec = trainer(a_loop, workers=(4, 12), failures=FailureConfig(max_failures=-1))
    return play(spec, nodes=3, faults=faults)


def test_growth_waits_for_the_next_minute_and_costs_a_restart() -> None:
    def fail(sim: Any, faults: Any) -> None:
        sim.at("60s", faults.kill_raylet, 2)
        sim.at("200s", faults.restart_node, 2)

    played = elastic(fail)
    assert [a.world_size for a in played.record.attempts] == [12, 8, 12]
    (resize,) = [s for s in played.record.stops if s.cause == "resize"]
    assert 0 < resize.at_ns / S - 200 < 60 + 20 + 5  # the coordinator's tick, then the monitor's
    # What was done since the last checkpoint is done again.
    again = played.record.attempts[2].resume_step
    assert again % 50 == 0
    assert played.record.attempts[1].done_step > again


def test_fewer_than_the_fewest_are_waited_for() -> None:
    def fail(sim: Any, faults: Any) -> None:
        for node in (1, 2):
            sim.at("60s", faults.kill_raylet, node)
        sim.at("300s", faults.restart_node, 1)

    spec = trainer(LONG, workers=(8, 12), failures=FailureConfig(max_failures=-1))
    played = play(spec, nodes=3, faults=fail)
    assert [a.world_size for a in played.record.attempts] == [12, 8]
    assert played.parts_s()["waiting"] > 200


@pytest.mark.parametrize("fixed", [None, 12])
def test_a_fixed_batch_makes_steps_of_smaller_groups_longer(fixed: int | None) -> None:
    def fail(sim: Any, faults: Any) -> None:
        sim.at("60s", faults.kill_raylet, 2)

    played = elastic(fail, step=ConstantStep(step_s=1.0, world_size=fixed), checkpoint=CHECKPOINT)
    by_size = played.record.kept_by_size()
    assert list(by_size) == [12, 8]
    factor = 1.0 if fixed is None else 12 / 8
    steps_s = by_size[12] + by_size[8] * factor
    assert played.parts_s()["steps"] == pytest.approx(steps_s, abs=0.01)


def test_seeds_tell_runs_apart_and_one_seed_gives_one_run() -> None:
    def kill(sim: Any, faults: Any) -> None:
        sim.at("100s", faults.kill_some_worker, 1)

    def run(seed: int) -> tuple[Any, ...]:
        noisy = loop(steps=300, checkpoint_every=50, step_cv=0.1)
        spec = trainer(noisy, failures=FailureConfig(max_failures=1))
        record = play(spec, faults=kill, seed=seed).record
        return record.end_ns, tuple(record.states), tuple(record.saved)

    assert run(1) == run(1)
    assert run(1) != run(2)
