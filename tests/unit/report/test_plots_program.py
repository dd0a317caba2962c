"""``result.plot`` of a Ray program: what figures show is what the state log says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raysim.errors import ScenarioError
from raysim.report.plots.marks import Area, Boxes, Heat, Rule
from raysim.report.plots.program import STATES
from raysim.report.program.over_time import added
from raysim.results.ray.activity import Series
from raysim.results.result import Result
from tests.unit.program_cases import SQUARES, run

PROGRAM = (
    SQUARES
    + """
big = [ray.put(bytes(2 * 2**20)) for _ in range(4)]
time.sleep(3)
"""
)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run(tmp_path_factory.mktemp("plots"), PROGRAM)


def area_s(mark: Area) -> float:
    """Value times seconds."""
    return sum(y * (b - a) for y, a, b in zip(mark.y, mark.x, mark.x[1:], strict=False))


def test_nodes_run_what_the_tasks_ran(result: Result) -> None:
    chart = result.plot.nodes()
    (heat,) = chart.marks
    assert isinstance(heat, Heat)
    assert chart.y.rows == ("node-0", "node-1")
    cpus = 8  # of an m5.2xlarge
    drawn = sum(v or 0.0 for row in heat.values for v in row) * heat.cell * cpus
    ran = running_s(result)
    assert drawn == pytest.approx(ran, rel=0.02), "cells in which a node is half down are blank"


def running_s(result: Result) -> float:
    tasks = result.table("tasks")
    rows = tasks[tasks["state"] == "FINISHED"]
    return float((rows["end_time_ms"] - rows["start_time_ms"]).sum()) / 1e3


def test_tasks_add_up_by_state(result: Result) -> None:
    areas = {m.name: m for m in result.plot.tasks().marks if isinstance(m, Area)}
    assert set(areas) <= set(STATES)
    assert next(iter(areas)) == "RUNNING"
    assert area_s(areas["RUNNING"]) == pytest.approx(running_s(result), rel=0.02)
    tops = [sum(column) for column in zip(*(m.y for m in areas.values()), strict=True)]
    assert max(tops) == 32
    assert tops[-1] == 0


def test_the_store_holds_what_was_put(result: Result) -> None:
    (area,) = result.plot.store().marks
    assert area.name == "in the stores' memory"
    assert max(area.y) == pytest.approx(4 * 2 * 2**20, rel=0.01)


def test_held_is_a_share_of_what_is_there(result: Result) -> None:
    (area,) = result.plot.held().marks
    assert area.name == "CPU held"
    assert max(area.y) == pytest.approx(1.0)


def test_the_time_line_has_every_task_on_a_worker(result: Result) -> None:
    chart = result.plot.timeline()
    (boxes,) = chart.marks
    assert isinstance(boxes, Boxes)
    assert (boxes.name, len(boxes.rows)) == ("square", 32)
    assert all("worker-" in row for row in chart.y.rows)
    assert sum(boxes.sizes) == pytest.approx(running_s(result), rel=0.02)
    assert chart.reach()[0] == pytest.approx(result.program.end_ns / 1e9)  # type: ignore[union-attr]


def test_faults_are_rules(result: Result) -> None:
    faults: list[dict[str, Any]] = [{"kind": "fail_node", "node": "node-1", "at_seconds": 3}]
    hurt = Result(summary=result.summary | {"faults": faults}, program=result.program)
    for chart in (hurt.plot.nodes(), hurt.plot.tasks(), hurt.plot.store()):
        (rule,) = (m for m in chart.marks if isinstance(m, Rule))
        assert (rule.name, rule.at) == ("fail_node node-1", 3.0)


def test_what_was_not_recorded_is_said(result: Result, tmp_path: Path) -> None:
    del tmp_path
    with pytest.raises(ScenarioError, match="record=True"):
        Result(summary=result.summary).plot.nodes()


def test_step_functions_add() -> None:
    one, two = Series(), Series()
    one.add(2, 10)
    one.add(-2, 30)
    two.add(5, 10)
    two.add(1, 20)
    assert added([one, two]) == [(10, 7), (20, 8), (30, 6)]
