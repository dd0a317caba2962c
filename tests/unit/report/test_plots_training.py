"""``result.plot`` of a training job: what figures show is what records and summary say."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from raysim.errors import ScenarioError
from raysim.kernel.record import ColumnRecorder
from raysim.report import charts
from raysim.report.plots.marks import Area, Boxes, Heat, Points, Rule
from raysim.results.result import Result
from raysim.training.recording import record_outcome
from raysim.training.settings.deepspeed import PipelineSettings
from raysim.training.settings.parallel import Mesh
from raysim.units import GIB
from tests.training_parts import plan, play
from tests.unit.result_cases import recording, summary


def made(**options: Any) -> Result:
    records = ColumnRecorder()
    record_outcome(play(plan(**options)), records)
    return Result(summary=summary(), records=records)


@pytest.fixture(scope="module")
def result() -> Result:
    return made(stage=3, activation_checkpointing="full")


def test_the_step_is_its_parts_end_to_end(result: Result) -> None:
    chart = result.plot.step()
    parts = [p for p in result.summary["step"]["breakdown"] if p["seconds"]]
    assert chart.y.rows == tuple(p["name"] for p in parts)
    boxes = [(m.starts[0], m.sizes[0], m.texts[0]) for m in chart.marks if isinstance(m, Boxes)]
    assert boxes == [(0.0, 9.5, "9.50 s  95.0 %"), (9.5, 0.5, "500 ms  5.0 %")]


def test_the_time_line_has_every_slice_of_the_step_on_its_stream(result: Result) -> None:
    chart = result.plot.timeline()
    spans = result.records.spans()
    step = max(charts.step_windows(spans))
    begin, end = charts.step_windows(spans)[step]
    drawn = sorted(
        (chart.y.rows[row], round(start * 1e9), round(size * 1e9))
        for mark in chart.marks
        if isinstance(mark, Boxes)
        for row, start, size in zip(mark.rows, mark.starts, mark.sizes, strict=True)
    )
    assert drawn == sorted(
        (
            s.track[-1],
            max(s.start_ns - begin, 0),
            min(s.end_ns, end) - max(s.start_ns, begin),
        )
        for s in spans
        if s.start_ns < end and s.end_ns > begin
    )
    assert chart.y.rows[:2] == ("host", "compute")
    assert f"Step {step}" in chart.title
    assert {m.color for m in chart.marks} <= {c.light for c in charts.SLICE_COLORS.values()}


def test_a_window_shows_what_lies_in_it_from_its_own_zero(result: Result) -> None:
    whole = result.plot.timeline()
    end_s, _ = whole.reach()
    part = result.plot.timeline(window_s=(0.001, end_s))
    assert part.reach()[0] == pytest.approx(end_s - 0.001)
    assert part.x.label == "time since 1.00 ms into the step"
    assert 0 < sum(len(m.rows) for m in part.marks) < sum(len(m.rows) for m in whole.marks)
    for mark in part.marks:
        assert all(start >= 0 for start in mark.starts)


def test_a_step_or_rank_that_was_not_recorded_is_said(result: Result) -> None:
    with pytest.raises(ScenarioError, match=r"step 7 was not recorded; these were: 1"):
        result.plot.timeline(step=7)
    with pytest.raises(ScenarioError, match="rank 3 was not recorded; these were: node-0 gpu-0"):
        result.plot.timeline(ranks=[3])
    with pytest.raises(ScenarioError, match="record=True"):
        Result(summary=summary()).plot.timeline()


def test_gpus_are_chosen_by_rank() -> None:
    result = Result(summary=summary(), records=recording())
    assert result.plot.timeline(ranks=[9]).y.rows == ("compute", "comm:dp", "comm:pp")
    assert result.plot.timeline(step=0).y.rows[0] == "node-0  gpu-1  compute"


def test_memory_stacks_to_the_counters_at_their_fullest(result: Result) -> None:
    chart = result.plot.memory()
    areas = [mark for mark in chart.marks if isinstance(mark, Area)]
    held: dict[str, float] = defaultdict(float)
    most = 0.0
    for sample in result.records.counters():
        if sample.name.startswith("memory/"):
            held[sample.name] = sample.value
            most = max(most, sum(held.values()))
    tops = [sum(column) for column in zip(*(a.y for a in areas), strict=True)]
    assert max(tops) == pytest.approx(most, rel=1e-5)
    assert len(areas) == len(held)
    (peak,) = (m for m in chart.marks if isinstance(m, Rule) and m.name == "peak")
    assert areas[0].x[tops.index(max(tops))] == pytest.approx(peak.at)
    assert [a.color for a in areas] == [
        charts.MEMORY_COLORS[c].light
        for c in charts.memory_order(n.removeprefix("memory/") for n in held)
    ]


def test_capacity_is_drawn_where_it_is_near() -> None:
    near = Result(summary=summary(memory={"capacity_bytes": 1.5 * GIB}), records=recording())
    rules = [m.name for m in near.plot.memory().marks if isinstance(m, Rule)]
    assert rules == ["peak", "capacity"]
    far = Result(summary=summary(), records=recording()).plot.memory()
    assert [m.name for m in far.marks if isinstance(m, Rule)] == ["peak"]
    assert far.title == "GPU memory, node-0 gpu-1: peak 1.00 GiB of 80.0 GiB"


def test_links_carry_the_bytes_that_were_recorded() -> None:
    """The area under the means is the area under the counter."""
    result = made(stage=3)
    begin, end = charts.step_windows(result.records.spans())[1]
    samples = [c for c in result.records.counters() if c.name.startswith("link/")]
    name = samples[0].name
    mine = [c for c in samples if c.name == name]
    moved = sum(
        a.value * max(0, min(b_ns, end) - max(a.t_ns, begin))
        for a, b_ns in zip(mine, [*(c.t_ns for c in mine[1:]), end], strict=True)
    )
    chart = result.plot.links()
    if isinstance(chart.marks[0], Heat):
        (heat,) = chart.marks
        means = heat.values[chart.y.rows.index(name.removeprefix("link/"))]
        drawn = sum(v or 0.0 for v in means) * heat.cell
    else:
        (area,) = (m for m in chart.marks if m.name == name.removeprefix("link/"))
        assert isinstance(area, Area)
        drawn = sum(area.y[:-1]) * (area.x[1] - area.x[0])
    assert drawn == pytest.approx(moved / 1e9, rel=1e-6)
    assert drawn > 0


def test_many_links_are_a_heat_map() -> None:
    records = recording()
    for n in range(5):
        records.counter(("node-0",), f"link/l{n}", 100, 1e9 * n)
    chart = Result(summary=summary(), records=records).plot.links()
    (heat,) = chart.marks
    assert isinstance(heat, Heat)
    assert chart.y.rows == ("l0", "l1", "l2", "l3", "l4", "node-0 nic 1 out")
    assert heat.values[4][-1] == pytest.approx(4e9)


def test_collectives_are_points_by_operation_and_size() -> None:
    settings = PipelineSettings(stages=2, partition_method="uniform")
    result = made(stage=1, mesh=Mesh(pp=2, dp=2), gradient_accumulation_steps=4, pipeline=settings)
    points = {m.name: m for m in result.plot.collectives().marks if isinstance(m, Points)}
    spans = [s for s in result.records.spans() if (s.args or {}).get("bytes")]
    spans = [s for s in spans if s.category in {"collective", "p2p"}]
    kinds = {(s.args["op"], s.args["bytes"]) for s in spans}  # type: ignore[index]
    assert {(op, x) for op, m in points.items() for x in m.x} == kinds
    reduce = next(s for s in spans if s.args["op"] == "all_reduce")  # type: ignore[index]
    place = points["all_reduce"].x.index(reduce.args["bytes"])  # type: ignore[index]
    assert points["all_reduce"].y[place] == pytest.approx(reduce.args["bus_bytes_per_s"])  # type: ignore[index]
    count = sum(
        int(tip.split(": ")[1].split(" times")[0]) for m in points.values() for tip in m.tips
    )
    assert count == len(spans)


def test_what_a_step_answers_to_is_a_tornado_of_what_a_tenth_more_saves() -> None:
    """Twice as fast halves what is all products: 10 % more saves 1 - 1 / 1.1 of it."""
    rows = [{"input": "GPU products, FLOP/s", "elasticity": -1.0},
            {"input": "GPU memory bandwidth", "elasticity": -0.5}]  # fmt: skip
    said = summary() | {"sensitivity": rows}
    chart = Result(summary=said).plot.sensitivity()
    (bars,) = chart.marks
    assert isinstance(bars, Boxes)
    assert chart.y.rows == ("GPU products, FLOP/s", "GPU memory bandwidth")
    step_s = said["step"]["seconds"]
    assert bars.sizes == pytest.approx([step_s * (1 - 1 / 1.1), step_s * (1 - 1.1**-0.5)])
    assert bars.texts == ["9.1 %", "4.7 %"]
    with pytest.raises(ScenarioError, match="no elasticities"):
        Result(summary=said | {"sensitivity": None}).plot.sensitivity()
