"""The module ``ray.tune.stopper``: rules by which trials, or a whole experiment, end.

Real counterpart: ``ray/tune/stopper`` (2.60).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import numpy as np

from raysim.rayapi.unsupported import getattr_of


class Stopper:
    """``tune.Stopper``: called with each result."""

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Whether the trial is to stop."""
        raise NotImplementedError

    def stop_all(self) -> bool:
        """Whether all trials are to stop."""
        raise NotImplementedError


class NoopStopper(Stopper):
    """Stops nothing."""

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """As above."""
        del trial_id, result
        return False

    def stop_all(self) -> bool:
        """As above."""
        return False


class CombinedStopper(Stopper):
    """Stops what any of several stops."""

    def __init__(self, *stoppers: Stopper) -> None:
        self.stoppers = stoppers

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """As above."""
        return any(stopper(trial_id, result) for stopper in self.stoppers)

    def stop_all(self) -> bool:
        """As above."""
        return any(stopper.stop_all() for stopper in self.stoppers)


class FunctionStopper(NoopStopper):
    """A function of trial and result."""

    def __init__(self, function: Callable[[str, dict[str, Any]], bool]) -> None:
        self._function = function

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """As above."""
        return self._function(trial_id, result)


class MaximumIterationStopper(NoopStopper):
    """So many results of each trial."""

    def __init__(self, max_iter: int) -> None:
        self._max_iter = max_iter
        self._seen: dict[str, int] = defaultdict(int)

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """As above."""
        del result
        self._seen[trial_id] += 1
        return self._seen[trial_id] >= self._max_iter


class TimeoutStopper(NoopStopper):
    """So long; the experiment's time budget, as ``TuneConfig(time_budget_s=)`` is."""

    def __init__(self, timeout: float | timedelta) -> None:
        if isinstance(timeout, timedelta):
            timeout = timeout.total_seconds()
        elif not isinstance(timeout, int | float):
            raise ValueError(
                "`timeout` parameter has to be either a number or a `datetime.timedelta` object. "
                f"Found: {type(timeout)}"
            )
        self.timeout_s = float(timeout)


class TrialPlateauStopper(NoopStopper):
    """A trial whose last results hardly differ."""

    def __init__(
        self,
        metric: str,
        std: float = 0.01,
        num_results: int = 4,
        grace_period: int = 4,
        metric_threshold: float | None = None,
        mode: str | None = None,
    ) -> None:
        if metric_threshold and mode not in ("min", "max"):
            raise ValueError(
                "When specifying a `metric_threshold`, the `mode` argument has to be one of "
                f"[min, max]. Got: {mode}"
            )
        self._metric, self._std, self._mode = metric, std, mode
        self._num_results, self._grace_period = num_results, grace_period
        self._threshold = metric_threshold
        self._seen: dict[str, int] = defaultdict(int)
        self._last: dict[str, deque[Any]] = defaultdict(lambda: deque(maxlen=num_results))

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """As above."""
        value, last = result[self._metric], self._last[trial_id]
        last.append(value)
        self._seen[trial_id] += 1
        if self._seen[trial_id] < self._grace_period or len(last) < self._num_results:
            return False
        if self._threshold is not None:
            too_far = value > self._threshold if self._mode == "min" else value < self._threshold
            if too_far:
                return False
        return bool(np.std(last) < self._std)


class ExperimentPlateauStopper(Stopper):
    """Everything, once the best results of all trials hardly differ."""

    def __init__(
        self, metric: str, std: float = 0.001, top: int = 10, mode: str = "min", patience: int = 0
    ) -> None:
        if mode not in ("min", "max"):
            raise ValueError("The mode parameter can only be either min or max.")
        if not isinstance(top, int) or top <= 1:
            raise ValueError("Top results to consider must be a positive integer greater than one.")
        if not isinstance(patience, int) or patience < 0:
            raise ValueError("Patience must be a strictly positive integer.")
        if not isinstance(std, float) or std <= 0:
            raise ValueError("The standard deviation must be a strictly positive float number.")
        self._metric, self._std, self._top = metric, std, top
        self._mode, self._patience = mode, patience
        self._flat = 0
        """Results since they have not differed."""
        self._best: list[float] = []

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """As above."""
        del trial_id
        best = sorted([*self._best, result[self._metric]], reverse=self._mode == "max")
        self._best = best[: self._top]
        self._flat = self._flat + 1 if self.has_plateaued() else 0
        return self.stop_all()

    def has_plateaued(self) -> bool:
        """As many as are looked at, and close together."""
        return len(self._best) == self._top and bool(np.std(self._best) <= self._std)

    def stop_all(self) -> bool:
        """As above."""
        return self.has_plateaued() and self._flat >= self._patience


def timeout_s(stop: Any) -> float | None:
    """The shortest of the timeouts in it."""
    if isinstance(stop, TimeoutStopper):
        return stop.timeout_s
    inside = stop.stoppers if isinstance(stop, CombinedStopper) else ()
    found = [seconds for each in inside if (seconds := timeout_s(each)) is not None]
    return min(found, default=None)


def checked(stop: Any) -> Any:
    """What ``RunConfig(stop=)`` may be.

    Raises
    ------
    ValueError
        Ray takes no such thing.
    """
    if stop is None or isinstance(stop, Stopper | Mapping):
        return stop or {}
    if isinstance(stop, list):
        if any(not isinstance(each, Stopper) for each in stop):
            raise ValueError(
                "If you pass a list as the `stop` argument to `tune.RunConfig()`, each element "
                "must be an instance of `tune.stopper.Stopper`. Got "
                f"{[type(each) for each in stop]}."
            )
        return CombinedStopper(*stop)
    if not callable(stop):
        raise ValueError(
            f"Invalid stop criteria: {stop}. Must be a callable or dict. Got {type(stop)}."
        )
    if hasattr(stop, "stop_all"):
        raise ValueError("Stop object must be ray.tune.Stopper subclass to be detected correctly.")
    return stop


__getattr__ = getattr_of("ray.tune.stopper")
