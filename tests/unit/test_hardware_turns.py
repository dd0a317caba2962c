"""Turns of many threads at few cores."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from raysim.hardware.turns import Turns


def test_two_on_one_core_come_one_after_the_other() -> None:
    turns = Turns(1)
    assert turns.book(0, 1000) == 1000
    assert turns.book(300, 500) == 1500
    assert turns.book(2000, 500) == 2500  # idle in between


def test_who_comes_when_all_are_taken_waits_for_the_first_that_is_free() -> None:
    turns = Turns(2)
    assert [turns.book(0, work_ns) for work_ns in (1000, 600)] == [1000, 600]
    assert turns.book(100, 200) == 800
    assert turns.book(100, 500) == 1300  # 800 to 1300 on the second, not 1000 to 1500
    assert [turns.busy(at_ns) for at_ns in (0, 999, 1000, 1300)] == [2, 2, 1, 0]


def test_what_is_booked_later_and_begins_earlier_delays_nothing() -> None:
    turns = Turns(1)
    assert turns.book(100, 50) == 150
    assert turns.book(0, 120) == 170  # 100 before it, 20 after
    assert turns.book(0, 10) == 180
    assert turns.book(200, 10) == 210


def test_what_is_over_is_forgotten() -> None:
    turns = Turns(1)
    for start_ns in (0, 200, 400):
        turns.book(start_ns, 100)
    turns.forget(300)
    assert [turns.busy(at_ns) for at_ns in (50, 250, 450)] == [0, 0, 1]


@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, 500), st.integers(1, 100)), max_size=30),
)
def test_no_core_does_two_things_at_once_and_all_work_is_done(
    cores: int, works: list[tuple[int, int]]
) -> None:
    turns = Turns(cores)
    for start_ns, work_ns in works:
        assert turns.book(start_ns, work_ns) >= start_ns + work_ns
    for taken in turns.taken:
        assert all(end_ns < begin_ns for (_, end_ns), (begin_ns, _) in pairwise(taken))
    total_ns = sum(end_ns - begin_ns for taken in turns.taken for begin_ns, end_ns in taken)
    assert total_ns == sum(work_ns for _, work_ns in works)
