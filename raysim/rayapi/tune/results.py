"""What an experiment came to: ``ResultGrid``, ``Result``, ``ExperimentAnalysis``.

Real counterparts (ray 2.60): ``ray/tune/result_grid.py``, ``ray/air/result.py``,
``ray/tune/analysis/experiment_analysis.py``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from raysim.rayapi.checkpoint import Checkpoint, best_checkpoint, local_filesystem
from raysim.rayapi.clock import import_pandas
from raysim.rayapi.failures import exception_of
from raysim.rayapi.task_errors import RayTaskError
from raysim.rayapi.tune.folders import AUTO_KEYS, flat, logged, read_results, read_state, stored
from raysim.raycore.tasks import TaskError
from raysim.raylibs.tune.trial import Trial

if TYPE_CHECKING:
    import pandas as pd


@dataclass(repr=False)
class Result:
    """``tune.Result``."""

    metrics: dict[str, Any] | None
    checkpoint: Checkpoint | None
    error: Exception | None
    path: str
    best_checkpoints: list[tuple[Checkpoint, dict[str, Any]]] = field(default_factory=list)
    _all: Sequence[Mapping[str, Any]] = ()

    @property
    def config(self) -> dict[str, Any] | None:
        """Of its trial."""
        return (self.metrics or {}).get("config")

    @property
    def filesystem(self) -> Any:
        """Where ``path`` is."""
        return local_filesystem()

    @property
    def metrics_dataframe(self) -> pd.DataFrame:
        """All results, flat."""
        frame: pd.DataFrame = import_pandas().DataFrame([flat(logged(r)) for r in self._all])
        return frame

    def get_best_checkpoint(self, metric: str, mode: str) -> Checkpoint | None:
        """Of those kept; None: there are none.

        Raises
        ------
        ValueError
            The mode is none.
        RuntimeError
            None of them has this metric.
        """
        if not self.best_checkpoints:
            return None
        kept = [(c, flat(m)) for c, m in self.best_checkpoints]
        return best_checkpoint(kept, metric, mode, (self.metrics or {}).keys())

    @classmethod
    def from_path(cls, path: str | os.PathLike[str], storage_filesystem: Any = None) -> Result:
        """Of a trial's directory."""
        del storage_filesystem
        folder = stored(path)
        results = read_results(folder)
        by_name = {r.get("checkpoint_dir_name"): r for r in results}
        kept = [
            (Checkpoint(str(p)), by_name.get(p.name, {}))
            for p in sorted(folder.glob("checkpoint_*"))
        ]
        last = kept[-1][0] if kept else None
        return cls(results[-1] if results else {}, last, None, str(folder), kept, results)

    def __repr__(self) -> str:
        """As Ray shows it."""
        return self.text("")

    def text(self, indent: str) -> str:
        """It, somewhat to the right."""
        shown: dict[str, Any] = {} if self.error is None else {"error": type(self.error).__name__}
        metrics = self.metrics or {}
        shown["metrics"] = {k: v for k, v in metrics.items() if k not in AUTO_KEYS}
        shown |= {"path": self.path, "filesystem": "local", "checkpoint": self.checkpoint}
        lines = ",\n".join(f"{indent}  {key}={value!r}" for key, value in shown.items())
        return f"{indent}Result(\n{lines}\n{indent})"


class ResultGrid:
    """``tune.ResultGrid``."""

    def __init__(
        self, trials: Sequence[Trial], path: Path, metric: str | None, mode: str | None
    ) -> None:
        self._trials = tuple(trials)
        self._metric, self._mode = metric, mode
        self.experiment_path = str(path)
        self._results = [_result(t) for t in trials]

    @property
    def filesystem(self) -> Any:
        """Where ``experiment_path`` is."""
        return local_filesystem()

    def __len__(self) -> int:
        """Trials."""
        return len(self._results)

    def __getitem__(self, i: int) -> Result:
        """Of one trial."""
        return self._results[i]

    def __iter__(self) -> Iterator[Result]:
        """Of each trial."""
        return iter(self._results)

    @property
    def errors(self) -> list[Exception]:
        """Of trials that failed."""
        return [r.error for r in self._results if r.error is not None]

    @property
    def num_errors(self) -> int:
        """Trials that failed."""
        return sum(t.status == "ERROR" for t in self._trials)

    @property
    def num_terminated(self) -> int:
        """Trials that ended well."""
        return sum(t.status == "TERMINATED" for t in self._trials)

    def get_best_result(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> Result:
        """By its last, best or mean value of a metric."""
        if len(self._results) == 1:
            return self._results[0]
        metric, mode = metric or self._metric, mode or self._mode
        for name, value in (("metric", metric), ("mode", mode)):
            if not value:
                raise ValueError(
                    f"No {name} is provided. Either pass in a `{name}` arg to `get_best_result` "
                    f"or specify a {name} in the `TuneConfig` of your `Tuner`."
                )
        best = self._best(str(metric), str(mode), scope, finite=filter_nan_and_inf)
        if best is None:
            raise RuntimeError(
                f"No best trial found for the given metric: {metric}. This means that no trial "
                "has reported this metric, or all values reported for this metric are NaN. To "
                "not ignore NaN values, you can set the `filter_nan_and_inf` arg to False."
            )
        return self._results[best]

    def _best(self, metric: str, mode: str, scope: str, *, finite: bool) -> int | None:
        """Of which trial, the first of the best; None: no trial has a value."""
        if mode not in {"min", "max"}:
            raise ValueError("If set, `mode` has to be one of [min, max]")
        sign = 1 if mode == "max" else -1
        scores = [_score(trial, metric, mode, scope) for trial in self._trials]
        valid = [(sign * s, -i) for i, s in enumerate(scores)
                 if s is not None and (not finite or np.isfinite(s))]  # fmt: skip
        return -max(valid)[1] if valid else None

    def get_dataframe(
        self, filter_metric: str | None = None, filter_mode: str | None = None
    ) -> pd.DataFrame:
        """The last result of each trial, or its best."""
        rows = []
        for trial in self._trials:
            if not trial.results:
                continue
            chosen = trial.results[-1]
            if filter_metric:
                pick = min if filter_mode == "min" else max
                chosen = pick(trial.results, key=lambda r: flat(r)[filter_metric])
            rows.append(flat(logged(chosen)) | {"logdir": trial.trial_id})
        frame: pd.DataFrame = import_pandas().DataFrame(rows)
        return frame

    def __repr__(self) -> str:
        """As a list of its results."""
        rows = ",\n".join(r.text("  ") for r in self._results)
        return f"ResultGrid<[\n{rows}\n]>"


class ExperimentAnalysis(ResultGrid):
    """``tune.ExperimentAnalysis``: what ``tune.run`` returns, or has left in a folder.

    Raises
    ------
    ValueError
        There is no experiment.
    """

    def __init__(
        self, experiment_checkpoint_path: Any, *, storage_filesystem: Any = None,
        trials: Sequence[Trial] | None = None, default_metric: str | None = None,
        default_mode: str | None = None,
    ) -> None:  # fmt: skip
        del storage_filesystem
        folder = stored(experiment_checkpoint_path)
        if trials is None:
            state = read_state(folder)
            if state is None:
                raise ValueError(f"No experiment snapshot file found in {folder}")
            trials = state.trials
        super().__init__(trials, folder, default_metric, default_mode)

    @property
    def trials(self) -> list[Trial]:
        """All."""
        return list(self._trials)

    def get_best_trial(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> Trial | None:
        """By its last, best or mean value of a metric; None: none has one."""
        if len(self._trials) == 1:
            return self._trials[0]
        metric, mode = self._metric_of(metric), self._mode_of(mode)
        i = self._best(metric, mode, scope, finite=filter_nan_and_inf)
        return None if i is None else self._trials[i]

    def get_best_config(
        self, metric: str | None = None, mode: str | None = None, scope: str = "last"
    ) -> dict[str, Any] | None:
        """Of the best trial."""
        best = self.get_best_trial(metric, mode, scope)
        return None if best is None else best.config

    def get_all_configs(self, prefix: bool = False) -> dict[str, dict[str, Any]]:
        """Of all trials."""
        return {t.trial_id: flat({"config": t.config}) if prefix else t.config
                for t in self._trials}  # fmt: skip

    def get_best_checkpoint(
        self, trial: Trial, metric: str | None = None, mode: str | None = None
    ) -> Checkpoint | None:
        """Of those that a trial has kept."""
        metric = metric or self._metric or "training_iteration"
        return _result(trial).get_best_checkpoint(metric, self._mode_of(mode))

    def get_last_checkpoint(
        self, trial: Trial | None = None, metric: str = "training_iteration", mode: str = "max"
    ) -> Checkpoint | None:
        """Of a trial, or of the best."""
        trial = trial or self.get_best_trial(metric, mode)
        return None if trial is None else self.get_best_checkpoint(
            trial, "training_iteration", "max"
        )  # fmt: skip

    def _default(self, what: str) -> Trial:
        if not self._metric or not self._mode:
            raise ValueError(
                f"To fetch the `{what}`, pass a `metric` and `mode` parameter to `tune.run()`."
            )
        best = self.get_best_trial()
        if best is None:
            raise ValueError(
                "No best trial found. Please check if you specified the correct default metric "
                f"({self._metric}) and mode ({self._mode})."
            )
        return best

    @property
    def best_trial(self) -> Trial:
        """By the metric and mode of ``tune.run``."""
        return self._default("best_trial")

    @property
    def best_result(self) -> dict[str, Any]:
        """Last result of the best trial."""
        return self._default("best_result").last_result

    @property
    def best_config(self) -> dict[str, Any]:
        """Of the best trial."""
        return self._default("best_config").config

    @property
    def best_checkpoint(self) -> Checkpoint | None:
        """Of the best trial."""
        return self.get_best_checkpoint(self._default("best_checkpoint"))

    @property
    def best_dataframe(self) -> pd.DataFrame:
        """All results of the best trial."""
        return _result(self._default("best_dataframe")).metrics_dataframe

    @property
    def best_result_df(self) -> pd.DataFrame:
        """The best result alone, by the trial's id."""
        return self._by_id([self._default("best_result")])

    @property
    def trial_dataframes(self) -> dict[str, pd.DataFrame]:
        """All results of each trial."""
        return {t.trial_id: _result(t).metrics_dataframe for t in self._trials}

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """Last results."""
        return {t.trial_id: t.last_result for t in self._trials}

    @property
    def results_df(self) -> pd.DataFrame:
        """Last results, by the trials' ids."""
        return self._by_id(self._trials)

    def _by_id(self, trials: Sequence[Trial]) -> pd.DataFrame:
        rows = [flat(t.last_result) for t in trials]
        frame: pd.DataFrame = import_pandas().DataFrame.from_records(rows, index="trial_id")
        return frame

    def dataframe(self, metric: str | None = None, mode: str | None = None) -> pd.DataFrame:
        """The last result of each trial, or its best."""
        return self.get_dataframe(metric, mode)

    def _metric_of(self, metric: str | None) -> str:
        return _given("metric", metric or self._metric)

    def _mode_of(self, mode: str | None) -> str:
        return _given("mode", mode or self._mode)


def _given(name: str, value: str | None) -> str:
    if not value:
        raise ValueError(
            f"No `{name}` has been passed and  `default_{name}` has not been set. "
            f"Please specify the `{name}` parameter."
        )
    return value


def _result(trial: Trial) -> Result:
    error: Any = None
    if trial.status == "ERROR" and isinstance(trial.error, TaskError):
        error = exception_of(trial.error, "")
        if isinstance(error, RayTaskError):
            error = error.as_instanceof_cause()
    kept = [(c.state, c.metrics) for c in trial.checkpoints if c.state is not None]
    last = trial.checkpoint.state if trial.checkpoint is not None else None
    return Result(
        trial.last_result or {"trial_id": trial.trial_id},
        last,
        error,
        trial.path or "",
        kept,
        trial.results,
    )


def _score(trial: Trial, metric: str, mode: str, scope: str) -> float | None:
    values = [v for v in (flat(r).get(metric) for r in trial.results) if v is not None]
    if not values:
        return None
    if scope == "last":
        return float(values[-1])
    if scope == "all":
        return float(max(values) if mode == "max" else min(values))
    counts = {"avg": len(values), "last-5-avg": 5, "last-10-avg": 10}
    if scope not in counts:
        raise ValueError(
            f"ExperimentAnalysis: attempting to get best trial for metric {metric} for scope "
            f'{scope} not in ["all", "last", "avg", "last-5-avg", "last-10-avg"].'
        )
    return float(np.mean(values[-counts[scope] :]))
