"""The Trace Event Format: JSON that chrome://tracing, Perfetto and speedscope read.

Process = node, thread = lane. Events are sorted by time, whole before part; times are microseconds.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.results.traces.layout import (
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

Event = dict[str, Any]


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


def chrome_events(records: ColumnRecorder) -> Iterator[Event]:
    """Names of processes and threads first, then everything by time."""
    laid_out = tracks(records)
    places = _places(every_track(records, laid_out))
    yield from _named(places)
    events: list[tuple[int, Event]] = []
    ends = flow_ends(laid_out)
    for track, spans in laid_out.items():
        for span in spans:
            events += _slice(span, places[track], ends)
    for track, name, t_ns, value in counters(records):
        pid, _ = places[track]
        series = unit(name) or "value"
        label = " ".join((*track[1:], name))
        events.append((t_ns, {"ph": "C", "name": label, "pid": pid, "args": {series: value}}))
    for track, name, category, t_ns, args in records.instants():
        pid, tid = places[track]
        event: Event = {"ph": "i", "s": "t" if len(track) > 1 else "p", "name": name}
        event |= {"cat": category, "pid": pid, "tid": tid, "args": args or {}}
        events.append((t_ns, event))
    events.sort(key=lambda row: row[0])  # stable: a slice stays before those it encloses
    for t_ns, event in events:
        yield event | {"ts": t_ns / 1e3}


def _places(all_tracks: list[Track]) -> dict[Track, tuple[int, int]]:
    """Process and thread of each track; processes in natural order."""
    pids = {node: n for n, (node,) in enumerate(in_order({t[:1] for t in all_tracks}), 1)}
    return {track: (pids[track[0]], tid) for tid, track in enumerate(all_tracks, 1)}


def _named(places: Mapping[Track, tuple[int, int]]) -> Iterator[Event]:
    seen: set[int] = set()
    for track, (pid, tid) in places.items():
        if pid not in seen:
            seen.add(pid)
            yield _metadata("process_name", pid, 0, name=track[0])
            yield _metadata("process_sort_index", pid, 0, sort_index=pid)
        yield _metadata("thread_name", pid, tid, name=" ".join(track[1:]) or track[0])
        yield _metadata("thread_sort_index", pid, tid, sort_index=tid)


def _metadata(kind: str, pid: int, tid: int, **args: Any) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}


def _slice(
    span: Span, place: tuple[int, int], ends: Mapping[int, Ends]
) -> Iterator[tuple[int, Event]]:
    """A slice, and the arrows that touch its beginning."""
    _, name, category, start_ns, end_ns, args = span
    where = {"pid": place[0], "tid": place[1]}
    event = {"ph": "X", "name": name, "cat": category, "dur": (end_ns - start_ns) / 1e3}
    yield start_ns, event | where | {"args": args or {}}
    for flow in flows_of(args):
        both = ends.get(flow)
        if both is None:
            continue
        kind = "s" if span is both.first else "f" if span is both.last else "t"
        arrow = {"ph": kind, "name": "flow", "cat": "flow", "id": flow, **where}
        yield start_ns, arrow if kind == "s" else arrow | {"bp": "e"}
