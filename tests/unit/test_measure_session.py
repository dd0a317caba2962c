"""The loop that fills tables: budget, resuming, interrupts, what is left out; repetitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from raysim.errors import CalibrationError
from raysim.measure import session as sessions
from raysim.measure.machine import describe
from raysim.measure.session import Budget, Point, Session, Unavailable, repeat, stopwatch
from raysim.measure.table import MeasuredTable, read_meta, read_rows


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def session_in(folder: Path, seconds: float = 60.0, clock: Clock | None = None) -> Session:
    budget = Budget(seconds, clock or Clock())
    return Session(folder=folder, budget=budget, command="raysim measure disk")


def point(number: int, measure: Callable[[float], Sequence[float]]) -> Point:
    return Point(parameters={"number": number}, measure=measure)


def numbers(path: Path) -> list[str]:
    return [row.parameters["number"] for row in read_rows(path)]


def test_points_are_measured_once_and_in_order(tmp_path: Path) -> None:
    done: list[int] = []

    def points(count: int) -> list[Point]:
        return [point(i, lambda _, i=i: done.append(i) or [1.0]) for i in range(count)]

    for count in (2, 4):
        session = session_in(tmp_path)
        with session.table("copies", ("number",)) as table:
            session.run(table, points(count))
    assert done == [0, 1, 2, 3]
    assert (session.measured, session.kept, session.left) == (2, 2, 0)
    assert numbers(table.path) == ["0", "1", "2", "3"]


def test_a_spent_budget_leaves_points_for_the_next_run(tmp_path: Path) -> None:
    clock, allowed = Clock(), []

    def measure(allowed_s: float) -> list[float]:
        allowed.append(allowed_s)
        clock.now_s += 4.0
        return [4.0]

    session = session_in(tmp_path, 10.0, clock)
    with session.table("copies", ("number",)) as table:
        session.run(table, [point(i, measure) for i in range(5)])
    assert (session.measured, session.left) == (3, 2)
    assert allowed == [10 / 5, 6 / 4, 2 / 3]


def test_a_table_may_have_a_share_of_the_budget(tmp_path: Path) -> None:
    clock = Clock()

    def measure(_: float) -> list[float]:
        clock.now_s += 1.0
        return [1.0]

    session = session_in(tmp_path, 8.0, clock)
    with session.table("copies", ("number",)) as table:
        session.run(table, [point(i, measure) for i in range(5)], share=0.25)
    assert (session.measured, session.left, clock.now_s) == (2, 3, 2.0)


def test_an_interrupt_in_a_point_keeps_the_rows_before_it(tmp_path: Path) -> None:
    def interrupt(_: float) -> list[float]:
        raise KeyboardInterrupt

    session = session_in(tmp_path)

    def measure() -> None:
        with session.table("copies", ("number",)) as table:
            session.run(table, [point(0, lambda _: [1.0]), point(1, interrupt)])

    with pytest.raises(KeyboardInterrupt):
        measure()
    assert numbers(tmp_path / "copies.csv") == ["0"]
    assert read_meta(tmp_path)["tables"]["copies"]["command"] == "raysim measure disk"


def test_what_cannot_be_measured_is_left_out_with_its_reason(tmp_path: Path) -> None:
    def unable(_: float) -> list[float]:
        raise Unavailable("no such kernel")

    session, said = session_in(tmp_path), []
    session.say = said.append
    with session.table("copies", ("number",)) as table:
        session.run(table, [point(0, unable), point(1, lambda _: [2.0])])
    assert session.left_out == ["copies number=0: no such kernel"]
    assert said == ["left out: copies number=0: no such kernel", "copies  number=1  2.00 s"]
    assert numbers(table.path) == ["1"]


def test_repetitions_follow_the_time_allowed() -> None:
    assert len(repeat(stopwatch(lambda: None), 0.0)) == sessions.LEAST
    assert len(repeat(stopwatch(lambda: None), 60.0)) == sessions.MOST


def test_short_work_is_repeated_within_a_sample() -> None:
    asked: list[int] = []

    def sample(times: int) -> float:
        asked.append(times)
        return 1e-5

    assert set(repeat(sample, 0.0)) == {1e-5}
    assert asked[:3] == [1, 1, round(sessions.SAMPLE_S / 1e-5)]


def test_an_absent_package_is_named() -> None:
    with pytest.raises(CalibrationError, match=r"measure gpu: needs no_such_package.*pip install"):
        sessions.needs("no_such_package", "gpu")


def test_the_real_machine_opens_its_own_table_again(tmp_path: Path) -> None:
    for _ in range(2):
        MeasuredTable(tmp_path, "disk", ("op",), command="raysim measure disk")
    assert read_meta(tmp_path)["hardware"] == describe(tmp_path).as_dict()["hardware"]
