"""``Tuner(...).fit()`` and ``tune.run``: an experiment of ``raylibs.tune`` over the user's code.

Real counterparts (ray 2.60): ``ray/tune/tuner.py``, ``tune.py``, ``result_grid.py``,
``ray/air/result.py``. Not modelled: restoring an experiment, the console's tables.
"""

from __future__ import annotations

import inspect
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from raysim.rayapi.calls import program_call, this_fiber
from raysim.rayapi.checkpoint import Checkpoint
from raysim.rayapi.clock import import_pandas
from raysim.rayapi.compute import use_cores
from raysim.rayapi.failures import exception_of
from raysim.rayapi.library_code import play, session_here
from raysim.rayapi.randomness import global_generator
from raysim.rayapi.serialization import dump_code
from raysim.rayapi.state import cluster_resources
from raysim.rayapi.task_errors import RayTaskError
from raysim.rayapi.tune.callbacks import Observer
from raysim.rayapi.tune.configs import (
    CheckpointConfig,
    FailureConfig,
    RunConfig,
    TuneConfig,
)
from raysim.rayapi.tune.stoppers import Stopper, checked, timeout_s
from raysim.rayapi.tune.trainable import (
    ClassTrainable,
    FunctionTrainable,
    Trainable,
    Where,
    resources_of,
)
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.raycore.tasks import TaskError
from raysim.raylibs.tune.controller import TuneController
from raysim.raylibs.tune.experiment import Experiment, TuneResult
from raysim.raylibs.tune.resources import PlacementGroupFactory, of_resources
from raysim.raylibs.tune.search.variants import count
from raysim.raylibs.tune.trial import Trial

if TYPE_CHECKING:
    import pandas as pd


LIBRARY = "tune"
"""Of what a session keeps: whether an experiment has run."""


class TuneError(Exception):
    """``ray.tune.TuneError``."""


@dataclass
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
    def metrics_dataframe(self) -> pd.DataFrame:
        """All results, flat."""
        frame: pd.DataFrame = import_pandas().DataFrame([flat(r) for r in self._all])
        return frame

    def get_best_checkpoint(self, metric: str, mode: str) -> Checkpoint | None:
        """Of those kept."""
        sign = 1 if mode == "max" else -1
        scored = [(m[metric], c) for c, m in self.best_checkpoints if metric in m]
        return max(scored, key=lambda s: sign * s[0])[1] if scored else None


class ResultGrid:
    """``tune.ResultGrid``."""

    def __init__(
        self, outcome: TuneResult, path: Path, metric: str | None, mode: str | None
    ) -> None:
        self.outcome = outcome
        self._metric, self._mode = metric, mode
        self.experiment_path = str(path)
        self._results = [_result(t, path) for t in outcome.trials]

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
        return sum(t.status == "ERROR" for t in self.outcome.trials)

    @property
    def num_terminated(self) -> int:
        """Trials that ended well."""
        return sum(t.status == "TERMINATED" for t in self.outcome.trials)

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
        best: tuple[float, Result] | None = None
        for trial, result in zip(self.outcome.trials, self._results, strict=True):
            score = _score(trial, str(metric), str(mode), scope)
            if score is None or (filter_nan_and_inf and not np.isfinite(score)):
                continue
            if best is None or (score > best[0] if mode == "max" else score < best[0]):
                best = score, result
        if best is None:
            raise RuntimeError(
                f"No best trial found for the given metric: {metric}. This means that no trial "
                "has reported this metric, or all values reported for this metric are NaN. To "
                "not ignore NaN values, you can set the `filter_nan_and_inf` arg to False."
            )
        return best[1]

    def get_dataframe(
        self, filter_metric: str | None = None, filter_mode: str | None = None
    ) -> pd.DataFrame:
        """The last result of each trial, or its best."""
        rows = []
        for trial, result in zip(self.outcome.trials, self._results, strict=True):
            if not trial.results:
                continue
            chosen = trial.results[-1]
            if filter_metric:
                pick = min if filter_mode == "min" else max
                chosen = pick(trial.results, key=lambda r: flat(r)[filter_metric])
            rows.append(flat(chosen) | {"logdir": Path(result.path).name})
        frame: pd.DataFrame = import_pandas().DataFrame(rows)
        return frame

    def __repr__(self) -> str:
        """As a list of its results."""
        rows = ",\n".join(f"  {r!r}" for r in self._results)
        return f"ResultGrid<[\n{rows}\n]>"


class Tuner:
    """``tune.Tuner``."""

    def __init__(
        self,
        trainable: Any = None,
        *,
        param_space: dict[str, Any] | None = None,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
    ) -> None:
        self._trainable = trainable
        self._space = param_space or {}
        self._tune = tune_config or TuneConfig()
        self._run = run_config or RunConfig()
        self._done: ResultGrid | None = None

    @program_call
    def fit(self) -> ResultGrid:
        """Run all trials."""
        self._done = _fit(self._trainable, self._space, self._tune, self._run)
        return self._done

    def get_results(self) -> ResultGrid:
        """Of ``fit``."""
        if self._done is None:
            raise RuntimeError(
                "Can't return results as experiment has not been run, yet. "
                "Call `Tuner.fit()` to run the experiment first."
            )
        return self._done

    @classmethod
    def can_restore(cls, *_args: Any, **_kwargs: Any) -> bool:
        """Nothing can: programs begin anew."""
        return False

    @classmethod
    def restore(cls, *_args: Any, **_kwargs: Any) -> Tuner:
        """Not emulated."""
        raise NotEmulatedError("tune.Tuner.restore", "Tuner(...).fit()")


class ExperimentAnalysis(ResultGrid):
    """``tune.ExperimentAnalysis``: what ``tune.run`` returns."""

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All."""
        return self.outcome.trials

    @property
    def best_result(self) -> dict[str, Any] | None:
        """Last result of the best trial."""
        return self.get_best_result().metrics

    @property
    def best_config(self) -> dict[str, Any] | None:
        """Of the best trial."""
        return self.get_best_result().config

    @property
    def best_checkpoint(self) -> Checkpoint | None:
        """Of the best trial."""
        return self.get_best_result().checkpoint

    @property
    def results_df(self) -> pd.DataFrame:
        """Last results."""
        return self.get_dataframe()

    def get_best_config(
        self, metric: str | None = None, mode: str | None = None, scope: str = "last"
    ) -> dict[str, Any] | None:
        """Of the best trial."""
        return self.get_best_result(metric, mode, scope).config

    def dataframe(self, metric: str | None = None, mode: str | None = None) -> pd.DataFrame:
        """``get_dataframe``."""
        return self.get_dataframe(metric, mode)


@program_call
def run(
    run_or_experiment: Any,
    *,
    name: str | None = None,
    metric: str | None = None,
    mode: str | None = None,
    stop: Any = None,
    time_budget_s: Any = None,
    config: dict[str, Any] | None = None,
    resources_per_trial: Any = None,
    num_samples: int = 1,
    storage_path: str | None = None,
    search_alg: Any = None,
    scheduler: Any = None,
    checkpoint_config: CheckpointConfig | None = None,
    verbose: Any = None,
    max_failures: int = 0,
    fail_fast: bool = False,
    reuse_actors: bool = False,
    raise_on_failed_trial: bool = True,
    callbacks: Sequence[Any] | None = None,
    max_concurrent_trials: int | None = None,
    **others: Any,
) -> ExperimentAnalysis:
    """``tune.run``."""
    for key, value in others.items():
        if value and key != "progress_reporter":
            raise NotEmulatedError(f"tune.run({key}=)", "tune.Tuner")
    if isinstance(resources_per_trial, Mapping):
        resources_per_trial = of_resources(resources_per_trial)
    tune = TuneConfig(
        mode=mode, metric=metric, search_alg=search_alg, scheduler=scheduler,
        num_samples=num_samples, max_concurrent_trials=max_concurrent_trials,
        time_budget_s=time_budget_s, reuse_actors=reuse_actors,
    )  # fmt: skip
    settings = RunConfig(
        name=name, storage_path=storage_path, stop=stop, verbose=verbose,
        failure_config=FailureConfig(max_failures, fail_fast), checkpoint_config=checkpoint_config,
        callbacks=list(callbacks or ()),
    )  # fmt: skip
    grid = _fit(run_or_experiment, config or {}, tune, settings, resources_per_trial)
    analysis = ExperimentAnalysis(grid.outcome, Path(grid.experiment_path), metric, mode)
    failed = [t for t in analysis.trials if t.status != "TERMINATED"]
    if failed and raise_on_failed_trial:
        raise TuneError("Trials did not complete", failed)
    return analysis


REGISTERED: dict[str, Any] = {}
"""``tune.register_trainable``."""


def _fit(
    trainable: Any,
    space: dict[str, Any],
    tune: TuneConfig,
    settings: RunConfig,
    resources: PlacementGroupFactory | None = None,
) -> ResultGrid:
    trainable = REGISTERED.get(trainable, trainable) if isinstance(trainable, str) else trainable
    is_class = inspect.isclass(trainable) and issubclass(trainable, Trainable)
    if not is_class and (not callable(trainable) or inspect.isclass(trainable)):
        raise NotEmulatedError(
            f"tune.Tuner of {trainable!r}", "functions of a configuration and tune.Trainable"
        )
    if not is_class:
        _check_signature(trainable)
    cpus = float(cluster_resources().get("CPU", 1.0))
    session = session_here()
    if not session.libraries.setdefault(LIBRARY, False):
        session.libraries[LIBRARY] = True
        use_cores(this_fiber(), session.env.costs.tune_first_core_s, 1.0)
    name = str(settings.name or getattr(trainable, "__name__", "tune"))
    where = Where(
        session=session, code=dump_code(trainable), is_class=is_class,
        name=getattr(trainable, "__name__", "func"),
        folder=Path(settings.storage_path or tempfile.mkdtemp("ray_results"), name),
    )  # fmt: skip
    observer = Observer(settings.callbacks) if settings.callbacks else None
    if observer is not None:
        total = tune.num_samples * count(space)
        observer.set_up(stop=settings.stop, num_samples=tune.num_samples, total_num_samples=total)
    experiment = _experiment(
        space, tune, settings, where, resources or resources_of(trainable), observer
    )
    outcome = play(
        lambda process: TuneController(
            process, experiment, _no_stream, rng=global_generator(), cluster_cpus=cpus
        ).run()
    )
    if observer is not None and observer.error is not None:
        raise TuneError("".join(traceback.format_exception(observer.error))) from observer.error
    return ResultGrid(outcome, where.folder, tune.metric, tune.mode)


def _experiment(
    space: dict[str, Any], tune: TuneConfig, settings: RunConfig, where: Where, resources: Any,
    observer: Observer | None,
) -> Experiment:  # fmt: skip
    failure = settings.failure_config or FailureConfig()
    saving = settings.checkpoint_config or CheckpointConfig()
    stop = checked(settings.stop)
    kind = ClassTrainable if where.is_class else FunctionTrainable
    return Experiment(
        name=where.folder.name,
        trainable=lambda process, trial: kind(process, trial, where),
        param_space=space,
        num_samples=tune.num_samples,
        resources=resources,
        search_alg=tune.search_alg,
        scheduler=tune.scheduler,
        metric=tune.metric,
        mode=tune.mode,
        stop=stop,
        stop_all=partial(_stops_all, stop, observer),
        observer=observer,
        trainable_name=where.name,
        max_failures=failure.max_failures,
        fail_fast=bool(failure.fail_fast),
        max_concurrent_trials=tune.max_concurrent_trials,
        reuse_actors=tune.reuse_actors,
        time_budget_s=_budget_s(tune.time_budget_s, stop),
        checkpoint_freq=saving.checkpoint_frequency or 0,
        checkpoint_at_end=bool(saving.checkpoint_at_end),
        num_to_keep=saving.num_to_keep,
        keep_results=True,
    )


def _stops_all(stop: Any, observer: Observer | None) -> bool:
    """By a stopper's rule, or because a callback has failed."""
    if observer is not None and observer.error is not None:
        return True
    return isinstance(stop, Stopper) and stop.stop_all()


def _budget_s(said: float | timedelta | None, stop: Any) -> float | None:
    """The shorter of the configuration's and a stopper's."""
    seconds = said.total_seconds() if isinstance(said, timedelta) else said
    return min((s for s in (seconds, timeout_s(stop)) if s is not None), default=None)


def _check_signature(function: Callable[..., Any]) -> None:
    try:
        inspect.signature(function).bind({})
    except TypeError:
        names = inspect.getfullargspec(function).args
        raise ValueError(
            "Unknown argument found in the Trainable function. The function args must include a "
            f"single 'config' positional parameter.\nFound: {names}"
        ) from None


def _no_stream(_name: str) -> None:
    """Users' trainables draw for themselves."""


def _result(trial: Trial, path: Path) -> Result:
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
        str(path / trial.trial_id),
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


def flat(result: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Keys of inner dictionaries joined by ``/``."""
    out: dict[str, Any] = {}
    for key, value in result.items():
        if isinstance(value, Mapping):
            out |= flat(value, f"{prefix}{key}/")
        else:
            out[f"{prefix}{key}"] = value
    return out
