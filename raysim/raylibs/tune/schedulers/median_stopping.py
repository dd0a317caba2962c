"""Stop a trial whose best is worse than the median of the others' running means.

Real counterpart: ``ray/tune/schedulers/median_stopping_rule.py`` (ray 2.60).
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from raysim.raylibs.tune.schedulers.decisions import (
    CONTINUE,
    PAUSE,
    STOP,
    ByObjective,
    Controller,
    Decision,
    Result,
)
from raysim.raylibs.tune.trial import Trial


class MedianStoppingRule(ByObjective):
    """Ray's constructor and decisions.

    Parameters
    ----------
    time_attr, metric, mode
        As of ``AsyncHyperBandScheduler``.
    grace_period
        No trial stops before; means are of results from then on.
    min_samples_required
        Of so many other trials at least.
    min_time_slice
        A trial without enough others to compare to runs at least so long before it yields.
    hard_stop
        False: pause instead; paused ones go on when no other waits.
    """

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        grace_period: float = 60.0,
        min_samples_required: int = 3,
        min_time_slice: int = 0,
        hard_stop: bool = True,
    ) -> None:
        super().__init__(metric, mode)
        self._time_attr = time_attr
        self._grace_period = grace_period
        self._min_samples_required = min_samples_required
        self._min_time_slice = min_time_slice
        self._hard_stop = hard_stop
        self._stopped: dict[Trial, None] = {}
        self._last_pause: dict[Trial, float] = defaultdict(lambda: float("-inf"))
        self._results: dict[Trial, list[Result]] = defaultdict(list)

    def on_trial_add(self, controller: Controller, trial: Trial) -> None:
        """See TrialScheduler."""
        del controller, trial
        self._objective.check()

    def on_trial_error(self, controller: Controller, trial: Trial) -> None:
        """See TrialScheduler."""

    def on_trial_result(self, controller: Controller, trial: Trial, result: Result) -> Decision:
        """See TrialScheduler."""
        if self._time_attr not in result or self.metric not in result:
            return CONTINUE
        if trial in self._stopped:
            return CONTINUE
        at = result[self._time_attr]
        self._results[trial].append(result)
        if at < self._grace_period:
            return CONTINUE
        means = [
            mean
            for other, results in self._results.items()
            if other is not trial and results[-1][self._time_attr] >= at
            and np.isfinite(mean := self._running_mean(results, at))
        ]  # fmt: skip
        if len(means) < self._min_samples_required:
            return self._on_insufficient_samples(controller, trial, at)
        better = max if self._objective.mode == "max" else min
        best = better(r[str(self.metric)] for r in self._results[trial])
        if better(float(np.median(means)), best) == best:
            return CONTINUE
        self._stopped[trial] = None
        return STOP if self._hard_stop else PAUSE

    def on_trial_complete(self, controller: Controller, trial: Trial, result: Result) -> None:
        """See TrialScheduler."""
        del controller
        self._results[trial].append(result)

    def on_trial_remove(self, controller: Controller, trial: Trial) -> None:
        """See TrialScheduler."""

    def choose_trial_to_run(self, controller: Controller) -> Trial | None:
        """See TrialScheduler."""
        return controller.first_waiting()

    def _on_insufficient_samples(self, controller: Controller, trial: Trial, at: float) -> Decision:
        waited = at - self._last_pause[trial] > self._min_time_slice
        if waited and controller.first_waiting() is not None:
            self._last_pause[trial] = at
            return PAUSE
        return CONTINUE

    def _running_mean(self, results: list[Result], at: float) -> Any:
        scoped = [
            r[str(self.metric)] for r in results if self._grace_period <= r[self._time_attr] <= at
        ]
        return np.mean(scoped) if scoped else np.nan
