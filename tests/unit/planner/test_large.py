"""Spaces too large to look at whole, keys that change together, how sure the first choice is."""

from __future__ import annotations

import json
import math

import pytest

import raysim
from raysim.errors import ScenarioError
from raysim.planner import search as searching
from raysim.planner.choose import OWN_FRAC, Objective, beats, certainty_of, choose
from raysim.planner.effects import beyond_ends, without_effect
from raysim.planner.plan import Question, plan
from raysim.planner.pool import serial
from raysim.planner.search import Wanted, search
from raysim.planner.space import Space, chosen, said, space_of
from raysim.planner.store import Store
from raysim.planner.sweep import Sweep, sweep
from raysim.planner.trials import of_plain
from tests.unit.planner.parts import NODES, scenario, trial

USD = Objective("usd", "minimize")
LARGE = {
    "train.zero_stage": [1, 2, 3], "train.micro_batch": [1, 2, 4, 8], NODES: [1, 2, 4],
    "train.activation_checkpointing": ["none", "full"],
    "train.deepspeed.zero_optimization.reduce_bucket_size": [10**6, 10**7, 10**8],
}  # fmt: skip


def test_a_point_has_its_number_and_its_neighbours():
    space = Space({"a": (1, 2, 3), "b": ("x", "y"), "c": (1, 2, 3, 4)})
    points = list(space.points())
    assert [space.at(n) for n in range(space.size)] == points
    for point in points:
        near = [space.at(n).choice for n in space.near(point.number)]
        assert len(near) == len({json.dumps(c) for c in near}) == 2 + 1 + 3
        for choice in near:
            assert sum(choice[key] != point.choice[key] for key in choice) == 1


@pytest.mark.parametrize("count", [1, 7, 24, 100])
def test_a_sample_has_no_point_twice(count):
    space = Space({"a": tuple(range(6)), "b": tuple(range(4))})
    numbers = [p.number for p in space.sample(count)]
    assert len(numbers) == len(set(numbers)) == min(count, 24)


@pytest.fixture
def small_limits(monkeypatch):
    monkeypatch.setattr(searching, "MOST_ESTIMATED", 100)
    monkeypatch.setattr(searching, "SAMPLE", 24)
    monkeypatch.setattr(searching, "EXHAUSTIVE", 8)


@pytest.fixture(scope="module")
def whole():
    said_ = scenario()
    space = space_of(said_, LARGE)
    return said_, space, choose(sweep(said_, space, serial), USD).best


def test_a_sample_and_its_neighbours_find_the_best(whole, small_limits):
    said_, space, best = whole
    found = search(said_, space, serial, wanted=Wanted(minimize="usd"))
    assert found.complete
    assert found.unseen > space.size / 4
    assert found.unseen + len(found.trials) == space.size
    plan_ = choose(found, USD)
    assert plan_.best.metrics["usd"] == pytest.approx(best.metrics["usd"], rel=1e-3)
    (left,) = [r for r in plan_.reasons if r.what == "were not looked at"]
    assert left.trials == found.unseen


def test_what_no_estimate_tells_is_played_from_a_sample(whole, small_limits):
    said_, space, _ = whole
    found = search(said_, space, serial, wanted=Wanted(minimize="gpu_mem_peak"))
    assert found.complete
    assert {t.status for t in found.trials} == {"ok"}
    best = choose(found, Objective("gpu_mem_peak", "minimize")).best
    everything = choose(sweep(said_, space, serial), Objective("gpu_mem_peak", "minimize")).best
    assert best.metrics["gpu_mem_peak"] == everything.metrics["gpu_mem_peak"]


def test_a_sampled_search_that_was_interrupted_goes_on(whole, small_limits, tmp_path):
    said_, space, _ = whole
    wanted = Wanted(minimize="usd")
    count = 0

    def interrupted(task, points):
        nonlocal count
        for found in serial(task, points):
            count += 1
            if count == 20:
                raise KeyboardInterrupt
            yield found

    first = search(said_, space, interrupted, wanted=wanted, store=Store(tmp_path))
    assert not first.complete
    again = search(said_, space, serial, wanted=wanted, store=Store(tmp_path))
    assert again == search(said_, space, serial, wanted=wanted)


def test_keys_change_together_under_a_name():
    both = {"name": "large", NODES: 2, "train.micro_batch": 8}
    space = space_of(scenario(), {"together.size": [{NODES: 1, "train.micro_batch": 4}, both]})
    large = chosen(scenario(), space.at(1).choice)
    assert (large.strategy.mesh.world, large.strategy.batch.micro) == (8, 8)
    assert large.name == scenario().name
    assert said(space.at(1).choice) == "size large"
    assert said(space.at(0).choice) == "size nodes 1, micro_batch 4"
    with pytest.raises(ScenarioError, match="mappings of keys"):
        space_of(scenario(), {"together": [1, 2]})


def test_any_node_is_every_one_that_could_stand_there():
    big = raysim.load("scenarios/llama3_8b_zero3")
    key = "cluster.gpu-worker.node"
    nodes = space_of(big, {key: ["any"]}).values[key]
    assert {"hgx-h100-8", "hgx-h200-8", "dgx-a100-80-8"} <= set(nodes)
    assert not any(name.startswith(("p5", "a3")) for name in nodes)  # another provider's
    prices = {n: chosen(big, {key: n}).cluster.usd_per_hour / 2 for n in nodes}
    assert prices["hgx-h100-8"] == pytest.approx(23.92)  # the scenario's own
    assert prices["hgx-h200-8"] == pytest.approx(35.52)  # the catalog's
    older = chosen(big, {key: "dgx-a100-80-8"})
    assert older.cluster.groups[-1].node.nic.bytes_per_s < 400e9 / 8  # not the H100's
    with pytest.raises(ScenarioError, match="no GPUs"):
        space_of(big, {"cluster.head.node": ["any"]})


def _spread(number, usd, deviation=0.1, **choice):
    made = trial(number, metrics={"usd": usd}, choice={NODES: number, **choice})
    return of_plain({**made.plain(), "spread": [0.0, deviation]})


def test_a_quantile_prefers_what_is_better_known():
    known, unknown = _spread(0, 10.0, 0.05), _spread(1, 9.5, 0.5)
    swept = Sweep((known, unknown), 2)
    assert choose(swept, USD).best == unknown
    careful = Objective("usd", "minimize", 0.9)
    assert choose(swept, careful).best == known
    assert careful.value(known) == pytest.approx(10 * math.exp(0.05 * 1.2816), rel=1e-3)
    fast = Objective("tokens_per_s", "maximize", 0.9)
    rate = of_plain({**trial(0, metrics={"tokens_per_s": 100.0}).plain(), "spread": [0.0, 0.1]})
    assert fast.value(rate) == pytest.approx(-100 / math.exp(0.1 * 1.2816), rel=1e-3)


def test_the_first_beats_a_near_second_by_little_and_a_far_one_surely():
    first, near, far = _spread(0, 10.0), _spread(1, 10.1), _spread(2, 20.0)
    sure = certainty_of([first, near, far], USD)
    assert sure.low < 10 < sure.high
    assert 0.5 < sure.first_beats_second < 0.6
    assert sure.alike == 2
    assert beats(first, far, USD) > 0.999
    assert beats(near, first, USD) == pytest.approx(1 - sure.first_beats_second)
    elsewhere = _spread(1, 10.5, **{"cluster.node": "another"})
    z = math.log(1.05) / 0.1 / math.sqrt(2)
    assert beats(first, elsewhere, USD) == pytest.approx(0.5 * (1 + math.erf(z / math.sqrt(2))))
    assert beats(first, _spread(1, 10.5), USD) == pytest.approx(
        0.5 * (1 + math.erf(z / math.sqrt(2 * OWN_FRAC)))
    )
    assert certainty_of([trial(0)], USD) is None


def test_keys_without_effect_are_told():
    same = {"usd": 1.0}
    trials = [
        trial(0, choice={"a": 1, "b": 1}, metrics=same),
        trial(1, choice={"a": 2, "b": 1}, metrics=same),
        trial(2, choice={"a": 1, "b": 2}, metrics={"usd": 2.0}),
    ]
    assert without_effect(trials, Space({"a": (1, 2), "b": (1, 2)})) == ["a"]
    assert without_effect(trials[:1], Space({"a": (1, 2)})) == []


def test_a_best_choice_at_an_end_that_paid_says_what_to_try_next():
    def ends(*costs: float, missed: tuple[str, ...] = ()) -> dict[str, list[int]]:
        trials = [
            trial(n, choice={NODES: 2 << n, "train.zero_stage": 3}, metrics={"usd": usd},
                  missed=missed if n == 1 else ())
            for n, usd in enumerate(costs)
        ]  # fmt: skip
        best = min(trials, key=lambda t: t.metrics["usd"])
        space = Space({NODES: (2, 4, 8), "train.zero_stage": (1, 2, 3)})
        return beyond_ends(trials, space, best, USD)

    assert ends(9.0, 8.0, 7.0) == {NODES: [8, 16, 32]}
    assert ends(7.0, 8.0, 9.0) == {NODES: [1, 2]}
    assert ends(9.0, 7.0, 8.0) == {}, "the best lies between others"
    assert ends(9.0, 7.05, 7.0) == {}, "the last step paid next to nothing"
    assert ends(9.0, 8.0, 7.0, missed=("days <= 1",)) == {}, "a target decided"


def test_a_plan_that_ranks_by_a_quantile_says_so():
    answer = plan(scenario(), Question(vary={NODES: [1, 2]}, minimize="usd", quantile=0.9))
    assert answer.plan.objective.quantile == 0.9
    with pytest.raises(ScenarioError, match="between 0 and 1"):
        plan(scenario(), Question(vary={NODES: [1]}, quantile=1.5))
