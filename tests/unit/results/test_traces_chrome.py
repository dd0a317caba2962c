"""Chrome traces by the Trace Event Format: names, arrows, order; the story of Perfetto's file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from raysim.kernel.record import ColumnRecorder
from raysim.results.ray.trace import records as of_program
from raysim.results.traces.chrome import chrome_events, write_chrome
from raysim.results.traces.perfetto import write_pftrace
from raysim.training.recording import record_outcome
from raysim.training.settings.deepspeed import PipelineSettings
from raysim.training.settings.parallel import Mesh
from tests.perfetto_reader import read
from tests.training_parts import plan, play
from tests.unit.result_cases import recording
from tests.unit.results.ray_cases import as_seen_on_a_laptop

FIELDS: dict[str, set[str]] = {
    "M": {"ph", "name", "pid", "tid", "args"},
    "X": {"ph", "name", "cat", "ts", "dur", "pid", "tid", "args"},
    "C": {"ph", "name", "ts", "pid", "args"},
    "i": {"ph", "s", "name", "cat", "ts", "pid", "tid", "args"},
    "s": {"ph", "name", "cat", "id", "ts", "pid", "tid"},
    "t": {"ph", "name", "cat", "id", "ts", "pid", "tid", "bp"},
    "f": {"ph", "name", "cat", "id", "ts", "pid", "tid", "bp"},
}
"""Of each kind of event."""


def pipeline() -> ColumnRecorder:
    records = ColumnRecorder()
    settings = PipelineSettings(stages=2, partition_method="uniform")
    outcome = play(
        plan(stage=1, mesh=Mesh(pp=2, dp=2), gradient_accumulation_steps=4, pipeline=settings)
    )
    record_outcome(outcome, records)
    return records


STORIES = {
    "small": recording,
    "pipeline": pipeline,
    "program": lambda: of_program(as_seen_on_a_laptop().rows),
}


@pytest.fixture(params=STORIES)
def records(request: pytest.FixtureRequest) -> ColumnRecorder:
    return STORIES[request.param]()


def test_events_are_valid_named_and_sorted(records: ColumnRecorder) -> None:
    events = list(chrome_events(records))
    for event in events:
        assert set(event) == FIELDS[event["ph"]], event
    named = [e for e in events if e["ph"] == "M"]
    assert events[: len(named)] == named
    times = [e["ts"] for e in events[len(named) :]]
    assert times == sorted(times)
    kinds: dict[str, set[Any]] = {}
    for event in named:
        kinds.setdefault(event["name"], set()).add((event["pid"], event["tid"]))
    used = {(e["pid"], e["tid"]) for e in events if "tid" in e and e["ph"] != "M"}
    assert used <= kinds["thread_name"]
    assert kinds["thread_sort_index"] == kinds["thread_name"]
    pids = {(e["pid"], 0) for e in events}
    assert kinds["process_name"] == kinds["process_sort_index"] == pids


def test_every_arrow_begins_and_ends_at_a_slice(records: ColumnRecorder) -> None:
    events = list(chrome_events(records))
    begun = {(e["pid"], e["tid"], e["ts"]) for e in events if e["ph"] == "X"}
    kinds: dict[int, list[str]] = {}
    for event in (e for e in events if e["ph"] in "stf"):
        assert (event["pid"], event["tid"], event["ts"]) in begun
        kinds.setdefault(event["id"], []).append(event["ph"])
    for found in kinds.values():
        assert found[0] == "s"
        assert found[-1] == "f"
        assert set(found[1:-1]) <= {"t"}
    assert kinds


def test_slices_of_a_thread_nest(records: ColumnRecorder) -> None:
    open_ends: dict[tuple[int, int], list[float]] = {}
    for event in chrome_events(records):
        if event["ph"] != "X":
            continue
        ends = open_ends.setdefault((event["pid"], event["tid"]), [])
        while ends and ends[-1] <= event["ts"] + 1e-6:
            ends.pop()
        assert not ends or event["ts"] + event["dur"] <= ends[-1] + 1e-6
        ends.append(event["ts"] + event["dur"])


def test_it_tells_what_perfettos_file_tells(records: ColumnRecorder, tmp_path: Path) -> None:
    other = read(write_pftrace(records, tmp_path / "t.pftrace"))
    path = write_chrome(records, tmp_path / "t.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    drawn = sorted((e["name"], e["cat"], round(e["ts"] * 1e3)) for e in events if e["ph"] == "X")
    assert drawn == sorted((s.name, s.category, s.start_ns) for s in other.slices)
    assert not other.stats
    count = {kind: sum(e["ph"] == kind for e in events) for kind in "Cistf"}
    assert count["C"] == len(other.counters)
    assert count["i"] == len(other.instants)
    assert count["s"] == count["f"]
    assert count["t"] + count["f"] == len(other.flows)
    again = write_chrome(records, tmp_path / "again.json.gz")
    assert again.read_bytes() == path.read_bytes()
