"""``ray.tune.Callback``, ``ray.tune.logger`` and reporters: what a driver hears of its trials.

Real counterpart: ``ray/tune/callback.py``, ``ray/tune/logger`` and ``progress_reporter.py`` (2.60).
Callbacks run in a thread of the driver, one event after the other. Ray's own loggers and reporters
are accepted and write nothing; what Ray's default ones cost the driver is charged anyway.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from raysim.rayapi.calls import this_fiber
from raysim.rayapi.library_code import in_fiber
from raysim.rayapi.tune.folders import plain
from raysim.rayapi.unsupported import getattr_of
from raysim.raycore.scripts import Script


class Callback:
    """``tune.Callback``: every method may be overridden."""

    def setup(
        self,
        stop: Any = None,
        num_samples: int | None = None,
        total_num_samples: int | None = None,
        **info: Any,
    ) -> None:
        """Before anything else."""

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """The driver waits for the next event."""

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """It has dealt with one."""

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Its actor is there."""

    def on_trial_restore(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Never called, as in Ray 2.60."""

    def on_trial_save(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """It has saved."""

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """It has reported."""

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """It has ended well."""

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """It has failed and starts again."""

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """It has failed for good."""

    def on_checkpoint(
        self, iteration: int, trials: list[Any], trial: Any, checkpoint: Any, **info: Any
    ) -> None:
        """A checkpoint of it is in storage."""

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        """All trials have ended."""

    def get_state(self) -> dict[str, Any] | None:
        """For an experiment that may be restored."""
        return None

    def set_state(self, state: dict[str, Any]) -> None:
        """See ``get_state``."""


class LoggerCallback(Callback):
    """``tune.logger.LoggerCallback``."""

    def log_trial_start(self, trial: Any) -> None:
        """Users override."""

    def log_trial_restore(self, trial: Any) -> None:
        """Users override."""

    def log_trial_save(self, trial: Any) -> None:
        """Users override."""

    def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:
        """Users override."""

    def log_trial_end(self, trial: Any, failed: bool = False) -> None:
        """Users override."""

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """As above."""
        del iteration, trials, info
        self.log_trial_start(trial)

    def on_trial_save(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """As above."""
        del iteration, trials, info
        self.log_trial_save(trial)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """As above."""
        del trials, info
        self.log_trial_result(iteration, trial, result)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """As above."""
        del iteration, trials, info
        self.log_trial_end(trial, failed=False)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """As above."""
        del iteration, trials, info
        self.log_trial_end(trial, failed=True)


class CSVLoggerCallback(LoggerCallback):
    """On by default, like the next two."""


class JsonLoggerCallback(LoggerCallback):
    """See ``CSVLoggerCallback``."""


class TBXLoggerCallback(LoggerCallback):
    """See ``CSVLoggerCallback``."""


def pretty_print(result: dict[str, Any], exclude: set[str] | None = None) -> str:
    """``tune.logger.pretty_print``: a result as YAML, without its configuration."""
    from ruamel.yaml import YAML

    hidden = {"config", "hist_stats"} | (exclude or set())
    shown = {k: v for k, v in result.items() if v is not None and k not in hidden}
    writer, text = YAML(typ="safe", pure=True), io.StringIO()
    writer.default_flow_style = False
    writer.dump(json.loads(json.dumps(shown, default=plain, sort_keys=True)), text)
    return text.getvalue()


class CLIReporter:
    """``tune.CLIReporter``: of no effect, nothing is drawn while an experiment runs."""

    def __init__(self, *, metric_columns: Any = None, **options: Any) -> None:
        self._metric_columns = metric_columns
        self._options = options

    def add_metric_column(self, metric: str, representation: str | None = None) -> None:
        """Of no effect."""

    def add_parameter_column(self, parameter: str, representation: str | None = None) -> None:
        """Of no effect."""


class JupyterNotebookReporter(CLIReporter):
    """``tune.JupyterNotebookReporter``."""


class Observer:
    """What the experiment tells of itself, to the callbacks of a program.

    Parameters
    ----------
    callbacks
        Those of its ``RunConfig``.
    """

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self._callbacks = callbacks
        self._state = this_fiber().process
        self.error: Exception | None = None
        """What one of them has raised: the experiment ends with it."""

    def set_up(self, **about: Any) -> None:
        """In the driver itself."""
        for callback in self._callbacks:
            callback.setup(**about)

    def states(self) -> list[Any]:
        """What they would have kept, for an experiment that is restored."""
        return [callback.get_state() for callback in self._callbacks]

    def restore(self, states: Sequence[Any]) -> None:
        """Give back what was kept of an earlier run's."""
        for callback, state in zip(self._callbacks, states, strict=False):
            if state is not None:
                callback.set_state(state)

    def __call__(self, event: str, what: dict[str, Any]) -> Script:
        """In a thread of the driver."""
        if self.error is None:
            yield in_fiber(self._state, partial(self._tell, event, what), f"on_{event}")

    def _tell(self, event: str, what: dict[str, Any]) -> None:
        try:
            for callback in self._callbacks:
                getattr(callback, f"on_{event}")(**what)
        except Exception as error:  # noqa: BLE001  (whatever a program raises)
            self.error = error


__getattr__ = getattr_of("ray.tune.callback")
