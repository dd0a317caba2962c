"""Traces parsed back: nesting, tracks, counters, arrows."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from raysim.kernel.record import ColumnRecorder, Span
from raysim.results import perfetto
from tests.unit.result_cases import recording


@pytest.fixture
def trace(tmp_path: Path) -> Any:
    return read(recording(), tmp_path)


def read(records: ColumnRecorder, tmp_path: Path) -> Any:
    path = perfetto.write_pftrace(records, tmp_path / "t.pftrace")
    return pb.Trace.FromString(path.read_bytes())


def descriptors(trace: Any) -> dict[int, Any]:
    found = [p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")]
    return {d.uuid: d for d in found}


def paths(trace: Any) -> dict[int, tuple[str, ...]]:
    """Track names from the process down."""
    by_uuid = descriptors(trace)

    def path(uuid: int) -> tuple[str, ...]:
        d = by_uuid[uuid]
        if d.HasField("process"):
            return (d.process.process_name,)
        return (*path(d.parent_uuid), d.name)

    return {uuid: path(uuid) for uuid in by_uuid}


def slices(trace: Any) -> Iterator[tuple[tuple[str, ...], str, str, int, int]]:
    """Slices as a viewer draws them: each end closes the innermost open begin of its track."""
    interned = trace.packet[0].interned_data
    names = {e.iid: e.name for e in interned.event_names}
    categories = {e.iid: e.name for e in interned.event_categories}
    path = paths(trace)
    stacks: dict[int, list[tuple[str, str, int]]] = {}
    for packet in sorted(trace.packet, key=lambda p: p.timestamp):
        event = packet.track_event
        if event.type == pb.TrackEvent.TYPE_SLICE_BEGIN:
            begun = (names[event.name_iid], categories[event.category_iids[0]], packet.timestamp)
            stacks.setdefault(event.track_uuid, []).append(begun)
        elif event.type == pb.TrackEvent.TYPE_SLICE_END:
            name, category, start = stacks[event.track_uuid].pop()
            yield path[event.track_uuid], name, category, start, packet.timestamp
    assert not any(stacks.values()), "a slice was never closed"


def test_slices_come_back_as_recorded(trace: Any) -> None:
    recorded = sorted(
        (s.track, s.name, s.category, s.start_ns, s.end_ns) for s in recording().spans()
    )
    assert sorted(slices(trace)) == recorded


def test_streams_stand_below_their_gpu_and_the_gpu_below_its_node(trace: Any) -> None:
    path = paths(trace).values()
    assert {("node-0",), ("node-0", "gpu-1"), ("node-0", "gpu-1", "compute")} <= set(path)
    by_uuid = descriptors(trace)
    compute = next(u for u, p in paths(trace).items() if p == ("node-1", "gpu-1", "compute"))
    assert by_uuid[by_uuid[by_uuid[compute].parent_uuid].parent_uuid].HasField("process")


def test_memory_counters_are_sizes(trace: Any) -> None:
    path, by_uuid = paths(trace), descriptors(trace)
    values = [
        (p.timestamp, p.track_event.counter_value)
        for p in trace.packet
        if p.track_event.type == pb.TrackEvent.TYPE_COUNTER
        and path[p.track_event.track_uuid] == ("node-0", "gpu-1", "memory/activation")
    ]
    assert values == [(30, 2**30), (90, 0), (130, 2**30), (190, 0)]
    units = {path[u][-1]: d.counter.unit for u, d in by_uuid.items() if d.HasField("counter")}
    assert units["memory/activation"] == pb.CounterDescriptor.UNIT_SIZE_BYTES


def test_arrows_go_from_send_to_receive(trace: Any) -> None:
    path = paths(trace)
    starts, ends = {}, {}
    for event in (p.track_event for p in trace.packet):
        for flow in event.flow_ids:
            starts[flow] = path[event.track_uuid][0]
        for flow in event.terminating_flow_ids:
            ends[flow] = path[event.track_uuid][0]
    assert starts == {7: "node-0", 8: "node-0"}
    assert ends == {7: "node-1", 8: "node-1"}


def test_arguments_are_kept_with_their_types(trace: Any) -> None:
    keys = {e.iid: e.name for e in trace.packet[0].interned_data.debug_annotation_names}
    reduce = next(
        p.track_event
        for p in trace.packet
        if any(keys[a.name_iid] == "op" for a in p.track_event.debug_annotations)
    )
    values = {keys[a.name_iid]: getattr(a, a.WhichOneof("value")) for a in reduce.debug_annotations}
    assert values == {"step": 0, "op": "all_reduce", "bytes": 4096, "bus_bytes_per_s": 1e9}


def test_slices_that_touch_or_have_no_length_do_not_nest(tmp_path: Path) -> None:
    record = ColumnRecorder()
    for start, end in ((0, 10), (10, 10), (10, 20)):
        record.span(("n", "gpu-0", "compute"), f"{start}-{end}", "forward", start, end)
    drawn = [(name, start, end) for _, name, _, start, end in slices(read(record, tmp_path))]
    assert sorted(drawn) == [("0-10", 0, 10), ("10-10", 10, 10), ("10-20", 10, 20)]


def test_overlapping_spans_get_a_second_lane() -> None:
    def span(start: int, end: int) -> Span:
        return Span(("n", "g", "host"), f"{start}-{end}", "host", start, end)

    made = perfetto.lanes([span(0, 10), span(2, 5), span(5, 12), span(12, 15), span(1, 11)])
    assert [[s.name for s in lane] for lane in made] == [
        ["0-10", "2-5", "12-15"],
        ["1-11"],
        ["5-12"],
    ]


def test_nodes_and_gpus_are_in_natural_order() -> None:
    record = ColumnRecorder()
    for node in (10, 2):
        for stream in ("d2h", "comm:dp", "compute"):
            record.span((f"node-{node}", "gpu-0", stream), "x", "forward", 0, 1)
    order = [(t[0], t[2]) for t in perfetto.tracks(record)]
    streams = ("compute", "comm:dp", "d2h")
    assert order == [(n, s) for n in ("node-2", "node-10") for s in streams]


def test_chrome_trace_is_the_same_story_and_the_same_bytes(tmp_path: Path) -> None:
    one = perfetto.write_chrome(recording(), tmp_path / "a.json.gz").read_bytes()
    assert one == perfetto.write_chrome(recording(), tmp_path / "b.json.gz").read_bytes()
    events = json.loads(gzip.decompress(one))["traceEvents"]
    threads = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"
    }
    drawn = [(threads[e["pid"], e["tid"]], e["name"], e["ts"]) for e in events if e["ph"] == "X"]
    assert len(drawn) == len(recording().spans())
    assert ("gpu-1 compute", "layer backward", 0.03) in drawn
    arrows = [(e["ph"], e["id"]) for e in events if e["ph"] in "sf"]
    assert sorted(arrows) == [("f", 7), ("f", 8), ("s", 7), ("s", 8)]
