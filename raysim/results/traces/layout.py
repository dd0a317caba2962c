"""What every trace shows, whatever its format: lanes in display order, what encloses, arrows.

A *lane* is a row on which any two slices nest or are apart; a track whose spans overlap gets
several. A span's argument ``flow`` (a number, or several) is shared by the spans that an arrow
passes through, from the earliest to the latest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from raysim.results.traces.nesting import enclosed

if TYPE_CHECKING:
    from raysim.kernel.record import ColumnRecorder, Span

Track = tuple[str, ...]
_STREAMS = ("driver", "host", "compute", "comm", "gather", "reduce", "h2d", "d2h", "worker")
TOTAL = "memory"
"""Name of the counter that sums a GPU's memory categories: what ``nvidia-smi`` shows."""


class Ends(NamedTuple):
    """The spans of one flow that begin first and last."""

    first: Span
    last: Span


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
    """Every lane with spans, in display order: nodes, then GPUs, then streams.

    Steps, passes and modules enclose the kernels they are made of.
    """
    by_track: dict[Track, list[Span]] = {}
    for span in records.spans():
        by_track.setdefault(span.track, []).append(span)
    found: dict[Track, list[Span]] = {}
    for track in in_order(by_track):
        made = lanes(by_track[track])
        if len(made) == 1:
            made = [enclosed(made[0])]
        for n, lane in enumerate(made):
            found[(*track[:-1], f"{track[-1]} ({n + 1})") if n else track] = lane
    return found


def in_order(found: Iterable[Track]) -> list[Track]:
    """Natural order: node-2 before node-10; streams host, compute, communication, copies."""

    def part(name: str) -> tuple[int, str, int]:
        stem = re.split(r"[:\s-]", name, maxsplit=1)[0]
        rank = _STREAMS.index(stem) if stem in _STREAMS else len(_STREAMS)
        match = re.fullmatch(r"(.*?)(\d+)", name)
        return (rank, match[1], int(match[2])) if match else (rank, name, 0)

    return sorted(found, key=lambda track: [part(name) for name in track])


def every_track(records: ColumnRecorder, laid_out: Iterable[Track]) -> list[Track]:
    """Tracks of slices, counters and instants, without their parents."""
    spare = (*records.counter_columns()["track"], *records.instant_columns()["track"])
    return list(dict.fromkeys((*laid_out, *in_order(dict.fromkeys(spare)))))


def flows_of(args: Mapping[str, Any] | None) -> tuple[int, ...]:
    """Numbers of the arrows that pass through a span."""
    found = (args or {}).get("flow", ())
    return (found,) if isinstance(found, int) else tuple(found)


def flow_ends(laid_out: Mapping[Track, list[Span]]) -> dict[int, Ends]:
    """Where each arrow begins and ends; one that passes through a single span is none."""
    ends: dict[int, Ends] = {}
    for lane in laid_out.values():
        for span in lane:
            for flow in flows_of(span.args):
                known = ends.get(flow)
                if known is None:
                    ends[flow] = Ends(span, span)
                elif span.start_ns >= known.last.start_ns:
                    ends[flow] = known._replace(last=span)
                elif span.start_ns < known.first.start_ns:
                    ends[flow] = known._replace(first=span)
    return {flow: both for flow, both in ends.items() if both.first is not both.last}


Sample = tuple[Track, str, int, float]
"""Track, name, moment and value of a counter."""


def counters(records: ColumnRecorder) -> Iterator[Sample]:
    """Every sample, and the sum of each GPU's memory categories.

    Of each moment the sum shows its most, where that is not its last, and its last.
    """
    sums: dict[Track, _Sum] = {}
    is_memory = {name: name.startswith("memory/") for name in records.counter_columns()["name"]}
    for track, name, t_ns, value in zip(*records.counter_columns().values(), strict=True):
        yield track, name, t_ns, value
        if is_memory[name] and len(track) > 1:
            held = sums.get(track)
            if held is None:
                held = sums[track] = _Sum(t_ns)
            if t_ns > held.t_ns:
                yield from held.said(track)
            held.change(name, t_ns, value)
    for track, held in sums.items():
        yield from held.said(track)


class _Sum:
    """Bytes of a GPU over all categories at one moment."""

    def __init__(self, t_ns: int) -> None:
        self.t_ns = t_ns
        self.sizes: dict[str, float] = {}
        self.total = self.most = 0.0

    def change(self, name: str, t_ns: int, value: float) -> None:
        self.total += value - self.sizes.get(name, 0.0)
        self.sizes[name] = value
        self.most = max(self.most, self.total) if t_ns == self.t_ns else self.total
        self.t_ns = t_ns

    def said(self, track: Track) -> Iterator[Sample]:
        if self.most > self.total:
            yield track, TOTAL, self.t_ns, self.most
        yield track, TOTAL, self.t_ns, self.total


def unit(name: str) -> str:
    """Unit of a counter: ``B``, ``B/s`` or none."""
    if name == TOTAL or name.startswith("memory/"):
        return "B"
    return "B/s" if name.startswith("link/") else ""
