"""Every trial runs to its end, in order.

Real counterpart: ``FIFOScheduler`` in ``ray/tune/schedulers/trial_scheduler.py`` (ray 2.60).
"""

from __future__ import annotations

from raysim.raylibs.tune.schedulers.decisions import (
    CONTINUE,
    DEFAULT_METRIC,
    Controller,
    Decision,
    Result,
)
from raysim.raylibs.tune.trial import Trial


class FIFOScheduler:
    """The default."""

    def __init__(self) -> None:
        self._metric: str | None = None

    @property
    def metric(self) -> str | None:
        """It looks at none."""
        return self._metric

    def set_search_properties(self, metric: str | None, mode: str | None) -> bool:
        """See TrialScheduler."""
        del mode
        if self._metric and metric:
            return False
        self._metric = metric or self._metric or DEFAULT_METRIC
        return True

    def on_trial_add(self, controller: Controller, trial: Trial) -> None:
        """See TrialScheduler."""

    def on_trial_error(self, controller: Controller, trial: Trial) -> None:
        """See TrialScheduler."""

    def on_trial_result(self, controller: Controller, trial: Trial, result: Result) -> Decision:
        """See TrialScheduler."""
        del controller, trial, result
        return CONTINUE

    def on_trial_complete(self, controller: Controller, trial: Trial, result: Result) -> None:
        """See TrialScheduler."""

    def on_trial_remove(self, controller: Controller, trial: Trial) -> None:
        """See TrialScheduler."""

    def choose_trial_to_run(self, controller: Controller) -> Trial | None:
        """See TrialScheduler."""
        return controller.first_waiting()
