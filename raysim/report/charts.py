"""Figures of the report as pure functions of data: bars as shares of a scale, slices as columns.

Bars are drawn by the page's style sheet (`left` and `width` in per cent), the two time charts by a
hundred lines of script on a canvas. Nothing here knows HTML, and no chart library is loaded: a page
weighs its own data, not five megabytes of plotly, and opens at once.

Colours are the Okabe-Ito set (safe for the usual colour blindnesses), given out so that the hues of
torch's ``memory_viz`` stay: parameters green, gradients blue, activations red, optimizer gold.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from raysim.report.columns import Words
from raysim.units import format_bytes, format_bytes_per_s, format_seconds

if TYPE_CHECKING:
    from raysim.kernel.record import Span

MAX_SLICES = 20_000
"""Slices drawn at most; more make the page slow to open. The page says how many are left out."""
MAX_POINTS = 16_000
"""Moments kept at most of all memory curves; the fullest of each interval is what is kept."""
MAX_GPUS = 32
"""GPUs drawn at most on the time line."""
SHADES = 160
"""Parts of the recorded time in which slices that are not drawn are shown as a shade."""

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


PATTERNS = {
    "recompute": "diagonal", "collective": "upright", "p2p": "level", "copy": "dots",
    "optimizer": "back", "offload": "level", "slack": "diagonal", "gathered_parameter": "level",
    "process": "upright", "logits": "dots", "bucket": "back", "optimizer_state": "back",
    "communication": "level",
}  # fmt: skip
"""Categories that have a pattern beside their colour, so that neighbours differ without it."""
PART_COLORS = {
    "ideal": "forward", "compute": "backward", "recompute": "recompute",
    "exposed_collectives": "collective",
    "pipeline_transfers": "p2p", "bubble": "launch", "offload": "offload", "launch": "host",
    "data_wait": "data", "optimizer": "optimizer",
}  # fmt: skip
"""Part of the step to the kind of slice it is made of; the same colour for both."""


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


def gpu_tracks(tracks: Iterable[Track]) -> list[Track]:
    """Every (node, GPU) among the tracks recorded, node and GPU numbers in order."""
    gpus = {t[:2] for t in tracks if len(t) > 1 and t[1].startswith("gpu-")}
    return sorted(gpus, key=_natural)


def _natural(track: Track) -> tuple[tuple[str, int, str], ...]:
    """Sort key by which gpu-10 follows gpu-9."""
    split = (part.rpartition("-") for part in track)
    return tuple((head, int(tail) if tail.isdecimal() else -1, tail) for head, _, tail in split)


def step_windows(spans: Sequence[Span]) -> dict[int, tuple[int, int]]:
    """First start and last end of the slices of each step, by the step's number.

    Slices on compute streams decide where there are any: batches are loaded, and parameters are
    fetched, while the step before still runs.
    """
    windows: dict[int, tuple[int, int]] = {}
    for _, _, _, start, end, args in [s for s in spans if s.track[-1] == "compute"] or spans:
        step = args.get("step") if args else None
        if isinstance(step, int):
            first, last = windows.get(step, (start, end))
            windows[step] = (min(first, start), max(last, end))
    return dict(sorted(windows.items()))


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
    spans: Sequence[Span],
    gpus: Sequence[Gpu],
    view_ns: tuple[int, int] | None = None,
    max_slices: int = MAX_SLICES,
) -> dict[str, Any]:
    """Slices of ``gpus`` as columns for the page's script; times in ns from ``t0``.

    Where there are more than ``max_slices``, those in ``view_ns`` come first and the longest of
    them; the others are summed by stream, kind and ``SHADES``-th part of the time. ``drawn``,
    ``total`` and ``missed_s`` (seconds in slices left out) say what is missing.
    """
    wanted = {gpu.track for gpu in gpus}
    tracks = {t for t in {s.track for s in spans} if t[:2] in wanted}
    mine = [s for s in spans if s.track in tracks]
    t0 = min((s.start_ns for s in mine), default=0)
    t1 = max((s.end_ns for s in mine), default=0)
    start, end = view_ns or (t0, t1)
    drawn, rest = _most_visible(mine, (start, end), max_slices)
    rows: dict[Track, list[Span]] = {track: [] for track in tracks}
    for span in drawn:
        rows[span.track].append(span)
    words = _Vocabulary(Words(), Words(), Words())
    shades = _shades(rest, t0, t1, words.categories)
    groups = []
    for gpu in gpus:
        own = sorted((t for t in tracks if t[:2] == gpu.track), key=lambda t: _stream_key(t[-1]))
        columns = [_columns(t[-1], rows[t], t0, words) | {"shade": shades.get(t, [])} for t in own]
        if columns:
            groups.append({"label": gpu.label, "where": "/".join(gpu.track), "rows": columns})
    missed = sum(s.end_ns > start and s.start_ns < end for s in rest)
    shown = sum(s.end_ns > start and s.start_ns < end for s in drawn)
    return {
        "t0": t0, "span": t1 - t0, "groups": groups, "names": words.names.words,
        "infos": words.infos.words, "categories": words.categories.words,
        "drawn": len(drawn), "total": len(mine),
        "missed_s": sum(s.end_ns - s.start_ns for s in rest) / 1e9,
        "view_drawn": shown, "view_total": shown + missed, "shades": SHADES,
    }  # fmt: skip


def _most_visible(
    spans: Sequence[Span], view_ns: tuple[int, int], limit: int
) -> tuple[Sequence[Span], Sequence[Span]]:
    """At most ``limit`` spans, those that touch the view first, long before short; and the rest."""
    if len(spans) <= limit:
        return spans, ()
    start, end = view_ns
    order = sorted(
        (s.end_ns <= start or s.start_ns >= end, s.start_ns - s.end_ns, i)
        for i, s in enumerate(spans)
    )
    kept = sorted(i for _, _, i in order[:limit])
    return [spans[i] for i in kept], [spans[i] for _, _, i in order[limit:]]


def _shades(
    spans: Iterable[Span], t0: int, t1: int, categories: Words
) -> dict[Track, list[list[int]]]:
    """[part of the time, category, busy per mille] of slices too many to draw, by stream."""
    part = max(1, -(-(t1 - t0) // SHADES))
    sums: dict[tuple[Track, int, int], int] = {}
    for track, _, category, start, end, _ in spans:
        number = categories.number(category)
        while start < end:
            i = (start - t0) // part
            stop = min(end, t0 + (i + 1) * part)
            sums[track, i, number] = sums.get((track, i, number), 0) + stop - start
            start = stop  # noqa: PLW2901  (walks through the parts the slice touches)
    shades: dict[Track, list[list[int]]] = {}
    for (track, i, number), ns in sorted(sums.items(), key=lambda item: item[0][1:]):
        shades.setdefault(track, []).append([i, number, round(1000 * ns / part)])
    return shades


class _Vocabulary(NamedTuple):
    """The texts of all slices."""

    names: Words
    infos: Words
    categories: Words


def _columns(stream: str, spans: Sequence[Span], t0: int, words: _Vocabulary) -> dict[str, Any]:
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


def _info(span: Span) -> str:
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


def busy(spans: Iterable[Span], gpus: Sequence[Gpu], view_ns: tuple[int, int] | None) -> list[Busy]:
    """Seconds of each stream in ``view_ns`` by category: the time line as numbers."""
    labels = {gpu.track: (i, gpu.label) for i, gpu in enumerate(gpus)}
    start, end = view_ns or (0, 2**63)
    sums: dict[Track, dict[str, int]] = {}
    first, last = 2**63, 0
    for track, _, category, a, b, _ in spans:
        inside = min(b, end) - max(a, start)
        if inside > 0:
            row = sums.setdefault(track, {})
            row[category] = row.get(category, 0) + inside
            first, last = min(first, a), max(last, b)
    whole = (end - start if view_ns else last - first) or 1
    mine = [track for track in sums if track[:2] in labels]
    found = []
    for t in sorted(mine, key=lambda t: (labels[t[:2]][0], _stream_key(t[-1]))):
        total = sum(sums[t].values())
        kinds = sorted(((c, ns / 1e9) for c, ns in sums[t].items()), key=lambda row: -row[1])
        found.append(Busy(labels[t[:2]][1], t[-1], total / 1e9, total / whole, kinds))
    return found


def memory_order(categories: Iterable[str]) -> list[str]:
    """Categories from the ground up: what stays below, what comes and goes above."""
    order = {name: i for i, name in enumerate(MEMORY_COLORS)}
    middle = order["temporary"]
    return sorted(dict.fromkeys(categories), key=lambda c: (order.get(c, middle), c))


Change = tuple[int, str, float]
"""Moment in ns, memory category, its size from then on."""


def memory_changes(
    counters: Iterable[tuple[Track, str, int, float]],
) -> dict[Track, list[Change]]:
    """Memory counters by GPU, in order of time; those of one moment as they were recorded."""
    changes: dict[Track, list[Change]] = {}
    categories: dict[str, str] = {}
    for track, name, t_ns, value in counters:
        category = categories.get(name)
        if category is None:
            category = categories[name] = (
                name[len("memory/") :] if name.startswith("memory/") else ""
            )
        if category:
            changes.setdefault(track[:2], []).append((t_ns, category, value))
    for rows in changes.values():
        rows.sort(key=operator.itemgetter(0))
    return changes


def memory_curve(changes: Sequence[Change], max_points: int) -> dict[str, Any]:
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


def running_at(spans: Iterable[Span], track: Track, t_ns: int) -> str | None:
    """What the compute stream of a GPU ran at a moment, with its duration."""
    for s in spans:
        if s.track == (*track, "compute") and s.start_ns <= t_ns < s.end_ns:
            return f"{s.name} ({format_seconds((s.end_ns - s.start_ns) / 1e9)})"
    return None


def binned(steps: Sequence[tuple[int, float]], end_ns: int, bins: int) -> list[float]:
    """The mean of a step function in each of so many equal parts of the run."""
    if not end_ns or not steps:
        return [0.0] * bins
    means = [0.0] * bins
    width = end_ns / bins
    for (start, value), (stop, _) in zip(steps, [*steps[1:], (end_ns, 0.0)], strict=True):
        if not value or start >= end_ns:
            continue
        first, last = int(start / width), min(bins - 1, int(stop / width))
        for i in range(first, last + 1):
            overlap = min(stop, (i + 1) * width) - max(start, i * width)
            means[i] += value * max(0.0, overlap) / width
    return means
