"""Reads a Perfetto trace back as ``trace_processor`` does, and complains about what it would.

Real counterpart: ``src/trace_processor/importers/proto/track_event_*`` with its ``stats`` table;
complaints bear the names of its rows. An independent reading: packets are decoded with Perfetto's
own schema, sorted by time (within an instant as written), and slices are a stack per track.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

Path_ = tuple[str, ...]


class Slice(NamedTuple):
    """A row of the table ``slice``."""

    track: Path_
    name: str
    category: str
    start_ns: int
    end_ns: int
    around: tuple[str, ...]
    """Names of the slices it lies in, from the outside in."""
    args: dict[str, Any]


class Sample(NamedTuple):
    """A row of ``counter``."""

    track: Path_
    t_ns: int
    value: float


@dataclass
class Trace:
    """Tables, and what is wrong."""

    stats: Counter[str] = field(default_factory=Counter)
    """Complaints: any is an error, or data lost."""
    tracks: dict[int, Path_] = field(default_factory=dict)
    order: list[Path_] = field(default_factory=list)
    """Tracks as the page shows them, below each parent by rank."""
    units: dict[Path_, str] = field(default_factory=dict)
    slices: list[Slice] = field(default_factory=list)
    instants: list[Slice] = field(default_factory=list)
    counters: list[Sample] = field(default_factory=list)
    flows: list[tuple[Slice, Slice]] = field(default_factory=list)


def read(path: Path) -> Trace:
    """Everything in a trace file."""
    return _Reader(pb.Trace.FromString(path.read_bytes())).trace


class _Open(NamedTuple):
    name: str
    category: str
    start_ns: int
    args: dict[str, Any]
    row: int


class _Reader:
    def __init__(self, raw: Any) -> None:
        self.trace = Trace()
        self.descriptors: dict[int, Any] = {}
        self.names: dict[str, dict[int, str]] = {"name": {}, "category": {}, "key": {}}
        self.stacks: dict[int, list[_Open]] = {}
        self.flows: dict[int, int] = {}
        """Active flow: row of the slice it was seen on last."""
        self.rows: dict[int, Slice] = {}
        self.pairs: list[tuple[int, int]] = []
        cleared = False
        for packet in raw.packet:
            if packet.sequence_flags & pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
                cleared = True
            needs = packet.sequence_flags & pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
            self.complain("tokenizer_skipped_packets", needs and not cleared)
            self.intern(packet.interned_data)
            if packet.HasField("track_descriptor"):
                self.describe(packet.track_descriptor)
        self.name_tracks()
        events = [p for p in raw.packet if p.HasField("track_event")]
        for packet in sorted(events, key=lambda p: p.timestamp):
            self.event(packet)
        for stack in self.stacks.values():
            self.complain("slice_never_closed", bool(stack))
        self.complain("flow_without_end", bool(self.flows))
        trace = self.trace
        trace.slices = [self.rows[row] for row in sorted(self.rows)]
        trace.flows = [(self.rows[a], self.rows[b]) for a, b in self.pairs]

    def complain(self, what: str, wrong: object = True) -> None:
        if wrong:
            self.trace.stats[what] += 1

    # ---- names and tracks

    def intern(self, data: Any) -> None:
        for kind, rows in (
            ("name", data.event_names),
            ("category", data.event_categories),
            ("key", data.debug_annotation_names),
        ):
            for row in rows:
                known = self.names[kind].setdefault(row.iid, row.name)
                self.complain("interned_data_tokenizer_errors", not row.iid or known != row.name)

    def looked_up(self, kind: str, iid: int) -> str:
        self.complain("track_event_parser_errors", iid not in self.names[kind])
        return self.names[kind].get(iid, "")

    def describe(self, descriptor: Any) -> None:
        self.complain("track_descriptor_twice", descriptor.uuid in self.descriptors)
        self.descriptors[descriptor.uuid] = descriptor

    def name_tracks(self) -> None:
        root = self.descriptors.get(0)
        ordered = root is not None and root.child_ordering == pb.TrackDescriptor.EXPLICIT
        self.complain("processes_in_no_order", not ordered)
        pids = [d.process.pid for d in self.descriptors.values() if d.HasField("process")]
        self.complain("pid_twice", len(pids) != len(set(pids)))
        keys: dict[Path_, tuple[int, ...]] = {}
        for uuid, descriptor in self.descriptors.items():
            if not uuid:
                continue
            path, ranks = self.path(uuid)
            self.complain("track_twice", path in keys)
            self.trace.tracks[uuid] = path
            keys[path] = ranks
            counter = descriptor.counter
            if descriptor.HasField("counter"):
                unit = pb.CounterDescriptor.Unit.Name(counter.unit).removeprefix("UNIT_")
                self.trace.units[path] = counter.unit_name or unit
        self.trace.order = sorted(keys, key=keys.__getitem__)

    def path(self, uuid: int) -> tuple[Path_, tuple[int, ...]]:
        names: list[str] = []
        ranks: list[int] = []
        seen: set[int] = set()
        while uuid:
            descriptor = self.descriptors.get(uuid)
            if descriptor is None or uuid in seen:
                self.complain("track_hierarchy_missing_uuid")
                break
            seen.add(uuid)
            names.append(descriptor.process.process_name or descriptor.name)
            self.complain("track_without_a_name", not names[-1])
            ranks.append(descriptor.sibling_order_rank)
            uuid = descriptor.parent_uuid
        return tuple(names[::-1]), tuple(ranks[::-1])

    # ---- events

    def event(self, packet: Any) -> None:
        event, t_ns = packet.track_event, packet.timestamp
        uuid = event.track_uuid
        self.complain("track_event_tokenizer_errors", uuid not in self.trace.tracks)
        if event.type == pb.TrackEvent.TYPE_COUNTER:
            described = self.descriptors.get(uuid)
            self.complain(
                "counter_without_descriptor",
                described is None or not described.HasField("counter"),
            )
            value = (
                event.counter_value
                if event.WhichOneof("counter_value_field") == "counter_value"
                else event.double_counter_value
            )
            self.trace.counters.append(Sample(self.trace.tracks[uuid], t_ns, value))
        elif event.type == pb.TrackEvent.TYPE_SLICE_END:
            self.end(uuid, t_ns)
        elif event.type == pb.TrackEvent.TYPE_SLICE_BEGIN:
            self.begin(uuid, event, t_ns)
        elif event.type == pb.TrackEvent.TYPE_INSTANT:
            name, category, args = self.said(event)
            around = tuple(o.name for o in self.stacks.get(uuid, ()))
            found = Slice(self.trace.tracks[uuid], name, category, t_ns, t_ns, around, args)
            self.trace.instants.append(found)
        else:
            self.complain("track_event_parser_errors")

    def said(self, event: Any) -> tuple[str, str, dict[str, Any]]:
        name = self.looked_up("name", event.name_iid)
        (category,) = (self.looked_up("category", iid) for iid in event.category_iids)
        args = {
            self.looked_up("key", note.name_iid): getattr(note, note.WhichOneof("value"))
            for note in event.debug_annotations
        }
        return name, category, args

    def begin(self, uuid: int, event: Any, t_ns: int) -> None:
        row = len(self.rows) + sum(map(len, self.stacks.values()))
        name, category, args = self.said(event)
        self.stacks.setdefault(uuid, []).append(_Open(name, category, t_ns, args, row))
        for flow in event.flow_ids:
            if flow in self.flows:
                self.pairs.append((self.flows[flow], row))
            self.flows[flow] = row
        for flow in event.terminating_flow_ids:
            self.complain("flow_end_without_start", flow not in self.flows)
            if flow in self.flows:
                self.pairs.append((self.flows.pop(flow), row))

    def end(self, uuid: int, t_ns: int) -> None:
        stack = self.stacks.get(uuid)
        if not stack:
            self.complain("misplaced_end_event")
            return
        begun = stack.pop()
        self.complain("slice_negative_duration", t_ns < begun.start_ns)
        around = tuple(o.name for o in stack)
        self.rows[begun.row] = Slice(
            self.trace.tracks[uuid], begun.name, begun.category, begun.start_ns, t_ns, around,
            begun.args,
        )  # fmt: skip
