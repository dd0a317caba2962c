"""Synchronous HyperBand: trials of a bracket pause at each milestone until all are there.

Real counterpart: ``ray/tune/schedulers/hyperband.py`` (ray 2.60), except ``HyperBandForBOHB``.
"""

from __future__ import annotations

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


class HyperBandScheduler(ByObjective):
    """Ray's constructor and decisions.

    Parameters
    ----------
    time_attr, metric, mode
        As of ``AsyncHyperBandScheduler``.
    max_t
        Trials stop there.
    reduction_factor
        One of so many goes on past a milestone.
    stop_last_trials
        Whether ``max_t`` ends a trial.
    """

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: int = 81,
        reduction_factor: float = 3,
        stop_last_trials: bool = True,
    ) -> None:
        assert max_t > 0, "Max (time_attr) not valid!"
        super().__init__(metric, mode)
        self._time_attr = time_attr
        self._eta = reduction_factor
        self._max_t = max_t
        self._stop_last_trials = stop_last_trials
        self._s_max_1 = int(np.round(np.log(max_t) / np.log(reduction_factor))) + 1
        self.bands: list[list[Bracket | None]] = [[]]
        self._bracket: Bracket | None = None
        self._bracket_of: dict[Trial, Bracket] = {}
        self.num_stopped = 0

    def on_trial_add(self, controller: Controller, trial: Trial) -> None:
        """To the bracket that is being filled; else to a new one of this band or the next."""
        del controller
        self._objective.check()
        while self._bracket is None or self._bracket.filled():
            band = self.bands[-1]
            if len(band) == self._s_max_1:
                band = []
                self.bands.append(band)
            s = len(band)
            first = int(self._max_t * self._eta ** (-s))
            self._bracket = None if first == 0 else Bracket(
                time_attr=self._time_attr,
                max_trials=int(np.ceil(self._s_max_1 / (s + 1) * self._eta**s)),
                first_milestone=first,
                max_t=self._max_t,
                eta=self._eta,
                halvings=s,
                stop_last_trials=self._stop_last_trials,
            )  # fmt: skip
            band.append(self._bracket)
        self._bracket.live[trial] = None
        self._bracket_of[trial] = self._bracket

    def on_trial_error(self, controller: Controller, trial: Trial) -> None:
        """See TrialScheduler."""
        self.on_trial_remove(controller, trial)

    def on_trial_result(self, controller: Controller, trial: Trial, result: Result) -> Decision:
        """See TrialScheduler."""
        bracket = self._bracket_of[trial]
        bracket.update(trial, result)
        if bracket.goes_on(trial):
            return CONTINUE
        return self._process(controller, bracket)

    def on_trial_complete(self, controller: Controller, trial: Trial, result: Result) -> None:
        """See TrialScheduler."""
        del result
        self.on_trial_remove(controller, trial)

    def on_trial_remove(self, controller: Controller, trial: Trial) -> None:
        """Those that are left may have waited for it."""
        bracket = self._bracket_of[trial]
        bracket.live.pop(trial, None)
        if not bracket.finished() and not bracket.is_being_processed:
            self._process(controller, bracket)

    def choose_trial_to_run(self, controller: Controller) -> Trial | None:
        """Of the band's bracket that is least far: pending, or paused and past its milestone."""
        del controller
        for band in self.bands:
            brackets = [b for b in band if b is not None]
            for bracket in sorted(brackets, key=lambda b: b.completion_frac()):
                for trial in bracket.live:
                    paused = trial.status == "PAUSED" and trial in bracket.to_unpause
                    if paused or trial.status == "PENDING":
                        return trial
        return None

    def _process(self, controller: Controller, bracket: Bracket) -> Decision:
        if not bracket.all_at_milestone():
            return PAUSE
        if bracket.finished():
            for trial in list(bracket.live):
                if trial.status == "PAUSED":
                    controller.stop_trial(trial)
            return STOP
        bracket.is_being_processed = True
        good, bad = bracket.halve(str(self.metric), self._objective.sign)
        self.num_stopped += len(bad)
        action: Decision = PAUSE
        for trial in bad:
            if self._stop(controller, bracket, trial):
                action = STOP
        for trial in good:
            if bracket.goes_on(trial):
                if trial.status == "PAUSED" or trial.is_saving:
                    bracket.to_unpause[trial] = None
                elif trial.status == "RUNNING":
                    action = CONTINUE
            elif bracket.finished() and self._stop(controller, bracket, trial):
                action = STOP
        return action

    def _stop(self, controller: Controller, bracket: Bracket, trial: Trial) -> bool:
        """Whether it is the trial whose result is being processed."""
        if trial.status == "PAUSED" or trial.is_saving:
            controller.stop_trial(trial)
            return False
        if trial.status == "RUNNING":
            bracket.live.pop(trial, None)
            return True
        return False


class Bracket:
    """Trials that are halved together."""

    def __init__(
        self,
        *,
        time_attr: str,
        max_trials: int,
        first_milestone: int,
        max_t: int,
        eta: float,
        halvings: int,
        stop_last_trials: bool,
    ) -> None:
        self.live: dict[Trial, Result | None] = {}
        self.is_being_processed = False
        self.to_unpause: dict[Trial, None] = {}
        self.milestone: int = first_milestone
        self._time_attr = time_attr
        self._n = max_trials
        self._max_t = max_t
        self._eta = eta
        self._halvings = halvings
        self._stop_last_trials = stop_last_trials
        self._progress = 0.0
        self._work = self._total_work(max_trials, first_milestone, halvings)

    def filled(self) -> bool:
        """No room for another trial."""
        return len(self.live) == self._n

    def all_at_milestone(self) -> bool:
        """Nobody has to be waited for."""
        return all(self._time(r) >= self.milestone for r in self.live.values())

    def finished(self) -> bool:
        """No milestone is left."""
        return self._stop_last_trials and self._halvings == 0 and self.all_at_milestone()

    def goes_on(self, trial: Trial) -> bool:
        """It has not come to the milestone, or there is none."""
        if not self._stop_last_trials and self._halvings == 0:
            return True
        return bool(self._time(self.live[trial]) < self.milestone)

    def halve(self, metric: str, sign: float) -> tuple[list[Trial], list[Trial]]:
        """(those that go on, those that do not)."""
        if self._halvings == 0 and not self._stop_last_trials:
            return list(self.live), []
        assert self._halvings > 0, f"a bracket with milestone {self.milestone} halved once too much"
        self._halvings -= 1
        self._n = int(np.ceil(self._n / self._eta))
        self.milestone = int(min(self.milestone * self._eta, self._max_t))

        def value(trial: Trial) -> Any:
            result = self.live[trial]
            assert result is not None, f"{trial} is at its milestone without a result"
            return sign * result[metric]

        ranked = sorted(self.live, key=value)
        return ranked[-self._n :], ranked[: -self._n]

    def update(self, trial: Trial, result: Result) -> None:
        """A result has come."""
        assert trial in self.live, f"{trial} reports and is in no bracket"
        self._progress += self._time(result) - self._time(self.live[trial])
        self.live[trial] = result
        self.to_unpause.pop(trial, None)

    def completion_frac(self) -> float:
        """How far it is; removed trials count as they were."""
        return 1.0 if self.finished() else min(self._progress / self._work, 1.0)

    def _time(self, result: Result | None) -> Any:
        return 0 if result is None else result[self._time_attr]

    def _total_work(self, n: int, r: float, halvings: int) -> int:
        work, at = 0, r
        for _ in range(halvings + 1):
            work += int(n) * int(r)
            n = int(np.ceil(n / self._eta))
            r = int(min(r * self._eta, self._max_t - at))
        return work
