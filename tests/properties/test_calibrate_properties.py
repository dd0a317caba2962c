"""What every fit of every monotone model keeps to."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from raysim.calibrate.fit import Fit, fit
from raysim.calibrate.parameters import Parameter
from raysim.calibrate.rows import Measured, RowKey

WEIGHTS = st.lists(
    st.lists(st.sampled_from([0.0, 0.1, 1.0, 5.0]), min_size=3, max_size=3), min_size=1, max_size=6
)
TRUE = st.lists(st.floats(20.0, 500.0), min_size=3, max_size=3)


def fitted(weights: list[list[float]], true: list[float], *, shuffled: bool = False) -> Fit:
    def predict(values: Mapping[str, float]) -> dict[RowKey, float]:
        at = list(values.values())
        return {
            ("w", str(i)): 1.0 + sum(w * v for w, v in zip(row, at, strict=True))
            for i, row in enumerate(weights)
        }

    names = [Parameter(name=n, prior=100.0, lower=10.0, upper=1000.0) for n in "abc"]
    exact = predict(dict(zip("abc", true, strict=True)))
    rows = [Measured(key=key, role="calibration", value=value) for key, value in exact.items()]
    return fit(names, predict, rows[::-1] if shuffled else rows)


def misfit(found: Fit, predicted: Mapping[RowKey, float]) -> float:
    """Huber's sum, as the fit sees it."""
    r = [abs(math.log(predicted[row.key] / row.value)) / 0.05 for row in found.rows]
    return sum(x * x / 2 if x <= 3 else 3 * x - 4.5 for x in r)


@given(WEIGHTS, TRUE)
def test_rows_never_come_out_worse_and_bounds_hold(
    weights: list[list[float]], true: list[float]
) -> None:
    found = fitted(weights, true)
    assert misfit(found, found.after) <= misfit(found, found.before) + 1e-9
    for one in found.constants:
        assert 10.0 * (1 - 1e-12) <= one.value <= 1000.0 * (1 + 1e-12)
        assert 0 < one.error <= one.parameter.sigma
        if not one.determined:
            assert one.value == 100.0
            assert one.why


@given(WEIGHTS, TRUE)
def test_the_order_of_rows_does_not_matter_and_nothing_is_drawn(
    weights: list[list[float]], true: list[float]
) -> None:
    first, again = fitted(weights, true), fitted(weights, true)
    assert first == again
    turned = fitted(weights, true, shuffled=True)
    for one, other in zip(first.constants, turned.constants, strict=True):
        assert one.determined == other.determined
        assert math.isclose(one.value, other.value, rel_tol=1e-3)


@given(st.permutations("abc"), TRUE)
def test_a_constant_that_no_row_sees_is_left_alone(order: list[str], true: list[float]) -> None:
    seen = [[1.0 if name == at else 0.0 for name in "abc"] for at in order[:2]]
    found = {c.parameter.name: c for c in fitted(seen, true).constants}
    assert found[order[2]].value == 100.0
    assert not found[order[2]].determined
