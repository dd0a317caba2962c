"""The page of runs side by side: what it says, from summaries."""

from __future__ import annotations

from pathlib import Path

import pytest

import raysim
from raysim.cli import main
from raysim.report.comparing_html import Run, functions, head, parts, render


def fast(rate, **more):
    return {"throughput": {"tokens_per_s": rate}, **more}


def test_the_verdict_says_who_is_faster_by_how_much():
    assert head([fast(100.0), fast(125.0)]) == "B is 25.0 % faster than A"
    assert head([fast(100.0), fast(80.0)]) == "B is 20.0 % slower than A"
    assert head([fast(100.0), fast(100.0)]) == "A and B are equally fast"
    three = [fast(100.0), fast(150.0), fast(120.0)]
    assert head(three) == "B is the fastest of 3, 50.0 % faster than A"
    runs = [{"run": {"seconds": 10.0}}, {"run": {"seconds": 15.0}}]
    assert head(runs) == "B takes 50.0 % longer than A"
    assert head(runs[::-1]) == "B takes 33.3 % less time than A"


def test_the_verdict_says_who_does_not_fit():
    full = fast(200.0, verdict={"fits": False})
    assert head([fast(100.0), full]) == "B does not fit in GPU memory"


def test_parts_follow_each_other_and_bars_show_changes_about_a_line():
    def step(a, b):
        rows = [{"name": "compute", "key": "compute", "seconds": a}]
        return {"step": {"breakdown": [*rows, {"name": "wait", "key": "x", "seconds": b}]}}

    first, second = parts(
        [step(6.0, 4.0), step(6.0, 2.0)], "step.breakdown", "seconds", chained=True
    )
    assert first.widths == (0.6, 0.6)
    assert second.lefts == (0.6, 0.6)
    assert second.change == -2.0
    assert second.tornado == (0.0, 0.5)
    assert first.change == 0.0


def test_functions_of_either_run_have_a_row():
    def tasks(**busy):
        rows = [{"name": n, "busy_seconds": s} for n, s in busy.items()]
        return {"tasks": {"by_function": rows}}

    found = functions([tasks(a=1.0, b=5.0), tasks(a=2.0, c=9.0)])
    assert [(f["name"], f["change"]) for f in found] == [("c", 9.0), ("b", -5.0), ("a", 1.0)]


def test_what_scenarios_say_cannot_close_the_script():
    run = Run(name="</script><b>", summary={"raysim": "0"}, scenario_yaml="<i>", scenario={"a": 1})
    page = render([run, run])
    assert "</script><b>" not in page
    assert "<i>" not in page.split("</style>")[1].split("<script")[0].replace("<i style", "")


@pytest.fixture
def two_runs(root: Path, in_tmp: Path) -> list[str]:
    scenario = raysim.load(root / "scenarios" / "bert_mrpc_zero3")
    changed = scenario.with_({"train.zero_stage": 1})
    return [str(raysim.run(s, what_if=False).write(trace="none")) for s in (scenario, changed)]


def test_of_folders_with_frames(two_runs, capsys: pytest.CaptureFixture[str]):
    assert main(["compare", *two_runs, "--html", "pages/a.html"]) == 0
    printed = capsys.readouterr().out
    assert "zero_optimization.stage" in printed
    assert "Wrote pages/a.html" in printed
    page = Path("pages/a.html").read_text(encoding="utf-8")
    for said in (
        'id="timeline-canvas"',
        'id="memory-canvas"',
        "zero_optimization.stage",
        "Operations",
    ):
        assert said in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert main(["compare", *two_runs, "--html", "pages/b.html"]) == 0
    assert Path("pages/b.html").read_text(encoding="utf-8") == page
