"""All points of a space, tried once: kept as they come, gone on with where an interrupt stopped.

Whoever sweeps the same space of the same scenario again reads what is in the store first.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import raysim
from raysim.kernel.progress import Told
from raysim.planner.draws import DRAWS, seeds_of
from raysim.planner.pool import Runner
from raysim.planner.screen import screen_of
from raysim.planner.space import Point, Space
from raysim.planner.store import Store
from raysim.planner.tasks import Task
from raysim.planner.trials import Trial
from raysim.results.result import run_id
from raysim.results.targets import METRICS
from raysim.scenario.load import AnyScenario
from raysim.scenario.targets import Target

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Trials by number, and how many points the space has."""

    trials: tuple[Trial, ...]
    size: int
    unseen: int = 0
    """Points that a search has left alone on purpose, having ended."""

    @property
    def complete(self) -> bool:
        """Nothing is left to do."""
        return len(self.trials) + self.unseen == self.size

    @property
    def frame(self) -> pd.DataFrame:
        """A row per trial: keys of the space, then what came of it."""
        import pandas as pd

        rows = [
            {
                **t.choice, "status": t.status, "why": t.why, "strategy": t.strategy,
                "gpus": t.gpus, "nodes": t.nodes, "bound_by": t.bound_by,
                "missed": "; ".join(t.missed), "likely": t.likely, "run_id": t.run_id,
                **dict.fromkeys(METRICS), **t.metrics,
            }
            for t in self.trials
        ]  # fmt: skip
        return pd.DataFrame(rows, index=pd.Index([t.number for t in self.trials], name="trial"))


class Kept:
    """Trials of a space, tried or read: each point once, whatever asks for it."""

    def __init__(self, task: Task, runner: Runner, store: Store | None, told: Told | None) -> None:
        self.task = task
        self.known: dict[int, Trial] = {}
        """By number."""
        self._runner = runner
        self._store = store
        self._told = told
        self._read = {} if store is None else store.read()
        self.noted: Callable[[Trial], str] = lambda _: ""
        """Given every trial as it comes; what it says follows how many are done."""

    def attempt(
        self, points: Iterable[Point], what: str = "tried", *, folded: bool = False
    ) -> None:
        """Try points, or take what an earlier search found; ``what`` is done, for the progress."""
        left, asked = [], list(points)
        for point in asked:
            trial = self._read.get((point.number, folded))
            if trial is None:
                left.append(point)
            else:
                self.known[point.number] = trial
                self.noted(trial)
        if self._told is not None and asked:
            done = len(asked) - len(left)
            self._told(f"{done:,} of {len(asked):,} {what}", done / len(asked))
        logger.info("%d points to try, %d were there", len(left), len(asked) - len(left))
        task = replace(self.task, folded=folded)
        try:
            for done, trial in enumerate(self._runner(task, left), len(asked) - len(left) + 1):
                self.known[trial.number] = trial
                if self._store is not None:
                    self._store.add(trial, folded=folded)
                logger.info("point %s: %s %s", trial.choice, trial.status, trial.why)
                beside = self.noted(trial)
                if self._told is not None:
                    self._told(f"{done:,} of {len(asked):,} {what}{beside}", done / len(asked))
        finally:
            if self._store is not None:
                self._store.flush()


def sweep_id(scenario: AnyScenario, space: Space, limits: Sequence[Target]) -> str:
    """Of the folder: equal for the same scenario, space, limits and version."""
    asked: dict[str, Any] = {
        "space": {key: list(values) for key, values in space.values.items()},
        "limits": [(t.name, t.condition) for t in limits],
    }
    if seeds_of(scenario, {}):
        asked["draws"] = DRAWS
    text = json.dumps(asked, sort_keys=True, default=str)
    own = hashlib.sha256(text.encode()).hexdigest()[:6]
    return f"{run_id(scenario.resolved(), raysim.__version__)}-{own}"


def screened(
    scenario: AnyScenario, space: Space, points: Iterable[Point] | None = None
) -> dict[int, Trial]:
    """Those of the points, by default of all, that cannot fit, by number."""
    screen = screen_of(scenario, space)
    if screen is None:
        return {}
    looked_at = space.points() if points is None else points
    return {p.number: out for p in looked_at if (out := screen(p)) is not None}


def sweep(
    scenario: AnyScenario,
    space: Space,
    runner: Runner,
    *,
    limits: tuple[Target, ...] = (),
    store: Store | None = None,
) -> Sweep:
    """Try every point that the store does not have and that may fit.

    An interrupt ends it: what is done is kept and returned.
    """
    kept = Kept(Task(scenario=scenario, limits=limits), runner, store, None)
    kept.known |= screened(scenario, space)
    with contextlib.suppress(KeyboardInterrupt):
        kept.attempt(p for p in space.points() if p.number not in kept.known)
    return sweep_of(kept, space)


def sweep_of(kept: Kept, space: Space, unseen: int = 0) -> Sweep:
    """What is known of a space.

    Estimates that nobody has decided on belong to a search that was interrupted: with them it would
    be complete, and what they may come to out of its reach.
    """
    known = (kept.known[n] for n in sorted(kept.known))
    return Sweep(tuple(t for t in known if t.status != "estimated" or t.why), space.size, unseen)
