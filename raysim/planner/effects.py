"""Keys whose values made no difference: a plan that varies them says so, and does not advise."""

from __future__ import annotations

import json
from collections.abc import Sequence

from raysim.planner.space import Space
from raysim.planner.trials import Trial

SAME_FRAC = 1e-9


def without_effect(trials: Sequence[Trial], space: Space) -> list[str]:
    """Keys that some trials differ in alone, and nothing but their values ever does."""
    ran = [t for t in trials if t.status in ("ok", "estimated", "out_of_memory") and t.metrics]
    return [key for key in space.values if _idle(ran, key)]


def _idle(trials: Sequence[Trial], key: str) -> bool:
    first: dict[str, Trial] = {}
    compared = False
    for trial in trials:
        others = {k: v for k, v in trial.choice.items() if k != key}
        alike = json.dumps([trial.status == "estimated", others], sort_keys=True, default=str)
        other = first.setdefault(alike, trial)
        if other is trial:
            continue
        compared = True
        if not _same(trial, other):
            return False
    return compared


def _same(trial: Trial, other: Trial) -> bool:
    if trial.status != other.status or trial.metrics.keys() != other.metrics.keys():
        return False
    return all(
        abs(value - other.metrics[name]) <= SAME_FRAC * abs(value)
        for name, value in trial.metrics.items()
    )
