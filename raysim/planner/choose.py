"""A choice among trials: the best that meets the targets, what it costs to want more, and why not.

Infeasible is an answer: what stood in the way, counted, the trial that came closest, and the
smallest change beyond the space that would do.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from raysim.errors import Problem, ScenarioError
from raysim.planner.space import Point, Space, is_nodes, said
from raysim.planner.sweep import Sweep
from raysim.planner.trials import Trial, try_point
from raysim.results.targets import METRICS
from raysim.scenario.load import AnyScenario
from raysim.scenario.targets import Target

Direction = Literal["minimize", "maximize"]
COSTS = ("usd", "usd_per_million_tokens", "gpu_hours", "step_seconds", "seconds")
"""What is minimised when nobody says: the first that the job has."""
RUNS = ("ok", "estimated")
"""Of trials that have a speed."""
MOST_CHANGES = 3
_NUMBER = re.compile(r"[\d.,]+")


class Objective(NamedTuple):
    """A metric and its better end."""

    metric: str
    direction: Direction

    def value(self, trial: Trial) -> float:
        """Smaller is better."""
        value = trial.metrics[self.metric]
        return value if self.direction == "minimize" else -value

    def key(self, trial: Trial) -> tuple[float, int, int, int]:
        """Smaller is better; of equals fewer GPUs, fewer nodes, then the first."""
        return (self.value(trial), trial.gpus, trial.nodes, trial.number)


class Reason(NamedTuple):
    """Why trials are out: how many, what, and the one that came closest."""

    trials: int
    what: str
    closest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer."""

    objective: Objective
    ranked: tuple[Trial, ...]
    """Those that meet all targets, best first."""
    pareto: tuple[Trial, ...]
    """Of those that run on the GPUs allowed: no other is both faster and cheaper."""
    reasons: tuple[Reason, ...]
    instead: Trial | None = None
    """Where none meets the targets: the nearest beyond the space that does."""

    @property
    def best(self) -> Trial | None:
        """The first choice."""
        return self.ranked[0] if self.ranked else None


def objective_of(
    trials: Iterable[Trial], minimize: str | None, maximize: str | None,
    known: Iterable[str] = METRICS,
) -> Objective:  # fmt: skip
    """What was asked for, of the metrics ``known``, or the cost that the job has.

    Raises
    ------
    ScenarioError
        Both are given, or the metric is unknown.
    """
    if minimize and maximize:
        raise ScenarioError("give --minimize or --maximize, not both")
    asked = minimize or maximize
    if asked is not None and asked not in known:
        raise ScenarioError(Problem(message=f"unknown metric {asked!r}: {', '.join(known)}"))
    if maximize:
        return Objective(maximize, "maximize")
    if minimize:
        return Objective(minimize, "minimize")
    run = [t for t in trials if t.status in RUNS]
    has = next((m for m in COSTS if run and all(t.metrics.get(m) for t in run)), COSTS[-1])
    return Objective(has, "minimize")


def choose(
    sweep: Sweep, objective: Objective, *, likely: float = 0.0, max_gpus: int | None = None
) -> Plan:
    """Rank what meets the targets; of those with at least that probability, if one is asked for."""
    trials = [_within(t, likely, max_gpus) for t in sweep.trials]
    metric = objective.metric
    ranked = sorted((t for t in trials if t.meets and metric in t.metrics), key=objective.key)
    allowed = [t for t in trials if max_gpus is None or t.gpus <= max_gpus]
    front = pareto(allowed, objective)
    return Plan(
        objective=objective, ranked=tuple(ranked), pareto=front, reasons=tuple(reasons(trials))
    )


def _within(trial: Trial, likely: float, max_gpus: int | None) -> Trial:
    missed = list(trial.missed)
    if max_gpus is not None and trial.gpus > max_gpus:
        missed.append(f"gpus <= {max_gpus}")
    if trial.likely is not None and trial.likely < likely and not trial.missed:
        missed.append(f"all targets met with a probability of at least {likely:.0%}")
    return replace(trial, missed=tuple(missed))


def pareto(
    trials: Sequence[Trial], objective: Objective, statuses: Sequence[str] = ("ok",)
) -> tuple[Trial, ...]:
    """Of those that run: no other is better by `gain_of` and by cost; the cheapest first."""
    gain = gain_of(trials, objective)
    run = [t for t in trials if t.status in statuses and t.metrics.get(gain.metric) is not None]
    cost = next((c for c in COSTS if run and all(t.metrics.get(c) for t in run)), None)
    if cost is None:
        return ()
    front: list[Trial] = []
    for trial in sorted(run, key=lambda t: (t.metrics[cost], gain.value(t), t.number)):
        if not front or gain.value(trial) < gain.value(front[-1]):
            front.append(trial)
    return tuple(front)


def gain_of(trials: Iterable[Trial], objective: Objective) -> Objective:
    """What more money buys: throughput of a training job, else what was asked for, else time."""
    for speed in ("tokens_per_s", "samples_per_s"):
        if any(speed in t.metrics for t in trials):
            return Objective(speed, "maximize")
    return Objective("seconds", "minimize") if objective.metric in COSTS else objective


def reasons(trials: Sequence[Trial]) -> list[Reason]:
    """Of those that do not meet the targets, the commonest first; a trial counts once."""
    found = []
    big = [t for t in trials if t.status == "out_of_memory"]
    if big:
        played = [t for t in big if t.strategy] or big  # of the others only a lower bound is known
        least = min(played, key=lambda t: (t.metrics.get("gpu_mem_peak", 9e9), t.number))
        share = least.metrics.get("gpu_mem_peak", 0.0)
        closest = f"{share:.0%} of it, {said(least.choice)}"
        found.append(Reason(len(big), "exceed GPU or host memory", closest))
    missed = Counter(t.missed[0] for t in trials if t.status == "ok" and t.missed)
    for what, count in missed.items():
        name, op = (*what.split(" "), "")[:2]
        these = [t for t in trials if t.status == "ok" and t.missed and t.missed[0] == what]
        closest = _closest(these, name, more=op.startswith(">"))
        found.append(Reason(count, f"miss {what}", closest))
    for status, words in (
        ("refused", "are refused"),
        ("failed", "failed"),
        ("estimated", "were not played"),
    ):
        alike: dict[str, list[Trial]] = {}
        for trial in trials:
            if trial.status == status:
                alike.setdefault(_NUMBER.sub("n", trial.why), []).append(trial)
        found += [Reason(len(a), words, f"{a[0].why}; {said(a[0].choice)}") for a in alike.values()]
    return sorted(found, key=lambda r: -r.trials)


def _closest(trials: Sequence[Trial], name: str, *, more: bool) -> str:
    have = [t for t in trials if name in t.metrics]
    if not have:
        return said(trials[0].choice)
    best = min(have, key=lambda t: (t.metrics[name] * (-1 if more else 1), t.number))
    return f"{best.metrics[name]:.4g}, {said(best.choice)}"


def smallest_change(
    scenario: AnyScenario, sweep: Sweep, space: Space, limits: tuple[Target, ...],
    max_gpus: int | None = None,
) -> Trial | None:  # fmt: skip
    """The first trial beyond the space that meets the targets: one key after the other is moved.

    It starts from the trials that came nearest; more nodes are tried last.
    """
    starts = sorted(
        sweep.trials,
        key=lambda t: (t.status != "ok", len(t.missed), t.metrics.get("gpu_mem_peak", 9.0)),
    )[:MOST_CHANGES]
    keys = sorted(space.values, key=is_nodes)
    number = sweep.size
    for key in keys:
        for value in space.outside(key):
            for start in starts:
                choice = {**start.choice, key: value}
                trial = _within(try_point(scenario, Point(number, choice), limits), 0.0, max_gpus)
                number += 1
                if trial.meets:
                    return trial
    return None
