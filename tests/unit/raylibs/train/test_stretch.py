"""Many steps at once are what they are one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.raylibs.train.polls import Polls
from raysim.raylibs.train.stretch import Pace, Stretch


def one_by_one(
    pace: Pace, polls: Polls, first: int, last: int, free_ns: int, *, last_reports: bool
) -> tuple[list[int], int, int, int]:
    """Ends of the steps, end of the last report, when the queue is empty, and reports."""
    now, ends, reports = 0, [], 0
    for step in range(first + 1, last + 1):
        now += pace.each_ns
        ends.append(now)
        every = pace.report_every
        if every and step % every == 0 and (step < last or last_reports):
            now = max(now + pace.report_ns, free_ns)
            free_ns = polls.after(now)
            reports += 1
    return ends, now, free_ns, reports


PACES = st.builds(
    Pace,
    each_ns=st.integers(1, 60),
    report_every=st.none() | st.integers(1, 7),
    report_ns=st.integers(0, 9),
)


@given(
    pace=PACES, period=st.integers(1, 80), origin=st.integers(0, 50), first=st.integers(0, 9),
    steps=st.integers(1, 60), free=st.integers(0, 90), last_reports=st.booleans(),
    at=st.integers(0, 4_000),
)  # fmt: skip
def test_a_stretch_is_its_steps_one_by_one(
    pace: Pace, period: int, origin: int, first: int, steps: int, free: int, last_reports: bool,
    at: int,
) -> None:  # fmt: skip
    polls, last = Polls(origin, period), first + steps
    free = polls.at(free) if free else 0  # a poll is what empties a queue
    ends, end, free_ns, reports = one_by_one(
        pace, polls, first, last, free, last_reports=last_reports
    )
    stretch = Stretch(
        pace, polls, begin_ns=0, first=first, last=last, free_ns=free, last_reports=last_reports
    )
    assert (stretch.end_ns, stretch.free_ns) == (end, free_ns)
    assert stretch.reports_by(last) == reports
    assert [stretch.end_of(first + 1 + i) for i in range(steps)] == ends
    done = sum(1 for t in ends if t <= at)
    assert stretch.done_at(at) == (first + done, ends[done - 1] if done else 0)


def test_reports_faster_than_polls_go_at_the_pace_of_polls() -> None:
    pace = Pace(each_ns=100, report_every=1)
    stretch = Stretch(pace, Polls(0, 2_000), begin_ns=0, first=0, last=10_000)
    assert stretch.end_ns == pytest.approx(10_000 * 2_000, rel=1e-3)
    assert len(stretch.segments) < 5


def test_reports_before_the_first_poll_wait_for_it() -> None:
    # The controller begins to poll when every rank has its function.
    stretch = Stretch(
        Pace(each_ns=1, report_every=1), Polls(3, 1), begin_ns=0, first=0, last=3,
        last_reports=False,
    )  # fmt: skip
    assert stretch.end_ns == 4


def test_a_week_of_steps_is_a_handful_of_segments() -> None:
    pace = Pace(each_ns=10, report_every=6, report_ns=1)
    stretch = Stretch(pace, Polls(0, 20), begin_ns=5, first=0, last=600_000)
    assert len(stretch.segments) == 2
    assert stretch.end_ns == 5 + 6_000_000 + 100_000


@pytest.mark.parametrize(("now", "at", "after"), [(0, 7, 7), (7, 7, 17), (8, 17, 17), (17, 17, 27)])
def test_polls_find_at_or_after(now: int, at: int, after: int) -> None:
    assert (Polls(7, 10).at(now), Polls(7, 10).after(now)) == (at, after)
