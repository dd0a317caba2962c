"""A ``ray timeline`` file, read and run again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raysim.errors import ScenarioError
from raysim.raystate.timeline import write_timeline
from raysim.workloads.ray.durations import Uniform
from raysim.workloads.ray.replay import Replay, start_replay
from raysim.workloads.ray.shapes import TaskShape
from raysim.workloads.ray.task_bag import TaskBag, start_task_bag
from raysim.workloads.ray.timeline_file import read_timeline
from tests.unit.workloads.ray_cases import play, ran_s, starter


def event(cat: str, tid: str, start_ms: float, end_ms: float) -> dict:
    """As ray 2.60 writes it, at some time of 2026."""
    ts = 1_795_295_702_000_000.0 + start_ms * 1000
    return {
        "cat": cat, "name": cat, "pid": "192.0.2.2", "tid": tid, "ts": ts,
        "dur": (end_ms - start_ms) * 1000, "ph": "X", "cname": "generic_work", "args": {},
    }  # fmt: skip


def nested(path: Path) -> Path:
    """A driver calls outer; outer calls inner, which takes 300 of its 500 ms; then an actor."""
    events = [
        event("submit_task", "driver:01", 0, 1),
        event("submit_task", "driver:01", 1, 2),
        event("task::outer", "worker:aa", 10, 510),
        event("submit_task", "worker:aa", 110, 111),
        event("task::inner", "worker:bb", 120, 420),
        event("task:execute", "worker:bb", 120, 420),
        event("task::A.__init__", "worker:cc", 5, 105),
        event("task::A.m", "worker:cc", 600, 700),
        event("submit_task", "driver:01", 590, 591),
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "Node 192.0.2.2"}},
    ]
    path.write_text(json.dumps(events))
    return path


def test_reads_tasks_parents_and_actors(tmp_path: Path) -> None:
    tasks = {task.name: task for task in read_timeline(nested(tmp_path / "t.json"))}
    assert set(tasks) == {"outer", "inner", "A.__init__", "A.m"}
    order = [task.name for task in read_timeline(tmp_path / "t.json")]
    inner = tasks["inner"]
    assert order[inner.parent or 0] == "outer"
    assert inner.nested
    assert (inner.submit_ns, inner.start_ns) == (110_000_000, 120_000_000)
    assert inner.end_ns - inner.start_ns == 300_000_000
    assert tasks["A.m"].actor
    assert tasks["A.__init__"].creation
    assert tasks["outer"].parent is None


def test_replay_takes_as_long_and_nests(tmp_path: Path) -> None:
    spec = Replay(tasks=tuple(read_timeline(nested(tmp_path / "t.json"))))
    played = play(starter(start_replay, spec, draws=False), nodes=1)
    assert played.done.error is None
    (outer,), (inner,), (call,) = (played.attempts(name) for name in ("outer", "inner", "A.m"))
    assert outer.spec is not None
    assert inner.spec is not None
    assert inner.spec.parent == outer.task_id
    took_s = ran_s(outer)[1] - ran_s(outer)[0]
    assert took_s == pytest.approx(0.490, abs=0.02)
    assert ran_s(inner)[0] - ran_s(outer)[0] == pytest.approx(0.1, abs=0.007)
    assert ran_s(inner)[1] < ran_s(outer)[1]
    assert ran_s(call)[1] - ran_s(call)[0] == pytest.approx(0.1, abs=0.005)


def test_faster_nodes(tmp_path: Path) -> None:
    spec = Replay(tasks=tuple(read_timeline(nested(tmp_path / "t.json"))), speed=2.0)
    (inner,) = play(starter(start_replay, spec, draws=False), nodes=1).attempts("inner")
    assert ran_s(inner)[1] - ran_s(inner)[0] == pytest.approx(0.15, abs=0.005)


def test_our_own_timeline_replays_to_the_same_makespan(tmp_path: Path) -> None:
    shape = TaskShape(name="f", runs=Uniform(low_s=0.05, high_s=0.5), uses="time")
    first = play(starter(start_task_bag, TaskBag(tasks=60, shape=shape)), nodes=1)
    path = write_timeline(first.rows, tmp_path / "timeline.json")
    spec = Replay(tasks=tuple(read_timeline(path)))
    again = play(starter(start_replay, spec, draws=False), nodes=1)
    assert again.outcome.finished == 60
    assert again.outcome.makespan_s == pytest.approx(first.outcome.makespan_s, rel=0.03)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("3", "is not a list of events"),
        ("[]", "has no task:: events among 0 events"),
        ('[{"cat": "task::f", "ph": "X", "ts": 1}]', "an event lacks cat, ts, dur, pid or tid"),
    ],
)
def test_what_is_not_a_timeline(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=message):
        read_timeline(path)


def test_settings_for_unknown_names_are_refused(tmp_path: Path) -> None:
    tasks = tuple(read_timeline(nested(tmp_path / "t.json")))
    with pytest.raises(ScenarioError, match=r"num_cpus.innner: no such task; there are A\.__init"):
        Replay(tasks=tasks, num_cpus={"innner": 2})
