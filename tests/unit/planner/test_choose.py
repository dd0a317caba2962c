"""The choice: ranks, fronts, reasons, what else would do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.errors import ScenarioError
from raysim.planner.choose import Objective, best_of_each, choose, objective_of, pareto
from raysim.planner.plan import Question, plan
from raysim.planner.sweep import Sweep
from tests.unit.planner.parts import NODES, scenario, trial

USD = Objective("usd", "minimize")


def swept(*trials):
    return Sweep(tuple(trials), len(trials))


def test_the_cheapest_that_meets_the_targets_comes_first():
    plan_ = choose(
        swept(trial(0, missed=("days <= 1",)), trial(2), trial(1), trial(3, status="refused")), USD
    )
    assert [t.number for t in plan_.ranked] == [1, 2]
    assert plan_.best.number == 1


def test_of_equals_fewer_gpus_come_first():
    metrics = {"usd": 5.0, "tokens_per_s": 1.0}
    plan_ = choose(swept(trial(0, gpus=16, metrics=metrics), trial(1, metrics=metrics)), USD)
    assert plan_.best.number == 1


def test_more_is_better_of_throughput():
    fast, slow = ({"usd": 1.0, "tokens_per_s": v} for v in (2.0, 1.0))
    plan_ = choose(
        swept(trial(0, metrics=slow), trial(1, metrics=fast)), Objective("tokens_per_s", "maximize")
    )
    assert [t.number for t in plan_.ranked] == [1, 0]


def test_dollars_of_unequal_work_are_no_yardstick():
    """A layout of half the samples a step is cheap by doing half, in as many steps."""
    half = {"usd": 6.0, "usd_per_million_tokens": 6.0, "tokens_per_s": 1.0}
    whole = {"usd": 10.0, "usd_per_million_tokens": 5.0, "tokens_per_s": 2.0}
    tried = (trial(0, metrics=half), trial(1, metrics=whole))
    objective = objective_of(tried, None, None)
    assert objective.metric == "usd_per_million_tokens"
    assert choose(swept(*tried), objective).best.number == 1
    assert [t.number for t in pareto(tried, objective)] == [1]
    assert objective_of((trial(0, metrics=whole), trial(1, metrics=whole)), None, None) == USD
    assert objective_of(tried, "usd", None) == USD


points = st.tuples(st.floats(0.1, 100), st.floats(0.1, 100))


@given(st.lists(points, min_size=1, max_size=30))
def test_nothing_on_the_front_is_beaten_and_all_else_is(values):
    trials = [trial(n, metrics={"usd": u, "tokens_per_s": s}) for n, (u, s) in enumerate(values)]
    front = {t.number for t in pareto(trials, USD)}
    for n, (usd, speed) in enumerate(values):
        beaten = any(u <= usd and s >= speed and (u < usd or s > speed) for u, s in values)
        if n in front:
            assert not beaten
        else:
            assert any(u <= usd and s >= speed for m, (u, s) in enumerate(values) if m in front)


def test_kinds_of_nodes_are_compared_by_the_best_of_each():
    """Five best that are all of one kind say nothing of the others."""
    node = "cluster.hardware.gpu-worker.node"
    big, small = ({node: name, NODES: 2} for name in ("big", "small"))
    late = ("days <= 7", "usd <= 1")
    trials = (
        trial(0, choice=small), trial(1, choice=small, status="out_of_memory"),
        trial(2, choice=big, missed=late), trial(3, choice={**big, NODES: 4}, missed=late[:1]),
        trial(4, choice={**small, NODES: 4}),
    )  # fmt: skip
    assert [t.number for t in choose(swept(*trials), USD).kinds] == [0, 3]
    assert not best_of_each([t for t in trials if t.choice[node] == "small"], USD)


def test_reasons_count_every_trial_that_is_out_once():
    found = choose(
        swept(
            trial(0), trial(1, status="out_of_memory", metrics={"gpu_mem_peak": 1.5}),
            trial(2, status="out_of_memory", metrics={"gpu_mem_peak": 1.1}),
            trial(3, missed=("days <= 7", "usd <= 1"), metrics={"days": 9.0, "usd": 5.0}),
            trial(4, status="refused", why="128 is not 4 x 3"),
            trial(5, status="refused", why="256 is not 4 x 5"),
        ),
        USD,
    )  # fmt: skip
    assert sum(r.trials for r in found.reasons) == 5
    memory = next(r for r in found.reasons if "memory" in r.what)
    assert (memory.trials, memory.example) == (2, "closest: 110% of it, nodes 2")
    days = next(r for r in found.reasons if "days" in r.what)
    assert (days.trials, days.example) == (1, "closest: 9, nodes 3")
    assert [r.trials for r in found.reasons if r.what == "are refused"] == [2]


def test_what_misses_a_target_is_told_in_its_unit():
    full = trial(0, missed=("gpu_mem_peak <= 90 %",), metrics={"gpu_mem_peak": 0.9038, "usd": 1.0})
    (reason,) = choose(swept(full), USD).reasons
    assert reason.example == "closest: 90.38 %, nodes 0"


def test_gpus_and_probability_are_targets_too():
    trials = swept(trial(0, gpus=64), trial(1, likely=0.85), trial(2, likely=0.95))
    assert [t.number for t in choose(trials, USD, max_gpus=8).ranked] == [1, 2]
    assert [t.number for t in choose(trials, USD, likely=0.9, max_gpus=8).ranked] == [2]


def test_what_can_be_counted_on_goes_before_what_is_a_little_cheaper():
    """The second costs a tenth more and is sure; of the others the likelier comes first."""
    trials = swept(trial(0, likely=0.34), trial(1, likely=0.9), trial(2, likely=0.6), trial(3))
    assert [t.number for t in choose(trials, USD).ranked] == [1, 3, 2, 0]
    as_predicted = objective_of(trials.trials, None, None, likely=0.0)
    assert [t.number for t in choose(trials, as_predicted).ranked] == [0, 1, 2, 3]


def test_a_choice_that_may_not_fit_is_less_likely_where_nobody_has_targets():
    vary = {"train.micro_batch": [4, 2048]}
    small, large = plan(scenario(), Question(vary=vary)).sweep.trials
    assert small.likely > 0.99
    assert large.status == "out_of_memory" or large.likely < small.likely


def test_the_objective_is_the_cost_the_job_has():
    assert objective_of([trial(0)], None, None) == USD
    assert objective_of([trial(0)], None, "mfu") == Objective("mfu", "maximize")
    for wrong in (("usd", "mfu"), ("speed", None)):
        with pytest.raises(ScenarioError):
            objective_of([trial(0)], *wrong)


def test_the_smallest_change_beyond_the_space():
    said = scenario()
    space = {"train.micro_batch": [4, 8], NODES: [1]}
    fastest = plan(said, Question(vary=space)).plan.best.metrics["seconds"]
    answer = plan(said, Question(vary=space, subject_to=(f"seconds <= {fastest * 0.7}",)))
    assert answer.plan.best is None
    assert answer.plan.instead.choice[NODES] == 2
    assert answer.plan.instead.metrics["seconds"] <= fastest * 0.7
    assert answer.chosen().strategy.mesh.world == 8


def test_nothing_would_do():
    answer = plan(scenario(), Question(vary={NODES: [1]}, subject_to=("seconds <= 0.001",)))
    assert answer.plan.instead is None
    assert answer.chosen() is None


def test_targets_are_more_likely_the_more_room_they_have():
    said = scenario()
    at = plan(said, Question(vary={NODES: [1]})).sweep.trials[0].metrics["step_seconds"]
    chances = [
        plan(said, Question(vary={NODES: [1]}, subject_to=(f"step_seconds <= {at * f}",)))
        .sweep.trials[0].likely
        for f in (0.5, 1.0, 1.5, 3.0)
    ]  # fmt: skip
    assert chances == sorted(chances)
    assert chances[0] < 0.2
    assert chances[-1] > 0.8
