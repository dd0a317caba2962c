"""What the page of a program draws, against what the program did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raysim.raylibs.charts import Bar, Chart, Line, Mark
from raysim.report.program.figures import figure
from raysim.report.program.page import pictures
from raysim.report.program.timeline import FAILED, LIVES
from raysim.report.program_html import actions, tiles
from raysim.results.result import Result
from tests.unit.program_cases import SQUARES, run

ACTORS = """
import time
import ray

ray.init()

@ray.remote(num_cpus=1)
class Counter:
    def add(self, x):
        time.sleep(1)
        return x

@ray.remote(max_retries=0)
def breaks():
    time.sleep(1)
    raise ValueError("no")

counter = Counter.remote()
ray.get([counter.add.remote(i) for i in range(5)])
try:
    ray.get(breaks.remote())
except Exception:
    pass
"""
MOVES = """
import time
import numpy
import ray

ray.init()

@ray.remote
def make():
    return numpy.zeros(64 * 2**20, dtype=numpy.uint8)

@ray.remote
def use(x):
    time.sleep(1)
    return len(x)

node = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
others = [n["NodeID"] for n in ray.nodes()]
made = make.options(scheduling_strategy=node(others[0], soft=False)).remote()
print(ray.get(use.options(scheduling_strategy=node(others[1], soft=False)).remote(made)))
"""


@pytest.fixture(scope="module")
def squares(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run(tmp_path_factory.mktemp("squares"), SQUARES)


def lanes(result: Result) -> tuple[list[dict], list[list]]:
    assert result.program is not None
    data = json.loads(pictures(result.program, result.summary).data)["timeline"]
    return data["lanes"], data["names"]


def slices(lane: dict) -> list[list[int]]:
    flat = lane["s"]
    return [flat[i : i + 5] for i in range(0, len(flat), 5)]


def test_every_task_is_a_slice_of_its_length(squares: Result) -> None:
    drawn, names = lanes(squares)
    assert names == [["square", 0]]
    every = [s for lane in drawn for s in slices(lane)]
    assert len(every) == 32
    end_s = squares.summary["run"]["virtual_seconds"]
    assert {round(length / 1e6 * end_s, 2) for _, length, *_ in every} == {2.0}


def test_tasks_of_one_slot_do_not_overlap(squares: Result) -> None:
    for lane in lanes(squares)[0]:
        assert lane["slots"] == 8  # CPUs of an m5.2xlarge
        ends: dict[int, int] = {}
        for start, length, slot, *_ in slices(lane):
            assert start >= ends.get(slot, 0) - 1
            ends[slot] = start + length


def test_an_actor_has_a_slot_and_its_calls_are_in_it(tmp_path: Path) -> None:
    drawn, names = lanes(run(tmp_path, ACTORS))
    found = {(names[s[3]][0], s[4] % 4): s for lane in drawn for s in slices(lane)}
    life, call = found["Counter", LIVES], found["Counter.add", 0]
    assert life[2] == call[2] == found["Counter.__init__", 0][2]
    assert names[life[3]][1] == names[call[3]][1]
    assert life[0] <= call[0]
    assert found["breaks", FAILED]
    (said,) = [m[2] for lane in drawn for m in lane["m"]]
    assert said == "breaks fails: TASK_EXECUTION_EXCEPTION"


def test_bytes_are_counted_where_they_go(tmp_path: Path) -> None:
    result = run(tmp_path, MOVES)
    assert result.program is not None
    drawn, _ = lanes(result)
    sent, received = drawn[0]["out"], drawn[1]["in"]
    assert sum(sent[1::2]) == sum(received[1::2]) == pytest.approx(64 * 2**20, rel=0.01)
    shown = pictures(result.program, result.summary)
    assert shown.heat is not None
    assert shown.matrix is not None
    ports = {row.name: row for row in shown.heat.rows}
    moved = ports["node-0 nic 0 out"].carried_bytes
    assert moved == pytest.approx(64 * 2**20, rel=0.01)
    assert [cell for _, row in shown.matrix.cells for cell, _ in row] == ["", "64.0 MiB", "", ""]
    (maker,) = shown.makers
    assert (maker.name, maker.objects) == ("make", 1)
    assert [store.node for store in shown.stores] == ["node-0", "node-1"]


def test_a_program_without_ray_draws_little(tmp_path: Path) -> None:
    result = run(tmp_path, "print('nothing')\n")
    assert result.program is not None
    shown = pictures(result.program, result.summary)
    assert shown.heat is None
    assert shown.matrix is None
    assert shown.jobs is None


def test_data_is_the_same_each_time(squares: Result) -> None:
    assert squares.program is not None
    first = pictures(squares.program, squares.summary).data
    assert first == pictures(squares.program, squares.summary).data
    assert "<" not in first


def test_lines_say_their_numbers() -> None:
    line = Line(name="a", points=((0.0, 2.0), (5.0, 4.0), (10.0, 4.0)), steps=True)
    drawn = figure(Chart(key="x", title="X", unit="seconds", lines=(line,)), 10.0)
    assert drawn is not None
    assert drawn.numbers == (("a", "2.00 s", "3.00 s", "4.00 s", "5.00 s"),)
    assert drawn.label == "X: a at most 4.00 s"
    assert drawn.data["l"][0]["x"] == [0, 500_000, 1_000_000]


def test_latencies_that_spread_have_a_logarithmic_axis() -> None:
    line = Line(name="p50", points=((0.0, 0.01), (10.0, 40.0)))
    drawn = figure(Chart(key="latency", title="Latency", unit="seconds", lines=(line,)), 10.0)
    assert drawn is not None
    assert drawn.foot == "The upright axis is logarithmic."
    assert [label for _, label in drawn.ticks] == ["10.0 ms", "100 ms", "1.00 s", "10.0 s", "100 s"]


def test_counts_have_whole_ticks() -> None:
    line = Line(name="nodes", points=((0.0, 1.0), (10.0, 9.0)))
    drawn = figure(Chart(key="n", title="N", lines=(line,)), 10.0)
    assert drawn is not None
    assert [label for _, label in drawn.ticks] == ["0", "5"]


def test_bars_have_rows_states_and_marks() -> None:
    bars = (
        Bar(row="a", from_s=0.0, to_s=4.0, state="runs"),
        Bar(row="b", from_s=2.0, to_s=3.0, state="waits", text="<b>"),
    )
    chart = Chart(key="j", title="J", bars=bars, marks=(Mark(at_s=1.0, text="failed", row="b"),))
    drawn = figure(chart, 10.0)
    assert drawn is not None
    assert drawn.rows == ("a", "b")
    assert [name for _, name, _ in drawn.legend] == ["runs", "waits"]
    assert drawn.numbers[0] == ("runs", "4.00 s", "4.00 s", "4.00 s", "4.00 s")
    assert "<b>" not in drawn.svg.split('data-t="b: waits')[1].split('"')[0]


def test_what_is_nothing_all_along_is_not_drawn() -> None:
    line = Line(name="a", points=((0.0, 0.0), (9.0, 0.0)))
    assert figure(Chart(key="x", title="X", lines=(line,)), 10.0) is None


def test_many_points_become_means_of_the_same_area() -> None:
    points = tuple((t / 1000, float(t % 2)) for t in range(10_001))
    drawn = figure(
        Chart(key="x", title="X", lines=(Line(name="a", points=points, steps=True),)), 10.0
    )
    assert drawn is not None
    values = drawn.data["l"][0]["y"]
    assert len(values) == 480
    assert sum(values) / len(values) == pytest.approx(0.5, abs=0.01)


def test_of_very_many_tasks_the_longest_are_slices_and_lanes_count_all(
    squares: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raysim.report.program.timeline.MOST_SLICES", 10)
    assert squares.program is not None
    shown = pictures(squares.program, squares.summary)
    assert shown.timeline is not None
    assert (shown.timeline.slices, shown.timeline.drawn_slices) == (32, 10)
    drawn, _ = lanes(squares)
    assert sum(len(slices(lane)) for lane in drawn) == 10
    width_s = squares.summary["run"]["virtual_seconds"] / 400
    counted_s = sum(sum(bins) for lane in drawn for _, bins in lane["a"]) * width_s
    assert counted_s == pytest.approx(32 * 2, rel=0.01)


def test_of_many_nodes_those_come_first_that_something_happened_to(tmp_path: Path) -> None:
    program = SQUARES.replace("else 32", "else 600").replace("sleep(2)", "sleep(20)")
    cluster = "nodes: 70\nnode: m5.2xlarge\n"
    changes = {"faults": [{"at": "10s", "fail_node": 69}]}
    result = run(tmp_path, program, cluster=cluster, changes=changes)
    assert result.program is not None
    shown = pictures(result.program, result.summary).timeline
    assert shown is not None
    assert (shown.nodes, shown.drawn_nodes) == (70, 64)
    assert "node-69" in {lane["n"] for lane in shown.data["lanes"]}


def test_nodes_that_do_nothing_are_named_in_a_line(tmp_path: Path) -> None:
    result = run(
        tmp_path, SQUARES.replace("else 32", "else 2"), cluster="nodes: 9\nnode: m5.2xlarge\n"
    )
    assert result.program is not None
    shown = pictures(result.program, result.summary).timeline
    assert shown is not None
    assert len(shown.idle) + shown.drawn_nodes == 9
    assert len(shown.idle) >= 7


def test_what_hangs_is_said_first(tmp_path: Path) -> None:
    hangs = "import ray\nray.init()\nray.get(ray.remote(num_cpus=64)(lambda: 1).remote())\n"
    first, second, *_ = actions(run(tmp_path, hangs).summary)
    assert first.kind == "Waits for ever"
    assert "it needs 64 CPU" in first.text
    assert second.kind == "Bound by"


def test_numbers_that_two_jobs_have_say_whose_they_are(tmp_path: Path) -> None:
    summary = run(tmp_path, SQUARES).summary
    jobs = [{"kind": k, "metrics": {"requests_per_s": r}} for k, r in (("serve", 48), ("llm", 25))]
    for count, said in ((1, ["requests"]), (2, ["requests, serve", "requests, llm"])):
        found = tiles({**summary, "libraries": jobs[:count]})
        assert [fact.label for fact in found if fact.label.startswith("requests")] == said
