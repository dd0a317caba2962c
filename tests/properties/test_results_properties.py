"""Whatever the numbers are: the report is printed within its width, lanes lose nothing."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from raysim.kernel.record import Span
from raysim.report import console
from raysim.report.layout import bar, percent
from raysim.results.result import summary_json
from raysim.results.traces.layout import lanes
from tests.unit.result_cases import summary

positive = st.floats(1e-9, 1e15)
words = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp")), max_size=60
)
parts = st.lists(st.tuples(words, st.floats(0, 1e6)), min_size=1, max_size=8)
spans = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=30)


@given(parts, parts, positive, words, st.sampled_from([80, 100]), st.booleans())
def test_a_report_of_any_numbers_is_printed(
    step: list[tuple[str, float]],
    memory: list[tuple[str, float]],
    capacity: float,
    warning: str,
    width: int,
    fits: bool,
) -> None:
    seconds = sum(s for _, s in step) or 1.0
    peak = sum(b for _, b in memory) + 1
    changed: dict[str, Any] = {
        "verdict": {"fits": fits},
        "step": {
            "seconds": seconds,
            "breakdown": [
                {"name": n[:33], "key": n, "seconds": s, "frac": s / seconds} for n, s in step
            ],
        },
        "memory": {
            "peak_bytes": peak,
            "capacity_bytes": capacity,
            "by_category": [{"category": n, "name": n[:33], "bytes": b} for n, b in memory],
        },
        "warnings": [warning],
    }
    text = console.text(summary(**changed), width=width)
    for name, s in step:
        assert s == 0 or name[:33] in text
    assert all(line == line.rstrip() for line in text.splitlines())


@given(spans)
def test_lanes_hold_every_span_and_within_one_any_two_nest_or_are_apart(
    given_spans: list[tuple[int, int]],
) -> None:
    made = [Span(("n", "g", "s"), str(i), "c", a, a + d) for i, (a, d) in enumerate(given_spans)]
    drawn = lanes(made)
    assert sorted(s.name for lane in drawn for s in lane) == sorted(s.name for s in made)
    for lane in drawn:
        for i, one in enumerate(lane):
            for other in lane[i + 1 :]:
                apart = one.end_ns <= other.start_ns or other.end_ns <= one.start_ns
                nested = one.start_ns <= other.start_ns and other.end_ns <= one.end_ns
                assert apart or nested


@given(st.floats(0, 1), st.integers(1, 60))
def test_a_bar_is_as_long_as_its_share_to_an_eighth(share: float, width: int) -> None:
    drawn = bar(share, width)
    full = drawn.count("\N{FULL BLOCK}")
    assert full <= share * width + 0.0625
    assert share * width <= full + (len(drawn) > full) + 0.0625
    assert bool(drawn) == (share > 0)


@given(st.floats(1e-12, 1.0))
def test_a_share_above_zero_never_reads_as_zero(share: float) -> None:
    assert percent(share) != "0.0 %"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), json_values))
def test_summary_json_is_strict_and_stable(value: dict[str, Any]) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    text = summary_json(value)
    assert summary_json(json.loads(text, parse_constant=refuse)) == text
