"""A chart as a PNG or SVG file, drawn by matplotlib: no browser, no screen, the same bytes always.

Slices too thin to be seen are drawn together with their neighbours of the same kind.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import NullLocator

from raysim.report.plots.chart import stacked_tops
from raysim.report.plots.marks import (
    BAR,
    TEXT_FREE,
    Area,
    Axis,
    Boxes,
    Heat,
    Line,
    Notes,
    Points,
    Rule,
    Scale,
)

if TYPE_CHECKING:
    from raysim.report.plots.chart import Chart

DPI = 100
GRID, INK, SOFT = "#e6e9ed", "#24292f", "#57606a"
LABEL = 11
"""Points of height of a rule's name."""
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans", "font.size": 9.0, "svg.hashsalt": "raysim",
    "svg.fonttype": "path", "text.color": INK, "axes.labelcolor": INK, "xtick.color": SOFT,
    "ytick.color": SOFT, "axes.edgecolor": "#9aa3ad", "path.simplify": True,
}  # fmt: skip
_LEGEND_LETTERS = 140
_FEW_ROWS = 64


def save(chart: Chart, path: Path, *, width: int, height: int, scale: float) -> None:
    """Write the file."""
    with mpl.rc_context(STYLE):
        figure = draw(chart, width, height)
        if path.suffix == ".svg":
            figure.savefig(path, format="svg", dpi=72, metadata={"Date": None, "Creator": "raysim"})
        else:
            figure.savefig(path, format="png", dpi=DPI * scale, metadata={"Software": "raysim"})


def draw(chart: Chart, width: int, height: int) -> Figure:
    """A figure of so many CSS pixels."""
    room = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08)
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, layout=room)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    reach_x, reach_y = chart.reach()
    x, y = chart.x.scale(reach_x), chart.y.scale(reach_y)
    _limits(axes, chart, reach_x / x.divisor, reach_y / y.divisor)
    visible = reach_x / x.divisor / width / 2
    floor: list[float] = []
    _boxes(axes, [mark for mark in chart.marks if isinstance(mark, Boxes)], x, visible)
    for mark in chart.marks:
        if isinstance(mark, Boxes):
            continue
        if isinstance(mark, Area):
            floor = _area(axes, mark, x, y, floor)
        elif isinstance(mark, Line):
            _line(axes, mark, x, y)
        elif isinstance(mark, Points):
            _points(axes, mark, x, y)
        elif isinstance(mark, Heat):
            _heat(figure, axes, mark, x)
        elif isinstance(mark, Notes):
            _notes(axes, mark, x, y)
        else:
            _rule(axes, mark, x, y)
    levels = _rule_names(axes, chart, x, width)
    axes.set_title(chart.title, loc="left", fontsize=11, fontweight="bold", pad=10 + LABEL * levels)
    axes.set_xlabel(chart.x.title(x))
    axes.set_ylabel(chart.y.title(y))
    _ticks(axes.xaxis, chart.x, x)
    _ticks(axes.yaxis, chart.y, y)
    axes.spines[["top", "right"]].set_visible(False)
    if chart.y.bare:
        axes.spines["left"].set_visible(False)
        axes.yaxis.set_visible(False)
    axes.set_axisbelow(True)
    if not chart.y.rows:
        axes.grid(color=GRID, linewidth=0.8)
    elif not any(isinstance(mark, Heat) for mark in chart.marks):
        axes.grid(axis="x", color=GRID, linewidth=0.8)
    _legend(figure, axes, chart)
    return figure


def _limits(axes: Any, chart: Chart, reach_x: float, reach_y: float) -> None:
    texts = any(isinstance(mark, Boxes) and mark.texts for mark in chart.marks)
    if chart.x.log:
        axes.set_xscale("log")
        found = [v for mark in chart.marks if isinstance(mark, Points) for v in mark.x]
        axes.set_xlim(min(found) / 3, max(found) * 3)
    elif chart.x.zero:
        axes.set_xlim(0, (reach_x or 1.0) * (TEXT_FREE if texts else 1.0))
    if chart.y.rows:
        axes.set_ylim(len(chart.y.rows) - 0.5, -0.5)
    elif chart.y.log:
        axes.set_yscale("log")
    elif chart.y.zero:
        axes.set_ylim(0, (reach_y or 1.0) * (1.0 if chart.y.top else 1.06))


def _ticks(axis: Any, said: Axis, scale: Scale) -> None:
    if said.rows:
        few = said.rows if len(said.rows) <= _FEW_ROWS else ()
        axis.set_ticks(range(len(few)), labels=few)
        axis.set_tick_params(length=0)
    elif said.ticks:
        low, high = axis.get_view_interval()
        shown = [(at / scale.divisor, t) for at, t in said.ticks]
        shown = [(at, text) for at, text in shown if low <= at <= high]
        axis.set_ticks([at for at, _ in shown], labels=[text for _, text in shown])
        axis.set_minor_locator(NullLocator())
    elif not said.log:
        axis.set_major_formatter(lambda value, _: f"{value:,.6g}")


def _boxes(axes: Any, marks: Sequence[Boxes], x: Scale, visible: float) -> None:
    rows: dict[int, list[list[tuple[float, float]]]] = defaultdict(lambda: [[] for _ in marks])
    for kind, mark in enumerate(marks):
        for row, start, size in zip(mark.rows, mark.starts, mark.sizes, strict=True):
            rows[row][kind].append((start / x.divisor, (start + size) / x.divisor))
    drawn = {row: told_apart(kinds, visible) for row, kinds in sorted(rows.items())}
    for kind, mark in enumerate(marks):
        shapes = [
            [(a, row - BAR / 2), (b, row - BAR / 2), (b, row + BAR / 2), (a, row + BAR / 2)]
            for row, kinds in drawn.items()
            for a, b in kinds[kind]
        ]
        axes.add_collection(
            PolyCollection(
                shapes, facecolors=mark.color, linewidths=0, label=mark.name, snap=False
            ),
            autolim=False,
        )
        for row, start, size, text in zip(
            mark.rows, mark.starts, mark.sizes, mark.texts, strict=False
        ):
            axes.annotate(
                text, ((start + size) / x.divisor, row), xytext=(5, 0), textcoords="offset points",
                va="center", fontsize=8.5,
            )  # fmt: skip


def told_apart(
    kinds: Sequence[Sequence[tuple[float, float]]], visible: float
) -> list[list[tuple[float, float]]]:
    """Intervals of a row, by kind, as an eye has them.

    Those narrower than ``visible`` are one in each stretch of that length, of the kind that fills
    most of it: drawn one over the other, a kind that takes little would hide the one it is among.
    """
    made: list[list[tuple[float, float]]] = [[] for _ in kinds]
    stretches: dict[int, dict[int, list[tuple[float, float]]]] = {}
    for kind, spans in enumerate(kinds):
        for a, b in spans:
            if b - a >= visible:
                made[kind].append((a, b))
            else:
                stretches.setdefault(int(a // visible), {}).setdefault(kind, []).append((a, b))
    last, end = -1, -math.inf
    for _, there in sorted(stretches.items()):
        most = max(there, key=lambda kind: sum(b - a for a, b in there[kind]))
        inside = [span for spans in there.values() for span in spans]
        begin = min(a for a, _ in inside)
        if most == last and begin - end < visible:
            begin = made[most].pop()[0]
        last, end = most, max(b for _, b in inside)
        made[most].append((begin, end))
    return made


def _area(axes: Any, mark: Area, x: Scale, y: Scale, floor: list[float]) -> list[float]:
    """Draw it; the upper edge of what is stacked so far."""
    xs, values = [v / x.divisor for v in mark.x], [v / y.divisor for v in mark.y]
    if not mark.stacked:
        axes.fill_between(xs, values, step="post", color=mark.color, alpha=0.2, linewidth=0)
        axes.step(xs, values, where="post", color=mark.color, linewidth=1.4, label=mark.name)
        return floor
    low = floor or [0.0] * len(xs)
    high = [a + b for a, b in zip(low, values, strict=True)]
    axes.fill_between(xs, low, high, step="post", color=mark.color, linewidth=0, label=mark.name)
    return high


def _line(axes: Any, mark: Line, x: Scale, y: Scale) -> None:
    axes.plot(
        [v / x.divisor for v in mark.x], [v / y.divisor for v in mark.y],
        color=mark.color, alpha=mark.alpha, linewidth=1.6, label=mark.name or "_",
    )  # fmt: skip


def _points(axes: Any, mark: Points, x: Scale, y: Scale) -> None:
    sizes = [(s * 72 / DPI) ** 2 for s in mark.sizes] or 42.0
    look: dict[str, Any] = {"color": mark.color, "linewidths": 0}
    if mark.hollow:
        look = {"facecolors": "none", "edgecolors": mark.color}
    axes.scatter(
        [v / x.divisor for v in mark.x], [v / y.divisor for v in mark.y], s=sizes, alpha=0.85,
        label=mark.name, zorder=3, **look,
    )  # fmt: skip


def _notes(axes: Any, mark: Notes, x: Scale, y: Scale) -> None:
    for at_x, at_y, text, before in zip(mark.x, mark.y, mark.texts, mark.before, strict=True):
        axes.annotate(
            text, (at_x / x.divisor, at_y / y.divisor),
            xytext=(-6 if before else 6, 4 if mark.among else 0),
            textcoords="offset points", ha="right" if before else "left",
            va="bottom" if mark.among else "center", fontsize=8.5, color=mark.color, zorder=5,
            bbox={"boxstyle": "square,pad=0.15", "fc": "white", "alpha": 0.75, "linewidth": 0},
        )  # fmt: skip


def _heat(figure: Figure, axes: Any, mark: Heat, x: Scale) -> None:
    scale = Axis(unit=mark.unit).scale(mark.most)
    cells = max(map(len, mark.values), default=0)
    edges = [(mark.begin + mark.cell * i) / x.divisor for i in range(cells + 1)]
    rows = [i - 0.5 for i in range(len(mark.values) + 1)]
    values = [[float("nan") if v is None else v / scale.divisor for v in r] for r in mark.values]
    shades = LinearSegmentedColormap.from_list("raysim", ["#f3f5f7", mark.color])
    mesh = axes.pcolormesh(
        edges, rows, values, cmap=shades, vmin=0, vmax=mark.most / scale.divisor or 1.0,
        rasterized=len(mark.values) * cells > 4000,
    )  # fmt: skip
    for edge in rows[1:-1]:
        axes.axhline(edge, color="white", linewidth=1.5)
    bar = figure.colorbar(mesh, ax=axes, pad=0.015, aspect=30)
    bar.set_label(", ".join(filter(None, (mark.name, scale.unit))))
    bar.outline.set_visible(False)


def _rule(axes: Any, mark: Rule, x: Scale, y: Scale) -> None:
    line = {"color": mark.color, "linewidth": 1.2, "linestyle": (0, (5, 3))}
    if mark.across == "y":
        axes.axhline(mark.at / y.divisor, **line)
        at, where = (0.005, mark.at / y.divisor), axes.get_yaxis_transform()
        axes.annotate(mark.name, at, xycoords=where, xytext=(0, 3), textcoords="offset points",
                      color=mark.color, fontsize=8.5)  # fmt: skip
        return
    axes.axvline(mark.at / x.divisor, **line)


def _rule_names(axes: Any, chart: Chart, x: Scale, width: int) -> int:
    """Names of upright rules above the chart, in as many levels as keep them apart."""
    begin, end = axes.get_xlim()
    ends: list[float] = []
    rules = [mark for mark in chart.marks if isinstance(mark, Rule) and mark.across == "x"]
    for mark in sorted(rules, key=lambda m: m.at):
        at = mark.at / x.divisor
        share, wide = (at - begin) / (end - begin), 6.2 * len(mark.name) / width
        right = share + wide > 1.0
        first = share - wide if right else share
        level = next((i for i, taken in enumerate(ends) if taken <= first), len(ends))
        ends[level : level + 1] = [first + wide]
        axes.annotate(
            mark.name, (at, 1.0), xycoords=axes.get_xaxis_transform(), color=mark.color,
            xytext=(0, 2 + LABEL * level), textcoords="offset points", fontsize=8.5, va="bottom",
            ha="right" if right else "left", annotation_clip=False,
        )  # fmt: skip
    return len(ends)


def _legend(figure: Figure, axes: Any, chart: Chart) -> None:
    """Right of a stack, in its order; below everything else."""
    handles, names = axes.get_legend_handles_labels()
    shown: dict[str, Any] = dict(zip(names, handles, strict=True))
    if not chart.legend or not shown:
        return
    look: dict[str, Any] = {"frameon": False, "fontsize": 8.5, "handlelength": 1.1}
    if stacked_tops(chart.marks):
        figure.legend([*shown.values()][::-1], [*shown][::-1], loc="outside right upper", **look)
    else:
        look |= {"loc": "outside lower center", "ncols": _columns(list(shown))}
        made = figure.legend([*shown.values()], [*shown], **look)
        for handle in made.legend_handles:
            if isinstance(handle, PathCollection):
                handle.set_sizes([42.0])


def _columns(names: Sequence[str]) -> int:
    """All in one row where they fit, else so many that the widest do."""
    if sum(len(name) + 5 for name in names) <= _LEGEND_LETTERS:
        return len(names)
    return max(1, min(len(names), _LEGEND_LETTERS // (max(map(len, names)) + 6)))
