"""Large spaces: every point is estimated, and only those that may be chosen are played.

Branch and bound with the folded step as the bound: points are played from the best estimate on,
until what is left cannot beat the last of the choices by more than an estimate may be off. The
front of faster and dearer points is played as well. Rounds are of a fixed size, so that the result
does not depend on who plays them.

Spaces too large for that are looked at from an even sample on: neighbours of the best, which differ
in one key, until none is better. The answer says how many points were not looked at.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from raysim.kernel.progress import Told
from raysim.planner.choose import RUNS, Objective, best_of_each, choose, objective_of, pareto
from raysim.planner.estimate import ESTIMATED
from raysim.planner.pool import Runner
from raysim.planner.space import Choice, Point, Space, said
from raysim.planner.store import Store
from raysim.planner.sweep import Kept, Sweep, screened, sweep_of
from raysim.planner.tasks import Task
from raysim.planner.trials import Trial
from raysim.results.targets import METRICS, holds, show
from raysim.scenario.load import AnyScenario, Scenario
from raysim.scenario.targets import Target

EXHAUSTIVE = 128
"""Points that may fit; of a smaller space all are played."""
MOST_ESTIMATED = 50_000
"""Points that are all estimated (some ten milliseconds each); of a larger space a sample is."""
SAMPLE = 8192
MARGIN = 0.03
"""What a folded step may be off (``tests/laws/test_training_folding.py``)."""
ROUND = 16
CHOICES = 5
"""How many of the best are to be right."""
MOST_PLAYED = 512
"""Points played at most: where a key has no effect, thousands are equally good."""
_MEMORY_GROWS: Mapping[str, Sequence[Any] | None] = {
    "train.micro_batch": None,
    "train.megatron.micro_batch_size": None,
    "train.activation_checkpointing": ("full", "none"),
}
"""Values from the least memory to the most; None: numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the choice is to be."""

    minimize: str | None = None
    maximize: str | None = None
    max_gpus: int | None = None
    likely: float | None = None
    """Least probability that it fits and all targets are met; None: those of 0.8 go first."""
    quantile: float | None = None
    """Rank by the objective at this quantile of its interval, towards the worse; None: as
    predicted."""


_SAID_BY_UNIT = ("usd", "seconds", "step_seconds")


class Leader:
    """The best trial of those seen so far that meet the targets, in words."""

    def __init__(self, scenario: AnyScenario, wanted: Wanted) -> None:
        self._units = scenario.metrics
        self._scenario = scenario
        self._wanted = wanted
        self._objective: Objective | None = None
        self._best: Trial | None = None

    def __call__(self, trial: Trial) -> str:
        """``, best so far $11,900``; nothing before one meets them."""
        most = self._wanted.max_gpus
        if trial.meets and (most is None or trial.gpus <= most):
            self._compare(trial)
        best, objective = self._best, self._objective
        if best is None or objective is None:
            return ""
        unit = self._units.get(objective.metric, "")
        name = "" if objective.metric in _SAID_BY_UNIT else f"{objective.metric} "
        return f", best so far {name}{show(best.metrics[objective.metric], unit)}"

    def _compare(self, trial: Trial) -> None:
        if self._objective is None:
            self._objective = _objective([trial], self._wanted, self._scenario)
        if self._objective.metric not in trial.metrics:
            return
        if self._best is None or self._objective.key(trial) < self._objective.key(self._best):
            self._best = trial


def search(
    scenario: AnyScenario,
    space: Space,
    runner: Runner,
    *,
    wanted: Wanted,
    limits: tuple[Target, ...] = (),
    store: Store | None = None,
    told: Told | None = None,
) -> Sweep:
    """All points of a space: played, or ruled out by an estimate or by memory; or left alone.

    An interrupt ends it: what is done is kept and returned.
    """
    kept = Kept(Task(scenario=scenario, limits=limits), runner, store, told)
    kept.noted = Leader(scenario, wanted)
    if told is not None:
        told("which points may fit at all", 0.0)
    metric = wanted.minimize or wanted.maximize
    bounded = isinstance(scenario, Scenario) and metric in (None, *ESTIMATED)
    hunt = _Hunt(scenario, space, kept, wanted, limits, bounded=bounded)
    large = space.size > MOST_ESTIMATED
    unseen = 0
    with contextlib.suppress(KeyboardInterrupt):
        hunt.look_at(space.sample(SAMPLE) if large else space.points())
        while large and (near := hunt.unseen_neighbours()):
            hunt.look_at(space.at(number) for number in near)
        unseen = space.size - len(kept.known)
    return sweep_of(kept, space, unseen)


@dataclass(frozen=True, slots=True)
class _Hunt:
    """Points looked at so far, and where better ones may be."""

    scenario: AnyScenario
    space: Space
    kept: Kept
    wanted: Wanted
    limits: tuple[Target, ...]
    _: KW_ONLY
    bounded: bool
    """A folded step bounds what is wanted."""

    def look_at(self, points: Iterable[Point]) -> None:
        """Screen points, then play them; of many, estimate them and play what may be chosen."""
        asked = [p for p in points if p.number not in self.kept.known]
        self.kept.known |= screened(self.scenario, self.space, asked)
        left = [p for p in asked if p.number not in self.kept.known]
        again = any(t.status == "estimated" for t in self.kept.known.values())
        if self.bounded and (again or len(left) > EXHAUSTIVE):
            _bounded(self.kept, self.space, left, self.wanted, self.limits)
        else:
            self.kept.attempt(left)

    def unseen_neighbours(self) -> list[int]:
        """Of the best so far, and while nothing meets the targets, of what comes closest."""
        known = self.kept.known
        ran = [t for t in known.values() if t.status == "ok"]
        objective = _objective(ran, self.wanted, self.scenario)
        found = Sweep(tuple(ran), self.space.size)
        best = choose(found, objective, likely=self.wanted.likely, max_gpus=self.wanted.max_gpus)
        centres = (
            best.ranked[:CHOICES]
            or sorted(
                (t for t in known.values() if t.status in ("ok", "out_of_memory")),
                key=lambda t: (len(t.missed), t.metrics.get("gpu_mem_peak", 9.0), t.number),
            )[:CHOICES]
        )
        near = {n for t in centres for n in self.space.near(t.number)}
        return sorted(near - known.keys())


def _objective(trials: Iterable[Trial], wanted: Wanted, scenario: AnyScenario) -> Objective:
    known = {**METRICS, **scenario.metrics}
    return objective_of(
        trials, wanted.minimize, wanted.maximize, known=known, quantile=wanted.quantile,
        likely=wanted.likely,
    )  # fmt: skip


def _bounded(
    kept: Kept, space: Space, left: Sequence[Point], wanted: Wanted, limits: tuple[Target, ...]
) -> None:
    """Play, best guess first, until nobody left may beat what was played."""
    kept.attempt(left, "estimated", folded=True)
    guesses = [t for t in kept.known.values() if t.status == "estimated"]
    played = sorted((t for t in kept.known.values() if t.strategy), key=lambda t: t.number)
    if not guesses:
        return
    objective = _objective(guesses, wanted, kept.task.scenario)
    guesses.sort(key=objective.key)
    allowed = [t for t in guesses if wanted.max_gpus is None or t.gpus <= wanted.max_gpus]
    within = {t.number for t in allowed if _may_meet(t, limits)}
    rivals: list[Trial] = []
    while True:
        last = _last_choice(Sweep(tuple(played), space.size), objective, wanted)
        best = min if objective.direction == "minimize" else max
        factor = best((objective.factor(t) for t in played), default=1.0)
        left_open = [t for t in allowed or guesses if kept.known[t.number].status == "estimated"]
        left_open = _ruled_by_memory(kept, left_open, played)
        able = [t for t in left_open if t.number in within or not within]
        rivals = [t for t in able if last is None or _may_beat(t, last, objective, factor)]
        front = pareto([*left_open, *played], objective, RUNS)
        front += best_of_each([*able, *played], objective, RUNS)
        wants = {t.number: t for t in [*rivals[:ROUND], *front] if t.status == "estimated"}
        if not wants or len(played) >= (MOST_PLAYED if within else ROUND):
            break
        kept.attempt([Point(t.number, t.choice) for t in wants.values()], "of the best played")
        played += [kept.known[number] for number in wants]
    _explain(kept, within, {t.number for t in rivals})


def _last_choice(played: Sweep, objective: Objective, wanted: Wanted) -> Trial | None:
    """The last of the choices so far; None while there are fewer that can be counted on.

    Where few can be, it is left at that once as many were played as of a small space.
    """
    best = choose(played, objective, likely=wanted.likely, max_gpus=wanted.max_gpus).ranked
    if len(best) < CHOICES:
        return None
    if objective.doubt(best[CHOICES - 1]):
        if len(played.trials) < EXHAUSTIVE:
            return None
        best = tuple(sorted(best, key=objective.value))
    return best[CHOICES - 1]


def _explain(kept: Kept, within: set[int], rivals: set[int]) -> None:
    """Say of each point why it was only estimated."""
    for number, trial in kept.known.items():
        if trial.status != "estimated":
            continue
        why = "slower or dearer than the choices"
        if number not in within:
            why = "the targets are out of their reach"
        elif number in rivals:
            why = f"within {MARGIN:.0%} of the choices, which so many are"
        kept.known[number] = replace(trial, why=why)


def _may_meet(guess: Trial, limits: Iterable[Target]) -> bool:
    """Whether a point may meet the targets, going by what is estimated at its best."""
    told = [(t, guess.metrics[t.name]) for t in limits if t.name in guess.metrics]
    return all(
        holds(target, value * (1 - MARGIN)) or holds(target, value * (1 + MARGIN))
        for target, value in told
    )


def _may_beat(guess: Trial, last: Trial, objective: Objective, factor: float) -> bool:
    """Whether a guess may be better; ``factor`` is what a quantile may make of it at best."""
    value, bar = abs(guess.metrics[objective.metric]) * factor, abs(objective.value(last))
    if objective.direction == "minimize":
        return value * (1 - MARGIN) < bar
    return value * (1 + MARGIN) > bar


def _ruled_by_memory(kept: Kept, guesses: list[Trial], played: Sequence[Trial]) -> list[Trial]:
    """Guesses left when those go that hold more than a point that was played and did not fit."""
    full: dict[tuple[Any, ...], list[Trial]] = {}
    for trial in played:
        if trial.status == "out_of_memory":
            full.setdefault(_others(trial.choice), []).append(trial)
    left = []
    for guess in guesses:
        worse = next(
            (t for t in full.get(_others(guess.choice), ()) if _holds_more(guess.choice, t.choice)),
            None,
        )  # fmt: skip
        if worse is None:
            left.append(guess)
            continue
        kept.known[guess.number] = replace(
            guess, status="out_of_memory", metrics={},
            why=f"less does not fit already: {said(worse.choice)}",
        )  # fmt: skip
    return left


def _others(choice: Choice) -> tuple[Any, ...]:
    """What of a choice does not only scale activations."""
    return tuple((k, repr(v)) for k, v in choice.items() if k not in _MEMORY_GROWS)


def _holds_more(choice: Choice, than: Choice) -> bool:
    """At least as much of everything that activations grow with."""
    for key, order in _MEMORY_GROWS.items():
        if key not in choice:
            continue
        mine, other = choice[key], than[key]
        if order is not None:
            if mine not in order or other not in order:
                if mine != other:
                    return False
                continue
            mine, other = order.index(mine), order.index(other)
        if not isinstance(mine, int) or not isinstance(other, int) or mine < other:
            return False
    return True
