"""Where nothing meets the targets: the trial that came nearest, and how far off it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from raysim.planner.choose import RUNS
from raysim.planner.trials import Trial
from raysim.results.targets import holds
from raysim.scenario.targets import Target


class Off(NamedTuple):
    """A target that a trial does not meet."""

    target: str
    value: float
    times: float
    """So much too much, or too little."""


def nearest(trials: Iterable[Trial], limits: Sequence[Target]) -> dict[str, Any] | None:
    """The trial that runs whose worst target is least far off, as plain data."""
    run = [t for t in trials if t.status in RUNS]
    known = [(t, off) for t in run if (off := _off(t, limits))]
    if not known:
        return None
    trial, off = min(known, key=lambda pair: (max(o.times for o in pair[1]), pair[0].number))
    return {"trial": trial.plain(), "off": [o._asdict() for o in off]}


def _off(trial: Trial, limits: Sequence[Target]) -> list[Off]:
    found = []
    for limit in limits:
        value = trial.metrics.get(limit.name)
        if value is None or value <= 0 or limit.limit <= 0 or holds(limit, value):
            continue
        less = limit.op in ("<=", "<")
        times = value / limit.limit if less else limit.limit / value
        found.append(Off(f"{limit.name} {limit.condition}", value, times))
    return found
