"""What a library's job did over time, for pages to draw; kept beside the summary, not in it.

Real counterpart: the dashboard's Grafana panels (``ray/dashboard/modules/metrics``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raysim.raylibs.report import Unit

WINDOWS = 120
"""Parts of a run of which percentiles and rates are shown."""
PERCENTILES = (50, 90, 99)

Points = tuple[tuple[float, float], ...]
"""(Virtual second, value)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One quantity; ``steps``: it has each value until the next, else lines join them."""

    name: str
    points: Points
    steps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Something that lasted; ``state`` says what it did, and gives it its colour."""

    row: str
    from_s: float
    to_s: float
    state: str
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened, in a row of the bars or (no row) to all."""

    at_s: float
    text: str
    row: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One picture: lines or bars over time, or points over another quantity (``x``)."""

    key: str
    """Short and stable: ``latency``."""
    title: str
    about: str = ""
    unit: Unit = "count"
    lines: tuple[Line, ...] = ()
    bars: tuple[Bar, ...] = ()
    marks: tuple[Mark, ...] = ()
    x: tuple[str, Unit] | None = None
    """Of points over something else than time: its name and unit; lines then are clouds."""
    limit: float | None = None
    """What the quantity cannot exceed, drawn as a line."""
    summed: bool = False
    """The first line sums up the others, which are drawn faintly."""
    left_out: int = 0
    """Rows of bars, or lines, that are not among these."""


def steps(name: str, points: Iterable[tuple[float, float]]) -> Line:
    """A quantity that stays what it is until it changes."""
    return Line(name=name, points=tuple(points), steps=True)


def edges(from_s: float, to_s: float, windows: int = WINDOWS) -> np.ndarray:
    """Of equal windows."""
    return np.linspace(from_s, max(to_s, from_s + 1e-9), windows + 1)


def middles(at: np.ndarray) -> list[float]:
    """Of windows."""
    return [float(m) for m in (at[1:] + at[:-1]) / 2]


def rates(name: str, when_s: Any, at: np.ndarray, weights: Any = None) -> Line:
    """So many, or so much, a second in each window."""
    counts, _ = np.histogram(when_s, bins=at, weights=weights)
    per_s = counts / (at[1] - at[0])
    return Line(name=name, points=tuple(zip(middles(at), map(float, per_s), strict=True)))


def percentiles(when_s: Any, values: Any, at: np.ndarray) -> tuple[Line, ...]:
    """p50, p90 and p99 of what falls in each window; empty ones are left out."""
    when, value = np.asarray(when_s), np.asarray(values)
    inside = np.searchsorted(at, when, side="right") - 1
    order = np.argsort(inside, kind="stable")
    bounds = np.searchsorted(inside[order], np.arange(len(at)))
    found: list[tuple[float, Any]] = []
    for i, middle in enumerate(middles(at)):
        part = value[order[bounds[i] : bounds[i + 1]]]
        if len(part):
            found.append((middle, np.percentile(part, PERCENTILES)))
    return tuple(
        Line(name=f"p{q}", points=tuple((t, float(row[k])) for t, row in found))
        for k, q in enumerate(PERCENTILES)
    )


def under_way(name: str, begins_s: Any, ends_s: Any, at: np.ndarray) -> Line:
    """How many have begun and not ended, in the mean of each window."""
    begins, ends = np.asarray(begins_s), np.asarray(ends_s)
    low, high = at[:-1, None], at[1:, None]
    held = np.array([
        float(np.maximum(np.minimum(ends, b) - np.maximum(begins, a), 0.0).sum())
        for a, b in zip(low[:, 0], high[:, 0], strict=True)
    ])  # fmt: skip
    mean = held / (at[1] - at[0])
    return Line(name=name, points=tuple(zip(middles(at), map(float, mean), strict=True)))


def against(x: Sequence[tuple[float, float]], lines: Sequence[Line]) -> tuple[Line, ...]:
    """Lines over another quantity than time, window by window."""
    of = dict(x)
    return tuple(
        Line(name=line.name, points=tuple((of[t], v) for t, v in line.points if t in of))
        for line in lines
    )
