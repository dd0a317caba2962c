"""What a trial scheduler is asked, what it may answer, and what it may ask of the controller.

Real counterpart: ``TrialScheduler`` in ``ray/tune/schedulers/trial_scheduler.py`` (ray 2.60).
Decisions are functions of the results that came before and of random draws, never of the clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from raysim.raylibs.tune.trial import Trial

Decision = Literal["CONTINUE", "PAUSE", "STOP", "NOOP"]

CONTINUE: Decision = "CONTINUE"
PAUSE: Decision = "PAUSE"
STOP: Decision = "STOP"
NOOP: Decision = "NOOP"
"""The scheduler has told the controller itself."""

Result = Mapping[str, Any]
"""What a trial reports, flat: nested keys joined by ``/``."""

DEFAULT_METRIC = "_metric"
"""A number that a function trainable returns (``ray/tune/result.py``)."""


class Controller(Protocol):
    """What schedulers see of ``TuneController``."""

    search_alg: Any

    def get_trials(self) -> Sequence[Trial]:
        """All, in order; a trial that failed and goes on has moved to the end."""

    def get_live_trials(self) -> Sequence[Trial]:
        """Those not ended."""

    def first_waiting(self) -> Trial | None:
        """The first PENDING of ``get_trials()``, else the first PAUSED."""

    def stop_trial(self, trial: Trial) -> None:
        """Stop it, whatever it does."""

    def pause_trial(self, trial: Trial, should_checkpoint: bool = True) -> None:
        """Give its resources to others."""

    def schedule_trial_save(self, trial: Trial, result: Result | None = None) -> Any:
        """Have it save; something to ``resolve``, or None."""

    def rng(self) -> Any:
        """Draws in the manner of numpy's module of global draws."""


class TrialScheduler(Protocol):
    """As Ray's interface of the same name."""

    @property
    def metric(self) -> str | None:
        """Which value of a result it looks at."""

    def set_search_properties(self, metric: str | None, mode: str | None) -> bool:
        """From ``TuneConfig``; False if the scheduler has been told already."""

    def on_trial_add(self, controller: Controller, trial: Trial) -> None:
        """There is a new trial."""

    def on_trial_error(self, controller: Controller, trial: Trial) -> None:
        """A running one has failed."""

    def on_trial_result(self, controller: Controller, trial: Trial, result: Result) -> Any:
        """A decision, or a script that ends with one where the driver has to wait."""

    def on_trial_complete(self, controller: Controller, trial: Trial, result: Result) -> None:
        """A running one has ended."""

    def on_trial_remove(self, controller: Controller, trial: Trial) -> None:
        """A paused or pending one is taken away."""

    def choose_trial_to_run(self, controller: Controller) -> Trial | None:
        """Which PENDING or PAUSED trial is to run next; asked at every step."""


class TuneError(Exception):
    """``ray.tune.TuneError``."""


class Objective:
    """``metric`` and ``mode``, from the scheduler's constructor or from ``TuneConfig``."""

    __slots__ = ("metric", "mode", "owner")

    def __init__(self, owner: str, metric: str | None, mode: str | None) -> None:
        if mode:
            assert mode in ("min", "max"), "`mode` must be 'min' or 'max'!"
        self.owner = owner
        self.metric = metric
        self.mode = mode

    @property
    def sign(self) -> float:
        """+1 to maximise, -1 to minimise."""
        return 1.0 if self.mode == "max" else -1.0

    def set(self, metric: str | None, mode: str | None) -> bool:
        """False if it was set before."""
        if (self.metric and metric) or (self.mode and mode):
            return False
        self.metric = metric or self.metric
        self.mode = mode or self.mode
        if self.metric is None and self.mode:
            self.metric = DEFAULT_METRIC
        return True

    def check(self) -> None:
        """Raise Ray's error if either is missing."""
        if not self.metric or not self.mode:
            raise ValueError(
                f"{self.owner} has been instantiated without a valid `metric` ({self.metric}) or "
                f"`mode` ({self.mode}) parameter. Either pass these parameters when "
                "instantiating the scheduler, or pass them as parameters "
                "to `tune.TuneConfig()`"
            )


class ByObjective:
    """What schedulers have in common that look at one metric."""

    def __init__(self, metric: str | None, mode: str | None) -> None:
        self._objective = Objective(type(self).__name__, metric, mode)

    @property
    def metric(self) -> str | None:
        """Which value of a result it looks at."""
        return self._objective.metric

    def set_search_properties(self, metric: str | None, mode: str | None) -> bool:
        """See TrialScheduler."""
        return self._objective.set(metric, mode)
