"""Figures of the report as pure functions of data: bars as shares of a scale, slices as columns.

Bars are drawn by the page's style sheet (`left` and `width` in per cent), the two time charts by a
hundred lines of script on a canvas. Nothing here knows HTML, and no chart library is loaded: a page
weighs its own data, not five megabytes of plotly, and opens at once.

Colours are the Okabe-Ito set (safe for the usual colour blindnesses), given out so that the hues of
torch's ``memory_viz`` stay: parameters green, gradients blue, activations red, optimizer gold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from raysim.units import format_bytes, format_bytes_per_s, format_seconds

MAX_SLICES = 20_000
"""Slices drawn at most; more make the page slow to open. The page says how many are left out."""
MAX_POINTS = 3_000
"""Moments kept at most of one memory curve; the fullest moment of each interval is what is kept."""
MAX_GPUS = 32
"""GPUs drawn at most on the time line."""

Track = tuple[str, ...]


class Color(NamedTuple):
    """One category's colour on a light and on a dark page."""

    light: str
    dark: str


NEUTRAL = Color("#7f8790", "#8b949e")
MEMORY_COLORS: dict[str, Color] = {  # also the order of stacking, from the ground up
    "context": Color("#7f8790", "#8b949e"),
    "process": Color("#7f8790", "#8b949e"),
    "parameter": Color("#009e73", "#12b083"),
    "optimizer_state": Color("#e69f00", "#e69f00"),
    "gradient": Color("#0072b2", "#3b97d3"),
    "bucket": Color("#56b4e9", "#7cc8f2"),
    "communication": Color("#1f4e79", "#a3bfd9"),
    "gathered_parameter": Color("#8fd3bf", "#8fd3bf"),
    "input": Color("#24292f", "#d7dce2"),
    "activation": Color("#d55e00", "#e8742a"),
    "temporary": Color("#cc79a7", "#cc79a7"),
    "logits": Color("#f0e442", "#f0e442"),
    "slack": Color("#c9ced4", "#4b535c"),
}
SLICE_COLORS: dict[str, Color] = {
    "forward": Color("#56b4e9", "#56b4e9"),
    "backward": Color("#0072b2", "#1f7fc0"),
    "recompute": Color("#cc79a7", "#cc79a7"),
    "collective": Color("#e69f00", "#e69f00"),
    "p2p": Color("#b8a100", "#f0e442"),
    "copy": Color("#009e73", "#12b083"),
    "optimizer": Color("#d55e00", "#e8742a"),
    "data": Color("#8fd3bf", "#a5dccb"),
    "host": Color("#7f8790", "#8b949e"),
    "launch": Color("#c9ced4", "#4b535c"),
    "sync": Color("#e1e5e9", "#333b45"),
    "offload": Color("#1f4e79", "#a3bfd9"),
}


PART_COLORS = {
    "compute": "backward", "recompute": "recompute", "exposed_collectives": "collective",
    "pipeline_transfers": "p2p", "bubble": "launch", "offload": "offload", "launch": "host",
    "data_wait": "data", "optimizer": "optimizer",
}  # fmt: skip
"""Part of the step to the kind of slice it is made of; the same colour for both."""


class SpanLike(Protocol):
    """What is read of a span record."""

    @property
    def track(self) -> Track:
        """Node, GPU, stream."""

    @property
    def name(self) -> str:
        """What ran."""

    @property
    def category(self) -> str:
        """Kind of work."""

    @property
    def start_ns(self) -> int:
        """Beginning."""

    @property
    def end_ns(self) -> int:
        """End."""

    @property
    def args(self) -> Mapping[str, Any] | None:
        """Step, micro-batch, bytes, FLOPs, operation."""


class CounterLike(Protocol):
    """What is read of a counter record."""

    @property
    def track(self) -> Track:
        """Node, GPU."""

    @property
    def name(self) -> str:
        """``memory/<category>`` for memory."""

    @property
    def t_ns(self) -> int:
        """Moment of the change."""

    @property
    def value(self) -> float:
        """Value from that moment on."""


class Bar(NamedTuple):
    """One bar or one part of a stacked bar; positions are shares of the scale."""

    key: str
    name: str
    value: float
    left: float
    width: float


def stacked(parts: Iterable[tuple[str, str, float]], scale: float) -> list[Bar]:
    """Parts (key, name, value) laid end to end from zero; ``scale`` is a full width's value."""
    bars, left = [], 0.0
    for key, name, value in parts:
        width = max(0.0, value) / scale if scale > 0 else 0.0
        bars.append(Bar(key, name, value, left, width))
        left += width
    return bars


def tornado(changes: Sequence[float]) -> list[tuple[float, float]]:
    """(left, width) of each change about a zero line at 0.5; the largest fills its half."""
    reach = max((abs(c) for c in changes), default=0.0) or 1.0
    return [(0.5 + min(0.0, c) / reach / 2, abs(c) / reach / 2) for c in changes]


class Gpu(NamedTuple):
    """A GPU to draw: the first two parts of its track, and how the page calls it."""

    track: Track
    label: str


def gpu_tracks(spans: Iterable[SpanLike], counters: Iterable[CounterLike]) -> list[Track]:
    """Every (node, GPU) recorded, node and GPU numbers in order."""
    seen = {s.track[:2]: None for s in spans} | {
        c.track[:2]: None for c in counters if c.name.startswith("memory/")
    }
    return sorted((t for t in seen if len(t) == 2 and t[1].startswith("gpu-")), key=_natural)


def _natural(track: Track) -> tuple[tuple[str, int, str], ...]:
    """Sort key by which gpu-10 follows gpu-9."""
    split = (part.rpartition("-") for part in track)
    return tuple((head, int(tail) if tail.isdecimal() else -1, tail) for head, _, tail in split)


def step_windows(spans: Iterable[SpanLike]) -> dict[int, tuple[int, int]]:
    """First start and last end of the slices of each step, by the step's number.

    Slices on compute streams decide where there are any: batches are loaded, and parameters are
    fetched, while the step before still runs.
    """
    every: dict[int, tuple[int, int]] = {}
    kernels: dict[int, tuple[int, int]] = {}
    for span in spans:
        step = (span.args or {}).get("step")
        if isinstance(step, int):
            for windows in (every, kernels) if span.track[-1] == "compute" else (every,):
                start, end = windows.get(step, (span.start_ns, span.end_ns))
                windows[step] = (min(start, span.start_ns), max(end, span.end_ns))
    return dict(sorted((every | kernels).items()))


def choose_step(windows: Mapping[int, tuple[int, int]], peak_ns: int | None) -> int | None:
    """The step to show first: the one where memory peaked, else the last."""
    for step, (start, end) in windows.items():
        if peak_ns is not None and start <= peak_ns <= end:
            return step
    return max(windows, default=None)


_STREAM_ORDER = (
    "loader",
    "host",
    "compute",
    "comm",
    "comm:dp",
    "comm:gather",
    "comm:tp",
    "comm:pp",
)


def _stream_key(stream: str) -> tuple[int, str]:
    """Streams from the loader and the host down to the copies, as a profiler shows them."""
    kind = stream.partition(":")[0]
    known = kind in _STREAM_ORDER
    return (_STREAM_ORDER.index(kind) if known else len(_STREAM_ORDER), stream)


def timeline(
    spans: Sequence[SpanLike],
    gpus: Sequence[Gpu],
    view_ns: tuple[int, int] | None = None,
    max_slices: int = MAX_SLICES,
) -> dict[str, Any]:
    """Slices of ``gpus`` as columns for the page's script; times in ns from ``t0``.

    Where there are more than ``max_slices``, those in ``view_ns`` come first and the longest of
    them; ``drawn``, ``total`` and ``missed_s`` (seconds in slices left out) say what is missing.
    """
    wanted = {gpu.track for gpu in gpus}
    mine = [s for s in spans if s.track[:2] in wanted]
    drawn = _most_visible(mine, view_ns, max_slices)
    start, end = view_ns or (0, 0)
    t0 = min((s.start_ns for s in mine), default=0)
    t1 = max((s.end_ns for s in mine), default=0)
    rows: dict[Track, list[SpanLike]] = {s.track: [] for s in mine}
    for span in drawn:
        rows[span.track].append(span)
    words = _Vocabulary(_Words(), _Words(), _Words())
    groups = []
    for gpu in gpus:
        tracks = sorted((t for t in rows if t[:2] == gpu.track), key=lambda t: _stream_key(t[-1]))
        columns = [_columns(t[-1], rows[t], t0, words) for t in tracks]
        if columns:
            groups.append({"label": gpu.label, "where": "/".join(gpu.track), "rows": columns})
    missed_ns = sum(s.end_ns - s.start_ns for s in mine) - sum(s.end_ns - s.start_ns for s in drawn)
    return {
        "t0": t0, "span": t1 - t0, "groups": groups, "names": words.names.words,
        "infos": words.infos.words, "categories": words.categories.words,
        "drawn": len(drawn), "total": len(mine), "missed_s": missed_ns / 1e9,
        "view_drawn": sum(s.end_ns > start and s.start_ns < end for s in drawn),
        "view_total": sum(s.end_ns > start and s.start_ns < end for s in mine),
    }  # fmt: skip


def _most_visible(
    spans: Sequence[SpanLike], view_ns: tuple[int, int] | None, limit: int
) -> Sequence[SpanLike]:
    """At most ``limit`` spans: those that touch the view first, long before short."""
    if len(spans) <= limit:
        return spans
    start, end = view_ns or (0, 0)

    def rank(i: int) -> tuple[bool, int]:
        s = spans[i]
        return (s.end_ns <= start or s.start_ns >= end, s.start_ns - s.end_ns)

    kept = sorted(sorted(range(len(spans)), key=rank)[:limit])
    return [spans[i] for i in kept]


class _Words:
    """Each distinct text once, numbered in order of first use."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._index: dict[str, int] = {}

    def number(self, word: str) -> int:
        """The number of ``word``."""
        if word not in self._index:
            self._index[word] = len(self.words)
            self.words.append(word)
        return self._index[word]


class _Vocabulary(NamedTuple):
    """The texts of all slices."""

    names: _Words
    infos: _Words
    categories: _Words


def _columns(stream: str, spans: Sequence[SpanLike], t0: int, words: _Vocabulary) -> dict[str, Any]:
    """One stream's slices: starts as differences, durations, and numbers of words."""
    ordered = sorted(spans, key=lambda s: (s.start_ns, s.end_ns))
    starts = [s.start_ns - t0 for s in ordered]
    return {
        "label": stream,
        "start": [b - a for a, b in zip([0, *starts], starts, strict=False)],
        "ns": [s.end_ns - s.start_ns for s in ordered],
        "name": [words.names.number(s.name) for s in ordered],
        "category": [words.categories.number(s.category) for s in ordered],
        "info": [words.infos.number(_info(s)) for s in ordered],
    }


def _info(span: SpanLike) -> str:
    """The arguments of a slice in the field's words; without its duration, so that they repeat."""
    args = span.args or {}
    said = []
    if isinstance(op := args.get("op"), str) and op not in span.name:
        said.append(op)
    if isinstance(micro := args.get("micro_batch"), int):
        said.append(f"micro-batch {micro}")
    if isinstance(size := args.get("bytes"), (int, float)) and size:
        said.append(format_bytes(size))
    if isinstance(flops := args.get("flops"), (int, float)) and flops:
        said.append(f"{flops / 1e12:,.3g} TFLOP")
    if isinstance(rate := args.get("bus_bytes_per_s"), (int, float)) and rate:
        said.append(f"bus bandwidth {format_bytes_per_s(rate)}")
    return ", ".join(said)


class Busy(NamedTuple):
    """How one stream spent a step."""

    gpu: str
    stream: str
    busy_s: float
    frac: float
    by_category: list[tuple[str, float]]


def busy(
    spans: Iterable[SpanLike], gpus: Sequence[Gpu], view_ns: tuple[int, int] | None
) -> list[Busy]:
    """Seconds of each stream in ``view_ns`` by category: the time line as numbers."""
    labels = {gpu.track: (i, gpu.label) for i, gpu in enumerate(gpus)}
    start, end = view_ns or (0, 2**63)
    sums: dict[Track, dict[str, int]] = {}
    first, last = 2**63, 0
    for s in spans:
        inside = min(s.end_ns, end) - max(s.start_ns, start)
        if s.track[:2] in labels and inside > 0:
            row = sums.setdefault(s.track, {})
            row[s.category] = row.get(s.category, 0) + inside
            first, last = min(first, s.start_ns), max(last, s.end_ns)
    whole = (end - start if view_ns else last - first) or 1
    order = sorted(sums, key=lambda t: (labels[t[:2]][0], _stream_key(t[-1])))
    return [
        Busy(
            labels[t[:2]][1], t[-1], sum(sums[t].values()) / 1e9, sum(sums[t].values()) / whole,
            sorted(((c, ns / 1e9) for c, ns in sums[t].items()), key=lambda row: -row[1]),
        )
        for t in order
    ]  # fmt: skip


def memory_order(categories: Iterable[str]) -> list[str]:
    """Categories from the ground up: what stays below, what comes and goes above."""
    order = {name: i for i, name in enumerate(MEMORY_COLORS)}
    middle = order["temporary"]
    return sorted(dict.fromkeys(categories), key=lambda c: (order.get(c, middle), c))


Change = tuple[int, str, float]
"""Moment in ns, memory category, its size from then on."""


def memory_changes(counters: Iterable[CounterLike]) -> dict[Track, list[Change]]:
    """Memory counters by GPU, in order of time; those of one moment as they were recorded."""
    changes: dict[Track, list[Change]] = {}
    for c in counters:
        if c.name.startswith("memory/"):
            rows = changes.setdefault(c.track[:2], [])
            rows.append((c.t_ns, c.name[len("memory/") :], c.value))
    for rows in changes.values():
        rows.sort(key=lambda row: row[0])
    return changes


def memory_curve(changes: Sequence[Change], max_points: int = MAX_POINTS) -> dict[str, Any]:
    """Memory of one GPU by category as steps, from its changes (at least one).

    Times in ns (the first as it is, then differences), sizes in KiB. Each moment keeps its fullest
    state and its last: a bucket may come and go within one. Where more than ``max_points`` moments
    changed something, so does each interval of time, and every peak stays at its height.
    """
    categories = memory_order(row[1] for row in changes)
    moments = len({row[0] for row in changes})
    begin, end = changes[0][0], changes[-1][0]
    interval = max(1, (end - begin) // (max_points // 2)) if moments > max_points else 1
    now: dict[str, float] = dict.fromkeys(categories, 0.0)
    total, top = 0.0, (begin, -1.0, [*now.values()])
    peak = top[:2]
    kept: list[tuple[int, list[float]]] = []
    for i, (t, category, value) in enumerate(changes):
        total += value - now[category]
        now[category] = value
        if total > top[1]:
            top = (t, total, [*now.values()])
        after = changes[i + 1][0] if i + 1 < len(changes) else None
        if after is None or (after - begin) // interval != (t - begin) // interval:
            peak = max(peak, top[:2], key=lambda p: p[1])
            if top[1] > total:
                kept.append((top[0], top[2]))
            kept.append((t, [*now.values()]))
            top = (t, -1.0, [])
    starts = [t for t, _ in kept]
    return {
        "categories": categories,
        "t": [b - a for a, b in zip([0, *starts], starts, strict=False)],
        "kib": [[round(row[i] / 1024) for _, row in kept] for i in range(len(categories))],
        "peak": {"t": peak[0], "bytes": round(peak[1])},
        "moments": moments,
        "thinned": interval > 1,
        "kept": len(kept),
    }


def running_at(spans: Iterable[SpanLike], track: Track, t_ns: int) -> str | None:
    """What the compute stream of a GPU ran at a moment, with its duration."""
    for s in spans:
        if s.track == (*track, "compute") and s.start_ns <= t_ns < s.end_ns:
            return f"{s.name} ({format_seconds((s.end_ns - s.start_ns) / 1e9)})"
    return None
