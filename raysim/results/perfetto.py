"""Trace files: Perfetto's own protobuf format, or the Chrome JSON that older viewers read.

Real counterpart: ``protos/perfetto/trace/track_event`` and the Trace Event Format. Process = node;
below it one group per GPU with one track per stream, so slices nest and never overlap (a slice that
would is put on a second lane of its stream). Counters hold device memory by category and link
rates; a span argument ``flow`` shared by two spans draws an arrow from the earlier to the later.
Times are virtual nanoseconds.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysim.kernel.record import ColumnRecorder, Span

Track = tuple[str, ...]
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
        self.uuids: dict[Track, int] = {}
        self.names: dict[str, int] = {}
        self.categories: dict[str, int] = {}
        self.keys: dict[str, int] = {}

    def write(self, records: ColumnRecorder) -> None:
        """All descriptors and names first, then slices, counters and instants."""
        self.intern(records)
        laid_out = tracks(records)
        for track in laid_out:
            self.track(track)
        self.flush()
        ends = flow_ends(laid_out)
        for track, spans in laid_out.items():
            self.slices(self.uuids[track], spans, ends)
        self.counters(records)
        for track, name, category, t_ns, args in records.instants():
            self.instant(track, name, category, t_ns, args)
        self.flush()

    def packet(self) -> Any:
        """A fresh TracePacket, written at the next `flush`."""
        packet = self.trace.packet.add()
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.sequence_flags = self.pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        return packet

    def flush(self) -> None:
        """Append the packets so far: concatenated Traces are one Trace."""
        self.file.write(self.trace.SerializeToString())
        self.trace.Clear()

    def intern(self, records: ColumnRecorder) -> None:
        """Give every name, category and argument key a number, in the first packet."""
        packet = self.packet()
        packet.sequence_flags = self.pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        data = packet.interned_data
        both = records.span_columns(), records.instant_columns()
        keys = (key for columns in both for args in columns["args"] for key in args or ())
        for table, found, field in (
            (self.names, chain(*(c["name"] for c in both)), data.event_names),
            (self.categories, chain(*(c["category"] for c in both)), data.event_categories),
            (self.keys, keys, data.debug_annotation_names),
        ):
            for iid, name in enumerate(dict.fromkeys(found), 1):
                table[name] = iid
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
        out = bytearray()
        closing = self.template(self.pb.TrackEvent.TYPE_SLICE_END, uuid)
        open_ends: list[int] = []
        for span in spans:
            _, name, category, start_ns, end_ns, args = span
            while open_ends and open_ends[-1] <= start_ns:
                closing.timestamp = open_ends.pop()
                out += framed(closing)
            packet = self.template(self.pb.TrackEvent.TYPE_SLICE_BEGIN, uuid)
            packet.timestamp = start_ns
            event = packet.track_event
            event.name_iid = self.names[name]
            event.category_iids.append(self.categories[category])
            if args:
                self.annotate(event, args)
                if "flow" in args:
                    last = ends[args["flow"]] is span
                    field = event.terminating_flow_ids if last else event.flow_ids
                    field.append(args["flow"])
            out += framed(packet)
            open_ends.append(end_ns)
        while open_ends:
            closing.timestamp = open_ends.pop()
            out += framed(closing)
        self.file.write(out)

    def template(self, kind: int, uuid: int = 0) -> Any:
        """An event packet with what does not change from event to event."""
        packet = self.pb.TracePacket(trusted_packet_sequence_id=_SEQUENCE)
        packet.sequence_flags = self.pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        packet.track_event.type = kind
        packet.track_event.track_uuid = uuid
        return packet

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

    def counters(self, records: ColumnRecorder) -> None:
        """Counter tracks, each described at its first value; one message serves all samples."""
        columns = records.counter_columns()
        for track in dict.fromkeys(columns["track"]):
            self.track(track)
        self.flush()
        packet = self.template(self.pb.TrackEvent.TYPE_COUNTER)
        event = packet.track_event
        out = bytearray()
        for track, name, t_ns, value in zip(*columns.values(), strict=True):
            uuid = self.uuids.get((*track, name))
            if uuid is None:
                uuid, described = self.counter_track(track, name)
                out += framed(described)
            packet.timestamp = t_ns
            event.track_uuid = uuid
            if value == int(value):
                event.counter_value = int(value)
            else:
                event.double_counter_value = value
            out += framed(packet)
        self.file.write(out)

    def counter_track(self, track: Track, name: str) -> tuple[int, Any]:
        """Uuid of a new counter track below ``track``, and the packet that describes it."""
        parent = self.track(track)
        uuid = self.uuids[*track, name] = len(self.uuids) + 1
        packet = self.pb.TracePacket(trusted_packet_sequence_id=_SEQUENCE)
        descriptor = packet.track_descriptor
        descriptor.uuid = uuid
        descriptor.parent_uuid = parent
        descriptor.name = name
        descriptor.sibling_order_rank = uuid
        if name.startswith("memory/"):
            descriptor.counter.unit = self.pb.CounterDescriptor.UNIT_SIZE_BYTES
        else:
            descriptor.counter.unit_name = "B/s"
        return uuid, packet

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


def framed(packet: Any) -> bytes:
    """A TracePacket as field 1 of a Trace: tag, length as a varint, bytes."""
    data: bytes = packet.SerializeToString()
    length = len(data)
    header = bytearray(b"\n")
    while length > 0x7F:
        header.append(length & 0x7F | 0x80)
        length >>= 7
    header.append(length)
    return bytes(header) + data


def flow_ends(laid_out: Mapping[Track, list[Span]]) -> dict[int, Span]:
    """The last span of each flow: where its arrow ends."""
    found: dict[int, Span] = {}
    for span in chain.from_iterable(laid_out.values()):
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
