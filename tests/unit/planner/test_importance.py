"""Which keys decide: shares against hand-made functions whose parts are known."""

from __future__ import annotations

import itertools
import math

import pytest

from raysim.planner.importance import importance
from tests.unit.planner.parts import trial

SPACE = {"a": [1, 2, 4], "b": ["none", "full"], "c": [0, 1]}


def grid(value, space=SPACE, without=()):
    points = itertools.product(*space.values())
    choices = [dict(zip(space, point, strict=True)) for point in points]
    return [
        trial(n, choice=choice, metrics={"usd": value(**choice)})
        for n, choice in enumerate(choices)
        if n not in without
    ]


def shares(found):
    return {k.key: k.frac for k in found.keys}


def product(a, b, c):
    return a * (3.0 if b == "full" else 1.0)


def test_shares_of_a_product_are_the_variances_of_its_logarithms():
    found = importance(grid(product), SPACE, "usd")
    of_a = (2 / 3) * math.log(2) ** 2
    of_b = (math.log(3) / 2) ** 2
    assert shares(found)["a"] == pytest.approx(of_a / (of_a + of_b), rel=1e-3)
    assert shares(found)["b"] == pytest.approx(of_b / (of_a + of_b), rel=1e-3)
    assert shares(found)["c"] == pytest.approx(0, abs=1e-6)
    assert sum(p.frac for p in found.pairs) == pytest.approx(0, abs=1e-6)
    assert found.explained > 0.999


def test_trials_that_did_not_run_may_be_missing():
    whole = importance(grid(product), SPACE, "usd")
    part = importance(grid(product, without=(0, 3, 7, 10)), SPACE, "usd")
    assert part.trials == whole.trials - 4
    assert shares(part)["a"] == pytest.approx(shares(whole)["a"], abs=0.05)
    assert shares(part)["c"] == pytest.approx(0, abs=1e-3)


def test_what_two_keys_do_only_together_is_theirs():
    def together(a, b, c):
        return 2.0 if (b == "full") == (c == 1) else 1.0

    found = importance(grid(together), SPACE, "usd")
    assert found.pairs[0].keys == ("b", "c")
    assert found.pairs[0].frac > 0.99


def test_a_value_stands_with_its_factor_over_the_mean_and_its_trials():
    found = importance(grid(product), SPACE, "usd")
    effects = next(k.effects for k in found.keys if k.key == "a")
    assert [e.value for e in effects] == [1, 2, 4]
    assert [e.factor for e in effects] == pytest.approx([0.5, 1.0, 2.0], rel=1e-3)
    assert [e.trials for e in effects] == [4, 4, 4]


def test_a_value_that_never_ran_has_no_factor():
    trials = [t for t in grid(product) if t.choice["a"] != 4]
    effects = next(k.effects for k in importance(trials, SPACE, "usd").keys if k.key == "a")
    assert effects[2].factor is None
    assert effects[2].trials == 0


def test_few_trials_are_not_trusted():
    assert importance(grid(product), SPACE, "usd").sure
    assert not importance(grid(product)[:4], SPACE, "usd").sure


def test_noise_is_not_explained():
    hashed = {n: 1 + math.sin(12.9898 * n * n) ** 2 for n in range(12)}
    trials = [
        trial(t.number, choice=t.choice, metrics={"usd": hashed[t.number]}) for t in grid(product)
    ]
    found = importance(trials, SPACE, "usd")
    assert found.explained < 0.9
    assert not found.sure


@pytest.mark.parametrize("value", [lambda **_: 5.0, lambda **_: 0.0])
def test_what_never_changes_has_no_reasons(value):
    assert importance(grid(value), SPACE, "usd") is None


def test_many_values_of_two_keys_leave_interactions_out():
    space = {"a": list(range(1, 41)), "b": list(range(1, 41))}
    found = importance(grid(lambda a, b: float(a * b), space), space, "usd")
    assert not found.interactions
    assert shares(found)["a"] == pytest.approx(0.5, abs=1e-3)


def test_values_beyond_the_space_count():
    trials = [*grid(product), trial(99, choice={"a": 8, "b": "none", "c": 0}, metrics={"usd": 8.0})]
    effects = next(k.effects for k in importance(trials, SPACE, "usd").keys if k.key == "a")
    assert [e.value for e in effects] == [1, 2, 4, 8]


def test_lists_are_values_like_others():
    space = {"a": [[1, 2], "auto"], "b": [1, 2]}
    found = importance(grid(lambda a, b: b * (2.0 if a == "auto" else 1.0), space), space, "usd")
    assert shares(found)["a"] == pytest.approx(0.5, abs=0.01)
