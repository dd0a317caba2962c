"""Slices of two runs against each other."""

from __future__ import annotations

import pytest

from raysim.kernel.record import Span
from raysim.report.comparing_spans import Recorded, curve, operations, step_of, timeline

NS = 1_000_000


def span(name, start, end, *, category="forward", stream="compute", step=1, micro=0):
    args = {"step": step, "micro_batch": micro}
    return Span(("node-0", "gpu-0", stream), name, category, start * NS, end * NS, args)


def of(*spans, memory=()):
    return Recorded(list(spans), list(memory), "rank 0")


FIRST = of(span("layers.0.mlp", 10, 20), span("layers.1.mlp", 20, 30), span("head", 30, 34))
OTHER = of(span("layers.0.mlp", 0, 10), span("layers.1.mlp", 10, 25), span("tail", 25, 26))


def test_layers_are_one_operation_with_counts_and_times_the_largest_change_first():
    found = operations([step_of(FIRST), step_of(OTHER)])
    assert [o.name for o in found] == ["layers.*.mlp", "head", "tail"]
    assert found[0].counts == (2, 2)
    assert found[0].seconds == pytest.approx((0.020, 0.025))
    assert found[0].change_s == pytest.approx(0.005)
    assert found[1].counts == (1, 0)


def test_changes_of_slices_are_those_from_the_first_run_on():
    drawn = timeline([step_of(FIRST), step_of(OTHER)])
    (stream,) = drawn["streams"]
    first, other = stream["runs"]
    assert first["start"] == [0, 10 * NS, 20 * NS]
    assert first["delta"] == [0, 5 * NS, None]
    assert other["delta"] == [0, 5 * NS, None]
    assert drawn["span"] == [24 * NS, 26 * NS]
    assert drawn["drawn"] == drawn["total"] == 6


def test_like_slices_are_matched_in_order_and_by_micro_batch():
    first = of(span("a", 0, 1), span("a", 1, 3), span("a", 3, 4, micro=1))
    other = of(span("a", 0, 2), span("a", 2, 3, micro=1))
    (stream,) = timeline([step_of(first), step_of(other)])["streams"]
    assert stream["runs"][0]["delta"] == [1 * NS, None, 0]
    assert stream["runs"][1]["delta"] == [1 * NS, 0]


def test_the_last_step_is_the_one_compared():
    recorded = of(span("a", 0, 5, step=1), span("a", 5, 9, step=2))
    step = step_of(recorded)
    assert step.number == 2
    assert [s.start_ns for s in step.spans] == [5 * NS]


def test_of_three_runs_each_is_compared_with_the_first():
    third = of(span("layers.0.mlp", 0, 12))
    (stream,) = timeline([step_of(r) for r in (FIRST, OTHER, third)])["streams"]
    assert stream["runs"][2]["delta"] == [2 * NS]


def test_memory_is_the_sum_on_the_steps_own_clock():
    memory = [
        (8 * NS, "parameter", 2048.0), (12 * NS, "activation", 1024.0), (20 * NS, "activation", 0.0)
    ]  # fmt: skip
    recorded = of(*FIRST.spans, memory=memory)
    found = curve(recorded, step_of(recorded))
    assert found == {"t": [-2 * NS, 2 * NS, 10 * NS], "kib": [2, 3, 2]}
    assert curve(FIRST, step_of(FIRST)) is None


def test_nothing_recorded_has_no_timeline():
    assert timeline([step_of(of()), step_of(of())]) is None
