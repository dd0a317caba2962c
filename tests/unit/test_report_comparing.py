"""Runs side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import raysim
from raysim.cli import main
from raysim.report.comparing import rows_of


@pytest.fixture(scope="module")
def summaries():
    scenario = raysim.load("scenarios/bert_mrpc_zero3")
    changed = scenario.with_({"train.zero_stage": 1})
    return [raysim.run(s, record=False, what_if=False).summary for s in (scenario, changed)]


def test_what_differs_comes_with_its_ratio_most_first(summaries):
    rows = {row.name: row for row in rows_of(summaries)}
    step = rows["step_seconds"]
    seconds = [s["step"]["seconds"] for s in summaries]
    assert step.ratio == pytest.approx(seconds[1] / seconds[0])
    assert rows["strategy"].cells == ("ZeRO-3", "ZeRO-1"), "what both have is not said"
    assert "memory: parameters" in rows
    apart = [row.apart for row in rows_of(summaries)]
    assert apart == sorted(apart, reverse=True)


def test_nothing_differs_between_equals(summaries):
    assert rows_of([summaries[0], summaries[0]]) == []


def test_more_than_two_have_a_cell_each(summaries):
    rows = rows_of([summaries[0], summaries[0], summaries[1]])
    assert {len(row.cells) for row in rows} == {3}


def test_what_a_run_does_not_have_is_a_dash(summaries):
    rows = {row.name: row for row in rows_of([summaries[0], {"run": summaries[0]["run"]}])}
    assert rows["GPU"].cells[1] == rows["step_seconds"].cells[1] == "-"


def test_of_folders(summaries, in_tmp: Path, capsys: pytest.CaptureFixture[str]):
    for name, summary in zip(("one-aaaaaa", "two-bbbbbb"), summaries, strict=True):
        folder = Path("runs") / name
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    assert main(["compare", "aaaaaa", "runs/two-bbbbbb", "--by", "step"]) == 0
    printed = capsys.readouterr().out
    assert "step_seconds" in printed
    assert "memory" not in printed
    assert main(["compare", "aaaaaa"]) == 2
    assert main(["compare", "aaaaaa", "cccccc"]) == 2
    assert main(["compare", "aaaaaa", "bbbbbb", "--by", "nothing"]) == 2
