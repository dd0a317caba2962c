"""Large spaces: every point is estimated, and only those that may be chosen are played.

Branch and bound with the folded step as the bound: points are played from the best estimate on,
until what is left cannot beat the last of the choices by more than an estimate may be off. The
front of faster and dearer points is played as well. Rounds are of a fixed size, so that the result
does not depend on who plays them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from raysim.planner.choose import RUNS, Objective, choose, objective_of, pareto
from raysim.planner.estimate import ESTIMATED
from raysim.planner.pool import Runner
from raysim.planner.space import Choice, Point, Space, said
from raysim.planner.store import Store
from raysim.planner.sweep import Kept, Sweep, Told, screened, sweep_of
from raysim.planner.tasks import Task
from raysim.planner.trials import Trial
from raysim.results.targets import holds
from raysim.scenario.load import AnyScenario, Scenario
from raysim.scenario.targets import Target

EXHAUSTIVE = 128
"""Points that may fit; of a smaller space all are played."""
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
    likely: float = 0.0


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
    """All points of a space: played, or ruled out by an estimate or by memory.

    An interrupt ends it: what is done is kept and returned.
    """
    kept = Kept(Task(scenario=scenario, limits=limits), runner, store, told)
    kept.known |= screened(scenario, space)
    left = [p for p in space.points() if p.number not in kept.known]
    with contextlib.suppress(KeyboardInterrupt):
        metric = wanted.minimize or wanted.maximize
        told_before = isinstance(scenario, Scenario) and metric in (None, *ESTIMATED)
        if told_before and len(left) > EXHAUSTIVE:
            _bounded(kept, space, left, wanted, limits)
        else:
            kept.attempt(left)
    return sweep_of(kept, space)


def _bounded(
    kept: Kept, space: Space, left: Sequence[Point], wanted: Wanted, limits: tuple[Target, ...]
) -> None:
    kept.attempt(left, "estimated", folded=True)
    guesses = [t for p in left if (t := kept.known[p.number]).status == "estimated"]
    if not guesses:
        return
    objective = objective_of(guesses, wanted.minimize, wanted.maximize)
    guesses.sort(key=objective.key)
    allowed = [t for t in guesses if wanted.max_gpus is None or t.gpus <= wanted.max_gpus]
    within = {t.number for t in allowed if _may_meet(t, limits)}
    played: list[Trial] = []
    rivals: list[Trial] = []
    while True:
        last = _last_choice(Sweep(tuple(played), space.size), objective, wanted)
        left_open = [t for t in allowed or guesses if kept.known[t.number].status == "estimated"]
        left_open = _ruled_by_memory(kept, left_open, played)
        able = [t for t in left_open if t.number in within or not within]
        rivals = [t for t in able if last is None or _may_beat(t, last, objective)]
        front = pareto([*left_open, *played], objective, RUNS)
        wants = {t.number: t for t in [*rivals[:ROUND], *front] if t.status == "estimated"}
        if not wants or len(played) >= (MOST_PLAYED if within else ROUND):
            break
        kept.attempt([Point(t.number, t.choice) for t in wants.values()], "of the best played")
        played += [kept.known[number] for number in wants]
    _explain(kept, within, {t.number for t in rivals})


def _last_choice(played: Sweep, objective: Objective, wanted: Wanted) -> Trial | None:
    """The last of the choices so far; None while there are fewer."""
    best = choose(played, objective, likely=wanted.likely, max_gpus=wanted.max_gpus).ranked
    return best[CHOICES - 1] if len(best) >= CHOICES else None


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


def _may_beat(guess: Trial, last: Trial, objective: Objective) -> bool:
    value, bar = guess.metrics[objective.metric], last.metrics[objective.metric]
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
