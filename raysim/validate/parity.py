"""The parity plot: predicted over measured, one panel per case and unit, as an SVG file.

Both axes are logarithmic and equal, so that a factor is the same distance everywhere; the band is
an error of at most 20 %. Bars are the measured spread; hollow points are calibration rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from raysim.validate.points import GOOD, Point, errors

SIDE, MARGIN_X, MARGIN_Y, LEGEND, COLUMNS = 300, 64, 52, 130, 2
COLORS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#24292f", "#b8a100",
)  # fmt: skip
"""Okabe and Ito's, as in the report."""


def parity_svg(points: Iterable[Point]) -> str:
    """The picture; equal points make equal text."""
    shown = [p for p in points if p.error is not None and (p.predicted or 0) > 0]
    groups: dict[tuple[str, str], list[Point]] = {}
    for p in shown:
        groups.setdefault((p.family.partition("/")[0], p.unit), []).append(p)
    panels = [
        _panel(case, unit, of_it) | _place(i)
        for i, ((case, unit), of_it) in enumerate(groups.items())
    ]
    rows = -(-len(panels) // COLUMNS)
    environment = Environment(  # noqa: S701  (SVG: what may hold markup is escaped in the template)
        loader=PackageLoader("raysim.validate"), undefined=StrictUndefined,
        keep_trailing_newline=True,
    )  # fmt: skip
    return environment.get_template("parity.svg.j2").render(
        panels=panels, side=SIDE, width=COLUMNS * (SIDE + MARGIN_X + LEGEND) + 10,
        height=rows * (SIDE + 2 * MARGIN_Y),
    )  # fmt: skip


def _place(index: int) -> dict[str, int]:
    row, column = divmod(index, COLUMNS)
    return {
        "x": MARGIN_X + column * (SIDE + MARGIN_X + LEGEND),
        "y": MARGIN_Y + row * (SIDE + 2 * MARGIN_Y),
    }


def _panel(case: str, unit: str, points: Sequence[Point]) -> dict[str, Any]:
    values = [v for p in points for v in (p.measured, p.predicted) if v]
    first, last = math.log10(min(values)) - 0.1, math.log10(max(values)) + 0.1
    scale = SIDE / (last - first)

    def at(value: float) -> float:
        return round((math.log10(value) - first) * scale, 1)

    band = math.log10(1 + GOOD) * scale
    families = list(dict.fromkeys(p.family for p in points))
    color = {f: COLORS[i % len(COLORS)] for i, f in enumerate(families)}
    found = errors(points, case)
    subtitle = "calibration rows only" if found is None else (
        f"{found.rows} rows, median error {found.median:.1%}, 90th percentile {found.p90:.1%}"
    )  # fmt: skip
    return {
        "title": case, "unit": unit, "subtitle": subtitle,
        "band": f"0,{SIDE - band:.1f} 0,{SIDE + band:.1f} {SIDE},{band:.1f} {SIDE},{-band:.1f}",
        "dots": [_dot(p, at, color[p.family]) for p in points],
        "ticks": [{"at": at(v), "label": label} for v, label in _ticks(first, last)],
        "families": [
            {"name": f.partition("/")[2] or f, "color": color[f]} for f in families
        ],
    }  # fmt: skip


def _dot(p: Point, at: Any, color: str) -> dict[str, Any]:
    assert p.measured is not None
    assert p.predicted is not None
    spread = p.low is not None and p.high is not None and p.low > 0
    return {
        "x": at(p.measured), "y": round(SIDE - at(p.predicted), 1), "color": color,
        "fill": color if p.role == "validation" else "#ffffff",
        "low": at(p.low) if spread else None, "high": at(p.high) if spread else None,
        "title": f"{p.name}: predicted {p.predicted:.4g}, measured {p.measured:.4g} {p.unit}",
    }  # fmt: skip


def _ticks(first: float, last: float) -> list[tuple[float, str]]:
    """1, 3, 10 ... in range, or 1, 2, 5 where there are few."""
    steps = (1, 3) if last - first > 1.5 else (1, 2, 5)
    found = [
        step * 10.0**power
        for power in range(math.floor(first), math.ceil(last) + 1)
        for step in steps
    ]
    return [(v, f"{v:g}") for v in found if first <= math.log10(v) <= last]
