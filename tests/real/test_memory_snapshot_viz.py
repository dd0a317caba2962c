"""Our memory snapshots through torch's own readers."""

from __future__ import annotations

import base64
import io
import json
import pickle
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from raysim.results import memory_snapshot
from raysim.training.allocator.config import AllocatorConfig
from raysim.training.recording import histories
from tests.training_parts import llama, plan, play

pytestmark = pytest.mark.real
viz = pytest.importorskip("torch.cuda._memory_viz")

CASES: list[dict[str, Any]] = [
    {"stage": 3, "activation_checkpointing": "full"},
    {"stage": 1, "allocator": AllocatorConfig(expandable_segments=True)},
    {"stage": 0, "model": llama(layers=8, hidden=8192, vocab=32000)},
]


def snapshot(**options: Any) -> dict[str, Any]:
    found = memory_snapshot.fullest(histories(play(plan(**options))))
    made: dict[str, Any] = pickle.loads(pickle.dumps(memory_snapshot.snapshot(found), protocol=4))
    return made


def lines(flamegraph: str) -> dict[str, int]:
    """Bytes by stack."""
    found: dict[str, int] = {}
    for line in flamegraph.splitlines():
        stack, _, size = line.rpartition(" ")
        found[stack] = found.get(stack, 0) + int(size)
    return found


def kept(text: str) -> str:
    return text


@pytest.mark.parametrize("options", CASES, ids=["zero3", "expandable", "out of memory"])
def test_torch_reads_every_view_of_it(options: dict[str, Any]) -> None:
    ours = snapshot(**options)
    said = viz.segsum(ours)  # asserts that the parts of each segment add up
    assert f"segments: {len(ours['segments'])}" in said
    total = sum(segment["total_size"] for segment in ours["segments"])
    assert f"total_reserved: {viz.Bytes(total)}" in said
    by_stack = lines(viz.memory(ours, format_flamegraph=kept))
    assert sum(by_stack.values()) == total
    assert sum(lines(viz.segments(ours, format_flamegraph=kept)).values()) == total
    active = sum(segment["requested_size"] for segment in ours["segments"])
    held = {s: n for s, n in by_stack.items() if ";active_allocated;" in s and "<gaps>" not in s}
    assert sum(held.values()) == active
    assert any("training:" in stack for stack in held)


@pytest.mark.parametrize("options", CASES, ids=["zero3", "expandable", "out of memory"])
def test_torch_tells_the_events_one_by_one(options: dict[str, Any]) -> None:
    ours = snapshot(**options)
    entries = [event for trace in ours["device_traces"] for event in trace]
    told = viz.trace(ours)
    assert f"{len(entries)} entries" in told
    assert told.count("# free completed for") == sum(
        event["action"] == "free_completed" for event in entries
    )
    assert told.count("cudaMalloc(") == sum(e["action"] == "segment_alloc" for e in entries)
    assert ("OutOfMemoryError" in told) == (entries[-1]["action"] == "oom")
    left = viz.filter_alloc_free_pairs(ours)
    live = sum(e["size"] for t in left["device_traces"] for e in t if e["action"] == "alloc")
    assert live == sum(segment["requested_size"] for segment in ours["segments"])


def test_torch_compares_two_of_them() -> None:
    few, many = snapshot(stage=3), snapshot(stage=0)
    said = io.StringIO()
    with redirect_stdout(said):
        told = viz.compare(few["segments"], many["segments"], format_flamegraph=kept)
    assert "only_after" in said.getvalue()
    assert {stack.split(";")[0] for stack in lines(told)} <= {"only_before", "only_after"}


@pytest.mark.parametrize("plot", ["trace_plot", "segment_plot"])
def test_the_page_that_torch_writes_carries_it(plot: str, tmp_path: Path) -> None:
    ours = snapshot(stage=2)
    page = getattr(viz, plot)(ours)
    files = json.loads(re.search(r"local_files = (\[.*\])\n", page)[1])  # type: ignore[index]
    carried = base64.b64decode(files[0]["base64"])
    assert pickle.loads(carried) == ours
