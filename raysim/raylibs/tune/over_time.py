"""A sweep over time: trials as bars, their metric, how many run at once.

Real counterpart: the trial table that Tune prints again and again, and TensorBoard's curves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from raysim.raylibs.charts import Bar, Chart, Line, Mark, Points, steps
from raysim.raylibs.tune.trial import Trial
from raysim.units import NS_PER_S

MOST_TRIALS = 160
"""Drawn one by one: the best half of them, then those that held their resources longest."""
MOST_CURVES = 48
MOST_RUNGS = 12


class Reports:
    """The metric of every result, when the driver took it; an ``on_result``.

    Parameters
    ----------
    process
        Whose clock it is.
    metric
        The name in results.
    """

    def __init__(self, process: Any, metric: str) -> None:
        self._process = process
        self._metric = metric
        self.of: dict[str, list[tuple[float, float]]] = {}
        """By trial: (second, value)."""

    def __call__(self, trial: Trial, result: Mapping[str, Any]) -> None:
        """One result."""
        value = result.get(self._metric)
        if isinstance(value, int | float):
            at_s = self._process.now_ns / NS_PER_S
            self.of.setdefault(trial.trial_id, []).append((at_s, float(value)))


def charts_of(
    trials: Sequence[Trial], reports: Reports, *, metric: str, mode: str, iterations: int
) -> tuple[Chart, ...]:  # fmt: skip
    """All of it; ``iterations`` is how far a trial goes that nobody stops."""
    shown = _chosen(trials, metric, mode)
    bars, marks = [], []
    for trial in shown:
        ended = _how_it_ended(trial, iterations)
        for k, (a, b) in enumerate(trial.runs):
            last = k == len(trial.runs) - 1
            state = ended if last else "paused later"
            text = f"run {k + 1} of {len(trial.runs)}" if len(trial.runs) > 1 else ""
            bars.append(
                Bar(row=trial.trial_id, from_s=a / NS_PER_S, to_s=max(a, b) / NS_PER_S, state=state,
                    text=_said(trial, metric, text))
            )  # fmt: skip
        if trial.status == "ERROR" and trial.ended_ns is not None:
            marks.append(Mark(at_s=trial.ended_ns / NS_PER_S, text="failed", row=trial.trial_id))
    curves = shown[:MOST_CURVES]
    return (
        Chart(
            key="trials", title="Trials", bars=tuple(bars), marks=tuple(marks),
            left_out=len(trials) - len(shown),
            about="When each held its resources, in the order they first did; one that is paused "
            f"gives them back and comes again.{_rungs(trials)}",
        ),
        Chart(
            key="metric", title=f"{metric} of the trials", left_out=len(trials) - len(curves),
            about=f"As reported; the best so far ({mode}) in front.", summed=True,
            lines=(
                _best(reports, mode),
                *(Line(name=t.trial_id, points=tuple(reports.of.get(t.trial_id, ())))
                  for t in curves if t.trial_id in reports.of),
            ),
        ),
        Chart(
            key="concurrency", title="Trials that hold resources",
            lines=(steps("trials", _at_once(trials)),),
        ),
    )  # fmt: skip


def _rungs(trials: Sequence[Trial]) -> str:
    """After how many iterations trials ended; nothing if that is all over the place."""
    ended = Counter(t.n_results for t in trials if t.status == "TERMINATED")
    if not 1 < len(ended) <= MOST_RUNGS:
        return ""
    said = ", ".join(f"{n:,} after {k:,}" for k, n in sorted(ended.items()))
    return f" Iterations at which they ended: {said}."


def _chosen(trials: Sequence[Trial], metric: str, mode: str) -> list[Trial]:
    """At most ``MOST_TRIALS``, in the order they began."""
    ran = [t for t in trials if t.runs]
    if len(ran) > MOST_TRIALS:
        sign = 1 if mode == "min" else -1
        worst = float("inf")
        best = sorted(ran, key=lambda t: sign * t.last_result.get(metric, sign * worst))
        half = best[: MOST_TRIALS // 2]
        longest = sorted(best[MOST_TRIALS // 2 :], key=lambda t: -sum(b - a for a, b in t.runs))
        ran = [*half, *longest[: MOST_TRIALS - len(half)]]
    return sorted(ran, key=lambda t: t.runs[0][0])


def _how_it_ended(trial: Trial, iterations: int) -> str:
    if trial.status == "ERROR":
        return "failed"
    if trial.status == "TERMINATED":
        return "at its last iteration" if trial.n_results >= iterations else "stopped early"
    return "paused" if trial.status == "PAUSED" else "running"


def _said(trial: Trial, metric: str, text: str) -> str:
    value = trial.last_result.get(metric)
    known = f"{metric} {value:.4g}" if isinstance(value, int | float) else ""
    said = [f"{trial.n_results} iterations", known, text]
    return ", ".join(part for part in said if part)


def _best(reports: Reports, mode: str) -> Line:
    """The best of all trials so far."""
    found: list[tuple[float, float]] = []
    better = min if mode == "min" else max
    for t, value in sorted(p for points in reports.of.values() for p in points):
        if not found or better(value, found[-1][1]) != found[-1][1]:
            found.append((t, value))
    return Line(name="best so far", points=tuple(found), steps=True)


def _at_once(trials: Sequence[Trial]) -> Points:
    changes = sorted(
        (t, way) for trial in trials for a, b in trial.runs for t, way in ((a, 1), (max(a, b), -1))
    )
    count, found = 0, [(0.0, 0.0)]
    for t, way in changes:
        count += way
        if found[-1][0] == t / NS_PER_S:
            found[-1] = (found[-1][0], float(count))
        else:
            found.append((t / NS_PER_S, float(count)))
    return tuple(found)
