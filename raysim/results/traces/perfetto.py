"""Perfetto's own protobuf format, for ui.perfetto.dev and ``trace_processor``.

Real counterpart: ``protos/perfetto/trace/track_event``. Process = node; below it one group per GPU
or worker, with one track per stream, so slices nest and never overlap. Counters hold device memory
by category and link rates. Times are virtual nanoseconds.

Packets are written track by track; the reader sorts them by time and, within an instant, keeps
their order: an end stands before the next begin, and an arrow's beginning before its end.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.results.traces.layout import (
    TOTAL,
    Ends,
    Track,
    counters,
    every_track,
    flow_ends,
    flows_of,
    in_order,
    tracks,
    unit,
)

if TYPE_CHECKING:
    from raysim.kernel.record import ColumnRecorder, Span

_SEQUENCE = 1


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
        laid_out = tracks(records)
        self.intern(records, laid_out)
        self.root()
        known = every_track(records, laid_out)
        for node in in_order({track[:1] for track in known}):
            self.track(node)
        for track in known:
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

    def intern(self, records: ColumnRecorder, laid_out: Mapping[Track, list[Span]]) -> None:
        """Give every name, category and argument key a number, in the first packet."""
        packet = self.packet()
        packet.sequence_flags = self.pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        data = packet.interned_data
        marks = records.instant_columns()
        spans = list(chain.from_iterable(laid_out.values()))
        args = (*(span.args for span in spans), *marks["args"])
        keys = (key for found in args for key in found or () if key != "flow")
        for table, found, field in (
            (self.names, (*(s.name for s in spans), *marks["name"]), data.event_names),
            (self.categories, (*(s.category for s in spans), *marks["category"]),
             data.event_categories),
            (self.keys, keys, data.debug_annotation_names),
        ):  # fmt: skip
            for iid, name in enumerate(dict.fromkeys(found), 1):
                table[name] = iid
                field.add(iid=iid, name=name)

    def root(self) -> None:
        """The track above all: processes stand in order of their ranks (from Perfetto 57 on)."""
        descriptor = self.packet().track_descriptor
        descriptor.uuid = 0
        descriptor.child_ordering = self.pb.TrackDescriptor.EXPLICIT
        if "process_ordering" in descriptor.DESCRIPTOR.fields_by_name:
            descriptor.process_ordering = self.pb.TrackDescriptor.PROCESS_ORDERING_EXPLICIT

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

    def slices(self, uuid: int, spans: list[Span], ends: Mapping[int, Ends]) -> None:
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
                for flow in flows_of(args):
                    if flow in ends:
                        last = ends[flow].last is span
                        field = event.terminating_flow_ids if last else event.flow_ids
                        field.append(flow)
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
            if value is None or key == "flow":
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
        packet = self.template(self.pb.TrackEvent.TYPE_COUNTER)
        event = packet.track_event
        out = bytearray()
        for track, name, t_ns, value in counters(records):
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
        descriptor.sibling_order_rank = parent if name == TOTAL else uuid  # the sum stands first
        if unit(name) == "B":
            descriptor.counter.unit = self.pb.CounterDescriptor.UNIT_SIZE_BYTES
        elif unit(name):
            descriptor.counter.unit_name = unit(name)
        else:
            descriptor.counter.unit = self.pb.CounterDescriptor.UNIT_COUNT
        if "y_axis_share_key" in descriptor.counter.DESCRIPTOR.fields_by_name:
            descriptor.counter.y_axis_share_key = f"{parent} {name.partition('/')[0]}"
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
    """A TracePacket as field 1 of a Trace: tag, length, bytes."""
    data: bytes = packet.SerializeToString()
    return _head(len(data)) + data


@functools.cache
def _head(length: int) -> bytes:
    """Tag, and length as a varint; packets of a trace are of a few dozen lengths."""
    head = bytearray(b"\n")
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head)
