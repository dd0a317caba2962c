"""Trace files: Perfetto's own protobuf format, or the Chrome JSON that older viewers read.

Real counterpart: ``protos/perfetto/trace/track_event`` and the Trace Event Format. Process = node;
below it one group per GPU with one track per stream, so slices nest and never overlap (a slice that
would is put on a second lane of its stream). Counters hold device memory by category and link
rates; a span argument ``flow`` shared by two spans draws an arrow from the earlier to the later.
Times are virtual nanoseconds.
"""

from __future__ import annotations

import gzip
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysim.kernel.record import ColumnRecorder, Span

Track = tuple[str, ...]
_BATCH = 4096
_SEQUENCE = 1
_STREAMS = ("host", "compute", "comm", "h2d", "d2h")


def lanes(spans: Iterable[Span]) -> list[list[Span]]:
    """Spans of one track in drawing order; within a lane any two nest or are apart."""
    made: list[list[Span]] = []
    open_ends: list[list[int]] = []
    for span in sorted(spans, key=lambda s: (s.start_ns, -s.end_ns)):
        lane = 0
        for ends in open_ends:
            while ends and ends[-1] <= span.start_ns:
                ends.pop()
            if not ends or ends[-1] >= span.end_ns:
                break
            lane += 1
        else:
            made.append([])
            open_ends.append([])
        made[lane].append(span)
        open_ends[lane].append(span.end_ns)
    return made


def tracks(records: ColumnRecorder) -> dict[Track, list[Span]]:
    """Every lane with spans, in display order: nodes, then GPUs, then streams."""
    by_track: dict[Track, list[Span]] = {}
    for span in records.spans():
        by_track.setdefault(span.track, []).append(span)
    found: dict[Track, list[Span]] = {}
    for track in sorted(by_track, key=_order):
        for n, lane in enumerate(lanes(by_track[track])):
            found[(*track[:-1], f"{track[-1]} ({n + 1})") if n else track] = lane
    return found


def _order(track: Track) -> list[tuple[int, str, int]]:
    """Natural order: node-2 before node-10; streams host, compute, communication, copies."""

    def part(name: str) -> tuple[int, str, int]:
        stem = name.partition(":")[0].partition(" ")[0]
        rank = _STREAMS.index(stem) if stem in _STREAMS else len(_STREAMS)
        match = re.fullmatch(r"(.*?)(\d+)", name)
        return (rank, match[1], int(match[2])) if match else (rank, name, 0)

    return [part(name) for name in track]


def write_pftrace(records: ColumnRecorder, path: Path) -> Path:
    """Write ``path`` in Perfetto's native format; open it at ui.perfetto.dev."""
    with path.open("wb") as file:
        _Writer(file).write(records)
    return path


class _Writer:
    """One pass over the records into TracePackets, interning every name."""

    def __init__(self, file: Any) -> None:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

        self.pb: Any = pb
        self.file = file
        self.trace = pb.Trace()
        self.pending = 0
        self.uuids: dict[Track, int] = {}
        self.names: dict[str, int] = {}
        self.categories: dict[str, int] = {}
        self.keys: dict[str, int] = {}

    def write(self, records: ColumnRecorder) -> None:
        """All descriptors and names first, then slices, counters and instants."""
        laid_out = tracks(records)
        counters, instants = records.counters(), records.instants()
        self.intern(laid_out, instants)
        for track in laid_out:
            self.track(track)
        ends = flow_ends(laid_out)
        for track, spans in laid_out.items():
            self.slices(self.uuids[track], spans, ends)
        for track, name, t_ns, value in counters:
            self.counter(track, name, t_ns, value)
        for track, name, category, t_ns, args in instants:
            self.instant(track, name, category, t_ns, args)
        self.flush()

    def packet(self) -> Any:
        """A fresh TracePacket; every few thousand go to the file."""
        if self.pending >= _BATCH:
            self.flush()
        self.pending += 1
        packet = self.trace.packet.add()
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.sequence_flags = self.pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        return packet

    def flush(self) -> None:
        """Append the packets so far: concatenated Traces are one Trace."""
        self.file.write(self.trace.SerializeToString())
        self.trace.Clear()
        self.pending = 0

    def intern(self, laid_out: Mapping[Track, list[Span]], instants: Iterable[Any]) -> None:
        """Give every name, category and argument key a number, in the first packet."""
        for spans in laid_out.values():
            for _, name, category, _, _, args in spans:
                self.names.setdefault(name, len(self.names) + 1)
                self.categories.setdefault(category, len(self.categories) + 1)
                for key in args or ():
                    self.keys.setdefault(key, len(self.keys) + 1)
        for _, name, category, _, args in instants:
            self.names.setdefault(name, len(self.names) + 1)
            self.categories.setdefault(category, len(self.categories) + 1)
            for key in args or ():
                self.keys.setdefault(key, len(self.keys) + 1)
        packet = self.packet()
        packet.sequence_flags = self.pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        data = packet.interned_data
        for table, field in (
            (self.names, data.event_names),
            (self.categories, data.event_categories),
            (self.keys, data.debug_annotation_names),
        ):
            for name, iid in table.items():
                field.add(iid=iid, name=name)

    def track(self, track: Track) -> int:
        """Uuid of a track; describes it, and its parents, the first time."""
        uuid = self.uuids.get(track)
        if uuid is not None:
            return uuid
        parent = self.track(track[:-1]) if len(track) > 1 else None
        uuid = self.uuids[track] = len(self.uuids) + 1
        descriptor = self.packet().track_descriptor
        descriptor.uuid = uuid
        if parent is None:
            descriptor.process.pid = uuid
            descriptor.process.process_name = track[0]
        else:
            descriptor.parent_uuid = parent
            descriptor.name = track[-1]
            descriptor.sibling_order_rank = uuid
        descriptor.child_ordering = self.pb.TrackDescriptor.EXPLICIT
        return uuid

    def slices(self, uuid: int, spans: list[Span], ends: Mapping[int, Span]) -> None:
        """Begin and end events of one lane; an end comes before a begin of the same instant."""
        begin, end = self.pb.TrackEvent.TYPE_SLICE_BEGIN, self.pb.TrackEvent.TYPE_SLICE_END
        open_ends: list[int] = []

        def close(until_ns: float) -> None:
            while open_ends and open_ends[-1] <= until_ns:
                packet = self.packet()
                packet.timestamp = open_ends.pop()
                event = packet.track_event
                event.type = end
                event.track_uuid = uuid

        for span in spans:
            _, name, category, start_ns, end_ns, args = span
            close(start_ns)
            packet = self.packet()
            packet.timestamp = start_ns
            event = packet.track_event
            event.type = begin
            event.track_uuid = uuid
            event.name_iid = self.names[name]
            event.category_iids.append(self.categories[category])
            if args:
                self.annotate(event, args)
                if "flow" in args:
                    last = ends[args["flow"]] is span
                    field = event.terminating_flow_ids if last else event.flow_ids
                    field.append(args["flow"])
            open_ends.append(end_ns)
        close(float("inf"))

    def annotate(self, event: Any, args: Mapping[str, Any]) -> None:
        """Arguments shown when a slice is clicked."""
        for key, value in args.items():
            if value is None:
                continue
            note = event.debug_annotations.add()
            note.name_iid = self.keys[key]
            if isinstance(value, int):
                note.int_value = value
            elif isinstance(value, float):
                note.double_value = value
            else:
                note.string_value = str(value)

    def counter(self, track: Track, name: str, t_ns: int, value: float) -> None:
        """One value of a counter track, described at its first value."""
        key = (*track, name)
        uuid = self.uuids.get(key)
        if uuid is None:
            parent = self.track(track)
            uuid = self.uuids[key] = len(self.uuids) + 1
            descriptor = self.packet().track_descriptor
            descriptor.uuid = uuid
            descriptor.parent_uuid = parent
            descriptor.name = name
            descriptor.sibling_order_rank = uuid
            if name.startswith("memory/"):
                descriptor.counter.unit = self.pb.CounterDescriptor.UNIT_SIZE_BYTES
            else:
                descriptor.counter.unit_name = "B/s"
        packet = self.packet()
        packet.timestamp = t_ns
        event = packet.track_event
        event.type = self.pb.TrackEvent.TYPE_COUNTER
        event.track_uuid = uuid
        if value == int(value):
            event.counter_value = int(value)
        else:
            event.double_counter_value = value

    def instant(
        self, track: Track, name: str, category: str, t_ns: int, args: Mapping[str, Any] | None
    ) -> None:
        """A moment: an arrow head on its track."""
        uuid = self.track(track)
        packet = self.packet()
        packet.timestamp = t_ns
        event = packet.track_event
        event.type = self.pb.TrackEvent.TYPE_INSTANT
        event.track_uuid = uuid
        event.name_iid = self.names[name]
        event.category_iids.append(self.categories[category])
        self.annotate(event, args or {})


def flow_ends(laid_out: Mapping[Track, list[Span]]) -> dict[int, Span]:
    """The last span of each flow: where its arrow ends."""
    found: dict[int, Span] = {}
    for span in itertools.chain.from_iterable(laid_out.values()):
        flow = (span.args or {}).get("flow")
        if flow is not None and (flow not in found or span.start_ns >= found[flow].start_ns):
            found[flow] = span
    return found


def write_chrome(records: ColumnRecorder, path: Path) -> Path:
    """Write ``path`` as gzipped Chrome trace JSON; the same bytes for the same records."""
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as file:
        file.write(b'{"displayTimeUnit":"ns","traceEvents":[\n')
        comma = b""
        for event in chrome_events(records):
            file.write(comma + json.dumps(event, default=str, separators=(",", ":")).encode())
            comma = b",\n"
        file.write(b"\n]}\n")
    return path


def chrome_events(records: ColumnRecorder) -> Iterator[dict[str, Any]]:
    """Events of the Trace Event Format: pid = node, tid = GPU stream, times in microseconds."""
    laid_out = tracks(records)
    pids: dict[str, int] = {}
    for tid, track in enumerate(laid_out, 1):
        if track[0] not in pids:
            pid = pids[track[0]] = len(pids) + 1
            yield _metadata("process_name", pid, 0, name=track[0])
        pid = pids[track[0]]
        yield _metadata("thread_name", pid, tid, name=" ".join(track[1:]))
        yield _metadata("thread_sort_index", pid, tid, sort_index=tid)
    ends = flow_ends(laid_out)
    for tid, (track, spans) in enumerate(laid_out.items(), 1):
        where = {"pid": pids[track[0]], "tid": tid}
        for span in spans:
            _, name, category, start_ns, end_ns, args = span
            event = {"ph": "X", "name": name, "cat": category, "ts": start_ns / 1e3}
            yield event | {"dur": (end_ns - start_ns) / 1e3, **where, "args": args or {}}
            if args and "flow" in args:
                last = ends[args["flow"]] is span
                flow = {"ph": "f", "bp": "e"} if last else {"ph": "s"}
                flow |= {"name": "flow", "cat": category, "id": args["flow"]}
                yield flow | {"ts": start_ns / 1e3, **where}
    for track, name, t_ns, value in records.counters():
        pid = pids.setdefault(track[0], len(pids) + 1)
        label = " ".join((*track[1:], name))
        yield {"ph": "C", "name": label, "pid": pid, "ts": t_ns / 1e3, "args": {"value": value}}
    for track, name, category, t_ns, args in records.instants():
        pid = pids.setdefault(track[0], len(pids) + 1)
        event = {"ph": "i", "s": "p", "name": name, "cat": category, "pid": pid, "tid": 0}
        yield event | {"ts": t_ns / 1e3, "args": args or {}}


def _metadata(kind: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}
