"""Gauges of handles, merged and averaged as the controller does.

Real counterpart: ``_private/metrics_utils.py``, ``_private/autoscaling_metrics_merge.py``,
``_merge_and_aggregate_timeseries`` of ``_private/autoscaling_state.py`` (ray 2.60): series are
right-continuous steps, summed at every change, with times rounded to 10 ms (not so for a lone
series); the window opens when every series has a point, and the last value holds until now.

``Merged`` keeps what does not change until the next report, so that the mean at any later instant
is one division: that is how the controller's ticks between two reports are worked out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raysim.raylibs.serve.config import Aggregation

Points = tuple[tuple[float, float], ...]
"""(Second, value), in order of time."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The total of several gauges as a step function, summed up to its last step."""

    area: float
    """Of the total, from the window's start to the last step; value times seconds."""
    start_s: float
    last_s: float
    last_value: float
    highest: float
    lowest: float

    def at(self, now_s: float, how: Aggregation) -> float:
        """The aggregate, the last value being valid until ``now_s``."""
        if how == "max":
            return self.highest
        if how == "min":
            return self.lowest
        held_s = now_s - self.last_s
        if held_s <= 0:
            held_s = 1e-3
        length_s = self.last_s - self.start_s + held_s
        return (self.area + self.last_value * held_s) / length_s if length_s > 0 else 0.0


NOTHING = Merged(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def merged(series: Sequence[Points]) -> Merged:
    """The total of all series; of none, zero."""
    active = [points for points in series if points]
    if not active:
        return NOTHING
    if len(active) == 1:
        times = np.array([t for t, _ in active[0]])
        totals = np.array([v for _, v in active[0]])
        start_s = float(times[0])
    else:
        times, totals = _sum_of_steps(active)
        if not times.size:
            return NOTHING
        aligned_s = max(points[0][0] for points in active)
        inside = aligned_s <= times[-1]
        start_s = max(aligned_s, float(times[0])) if inside else float(times[0])
    return _summed(times, totals, start_s)


def _sum_of_steps(active: Sequence[Points]) -> tuple[np.ndarray, np.ndarray]:
    """Times and totals of the sum, one entry per changed 10 ms."""
    times, deltas = [], []
    for points in active:
        before = 0.0
        for t, value in points:
            if value != before:
                times.append(t)
                deltas.append(value - before)
                before = value
    rounded = np.floor(np.array(times) * 100.0 + 0.5) / 100.0
    distinct, where = np.unique(rounded, return_inverse=True)
    return distinct, np.cumsum(np.bincount(where, weights=deltas, minlength=len(distinct)))


def _summed(times: np.ndarray, totals: np.ndarray, start_s: float) -> Merged:
    first = max(int(np.searchsorted(times, start_s, side="right")) - 1, 0)
    edges = np.maximum(times[first:], start_s)
    area = float(np.dot(totals[first:-1], np.diff(edges)))
    within = totals[times >= start_s]
    return Merged(
        area, start_s, float(times[-1]), float(totals[-1]),
        float(within.max()), float(within.min()),
    )  # fmt: skip
