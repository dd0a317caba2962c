"""All points of a space, tried once: kept as they come, gone on with where an interrupt stopped.

Trials stand in ``parts/`` of a folder, a file for every so many; whoever sweeps the same space of
the same scenario again reads them first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import raysim
from raysim.planner.pool import Runner
from raysim.planner.screen import screen_of
from raysim.planner.space import Point, Space
from raysim.planner.trials import Trial, of_plain, try_point
from raysim.results.result import run_id
from raysim.results.targets import METRICS
from raysim.scenario.load import Scenario
from raysim.scenario.targets import Target

if TYPE_CHECKING:
    import pandas as pd

PART = 64
"""Trials per file: what a crash may cost; an interrupt costs nothing."""
Told = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Sweep:
    """Trials by number, and how many points the space has."""

    trials: tuple[Trial, ...]
    size: int

    @property
    def complete(self) -> bool:
        """All points have been tried."""
        return len(self.trials) == self.size

    @property
    def frame(self) -> pd.DataFrame:
        """A row per trial: keys of the space, then what came of it."""
        import pandas as pd

        rows = [
            {
                **t.choice, "status": t.status, "why": t.why, "strategy": t.strategy,
                "gpus": t.gpus, "bound_by": t.bound_by, "missed": "; ".join(t.missed),
                "likely": t.likely, "run_id": t.run_id, **dict.fromkeys(METRICS), **t.metrics,
            }
            for t in self.trials
        ]  # fmt: skip
        return pd.DataFrame(rows, index=pd.Index([t.number for t in self.trials], name="trial"))


class Store:
    """Trials on disk."""

    def __init__(self, folder: Path) -> None:
        self.parts = folder / "parts"
        self._held: list[Trial] = []

    def read(self) -> dict[int, Trial]:
        """Those of earlier sweeps."""
        found = {}
        for file in sorted(self.parts.glob("*.json")):
            for plain in json.loads(file.read_text(encoding="utf-8")):
                trial = of_plain(plain)
                found[trial.number] = trial
        return found

    def add(self, trial: Trial) -> None:
        """Keep one more."""
        self._held.append(trial)
        if len(self._held) >= PART:
            self.flush()

    def flush(self) -> None:
        """Write what is held."""
        if not self._held:
            return
        self.parts.mkdir(parents=True, exist_ok=True)
        text = json.dumps([t.plain() for t in self._held])
        name = self.parts / f"{self._held[0].number:08d}-{len(self._held)}.json"
        aside = name.with_suffix(".new")
        aside.write_text(text, encoding="utf-8")
        aside.replace(name)
        self._held.clear()


def sweep_id(scenario: Scenario, space: Space, limits: Sequence[Target]) -> str:
    """Of the folder: equal for the same scenario, space, limits and version."""
    asked = {
        "space": {key: list(values) for key, values in space.values.items()},
        "limits": [(t.name, t.condition) for t in limits],
    }
    text = json.dumps(asked, sort_keys=True, default=str)
    own = hashlib.sha256(text.encode()).hexdigest()[:6]
    return f"{run_id(scenario.resolved(), raysim.__version__)}-{own}"


def sweep(
    scenario: Scenario,
    space: Space,
    runner: Runner,
    *,
    limits: tuple[Target, ...] = (),
    store: Store | None = None,
    told: Told | None = None,
) -> Sweep:
    """Try every point that the store does not have and that may fit.

    ``told(done, of)`` after each. An interrupt ends it: what is done is kept and returned.
    """
    known = store.read() if store is not None else {}
    screen = screen_of(scenario, space)
    if screen is not None:
        for point in space.points():
            if point.number not in known and (out := screen(point)) is not None:
                known[point.number] = out
    left: Iterable[Point] = (p for p in space.points() if p.number not in known)
    try:
        for trial in _tried(scenario, left, limits, runner, space.size - len(known)):
            known[trial.number] = trial
            if store is not None:
                store.add(trial)
            if told is not None:
                told(len(known), space.size)
    except KeyboardInterrupt:
        pass
    finally:
        if store is not None:
            store.flush()
    return Sweep(tuple(known[n] for n in sorted(known)), space.size)


FEW = 8
"""Points that take less time than starting processes."""


def _tried(
    scenario: Scenario, left: Iterable[Point], limits: tuple[Target, ...], runner: Runner,
    count: int,
) -> Iterator[Trial]:  # fmt: skip
    """By the runner; a few are tried here."""
    if count <= FEW:
        for point in left:
            yield try_point(scenario, point, limits)
    else:
        yield from runner(scenario, left, limits)
