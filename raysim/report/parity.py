"""Predicted against measured: the runs behind an interval as points of a scatter, and this job.

Both axes are logarithmic and equal, so that a right prediction lies on the diagonal and the
interval is a band along it. Positions are in units of the picture, whose origin is its top left.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeGuard

from raysim.perf.uncertainty import Compared, compared
from raysim.report.words import Table, number, percent, size, table

SIDE, LEFT, BOTTOM, TOP, RIGHT = 300.0, 52.0, 34.0, 8.0, 8.0
"""Of the plot, and the margins around it."""
_TICKS = ((1.0,), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 6.0))
_FEWEST = 3


class Dot(NamedTuple):
    """One compared run."""

    x: float
    y: float
    inside: bool
    """Whether the band holds it."""
    row: Compared
    predicted: str
    measured: str
    error: float


class Tick(NamedTuple):
    """A value on both axes."""

    text: str
    x: float
    y: float


class Parity(NamedTuple):
    """One scatter."""

    name: str
    unit: str
    kind: str
    dots: list[Dot]
    ticks: list[Tick]
    band: str
    """Points of the interval's polygon."""
    own_x: float | None
    own_y: tuple[float, float]
    """Of this job's interval: its lower and its upper end."""
    own: str
    inside: int


def parities(summary: Table) -> list[Parity]:
    """Of the time, then of the memory, where an interval is known."""
    known = table(summary.get("certainty"))
    mfu = number(table(summary.get("throughput")).get("mfu"))
    peak = number(table(summary.get("memory")).get("peak_bytes"))
    step_s = number(table(summary.get("step")).get("seconds"))
    time, memory = (table(known.get(k)) for k in ("step_seconds", "memory_peak_bytes"))
    slow, fast = (_ratio(time, key, step_s) for key in ("high", "low"))
    found = [
        _parity("Speed", "MFU", time, mfu, (1 / slow if slow else 0, 1 / fast if fast else 0),
                _share),
        _parity("Memory", "peak", memory, peak,
                (_ratio(memory, "low", peak), _ratio(memory, "high", peak)), size),
    ]  # fmt: skip
    return [p for p in found if p is not None]


def _ratio(found: Table, key: str, predicted: float | None) -> float:
    value = number(found.get(key))
    return value / predicted if value and predicted and value > 0 and predicted > 0 else 0.0


def _parity(
    name: str,
    unit: str,
    found: Table,
    own: float | None,
    reach: tuple[float, float],
    form: Callable[[float], str],
) -> Parity | None:
    key = found.get("key")
    if not _is_key(key) or not 0 < reach[0] < reach[1] < 1e3 or not own or own <= 0:
        return None
    runs = compared(key)
    if not runs:
        return None
    values = [
        own * reach[0],
        own,
        own * reach[1],
        *(v for r in runs for v in (r.predicted, r.measured)),
    ]
    low, high = math.log(min(values) / 1.15), math.log(max(values) * 1.15)

    def along(value: float) -> float:
        return (math.log(value) - low) / (high - low) * SIDE

    def x(value: float) -> float:
        return LEFT + along(value)

    def y(value: float) -> float:
        return TOP + SIDE - min(max(along(value), 0.0), SIDE)

    dots = [
        Dot(x(r.predicted), y(r.measured), reach[0] <= r.measured / r.predicted <= reach[1], r,
            form(r.predicted), form(r.measured), r.predicted / r.measured - 1)
        for r in runs
    ]  # fmt: skip
    corners = [(end, end * reach[0]) for end in (math.exp(low), math.exp(high))]
    corners += [(end, end * reach[1]) for end in (math.exp(high), math.exp(low))]
    band = " ".join(f"{x(a):.1f},{TOP + SIDE - along(b):.1f}" for a, b in corners)
    return Parity(
        name, unit, str(found.get("kind") or ""), dots,
        [Tick(_tick(v, form), x(v), y(v)) for v in _ticks(low, high, _unit(form))], band,
        x(own), (y(own * reach[0]), y(own * reach[1])),
        f"this job: predicted {form(own)}, likely {form(own * reach[0])} to "
        f"{form(own * reach[1])}", sum(d.inside for d in dots),
    )  # fmt: skip


def _is_key(key: object) -> TypeGuard[list[str]]:
    return isinstance(key, list) and len(key) == 4 and all(isinstance(k, str) for k in key)


def _share(value: float) -> str:
    """Two digits of shares so small that `percent` has none."""
    return percent(value) if value >= 0.01 else f"{100 * value:.2g} %"


def _unit(form: Callable[[float], str]) -> float:
    return 2.0**30 if form is size else 1.0


def _tick(value: float, form: Callable[[float], str]) -> str:
    return f"{value / 2**30:g} GiB" if form is size else f"{100 * value:g} %"


def _ticks(low: float, high: float, unit: float) -> list[float]:
    """Round values within the axis, as few as make it readable; of bytes in GiB."""
    first, last = math.exp(low) / unit, math.exp(high) / unit
    decades = range(math.floor(math.log10(first)), math.ceil(math.log10(last)) + 1)
    for steps in _TICKS:
        found = [v for d in decades for m in steps if first <= (v := m * 10.0**d) <= last]
        if len(found) >= _FEWEST:
            break
    return [v * unit for v in found]
