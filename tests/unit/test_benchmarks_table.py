"""The table of benchmarks: what one file has measured replaces its own lines and no others."""

from __future__ import annotations

import pytest

from tests.benchmarks import table
from tests.benchmarks.alone import alone


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(table, "machine", lambda: "a machine, Python 3")
    kernel = ["| kernel | 100 pending | 1 | 5 events/s | 2.00 x | SimPy | kernel_speed |"]
    plan = ["| plan | 8 layouts | 2 | 4 layouts/s |  |  | planner_speed |"]
    growth = ["| CPU seconds of n tasks | 1: 2, 2: 4 | 1.00 |  | scaling |"]
    return table.merged("", ([*plan, *kernel], growth), {"kernel_speed"})


def test_lines_are_sorted_below_their_heads(whole: str) -> None:
    lines = whole.splitlines()
    assert lines[0] == "# Speed, measured"
    names = [line.split(" | ")[0] for line in lines if line.startswith("| ")]
    assert names == ["| benchmark", "| kernel", "| plan", "| what", "| CPU seconds of n tasks"]
    assert lines[-1] == "| CPU seconds of n tasks | 1: 2, 2: 4 | 1.00 |  | scaling |"
    assert ": a machine, Python 3.\n" in whole


def test_a_part_measured_again_leaves_the_rest(whole: str) -> None:
    new = ["| kernel | 200 pending | 1 | 6 events/s | 2.10 x | SimPy | kernel_speed |"]
    again = table.merged(whole, (new, []), {"kernel_speed"})
    assert "100 pending" not in again
    assert new[0] in again
    assert "| planner_speed |" in again
    assert "| scaling |" in again
    assert table.merged(again, (new, []), {"kernel_speed"}) == again


def test_nothing_of_another_machine_stays(whole: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "machine", lambda: "another machine, Python 3")
    again = table.merged(whole, ([], []), {"kernel_speed"})
    assert "kernel_speed" not in again
    assert "planner_speed" not in again


def filled(size: int) -> int:
    """Holds so many bytes, and lets go of them."""
    return len(bytes(range(256)) * (size // 256))


def test_what_runs_alone_answers_and_says_what_it_held() -> None:
    size = 256 * 10**6
    held, taken_bytes = alone(filled, size)
    assert held == size
    assert size < taken_bytes < 2 * size
