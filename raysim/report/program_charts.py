"""Time charts of a Ray program as SVG: what is held, what runs where, what the stores hold.

Drawn once, without a script: a chart is a few hundred means over equal parts of the run, so a page
of a thousand nodes stays small. Pointing at a part of it shows its numbers.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from raysim.raycore.resources import UNIT
from raysim.raystate.moment import in_order
from raysim.raystate.names import node_name
from raysim.results.ray.activity import Activity, Series, binned
from raysim.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from raysim.results.ray.recorded import Recorded

BINS = 240
"""Parts of the run that are drawn."""
MOST_NODES = 64
"""Rows of the chart of nodes; the page says how many there are."""
WIDTH, LEFT, RIGHT, AXIS = 1000, 92, 14, 24
_COLORS = ("--c-backward", "--c-collective", "--c-optimizer", "--c-copy", "--c-recompute")


class Chart(NamedTuple):
    """A drawing with what its colours mean."""

    svg: str
    legend: list[tuple[str, str]]
    """(colour variable, what it shows)."""


def charts(recorded: Recorded, summary: Mapping[str, Any]) -> dict[str, Chart]:
    """``held``, ``nodes`` and ``store``; those that have something to show."""
    activity = Activity(in_order(recorded.rows), recorded.end_ns, lost=recorded.lost)
    found = {
        "held": _held(activity, summary),
        "nodes": _nodes(activity, summary),
        "store": _store(activity),
    }
    return {name: chart for name, chart in found.items() if chart is not None}


# ---- three charts --------------------------------------------------------------------------------


def _held(activity: Activity, summary: Mapping[str, Any]) -> Chart | None:
    """Share of each resource that leases hold, over those of the nodes that were up."""
    names = sorted(
        {name for _, name in activity.held if name in {"CPU", "GPU", "memory"}},
        key=("CPU", "GPU", "memory").index,
    )
    lines = []
    for name in names:
        held = _added(s for (_, n), s in sorted(activity.held.items()) if n == name)
        there = _added(
            _scaled(up, activity.total[i].get(name, 0)) for i, up in sorted(activity.up.items())
            if i in activity.total
        )  # fmt: skip
        used = binned(held, activity.end_ns, BINS)
        most = binned(there, activity.end_ns, BINS)
        shares = [u / m if m else 0.0 for u, m in zip(used, most, strict=True)]
        tips = [
            f"{name}: {share * 100:.0f} % held, {u / UNIT:,.4g} of {m / UNIT:,.4g}"
            for share, u, m in zip(shares, used, most, strict=True)
        ]
        lines.append((f"{name} held by tasks and actors", shares, tips))
    if not lines:
        return None
    marks = _marks(summary)
    return _line_chart(lines, activity.end_ns, top=1.0, ticks=_percent_ticks(), marks=marks)


def _store(activity: Activity) -> Chart | None:
    """Bytes in all stores' memory and on disk."""
    lines = []
    for label, series in (
        ("in the stores' memory", activity.store),
        ("spilled to disk", activity.disk),
    ):
        if any(s.peak for s in series.values()):
            means = binned(_added(s for _, s in sorted(series.items())), activity.end_ns, BINS)
            lines.append((label, means, [f"{format_bytes(m)} {label}" for m in means]))
    if not lines:
        return None
    top = max(max(values) for _, values, _ in lines) * 1.08 or 1.0
    ticks = [(top * k / 4, format_bytes(top * k / 4)) for k in range(5)]
    return _line_chart(lines, activity.end_ns, top=top, ticks=ticks, marks=[])


def _nodes(activity: Activity, summary: Mapping[str, Any]) -> Chart | None:
    """A row per node: the darker, the more of its CPUs have a running task; hatched while down."""
    nodes = sorted(activity.up)[:MOST_NODES]
    if not nodes:
        return None
    row = 18
    height = row * len(nodes) + AXIS + 6
    parts = []
    for k, node_id in enumerate(nodes):
        y = 4 + k * row
        parts.append(_text(LEFT - 8, y + row / 2 + 4, node_name(node_id), "end"))
        up = binned(activity.up[node_id].steps, activity.end_ns, BINS)
        running = activity.running.get(node_id, Series()).steps
        tasks = binned(running, activity.end_ns, BINS)
        cpus = activity.total.get(node_id, {}).get("CPU", UNIT) / UNIT or 1.0
        parts += _strip(y, row - 3, up, tasks, cpus, activity.end_ns)
    parts += _time_axis(height - AXIS, activity.end_ns)
    parts += _mark_lines(_marks(summary), activity.end_ns, height - AXIS)
    legend = [("--c-backward", "running tasks over the node's CPUs"), ("--bad", "fault")]
    return Chart(_svg(height, parts), legend if summary.get("faults") else legend[:1])


def _strip(
    y: float, height: float, up: Sequence[float], tasks: Sequence[float], cpus: float, end_ns: int
) -> list[str]:
    """One node: equal neighbours are one rectangle."""
    parts, width = [], (WIDTH - LEFT - RIGHT) / BINS
    shades = [
        (-1 if u < 0.5 else min(10, round(10 * t / cpus))) for u, t in zip(up, tasks, strict=True)
    ]
    start = 0
    for i in range(1, BINS + 1):
        if i < BINS and shades[i] == shades[start] and i - start < 12:
            continue
        x, wide = LEFT + start * width, (i - start) * width + 0.3
        shade = shades[start]
        mean = sum(tasks[start:i]) / (i - start)
        when = f"{_at(start, end_ns)} to {_at(i, end_ns)}"
        said = f"{when}: {mean:.3g} tasks run" if shade >= 0 else f"{when}: down"
        style = (
            "fill:var(--track)" if shade <= 0
            else f"fill:var(--c-backward);fill-opacity:{max(0.12, shade / 10):.2f}"
        )  # fmt: skip
        style = "fill:none;stroke:var(--line)" if shade < 0 else style
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{height:.1f}"'
            f' style="{style}"><title>{html.escape(said)}</title></rect>'
        )
        start = i
    return parts


# ---- drawing -------------------------------------------------------------------------------------

Line = tuple[str, list[float], list[str]]
Mark = tuple[float, str]


def _line_chart(
    lines: Sequence[Line], end_ns: int, *, top: float, ticks: Sequence[tuple[float, str]],
    marks: Sequence[Mark],
) -> Chart:  # fmt: skip
    height, floor = 210, 210 - AXIS
    parts = []
    for value, label in ticks:
        y = 8 + (floor - 8) * (1 - value / top)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"'
            ' style="stroke:var(--line)"/>'
        )
        parts.append(_text(LEFT - 8, y + 4, label, "end"))
    width = (WIDTH - LEFT - RIGHT) / BINS
    legend = []
    for (label, values, _), color in zip(lines, _COLORS, strict=False):
        points = [
            f"{LEFT + i * width:.1f},{y:.1f} {LEFT + (i + 1) * width:.1f},{y:.1f}"
            for i, value in enumerate(values)
            for y in [8 + (floor - 8) * (1 - min(1.0, value / top))]
        ]
        area = f"{LEFT},{floor} {' '.join(points)} {WIDTH - RIGHT},{floor}"
        parts.append(f'<polygon points="{area}" style="fill:var({color});fill-opacity:.18"/>')
        parts.append(
            f'<polyline points="{" ".join(points)}"'
            f' style="fill:none;stroke:var({color});stroke-width:1.6"/>'
        )
        legend.append((color, label))
    parts += _mark_lines(marks, end_ns, floor)
    for i in range(BINS):  # one invisible column a part, on top, so that pointing tells its numbers
        said = "\n".join(
            [f"{_at(i, end_ns)} to {_at(i + 1, end_ns)}", *(t[i] for _, _, t in lines)]
        )
        parts.append(
            f'<rect x="{LEFT + i * width:.1f}" y="8" width="{width:.2f}" height="{floor - 8}"'
            f' style="fill:transparent"><title>{html.escape(said)}</title></rect>'
        )
    parts += _time_axis(floor, end_ns)
    return Chart(_svg(height, parts), legend)


def _svg(height: float, parts: Iterable[str]) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height:.0f}" role="img"'
        f' preserveAspectRatio="xMidYMid meet">{"".join(parts)}</svg>'
    )


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        f' style="fill:var(--soft);font-size:12px">{html.escape(words)}</text>'
    )


def _time_axis(y: float, end_ns: int) -> list[str]:
    ends = f'x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"'
    parts = [f'<line {ends} style="stroke:var(--soft)"/>']
    for k in range(6):
        x = LEFT + (WIDTH - LEFT - RIGHT) * k / 5
        anchor = "end" if k == 5 else "middle"
        parts.append(_text(x, y + 17, _time(end_ns * k / 5), anchor))
    return parts


def _marks(summary: Mapping[str, Any]) -> list[Mark]:
    """Faults of the scenario."""
    return [
        (fault["at_seconds"] * 1e9, f"{fault['kind']} {fault['node']}")
        for fault in summary.get("faults") or []
    ]


def _mark_lines(marks: Sequence[Mark], end_ns: int, floor: float) -> list[str]:
    parts = []
    for t_ns, label in marks:
        x = LEFT + (WIDTH - LEFT - RIGHT) * t_ns / max(1, end_ns)
        said = html.escape(f"{label} at {_time(t_ns)}")
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="2" y2="{floor:.1f}"'
            f' style="stroke:var(--bad);stroke-width:2;stroke-dasharray:4 3"><title>{said}'
            "</title></line>"
        )
    return parts


def _percent_ticks() -> list[tuple[float, str]]:
    return [(k / 4, f"{25 * k} %") for k in range(5)]


def _at(i: int, end_ns: int) -> str:
    return _time(end_ns * i / BINS)


def _time(t_ns: float) -> str:
    return format_seconds(t_ns / 1e9) if t_ns else "0 s"


# ---- step functions ------------------------------------------------------------------------------


def _added(series: Iterable[Series]) -> list[tuple[int, float]]:
    """The sum of step functions."""
    changes: list[tuple[int, float]] = []
    for one in series:
        before = 0.0
        for t_ns, value in one.steps:
            changes.append((t_ns, value - before))
            before = value
    changes.sort()
    steps: list[tuple[int, float]] = []
    total = 0.0
    for t_ns, delta in changes:
        total += delta
        if steps and steps[-1][0] == t_ns:
            steps[-1] = (t_ns, total)
        else:
            steps.append((t_ns, total))
    return steps


def _scaled(series: Series, factor: float) -> Series:
    scaled = Series()
    scaled.steps = [(t_ns, value * factor) for t_ns, value in series.steps]
    return scaled
