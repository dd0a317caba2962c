"""Figures as the page draws them: lines, bars and clouds over the run, as SVG with its numbers.

A plot is 1,000 units wide, the whole run, and the script shows a part of it by its view box: all
figures zoom together. Labels are HTML beside it, readable on a phone and in print. What is pointed
at is told from ``data``, which has the same points as the drawing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from raysim.raylibs.charts import Bar, Chart, Line, Mark
from raysim.report.charts import binned
from raysim.report.words import cell
from raysim.units import format_seconds

PLOT_HEIGHT = 200
MOST_POINTS = 480
"""Of a line; of more, means over so many parts of the run are drawn."""
MOST_COLORED = 8
"""Lines beyond have one faint colour: they are a cloud, and one legend entry."""
LOG_RATIO = 30.0
"""Latencies that spread so far have a logarithmic axis."""
LOG_KEYS = ("latency", "ttft", "tpot", "itl")
_MILLION = 1_000_000

Numbers = tuple[str, str, str, str, str]


class Figure(NamedTuple):
    """One picture, its legend, and the same as text."""

    key: str
    kind: str
    """``lines``, ``cloud``, ``bars``, ``heat``."""
    title: str
    about: str
    label: str
    """The picture in a sentence, for who cannot see it."""
    svg: str
    legend: tuple[tuple[int, str, bool], ...]
    """(Colour, what it shows, faint)."""
    ticks: tuple[tuple[float, str], ...]
    """(Height as a share, label) of the upright axis."""
    numbers: tuple[Numbers, ...]
    """(Name, least, mean, most, when most) of each line."""
    data: dict[str, Any]
    rows: tuple[str, ...] = ()
    """Labels of bars' rows, from above."""
    height: int = 190
    axis: tuple[tuple[float, str], ...] = ()
    """Of a cloud, its horizontal axis."""
    foot: str = ""


def figure(chart: Chart, end_s: float, prefix: str = "") -> Figure | None:
    """A chart as it is drawn; None: there is nothing in it."""
    key = f"{prefix}{chart.key}"
    if chart.bars:
        return _bars(chart, key, end_s)
    lines = [line for line in chart.lines if line.points]
    if not lines or not any(value for line in lines for _, value in line.points):
        return None
    if chart.x is not None:
        return _cloud(chart, lines, key)
    return _lines(chart, lines, key, end_s)


# ---- lines over time -----------------------------------------------------------------------------


def _lines(chart: Chart, lines: Sequence[Line], key: str, end_s: float) -> Figure:
    lines = [_thinned(line) for line in lines]
    scale = _Scale.of(chart, lines)
    parts = [f'<path class="grid" d="M0 {scale.y(v)}H1000"/>' for v, _ in scale.marks]
    if chart.limit is not None and chart.limit <= scale.top:
        parts.append(f'<path class="limit" d="M0 {scale.y(chart.limit)}H1000"/>')
    many = len(lines) > MOST_COLORED or (chart.summed and len(lines) > 1)
    drawn = [*lines[1:], lines[0]] if many else lines  # the first, which sums up, on top
    for line in drawn:
        i = lines.index(line)
        faint = many and i > 0
        color = MOST_COLORED if faint else i
        css = f"line k{color}{' faint' if faint else f' d{i % 4}'}"
        parts.append(f'<path class="{css}" data-i="{i}" d="{_path(line, end_s, scale)}"/>')
    parts += [_upright(mark, end_s) for mark in chart.marks]
    legend = [(i, line.name, False) for i, line in enumerate(lines[: 1 if many else None])]
    if many:
        legend.append((MOST_COLORED, f"{len(lines) - 1} others, each", True))
    unit = chart.unit
    return Figure(
        key=key, kind="lines", title=chart.title, about=chart.about,
        label=_said(chart, lines), svg="".join(parts), legend=tuple(legend),
        ticks=tuple((scale.share(v), text) for v, text in scale.marks),
        numbers=tuple(_numbers(line, unit) for line in lines[:MOST_COLORED]),
        data={
            "u": unit,
            "l": [
                {"n": line.name, "s": int(line.steps),
                 "x": [_ppm(t, end_s) for t, _ in line.points],
                 "y": [_short(v) for _, v in line.points]}
                for line in lines
            ],
            "m": [[_ppm(m.at_s, end_s), m.text] for m in chart.marks],
        },
        foot=_foot(chart, scale, "line"),
    )  # fmt: skip


def _thinned(line: Line) -> Line:
    """At most ``MOST_POINTS``, as means over equal parts of the run."""
    if len(line.points) <= MOST_POINTS:
        return line

    first, last = line.points[0][0], line.points[-1][0]
    span = max(last - first, 1e-9)
    steps = [(round((t - first) / span * 1e9), v) for t, v in line.points]
    means = binned(steps, 1_000_000_000, MOST_POINTS)
    width = span / MOST_POINTS
    return Line(name=line.name, steps=True,
                points=tuple((first + i * width, v) for i, v in enumerate(means)))  # fmt: skip


def _path(line: Line, end_s: float, scale: _Scale) -> str:
    if line.steps:
        parts: list[str] = []
        for k, (t, value) in enumerate(line.points):
            x, y = _x(t, end_s), scale.y(value)
            parts.append(f"H{x}V{y}" if k else f"M{x} {y}")
        return "".join(parts)
    points = (f"{_x(t, end_s)} {scale.y(value)}" for t, value in line.points)
    return "M" + "L".join(points)


def _upright(mark: Mark, end_s: float) -> str:
    return f'<path class="mark" d="M{_x(mark.at_s, end_s)} 0V{PLOT_HEIGHT}"/>'


# ---- one quantity over another -------------------------------------------------------------------


def _cloud(chart: Chart, lines: Sequence[Line], key: str) -> Figure:
    assert chart.x is not None, "a cloud is over something"
    name, unit = chart.x
    scale = _Scale.of(chart, lines)
    most = max(x for line in lines for x, _ in line.points) * 1.04 or 1.0
    parts = [f'<path class="grid" d="M0 {scale.y(v)}H1000"/>' for v, _ in scale.marks]
    for i, line in enumerate(lines):
        dots = "".join(f"M{1000 * x / most:.1f} {scale.y(v)}h0" for x, v in line.points)
        parts.append(f'<path class="dots k{i} o{i % 4}" data-i="{i}" d="{dots}"/>')
    across = [(v / most, cell(v, unit)) for v in _ticks(most, unit)]
    return Figure(
        key=key, kind="cloud", title=chart.title, about=chart.about,
        label=f"{chart.title}: {_said(chart, lines)}", svg="".join(parts),
        legend=tuple((i, line.name, False) for i, line in enumerate(lines)),
        ticks=tuple((scale.share(v), text) for v, text in scale.marks),
        numbers=tuple(_numbers(line, chart.unit, over=(name, unit)) for line in lines),
        data={
            "u": chart.unit, "xu": unit, "xn": name,
            "l": [
                {"n": line.name, "x": [_ppm(x, most) for x, _ in line.points],
                 "v": [_short(x) for x, _ in line.points], "y": [_short(v) for _, v in line.points]}
                for line in lines
            ],
        },
        axis=tuple(across), foot=f"Across: {name}.{_foot(chart, scale, 'line', space=True)}",
    )  # fmt: skip


# ---- bars ----------------------------------------------------------------------------------------


def _bars(chart: Chart, key: str, end_s: float) -> Figure:
    rows = list(dict.fromkeys(bar.row for bar in chart.bars))
    states = _states(chart.bars)
    parts: list[str] = []
    for bar in chart.bars:
        said = f"{bar.row}: {bar.state}, {format_seconds(max(bar.to_s - bar.from_s, 0.0))}"
        parts.append(
            f'<i class="k{states[bar.state]}" data-i="{states[bar.state]}" style="--f:'
            f"{_share(bar.from_s, end_s)};--t:{_share(bar.to_s, end_s)};--r:{rows.index(bar.row)}"
            f'" data-t="{_escape(said)}|{_escape(bar.text)}"></i>'
        )
    for mark in chart.marks:
        row = f";--r:{rows.index(mark.row)}" if mark.row in rows else ""
        parts.append(
            f'<b class="mark{"" if row else " all"}" style="--f:{_share(mark.at_s, end_s)}{row}"'
            f' data-t="{_escape(mark.text)}|at {format_seconds(mark.at_s)}"></b>'
        )
    spent = _spent(chart.bars)
    listed = ", ".join(f"{n} {format_seconds(s)}" for n, s in spent.items())
    return Figure(
        key=key, kind="bars", title=chart.title, about=chart.about,
        label=f"{chart.title}: {len(chart.bars):,} bars in {len(rows):,} rows; {listed}",
        svg="".join(parts), legend=tuple((i, name, False) for name, i in states.items()), ticks=(),
        numbers=tuple(_lengths(chart.bars, name) for name in spent),
        data={}, rows=tuple(rows), height=max(60, len(rows) * min(26, max(5, 760 // len(rows)))),
        foot=_foot(chart, None, "row"),
    )  # fmt: skip


def _states(bars: Sequence[Bar]) -> dict[str, int]:
    """Colours by how long each state lasted; beyond the colours there are, the last one."""
    return {name: min(i, MOST_COLORED) for i, name in enumerate(_spent(bars))}


def _spent(bars: Sequence[Bar]) -> dict[str, float]:
    found: dict[str, float] = {}
    for bar in bars:
        found[bar.state] = found.get(bar.state, 0.0) + max(0.0, bar.to_s - bar.from_s)
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _lengths(bars: Sequence[Bar], state: str) -> Numbers:
    """Shortest, mean, longest and sum of one state's bars."""
    each = [max(0.0, b.to_s - b.from_s) for b in bars if b.state == state]
    least, mean, most, whole = (
        format_seconds(v) for v in (min(each), sum(each) / len(each), max(each), sum(each))
    )
    return (state, least, mean, most, whole)


# ---- the upright axis ----------------------------------------------------------------------------


class _Scale(NamedTuple):
    """From a value to its height."""

    low: float
    """Of a logarithmic axis; 0: a linear one."""
    top: float
    marks: tuple[tuple[float, str], ...]

    @classmethod
    def of(cls, chart: Chart, lines: Sequence[Line]) -> _Scale:
        """One that has room for all."""
        values = [v for line in lines for _, v in line.points]
        top = max([*values, chart.limit or 0.0])
        above = [v for v in values if v > 0]
        if chart.key.startswith(LOG_KEYS) and above and top / min(above) > LOG_RATIO:
            low = 10.0 ** math.floor(math.log10(min(above)))
            high = 10.0 ** math.ceil(math.log10(top) - 1e-9)
            decades = round(math.log10(high / low))
            found = [low * 10.0**k for k in range(0, decades + 1, max(1, decades // 5))]
            return cls(low, high, tuple((v, cell(v, chart.unit)) for v in found))
        top = top * 1.06 or 1.0
        return cls(0.0, top, tuple((v, cell(v, chart.unit)) for v in _ticks(top, chart.unit)))

    def share(self, value: float) -> float:
        """Of the height, from below."""
        if self.low:
            value = max(value, self.low)
            return math.log(value / self.low) / math.log(self.top / self.low)
        return value / self.top

    def y(self, value: float) -> str:
        """In the plot."""
        return f"{PLOT_HEIGHT * (1 - min(1.0, max(0.0, self.share(value)))):.1f}"


def _ticks(top: float, unit: str) -> list[float]:
    """Four or five round values up to ``top``: round in the unit they are written in."""
    base = 1.0
    if unit == "bytes":
        base = 1024.0 ** max(0, math.floor(math.log(max(top, 1.0), 1024)))
    elif unit == "seconds":
        base = next((s for s in (86400.0, 3600.0, 60.0) if top >= 2 * s), 1.0)
    elif unit == "share":
        base = 0.01
    rough = top / base / 4
    power = 10.0 ** math.floor(math.log10(rough))
    whole = unit == "count" and top > 3  # of things there are no halves
    steps = (1, 2, 5, 10) if whole else (1, 2, 2.5, 5, 10)
    step = next(m * power for m in steps if m * power >= rough * 0.999) * base
    if whole:
        step = max(1.0, step)
    return [k * step for k in range(int(top / step + 1e-9) + 1)]


def time_ticks(end_s: float) -> list[tuple[float, str]]:
    """Of the run, as shares of it; the script makes others when it zooms."""
    return [(v / end_s, format_seconds(v) if v else "0 s") for v in _ticks(end_s, "seconds")]


# ---- the same as text ----------------------------------------------------------------------------


def _numbers(line: Line, unit: str, over: tuple[str, str] | None = None) -> Numbers:
    values = [v for _, v in line.points]
    at, most = max(line.points, key=lambda p: p[1])
    when = format_seconds(at) if over is None else cell(at, over[1])
    mean = _mean_of(line) if over is None else sum(values) / len(values)
    return (line.name, cell(min(values), unit), cell(mean, unit), cell(most, unit), when)


def _mean_of(line: Line) -> float:
    """Over time."""
    area = held = 0.0
    for (a, v), (b, w) in zip(line.points, line.points[1:], strict=False):
        area += (b - a) * (v if line.steps else (v + w) / 2)
        held += b - a
    return area / held if held else line.points[0][1]


def _said(chart: Chart, lines: Sequence[Line]) -> str:
    most = [f"{n[0]} at most {n[3]}" for n in (_numbers(i, chart.unit) for i in lines[:4])]
    more = f", and {len(lines) - 4} more" if len(lines) > 4 else ""
    return f"{chart.title}: {', '.join(most)}{more}"


def _foot(chart: Chart, scale: _Scale | None, what: str, *, space: bool = False) -> str:
    said = []
    if scale is not None and scale.low:
        said.append("The upright axis is logarithmic.")
    if chart.left_out:
        more = (
            f"{chart.left_out:,} more {what}{'s are' if chart.left_out > 1 else ' is'} not drawn."
        )
        said.append(more)
    return (" " if space and said else "") + " ".join(said)


def _ppm(t: float, end_s: float) -> int:
    """Millionths of the run."""
    return round(t / end_s * _MILLION) if end_s else 0


def _x(t: float, end_s: float) -> str:
    return f"{_ppm(t, end_s) / 1000:.2f}".rstrip("0").rstrip(".")


def _share(t: float, end_s: float) -> str:
    return f"{_ppm(t, end_s) / _MILLION:.6f}".rstrip("0").rstrip(".") or "0"


def _short(value: float) -> float:
    """Four digits."""
    short = float(f"{value:.4g}")
    return int(short) if short == int(short) else short


def _escape(text: str) -> str:
    for a, b in (("&", "&amp;"), ('"', "&quot;"), ("<", "&lt;"), ("|", "/")):
        text = text.replace(a, b)
    return text


def lines_of(named: Iterable[tuple[str, Sequence[tuple[float, float]]]]) -> tuple[Line, ...]:
    """Step functions of the run as lines."""
    return tuple(Line(name=name, points=tuple(points), steps=True) for name, points in named)
