"""Large spaces: the same choice as by playing every point, with fewer points played."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

from raysim.planner import search as searching
from raysim.planner.choose import choose, objective_of
from raysim.planner.estimate import ESTIMATED, estimate_point
from raysim.planner.plan import Question, plan
from raysim.planner.pool import serial
from raysim.planner.search import Wanted, search
from raysim.planner.space import Point, space_of
from raysim.planner.store import Store
from raysim.planner.sweep import sweep
from raysim.planner.trials import try_point
from raysim.scenario.targets import parse_target
from tests.unit.planner.parts import NODES, scenario, trial

WIDE = {
    "train.zero_stage": [1, 3], "train.micro_batch": [1, 2, 4, 8], NODES: [1, 2],
    "train.activation_checkpointing": ["none", "full"],
}  # fmt: skip


@pytest.fixture(scope="module")
def whole():
    said = scenario()
    space = space_of(said, WIDE)
    return said, space, sweep(said, space, serial)


@pytest.fixture(autouse=True)
def _small_spaces_are_large(monkeypatch):
    monkeypatch.setattr(searching, "EXHAUSTIVE", 8)
    monkeypatch.setattr(searching, "ROUND", 4)


@pytest.mark.parametrize(
    "asked",
    [{"minimize": "usd"}, {"maximize": "tokens_per_s"}, {"minimize": "gpu_hours", "max_gpus": 4}],
    ids=str,
)
def test_the_choice_is_that_of_playing_all(whole, asked):
    said, space, all_played = whole
    found = search(said, space, serial, wanted=Wanted(**asked))
    assert found.complete
    status = Counter(t.status for t in found.trials)
    assert 5 <= status["ok"] < space.size * 3 / 4
    assert status["estimated"] == space.size - status["ok"]
    objective = objective_of(
        all_played.trials, asked.get("minimize"), asked.get("maximize")
    )  # fmt: skip
    few, many = (choose(s, objective, max_gpus=asked.get("max_gpus")) for s in (found, all_played))
    assert few.ranked[:5] == many.ranked[:5]
    assert few.pareto == many.pareto


def test_targets_out_of_reach_are_told_from_estimates(whole):
    said, space, _ = whole
    limits = (parse_target("seconds", "<= 1"),)
    found = search(said, space, serial, wanted=Wanted(minimize="usd"), limits=limits)
    status = Counter(t.status for t in found.trials)
    assert status["ok"] <= 3 * searching.ROUND
    assert {t.why for t in found.trials if t.status == "estimated"} == {
        "the targets are out of their reach"
    }
    plan_ = choose(found, objective_of(found.trials, "usd", None))
    assert not plan_.ranked
    assert sum(r.trials for r in plan_.reasons) == space.size


def test_an_interrupt_keeps_estimates_and_trials(whole, tmp_path):
    said, space, _ = whole
    done = []

    def interrupted(task, points):
        for found in serial(task, points):
            if len(done) == space.size + 3:
                raise KeyboardInterrupt
            done.append(found.number)
            yield found

    wanted = Wanted(minimize="usd")
    searching_again = searching.search
    first = search(said, space, interrupted, wanted=wanted, store=Store(tmp_path))
    assert Counter(t.status for t in first.trials)["ok"] == 3
    assert not first.complete  # what is only estimated may be the best yet
    assert len(Store(tmp_path).read()) == space.size + 3
    again = searching_again(said, space, serial, wanted=wanted, store=Store(tmp_path))
    assert again == search(said, space, serial, wanted=wanted)


def test_what_holds_more_than_what_did_not_fit_is_not_played():
    def at(number, micro, recomputed, **options):
        choice = {
            "train.micro_batch": micro, "train.activation_checkpointing": recomputed,
            NODES: options.pop("nodes", 1),
        }  # fmt: skip
        return trial(number, choice=choice, **options)

    full = at(0, 2, "full", status="out_of_memory")
    guesses = [
        at(1, 4, "full", status="estimated"),
        at(2, 2, "none", status="estimated"),
        at(3, 1, "none", status="estimated"),
        at(4, 4, "full", nodes=2, status="estimated"),
        at(5, 4, "selective", status="estimated"),
    ]

    kept = SimpleNamespace(known={t.number: t for t in guesses})
    left = searching._ruled_by_memory(kept, guesses, [full])
    assert [t.number for t in left] == [3, 4, 5]
    assert kept.known[1].status == kept.known[2].status == "out_of_memory"
    assert "micro_batch 2" in kept.known[1].why


def test_an_estimate_has_what_a_trial_has(whole):
    said, _, _ = whole
    point = Point(0, {"train.micro_batch": 4})
    guess, played = estimate_point(said, point), try_point(said, point, ())
    assert guess.status == "estimated"
    assert guess.gpus == played.gpus
    assert set(guess.metrics) == set(ESTIMATED) & set(played.metrics)
    for name in ("step_seconds", "samples_per_s", "tokens_per_s_per_gpu"):
        if name in guess.metrics:
            assert guess.metrics[name] == pytest.approx(played.metrics[name], rel=1e-9)
    assert guess.metrics["usd"] <= played.metrics["usd"]  # without start-up and checkpoints


def test_what_cannot_be_is_refused_by_its_estimate():
    choice = {"train.micro_batch": 4096, "train.deepspeed.train_batch_size": 16}
    refused = estimate_point(scenario(), Point(3, choice))
    assert refused.status == "refused"
    assert refused.why


def test_a_plan_of_a_large_space_says_what_was_not_played():
    answer = plan(scenario(), Question(vary=WIDE, minimize="usd"))
    assert answer.plan.best is not None
    assert answer.plan.best.status == "ok"
    (left,) = [r for r in answer.plan.reasons if r.what == "were not played"]
    assert left.example.startswith("slower or dearer than the choices")
