"""``ray timeline``: slices, arrows, counters and the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raysim.perf.ray_core import RayCosts
from raysim.raycore.ids import hex_id
from raysim.raystate.moment import moment
from raysim.raystate.timeline import chrome_events, slices, write_timeline
from raysim.results.ray.trace import records
from raysim.results.traces.perfetto import write_pftrace
from tests.unit.results.ray_cases import DRIVER, MS, Story, as_seen_on_a_laptop, options


def test_slices_are_named_as_rays() -> None:
    now = moment(as_seen_on_a_laptop().rows)
    drawn = {(s.category, s.name, s.worker_id): s for s in slices(now)}
    assert set(drawn) == {
        ("task::a1:A.__init__", "__init__", 12),
        ("task::A.m", "m", 12),
        ("task::outer", "__main__.outer", 11),
        ("ray.get", "ray.get", 11),
        ("task::f", "__main__.f", 13),
        ("task::bad", "__main__.bad", 11),
    }
    outer, waits = drawn["task::outer", "__main__.outer", 11], drawn["ray.get", "ray.get", 11]
    assert (outer.start_ns, outer.end_ns) == (6 * MS, 332 * MS)
    assert (waits.start_ns, waits.end_ns) == (21 * MS, 331 * MS)


def test_what_still_runs_ends_now() -> None:
    story = Story()
    story.submit(1, options(), 1)
    story.run(1, 2, 5)
    (drawn,) = slices(moment(story.rows, 50 * MS))
    assert (drawn.start_ns, drawn.end_ns) == (3 * MS, 50 * MS)


def test_submissions_take_what_they_cost() -> None:
    story = Story()
    story.submit(1, options(), 1)
    (drawn,) = slices(moment(story.rows), RayCosts(submit_task_ns=70_000))
    assert (drawn.category, drawn.worker_id) == ("submit_task", 1)
    assert (drawn.start_ns, drawn.end_ns) == (MS - 70_000, MS)


def test_arrows_go_from_submission_to_run() -> None:
    spans = records(as_seen_on_a_laptop().rows).spans()
    flows: dict[int, list[str]] = {}
    for span in spans:
        if span.args and "flow" in span.args:
            flows.setdefault(span.args["flow"], []).append(span.category)
    assert sorted(flows.values()) == [
        ["submit_task", "task::A.m"],
        ["submit_task", "task::a1:A.__init__"],
        ["submit_task", "task::bad"],
        ["submit_task", "task::f"],
        ["submit_task", "task::outer"],
    ]
    tracks = {span.track for span in spans}
    assert ("node-0", "driver-1") in tracks
    assert ("node-0", "worker-13") in tracks


def test_store_memory_follows_copies_and_spills() -> None:
    story = Story()
    detail = (100, DRIVER, True)
    story.note("object", 5, "CREATED", 1, node_id=0, detail=detail)
    story.note("object", 5, "COPY", 2, node_id=1, detail=(100, DRIVER, False))
    story.note("object", 5, "SPILLED", 3, node_id=0)
    story.note("object", 5, "RESTORED", 4, node_id=0)
    story.note("object", 5, "FREED", 5, node_id=0)
    found = {
        (c.track[0], c.name.removeprefix("memory/"), c.t_ns // MS, c.value)
        for c in records(story.rows).counters()
    }
    assert found == {
        ("node-0", "object_store", 1, 100),
        ("node-1", "object_store", 2, 100),
        ("node-0", "spilled", 3, 100),  # in memory as well, until it is evicted
        ("node-0", "object_store", 5, 0),
        ("node-0", "spilled", 5, 0),
    }


def test_copies_of_objects_are_arrows_between_nodes() -> None:
    story = Story()
    story.note("object", 5, "CREATED", 1, node_id=0, detail=(100, DRIVER, True))
    for node in (1, 2):
        story.note("object", 5, "COPY", 1 + node, node_id=node, detail=(100, DRIVER, False))
    made, *copies = records(story.rows).spans()
    assert made.args is not None
    assert [(s.track[0], s.start_ns // MS) for s in copies] == [("node-1", 2), ("node-2", 3)]
    assert made.args["flow"] == tuple(n for s in copies for n in s.args["flow"])
    assert made.args["bytes"] == 100


def test_tasks_are_counted_by_state() -> None:
    story = as_seen_on_a_laptop()
    last: dict[str, float] = {}
    for c in records(story.rows).counters():
        if c.track == ("cluster",):
            last[c.name] = c.value
    now = moment(story.rows)
    states = [a.state for a in now.attempts if a.state not in {"FINISHED", "FAILED"}]
    assert {n.removeprefix("tasks/"): v for n, v in last.items() if v} == {
        state: states.count(state) for state in states
    }


def test_failures_and_retries_are_marked() -> None:
    marks = [
        (m.name, m.track[-1], m.args["error_type"])
        for m in records(as_seen_on_a_laptop().rows).instants()
        if m.name == "task FAILED" and m.args is not None
    ]
    assert marks == [("task FAILED", "worker-11", "TASK_EXECUTION_EXCEPTION")]


def test_dead_nodes_are_marked() -> None:
    story = Story()
    story.node(0, 0, CPU=1)
    story.note("node", 0, "DEAD", 5, node_id=0)
    (mark,) = records(story.rows).instants()
    assert (mark.name, mark.t_ns, mark.track) == ("node DEAD", 5 * MS, ("node-0",))


def test_perfetto_file_is_written(tmp_path: Path) -> None:
    written = write_pftrace(records(as_seen_on_a_laptop().rows), tmp_path / "t.pftrace")
    assert b"task::outer" in written.read_bytes()


def test_timeline_file_has_rays_fields(tmp_path: Path) -> None:
    path = write_timeline(as_seen_on_a_laptop().rows, tmp_path / "timeline.json")
    events = json.loads(path.read_text())
    assert {tuple(event) for event in events} == {
        ("cat", "name", "pid", "tid", "ts", "dur", "ph", "cname", "args")
    }
    (task,) = [e for e in events if e["cat"] == "task::f"]
    assert task == {
        "cat": "task::f",
        "name": "__main__.f",
        "pid": "10.0.0.0",
        "tid": "worker:" + hex_id("worker", 13),
        "ts": 31_000.0,
        "dur": 299_000.0,
        "ph": "X",
        "cname": "generic_work",
        "args": {"name": "__main__.f", "task_id": hex_id("task", 4)},
    }
    assert {e["tid"].partition(":")[0] for e in events} == {"driver", "worker"}


@pytest.mark.real
def test_colors_are_rays() -> None:
    profiling = pytest.importorskip("ray._private.profiling")
    colors = profiling._default_color_mapping
    for event in chrome_events(as_seen_on_a_laptop().rows):
        assert event["cname"] == colors[event["cat"]]
