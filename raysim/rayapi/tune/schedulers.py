"""The module ``ray.tune.schedulers`` (2.60); its classes are those of ``raylibs``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raysim.rayapi.unsupported import NotEmulatedError, getattr_of, taken_by
from raysim.raylibs.tune.schedulers import (
    CONTINUE,
    NOOP,
    PAUSE,
    STOP,
    ASHAScheduler,
    AsyncHyperBandScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
)


class TrialScheduler:
    """``ray.tune.schedulers.TrialScheduler``: what a program's own scheduler is made of."""

    CONTINUE, NOOP, PAUSE, STOP = CONTINUE, NOOP, PAUSE, STOP
    _metric: str | None = None

    @property
    def metric(self) -> str | None:
        """Which value of a result it looks at."""
        return self._metric

    @property
    def supports_buffered_results(self) -> bool:
        """As Ray asks."""
        return True

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """From ``TuneConfig``; False if the scheduler has been told already."""
        del mode, spec
        if self._metric and metric:
            return False
        self._metric = metric or self._metric
        return True

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """There is a new trial."""
        raise NotImplementedError

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        """A running one has failed."""
        raise NotImplementedError

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """One of the four decisions."""
        raise NotImplementedError

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """A running one has ended."""
        raise NotImplementedError

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        """A paused or pending one is taken away."""
        raise NotImplementedError

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """Which trial is to run next; None: none."""
        raise NotImplementedError

    def debug_string(self) -> str:
        """Of Ray's console."""
        raise NotImplementedError


def _pb2() -> Any:
    from raysim.rayapi.tune.pb2 import PB2

    return PB2


_BY_NAME: dict[str, Callable[..., Any] | None] = {
    "fifo": FIFOScheduler, "async_hyperband": AsyncHyperBandScheduler,
    "asynchyperband": AsyncHyperBandScheduler, "median_stopping_rule": MedianStoppingRule,
    "medianstopping": MedianStoppingRule, "hyperband": HyperBandScheduler, "hb_bohb": None,
    "pbt": PopulationBasedTraining, "pbt_replay": None, "pb2": None, "resource_changing": None,
}  # fmt: skip
"""``SCHEDULER_IMPORT``; None: by a class of its own, or not emulated."""


def create_scheduler(scheduler: str, **kwargs: Any) -> Any:
    """``tune.create_scheduler``: keywords that the class has not are dropped.

    Raises
    ------
    ValueError
        Ray has no scheduler of this name.
    NotEmulatedError
        It is not emulated.
    """
    name = scheduler.lower()
    if name not in _BY_NAME:
        raise ValueError(f"The `scheduler` argument must be one of {list(_BY_NAME)}. Got: {name}")
    made = _pb2() if name == "pb2" else _BY_NAME[name]
    if made is None:
        others = [other for other, cls in _BY_NAME.items() if cls is not None]
        raise NotEmulatedError(f"tune.create_scheduler({name!r})", ", ".join([*others, "pb2"]))
    return made(**taken_by(made, kwargs))


def scheduler_of(tune: Any) -> Any:
    """Of a ``TuneConfig``: the one that is given, or named."""
    given = tune.scheduler
    return create_scheduler(given) if isinstance(given, str) else given


__getattr__ = getattr_of("ray.tune.schedulers")

__all__ = [
    "ASHAScheduler",
    "AsyncHyperBandScheduler",
    "FIFOScheduler",
    "HyperBandScheduler",
    "MedianStoppingRule",
    "PopulationBasedTraining",
    "TrialScheduler",
    "create_scheduler",
]
