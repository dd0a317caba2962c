"""Keys whose values made no difference, and keys whose best value is the last that was tried.

A plan that varies the former says so, and does not advise; of the latter it says what to try next.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from raysim.planner.choose import Objective
from raysim.planner.space import Space
from raysim.planner.trials import Trial

SAME_FRAC = 1e-9
GAIN_FRAC = 0.02
"""By which the last step towards an end must have paid for another one to be advised."""
COUNTS = ("nodes", "replicas", "num_replicas", "min_replicas", "max_replicas", "min_workers",
          "max_workers")  # fmt: skip
"""Last parts of keys that go on beyond any end: machines and copies of what runs on them."""


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


def beyond_ends(
    trials: Sequence[Trial], space: Space, best: Trial | None, objective: Objective
) -> dict[str, list[int]]:
    """Values to try next, by key: of the best choice it has the most (or fewest) of those tried.

    Only where the neighbour that differs in this key alone meets the targets too, and is worse.
    """
    found: dict[str, list[int]] = {}
    for key, values in space.values.items():
        counts = sorted({v for v in values if isinstance(v, int) and not isinstance(v, bool)})
        if best is None or key.rpartition(".")[2] not in COUNTS or len(counts) < 2:
            continue
        mine = best.choice.get(key)
        if mine == counts[-1]:
            inner, further = counts[-2], [mine, 2 * mine, 4 * mine]
        elif mine == counts[0] and mine > 1:
            inner, further = counts[1], [mine // 2, mine]
        else:
            continue
        other = next((t for t in trials if t.choice == {**best.choice, key: inner}), None)
        there = other is not None and other.meets and objective.metric in other.metrics
        if other is not None and there and _pays(best, other, objective):
            found[key] = further
    return found


def _pays(best: Trial, other: Trial, objective: Objective) -> bool:
    here, there = (objective.value(t) for t in (best, other))
    return there - here > GAIN_FRAC * abs(there)
