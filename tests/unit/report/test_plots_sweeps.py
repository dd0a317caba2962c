"""Charts of a sweep's table: the front, and every trial as a line."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import raysim
from raysim.errors import ScenarioError
from raysim.report.plots import door
from raysim.report.plots.marks import Line, Notes, Points
from raysim.report.plots.sweeps import SweepPlots, front

ROWS = [
    (1, "none", 10.0, 100.0, ""), (2, "none", 8.0, 120.0, ""), (4, "full", 9.0, 150.0, ""),
    (8, "full", 5.0, 90.0, "days <= 4"), (16, "full", None, None, ""),
]  # fmt: skip


@pytest.fixture
def frame() -> pd.DataFrame:
    columns = ["train.micro_batch", "train.activation_checkpointing", "days", "usd", "missed"]
    table = pd.DataFrame(ROWS, columns=columns)
    return table.assign(status="ok", fixed=3)


def test_a_trial_that_runs_out_of_memory_is_not_on_the_front(frame: pd.DataFrame) -> None:
    frame.loc[0, "status"] = "out_of_memory"
    chart = SweepPlots(frame).pareto("days", "usd")
    (line,) = (m for m in chart.marks if isinstance(m, Line))
    assert (line.x, line.y) == ([8.0], [120.0])
    assert chart.title == "cost by days, 3 of 5 trials"


def test_the_front_is_what_no_other_trial_beats(frame: pd.DataFrame) -> None:
    chart = SweepPlots(frame).pareto("days", "usd")
    (line,) = (m for m in chart.marks if isinstance(m, Line))
    assert (line.x, line.y) == ([8.0, 10.0], [120.0, 100.0])
    points = {
        m.name: list(zip(m.x, m.y, strict=True)) for m in chart.marks if isinstance(m, Points)
    }
    assert points["misses a target"] == [(5.0, 90.0)]
    assert points["trial"] == [(10.0, 100.0), (8.0, 120.0), (9.0, 150.0)]
    (notes,) = (m for m in chart.marks if isinstance(m, Notes))
    assert notes.texts[0] == "micro_batch 2"
    assert notes.before == [True, True]  # both in the right half of what is drawn
    assert chart.title == "cost by days, 4 of 5 trials"


def test_more_is_better_of_speeds() -> None:
    rows = [{"usd": 1.0, "mfu": 0.3}, {"usd": 2.0, "mfu": 0.5}, {"usd": 3.0, "mfu": 0.4}]
    assert front(rows, "usd", "mfu") == rows[:2]


def test_every_trial_is_a_line_over_keys_that_vary_and_metrics(frame: pd.DataFrame) -> None:
    chart = SweepPlots(frame).parallel()
    assert [text for _, text in chart.x.ticks] == [
        "micro_batch", "checkpointing", "days", "usd",
    ]  # fmt: skip
    lines = [m for m in chart.marks if isinstance(m, Line)]
    assert len(lines) == 4
    best = lines[-1]
    assert best.y == pytest.approx([1.0, 0.0, 0.0, 0.0])
    texts = [m.texts for m in chart.marks if isinstance(m, Notes)]
    assert [list(t) for t in texts] == [
        ["1", "2", "4", "8"], ["full", "none"], ["5", "10"], ["90", "150"],
    ]  # fmt: skip


def test_a_column_that_is_not_there_is_said(frame: pd.DataFrame) -> None:
    with pytest.raises(ScenarioError, match="no trial has 'kwh'; they have days, usd"):
        SweepPlots(frame).pareto("kwh", "usd")


def test_a_sweep_and_an_answer_have_charts() -> None:
    scenario = raysim.load(Path(__file__).resolve().parents[3] / "scenarios/mlp_pipeline")
    vary = {"train.micro_batch": [2, 4]}
    table = raysim.sweep(scenario, vary)
    chart = table.raysim.parallel("step_seconds")  # type: ignore[operator]
    lines = [m for m in chart.marks if isinstance(m, Line)]
    assert len(lines) == int((table["status"] == "ok").sum()) > 1
    answer = raysim.plan(scenario, vary, minimize="step_seconds")
    assert answer.plot.parallel("step_seconds").title == chart.title


def test_frames_have_the_accessor_and_keep_pandas_plot(frame: pd.DataFrame) -> None:
    door.register()
    door.register()
    assert frame.raysim.pareto().title == SweepPlots(frame).pareto().title
    assert frame.raysim.parallel("usd").x.ticks[-1] == (2.0, "usd")
