"""What chance decides is played several times: when the cloud takes spot nodes back.

One run of such a job says little: days on 64 spot GPUs end some 5 % apart in time and cost, which
is more than what most choices differ by. A trial is the mean of ``DRAWS`` runs, each with a seed of
its own, the same seeds for every point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, stdev

from raysim.planner.space import Choice, Point
from raysim.planner.trials import Spread, Trial, try_point
from raysim.scenario.load import AnyScenario, Scenario
from raysim.scenario.targets import Target

DRAWS = 5
"""Runs of a point: their mean lies less than half of one run's deviation off (1 / sqrt(5))."""
TIME = "seconds"
HALF = 0.5


def seeds_of(scenario: AnyScenario, choice: Choice) -> tuple[int, ...]:
    """Of the runs beside the first; () where nothing is drawn, or the seed is what is varied."""
    if isinstance(scenario, Scenario) or not scenario.spec.spot or "seed" in choice:
        return ()
    return tuple(scenario.spec.seed + more for more in range(1, DRAWS))


def played(scenario: AnyScenario, point: Point, limits: tuple[Target, ...]) -> Trial:
    """What the point comes to: of one run, or the mean of several where chance decides."""
    runs = [try_point(scenario, point, limits)]
    if runs[0].status in ("ok", "failed"):
        runs += [try_point(scenario, point, limits, s) for s in seeds_of(scenario, point.choice)]
    return mean_of(runs)


def mean_of(runs: Sequence[Trial]) -> Trial:
    """One trial of the runs of one point.

    Metrics are means over those that ran; a target is missed that is missed by half of them or
    more. If half do not run to the end, the point does not. ``likely`` is the probability that the
    next run meets all targets, by Laplace's rule of succession: k of n did, (k + 1) / (n + 2).
    """
    ran = [trial for trial in runs if trial.status == "ok"]
    if len(runs) == 1 or len(ran) <= HALF * len(runs):
        return next((t for t in runs if t.status != "ok"), runs[0])
    first = ran[0]
    names = [name for name in first.metrics if all(name in t.metrics for t in ran)]
    missed = dict.fromkeys(text for t in ran for text in t.missed)
    return replace(
        first,
        metrics={name: fmean(t.metrics[name] for t in ran) for name in names},
        missed=tuple(m for m in missed if sum(m in t.missed for t in ran) >= HALF * len(ran)),
        likely=(sum(t.meets for t in runs) + 1) / (len(runs) + 2),
        spread=_spread(ran),
    )


def _spread(ran: Sequence[Trial]) -> Spread | None:
    """Of one run's time about the mean; None where all are equal, or one has none."""
    logs = [math.log(t.metrics[TIME]) for t in ran if t.metrics.get(TIME)]
    if len(logs) < len(ran) or len(ran) == 1 or max(logs) == min(logs):
        return None
    return Spread(0.0, stdev(logs), drawn=len(ran))
