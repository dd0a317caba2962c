"""One step of each run on a common time scale: slices that grew or shrank, operations that changed.

A slice's counterpart in another run is the one of the same stream, kind, name and micro-batch that
comes as many-th there. An operation is a name with its layer numbers taken out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from raysim.kernel.record import Span
from raysim.report import charts
from raysim.report.columns import Words

MOST_SLICES = 60_000
"""Of all runs together; of more the longest are drawn."""
MOST_POINTS = 2_000
_LAYER = re.compile(r"\.\d+(?=\.|$)")


class Recorded(NamedTuple):
    """What one GPU of a run did."""

    spans: Sequence[Span]
    memory: Sequence[charts.Change]
    label: str


class Step(NamedTuple):
    """One step of it."""

    number: int | None
    start_ns: int
    end_ns: int
    spans: list[Span]


class Operation(NamedTuple):
    """All slices of a kind and name in the step of each run."""

    category: str
    name: str
    stream: str
    counts: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def change_s(self) -> float:
        """Last over first."""
        return self.seconds[-1] - self.seconds[0]


def step_of(recorded: Recorded) -> Step:
    """The last step recorded, or all of it where none is numbered."""
    windows = charts.step_windows(recorded.spans)
    number = charts.choose_step(windows, None)
    if number is None:
        start = min((s.start_ns for s in recorded.spans), default=0)
        end = max((s.end_ns for s in recorded.spans), default=0)
        return Step(None, start, end, list(recorded.spans))
    start, end = windows[number]
    inside = [s for s in recorded.spans if s.end_ns > start and s.start_ns < end]
    return Step(number, start, end, inside)


def operations(steps: Sequence[Step]) -> list[Operation]:
    """Every operation with its slices and seconds per run, the largest change first."""
    counts: list[Counter[tuple[str, str, str]]] = [Counter() for _ in steps]
    lasts: list[Counter[tuple[str, str, str]]] = [Counter() for _ in steps]
    for step, count, last in zip(steps, counts, lasts, strict=True):
        for span in step.spans:
            what = (span.category, _LAYER.sub(".*", span.name), span.track[-1])
            count[what] += 1
            last[what] += span.end_ns - span.start_ns
    found = [
        Operation(*what, tuple(c[what] for c in counts), tuple(last[what] / 1e9 for last in lasts))
        for what in sorted(set().union(*counts))
    ]
    return sorted(found, key=lambda o: (-abs(o.change_s), o.name, o.category))


def timeline(steps: Sequence[Step]) -> dict[str, Any] | None:
    """Slices of all runs as columns, stream by stream, with how much longer than in the first.

    The first run's own are marked with the second's change; None is what has no counterpart.
    """
    if not any(step.spans for step in steps):
        return None
    words, categories = Words(), Words()
    keys = [_keys(step.spans) for step in steps]
    lasts = [
        {key: s.end_ns - s.start_ns for key, s in zip(k, step.spans, strict=True)}
        for k, step in zip(keys, steps, strict=True)
    ]
    shown = _drawn(steps, MOST_SLICES)
    rows: dict[str, list[dict[str, Any]]] = {}
    for stream in sorted({s.track[-1] for step in steps for s in step.spans}, key=_order):
        rows[stream] = []
        for run, step in enumerate(steps):
            other = lasts[1 if run == 0 and len(steps) > 1 else 0]
            row: dict[str, Any] = {c: [] for c in ("start", "ns", "name", "category", "delta")}
            for i in shown[run]:
                span = step.spans[i]
                if span.track[-1] != stream:
                    continue
                like = other.get(keys[run][i])
                row["start"].append(span.start_ns - step.start_ns)
                row["ns"].append(span.end_ns - span.start_ns)
                row["name"].append(words.number(span.name))
                row["category"].append(categories.number(span.category))
                more = None if like is None else span.end_ns - span.start_ns - like
                row["delta"].append(more if more is None or run else -more)
            rows[stream].append(row)
    return {
        "streams": [{"name": name, "runs": runs} for name, runs in rows.items()],
        "names": words.words, "categories": categories.words,
        "span": [step.end_ns - step.start_ns for step in steps],
        "steps": [step.number for step in steps],
        "drawn": sum(map(len, shown)), "total": sum(len(s.spans) for s in steps),
    }  # fmt: skip


def curve(recorded: Recorded, step: Step) -> dict[str, Any] | None:
    """Memory in all over the step's time, from what was there when it began."""
    if not recorded.memory:
        return None
    found = charts.memory_curve(recorded.memory, MOST_POINTS)
    at, times = 0, []
    for difference in found["t"]:
        at += difference
        times.append(at - step.start_ns)
    totals = [sum(kib) for kib in zip(*found["kib"], strict=True)]
    return {"t": times, "kib": totals}


def _order(stream: str) -> tuple[int, str]:
    """Compute first, then what it waits for."""
    kind = stream.partition(":")[0]
    known = ("compute", "comm", "reduce", "gather", "h2d", "d2h", "host", "loader")
    return (known.index(kind) if kind in known else len(known), stream)


def _keys(spans: Sequence[Span]) -> list[tuple[Any, ...]]:
    """What tells a slice from others of its run."""
    seen: Counter[tuple[Any, ...]] = Counter()
    found = []
    for span in spans:
        micro = (span.args or {}).get("micro_batch")
        like = (span.track[-1], span.category, span.name, micro)
        found.append((*like, seen[like]))
        seen[like] += 1
    return found


def _drawn(steps: Sequence[Step], most: int) -> list[list[int]]:
    """Places of the slices of each run that are drawn, in order of time."""
    share = most // len(steps)
    found = []
    for step in steps:
        order = sorted(
            range(len(step.spans)), key=lambda i: step.spans[i].start_ns - step.spans[i].end_ns
        )[:share]
        found.append(sorted(order, key=lambda i: step.spans[i].start_ns))
    return found
