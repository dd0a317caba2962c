"""Asynchronous successive halving: at each rung a trial stops unless it is among the best so far.

Real counterpart: ``ray/tune/schedulers/async_hyperband.py`` (ray 2.60). A rung's cutoff is numpy's
``nanpercentile`` (linear) of what has been recorded there; it is kept sorted here.
"""

from __future__ import annotations

import math
from bisect import insort
from typing import Any

import numpy as np

from raysim.raylibs.tune.schedulers.decisions import (
    CONTINUE,
    STOP,
    ByObjective,
    Controller,
    Decision,
    Result,
)
from raysim.raylibs.tune.trial import Trial


class AsyncHyperBandScheduler(ByObjective):
    """Ray's constructor and decisions.

    Parameters
    ----------
    time_attr
        What of a result says how far the trial is.
    metric, mode
        What is to be max or min.
    max_t
        Trials stop there.
    grace_period
        The first rung.
    reduction_factor
        One of so many goes on; rungs are as many times further apart.
    brackets
        Each begins a rung later; trials are drawn into them.
    stop_last_trials
        Whether ``max_t`` ends a trial.
    """

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: int = 100,
        grace_period: int = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
        stop_last_trials: bool = True,
    ) -> None:
        assert max_t > 0, "Max (time_attr) not valid!"
        assert max_t >= grace_period, "grace_period must be <= max_t!"
        assert grace_period > 0, "grace_period must be positive!"
        assert reduction_factor > 1, "Reduction Factor not valid!"
        assert brackets > 0, "brackets must be positive!"
        super().__init__(metric, mode)
        self._time_attr = time_attr
        self._max_t = max_t
        self._stop_last_trials = stop_last_trials
        self.brackets = [
            Bracket(grace_period, max_t, reduction_factor, s, stop_last_trials=stop_last_trials)
            for s in range(brackets)
        ]
        self._bracket_of: dict[str, Bracket] = {}
        self.num_stopped = 0

    def on_trial_add(self, controller: Controller, trial: Trial) -> None:
        """Draw its bracket: by a softmax of the brackets' numbers of rungs."""
        self._objective.check()
        sizes = np.array([len(b.rungs) for b in self.brackets])
        probabilities = np.e ** (sizes - sizes.max())
        index = controller.rng().choice(len(self.brackets), p=probabilities / probabilities.sum())
        self._bracket_of[trial.trial_id] = self.brackets[int(index)]

    def on_trial_error(self, controller: Controller, trial: Trial) -> None:
        """See TrialScheduler."""

    def on_trial_result(self, controller: Controller, trial: Trial, result: Result) -> Decision:
        """See TrialScheduler."""
        del controller
        if self._time_attr not in result or self.metric not in result:
            return CONTINUE
        if result[self._time_attr] >= self._max_t and self._stop_last_trials:
            action = STOP
        else:
            action = self._on_result(trial, result)
        if action == STOP:
            self.num_stopped += 1
        return action

    def on_trial_complete(self, controller: Controller, trial: Trial, result: Result) -> None:
        """Its last result counts for others."""
        del controller
        if self._time_attr in result and self.metric in result:
            self._on_result(trial, result)
            del self._bracket_of[trial.trial_id]

    def on_trial_remove(self, controller: Controller, trial: Trial) -> None:
        """See TrialScheduler."""
        del controller
        del self._bracket_of[trial.trial_id]

    def choose_trial_to_run(self, controller: Controller) -> Trial | None:
        """See TrialScheduler."""
        return controller.first_waiting()

    def _on_result(self, trial: Trial, result: Result) -> Decision:
        value = result[str(self.metric)]
        bracket = self._bracket_of[trial.trial_id]
        return bracket.on_result(
            trial.trial_id, result[self._time_attr], self._objective.sign * value
        )


class Bracket:
    """Rungs, the furthest first, and what trials had there."""

    def __init__(
        self, min_t: int, max_t: int, reduction_factor: float, s: int, *, stop_last_trials: bool
    ) -> None:
        self.reduction_factor = reduction_factor
        self.stop_last_trials = stop_last_trials
        count = int(np.log(max_t / min_t) / np.log(reduction_factor) - s + 1)
        self.rungs = [
            Rung(min_t * reduction_factor ** (k + s), 1 - 1 / reduction_factor)
            for k in reversed(range(count))
        ]

    def on_result(self, trial_id: str, at: float, reward: float) -> Decision:
        """Compare it at the furthest rung that it reaches for the first time."""
        for rung in self.rungs:
            seen = trial_id in rung.recorded
            if at >= rung.milestone and seen and not self.stop_last_trials:
                return CONTINUE
            if at < rung.milestone or seen:
                continue
            cutoff = rung.cutoff()
            rung.record(trial_id, reward)
            return STOP if cutoff is not None and reward < cutoff else CONTINUE
        return CONTINUE


class Rung:
    """What the trials that came by had."""

    __slots__ = ("_quantile", "_sorted", "milestone", "recorded")

    def __init__(self, milestone: float, quantile: float) -> None:
        self.milestone = milestone
        self.recorded: dict[str, float] = {}
        self._quantile = quantile * 100 / 100  # as nanpercentile undoes Ray's * 100
        self._sorted: list[float] = []

    def record(self, trial_id: str, reward: float) -> None:
        """One more."""
        self.recorded[trial_id] = reward
        if not math.isnan(reward):
            insort(self._sorted, reward)

    def cutoff(self) -> float | None:
        """``np.nanpercentile(recorded, quantile * 100)``; None of nothing."""
        if not self.recorded:
            return None
        values: Any = self._sorted
        if not values:
            return math.nan
        place = self._quantile * (len(values) - 1)
        low = math.floor(place)
        if low + 1 >= len(values):
            return float(values[-1])
        share, below, above = place - low, values[low], values[low + 1]
        if share >= 0.5:  # numpy's _lerp keeps its ends exact so
            return float(above - (above - below) * (1 - share))
        return float(below + (above - below) * share)
