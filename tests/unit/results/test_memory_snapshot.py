"""Memory snapshots in torch's format: every moment, every segment, and what the page can read."""

from __future__ import annotations

import pickle
import pickletools
from bisect import bisect_right
from collections import defaultdict
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from raysim.errors import ScenarioError
from raysim.results import memory_snapshot
from raysim.results.result import Result, written
from raysim.training.allocator.config import AllocatorConfig
from raysim.training.memory.history import RankHistory
from raysim.training.memory.replay import WORKSPACE, Entry
from raysim.training.program import MemoryEvent
from raysim.training.recording import histories
from raysim.training.settings.deepspeed import PipelineSettings
from raysim.training.settings.parallel import Mesh
from raysim.units import GIB, MIB
from tests.training_parts import llama, plan, play
from tests.unit.result_cases import summary

CASES: list[dict[str, Any]] = [
    {"stage": 3, "activation_checkpointing": "full"},
    {"stage": 2, "gradient_accumulation_steps": 4},
    {"engine": "ddp", "precision": "bf16"},
    {"stage": 1, "allocator": AllocatorConfig(expandable_segments=True)},
    {"stage": 0, "allocator": AllocatorConfig(max_split_size_mb=32)},
    {"stage": 1, "mesh": Mesh(pp=2, dp=2, tp=2), "gradient_accumulation_steps": 6,
     "pipeline": PipelineSettings(stages=2, partition_method="uniform")},
]  # fmt: skip
PAGE = 2 * MIB
"""What segments are multiples of."""
READABLE = {
    "APPEND", "APPENDS", "BINGET", "BININT", "BININT1", "BININT2", "EMPTY_DICT", "EMPTY_LIST",
    "FRAME", "LONG1", "LONG_BINGET", "MARK", "MEMOIZE", "PROTO", "SETITEMS", "SHORT_BINUNICODE",
    "STOP", "TUPLE2", "NEWFALSE", "BINPUT", "BINUNICODE", "EMPTY_TUPLE", "NEWTRUE", "NONE",
    "BINFLOAT", "TUPLE", "TUPLE1", "TUPLE3", "LONG_BINPUT", "LIST", "DICT", "SETITEM",
}  # fmt: skip
"""Opcodes of pickle that ``unpickle`` of MemoryViz.js knows (torch 2.13)."""


def history(**options: Any) -> RankHistory:
    return memory_snapshot.fullest(histories(play(plan(**options))))


def events(snapshot: dict[str, Any]) -> list[dict[str, Any]]:
    (found,) = (trace for trace in snapshot["device_traces"] if trace)
    return found


def held(found: list[dict[str, Any]], more: str, less: str) -> list[int]:
    """Bytes after each event."""

    def change(event: dict[str, Any]) -> int:
        sign = (event["action"] in more.split()) - (event["action"] in less.split())
        return sign * int(event["size"])

    return list(accumulate(map(change, found)))


@pytest.mark.parametrize("options", CASES)
def test_blocks_in_use_are_what_the_counters_say_at_every_moment(options: dict[str, Any]) -> None:
    """By category, after every change of the settled step but those that the next one undoes.

    A tensor is given back when the last of its bytes is: until then it is in use whole. States that
    a step makes for the first time are counted from its start.
    """
    rank = history(**options)
    changes, program = rank.trace.events, rank.timeline.program
    entries, known = rank.play().entries, len(program.initial) - program.set_up
    several = len(program.step_changes) > 1
    settled = max(entry.repeat for entry in entries) if several else 0
    first = known + (program.step_changes[-2] if several else program.set_up)
    last = [entry for entry in entries if entry.repeat == settled and entry.event >= first]
    done: dict[int, list[Entry]] = defaultdict(list)
    counted: dict[str, int] = defaultdict(int)
    largest: dict[str, int] = defaultdict(lambda: 1)
    for change in program.memory:
        if change.category == "gradient":
            largest[change.category] = max(largest[change.category], *change.tensors, 1)
    live: dict[str, int] = defaultdict(int)
    for change in program.memory[: first - known]:
        counted[change.category] += change.delta_bytes
    for entry in entries[: entries.index(last[0])]:
        apply(entry, live, rank)
    for entry in last:
        done[entry.event].append(entry)
    for at in range(first, len(changes)):
        for entry in done[at]:
            apply(entry, live, rank)
        counted[changes[at].category] += changes[at].delta_bytes
        if at + 1 < len(changes) and undone(changes[at], changes[at + 1]):
            continue
        for category in {*live, *counted} - ({"optimizer_state"} if not several else set()):
            partly = live[category] - counted[category]
            assert 0 <= partly < largest[category], (category, changes[at])
    left = {k for k in live if live[k] != counted[k]}
    assert left <= ({"optimizer_state"} if not several else set())


def apply(entry: Entry, live: dict[str, int], rank: RankHistory) -> None:
    if entry.event == WORKSPACE:
        return
    sign = (entry.action == "alloc") - (entry.action == "free_completed")
    live[owner(entry, rank)] += sign * entry.size_bytes


def owner(entry: Entry, rank: RankHistory) -> str:
    return rank.cause(entry.event).category


def undone(change: MemoryEvent, following: MemoryEvent) -> bool:
    """A tensor that is taken for a moment: only its peak shows."""
    same = (change.category, change.label) == (following.category, following.label)
    return same and change.delta_bytes == -following.delta_bytes > 0


@pytest.mark.parametrize("options", CASES)
def test_peaks_and_segments_are_those_of_the_summary(options: dict[str, Any]) -> None:
    rank = history(**options)
    snapshot = memory_snapshot.snapshot(rank)
    found = events(snapshot)
    allocated = held(found, "alloc", "free_completed")
    reserved = held(found, "segment_alloc segment_map", "segment_free segment_unmap")
    assert max(reserved) == rank.play().outcome.allocator.peak_reserved_bytes
    assert all(a <= r for a, r in zip(allocated, reserved, strict=True))
    segments = snapshot["segments"]
    assert sum(segment["total_size"] for segment in segments) == reserved[-1]
    assert sum(segment["requested_size"] for segment in segments) == allocated[-1]
    if rank.timeline.program.step_changes[:-1]:
        assert max(reserved) == rank.memory.reserved_bytes


@pytest.mark.parametrize("options", CASES)
def test_every_address_lies_in_a_segment_and_in_no_other_block(options: dict[str, Any]) -> None:
    snapshot = memory_snapshot.snapshot(history(**options))
    live: dict[int, int] = {}
    pages: set[int] = set()
    for event in events(snapshot):
        address, action = event["addr"], event["action"]
        if action.startswith("segment"):
            its = set(range(address // PAGE, (address + event["size"]) // PAGE))
            given = action in {"segment_alloc", "segment_map"}
            assert its.isdisjoint(pages) if given else its <= pages
            pages = pages | its if given else pages - its
        if action == "alloc":
            assert address not in live
            assert {address // PAGE, (address + event["size"] - 1) // PAGE} <= pages
            live[address] = event["size"]
        elif action == "free_completed":
            assert live.pop(address) == event["size"]
    rows = sorted((s["address"], s) for s in snapshot["segments"])
    starts = [address for address, _ in rows]
    for address, size in live.items():
        base, segment = rows[bisect_right(starts, address) - 1]
        assert address + size <= base + segment["total_size"]
        block = next(b for b in segment["blocks"] if b["address"] == address)
        assert block["state"] == "active_allocated"
        assert block["requested_size"] == size <= block["size"]
    for base, segment in rows:
        sizes = [block["size"] for block in segment["blocks"]]
        addresses = [block["address"] for block in segment["blocks"]]
        assert addresses == [base + before for before in (0, *accumulate(sizes[:-1]))]
    active = sum(b["state"] != "inactive" for s in snapshot["segments"] for b in s["blocks"])
    assert active == len(live)


def test_times_rise_and_end_with_the_repeated_step() -> None:
    rank = history(stage=2)
    found = events(memory_snapshot.snapshot(rank))
    times = [event["time_us"] for event in found]
    assert times == sorted(times)
    assert times[-1] * 1000 >= rank.timeline.step_window(1)[0]


def test_frames_lead_from_the_tensor_to_the_step() -> None:
    found = events(memory_snapshot.snapshot(history(stage=3, activation_checkpointing="full")))
    event = next(e for e in found if e["frames"][1]["name"].endswith("layers.2.mlp.up_proj"))
    names = [frame["name"] for frame in event["frames"]]
    path = names[1]
    assert names[1:-2] == [path.rsplit(".", n)[0] for n in range(path.count(".") + 1)]
    assert [frame["filename"] for frame in event["frames"]][-2:] == ["micro-batch", "training"]
    assert names[-2:] == ["forward", "step"]


def test_out_of_memory_is_the_last_event_and_says_what_was_free() -> None:
    rank = history(stage=0, model=llama(layers=8, hidden=8192, vocab=32000))
    *_, last = events(memory_snapshot.snapshot(rank))
    failed = rank.memory.out_of_memory
    assert failed is not None
    assert last["action"] == "oom"
    assert (last["size"], last["device_free"]) == (failed.asked_bytes, failed.free_bytes)
    assert failed.reserved_bytes < 80 * GIB


def test_the_page_can_read_it(tmp_path: Path) -> None:
    """Its reader of pickles knows few opcodes, and it fails without a category ``unknown``."""
    path = memory_snapshot.write(history(stage=2), tmp_path / "snapshot.pickle")
    data = path.read_bytes()
    assert {opcode.name for opcode, _, _ in pickletools.genops(data)} <= READABLE
    assert data[:2] == bytes([0x80, 4])
    again = memory_snapshot.write(history(stage=2), tmp_path / "again.pickle")
    assert again.read_bytes() == data
    found = events(pickle.loads(data))
    assert {event["category"] for event in found} >= {"unknown", "parameter", "activation"}


def test_a_result_writes_it_when_asked(tmp_path: Path) -> None:
    played = histories(play(plan(stage=2)))
    result = Result(summary=summary(), histories=played)
    result.write(tmp_path)
    assert "memory_snapshot.pickle" not in written(tmp_path)
    result.write(tmp_path, memory_snapshot=True)
    assert "memory_snapshot.pickle" in written(tmp_path)
    said = pickle.loads((tmp_path / "memory_snapshot.pickle").read_bytes())
    assert said == result.memory_snapshot() == result.memory_snapshot(rank=0)
    again = pickle.loads(pickle.dumps(result))
    assert again.memory_snapshot() == said
    with pytest.raises(ScenarioError, match="rank 5 was not simulated; these were: 0"):
        result.memory_snapshot(rank=5)
    with pytest.raises(ScenarioError, match="no memory snapshot"):
        Result(summary=summary()).memory_snapshot()
