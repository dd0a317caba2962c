"""``Tuner(...).fit()`` and ``tune.run``: an experiment of ``raylibs.tune`` over the user's code.

Real counterparts (ray 2.60): ``ray/tune/tuner.py``, ``tune/impl/tuner_internal.py``, ``tune.py``.
Not modelled: the console's tables.
"""

from __future__ import annotations

import inspect
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from math import inf, isnan
from pathlib import Path
from typing import Any

from raysim.rayapi.calls import program_call, this_fiber
from raysim.rayapi.compute import use_cores
from raysim.rayapi.failures import exception_of, raise_error
from raysim.rayapi.library_code import play, session_here
from raysim.rayapi.randomness import global_generator
from raysim.rayapi.serialization import dump_code, load_code
from raysim.rayapi.state import cluster_resources
from raysim.rayapi.tune.callbacks import Observer
from raysim.rayapi.tune.configs import (
    CheckpointConfig,
    FailureConfig,
    ResumeConfig,
    RunConfig,
    TuneConfig,
    space_of,
)
from raysim.rayapi.tune.folders import (
    TUNER_FILE,
    State,
    TrialFolders,
    experiment_folder,
    flat,
    new_name,
    read_state,
    requeued,
    stored,
)
from raysim.rayapi.tune.results import ExperimentAnalysis, ResultGrid
from raysim.rayapi.tune.schedulers import scheduler_of
from raysim.rayapi.tune.search import searcher_of
from raysim.rayapi.tune.stoppers import Stopper, checked, timeout_s
from raysim.rayapi.tune.trainable import (
    ClassTrainable,
    FunctionTrainable,
    Trainable,
    Where,
    resources_of,
)
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.raylibs.tune.controller import TuneController
from raysim.raylibs.tune.experiment import Experiment
from raysim.raylibs.tune.resources import PlacementGroupFactory, of_resources
from raysim.raylibs.tune.schedulers.decisions import DEFAULT_METRIC, TuneError
from raysim.raylibs.tune.search.algorithms import SearchAlgorithm
from raysim.raylibs.tune.search.variants import count
from raysim.raylibs.tune.trial import Trial, TrialCheckpoint

LIBRARY = "tune"
"""Of what a session keeps: whether an experiment has run."""


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
        if not trainable:
            raise TuneError("You need to provide a trainable to tune.")
        trainable = registered(trainable)
        _check_trainable(trainable)
        settings, name = replace(run_config or RunConfig()), _name_of(trainable)
        settings.name = settings.name or new_name(name)
        self._take_up(trainable, space_of(param_space), tune_config or TuneConfig(), settings)
        self._folder.mkdir(parents=True, exist_ok=True)
        kept = (name, self._space, self._tune, settings)
        (self._folder / TUNER_FILE).write_bytes(dump_code(kept))

    def _take_up(
        self, trainable: Any, space: dict[str, Any], tune: TuneConfig, settings: RunConfig
    ) -> None:
        self._trainable, self._space, self._tune, self._run = trainable, space, tune, settings
        self._folder = experiment_folder(settings.storage_path, str(settings.name))
        self._resume: ResumeConfig | None = None
        self._done: ResultGrid | None = None

    def _goes_on(self, folder: Path, resume: ResumeConfig) -> None:
        """It is an experiment that is there."""
        self._folder, self._resume = folder, resume
        state = read_state(folder)
        if state is not None:
            metric, mode = self._tune.metric, self._tune.mode
            self._done = ResultGrid(state.trials, folder, metric, mode)

    @program_call
    def fit(self) -> ResultGrid:
        """Run all trials, or those of a restored experiment that are to go on."""
        outcome = _Fit(
            self._trainable, self._space, self._tune, self._run, self._folder, self._resume,
            at_end=_saves(self._trainable),
        ).run()  # fmt: skip
        self._done = ResultGrid(outcome, self._folder, self._tune.metric, self._tune.mode)
        return self._done

    def get_results(self) -> ResultGrid:
        """Of ``fit``, or of the experiment that has been restored."""
        if self._done is None:
            raise RuntimeError(
                "Can't return results as experiment has not been run, yet. "
                "Call `Tuner.fit()` to run the experiment first."
            )
        return self._done

    @classmethod
    def can_restore(cls, path: Any, storage_filesystem: Any = None) -> bool:
        """Whether there is an experiment."""
        del storage_filesystem
        return (stored(path) / TUNER_FILE).exists()

    @classmethod
    def restore(
        cls,
        path: str,
        trainable: Any,
        resume_unfinished: bool = True,
        resume_errored: bool = False,
        restart_errored: bool = False,
        param_space: dict[str, Any] | None = None,
        storage_filesystem: Any = None,
        _resume_config: ResumeConfig | None = None,
    ) -> Tuner:
        """An experiment that has been left or has failed, to go on with."""
        del storage_filesystem
        folder = stored(path)
        name, space, tune, settings = load_code((folder / TUNER_FILE).read_bytes())
        trainable = registered(trainable)
        _check_trainable(trainable)
        _check_restored(name, _name_of(trainable), space, param_space)
        settings.name, settings.storage_path = folder.name, str(folder.parent)
        kinds = ResumeConfig.ResumeType
        resume = _resume_config or ResumeConfig(
            unfinished=kinds.RESUME if resume_unfinished else kinds.SKIP,
            errored=kinds.RESUME if resume_errored
            else kinds.RESTART if restart_errored else kinds.SKIP,
        )  # fmt: skip
        tuner = cls.__new__(cls)
        tuner._take_up(  # noqa: SLF001  (its own)
            trainable, space if param_space is None else space_of(param_space), tune, settings
        )
        tuner._goes_on(folder, resume)  # noqa: SLF001  (its own)
        return tuner


def _check_restored(
    old: str, new: str, space: Mapping[str, Any], new_space: Mapping[str, Any] | None
) -> None:
    if new != old:
        raise ValueError(
            "Invalid `trainable` input to `Tuner.restore()`. To fix this error, pass in the same "
            "trainable that was used to initialize the Tuner. Got a trainable with identifier "
            f"'{new}' but expected '{old}'."
        )
    expected = sorted(flat(space))
    if new_space is not None and sorted(flat(new_space)) != expected:
        raise ValueError(
            "Invalid `param_space` input to `Tuner.restore()`. To fix this error, pass in the same "
            "`param_space` that was used to initialize the Tuner. Only re-specify the "
            "`param_space` to refresh Ray object references that no longer exist due to restoring "
            "from a new Ray cluster session. It should not be used to introduce new "
            f"hyperparameters to tune.\n\nGot: {sorted(flat(new_space))}\nExpected: {expected}"
        )


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
    trial_name_creator: Any = None,
    trial_dirname_creator: Any = None,
    resume: bool | str | None = None,
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
        trial_name_creator=trial_name_creator, trial_dirname_creator=trial_dirname_creator,
    )  # fmt: skip
    settings = RunConfig(
        name=name, storage_path=storage_path, stop=stop, verbose=verbose,
        failure_config=FailureConfig(max_failures, fail_fast), checkpoint_config=checkpoint_config,
        callbacks=list(callbacks or ()),
    )  # fmt: skip
    trainable = registered(run_or_experiment)
    _check_trainable(trainable)
    folder = experiment_folder(storage_path, name or new_name(_name_of(trainable)))
    resuming = _resuming(resume)
    outcome = _Fit(
        trainable, space_of(config), tune, settings, folder, resuming, resources=resources_per_trial
    ).run()
    failed = [t for t in outcome if t.status != "TERMINATED"]
    if failed and raise_on_failed_trial:
        raise TuneError("Trials did not complete", failed)
    return ExperimentAnalysis(folder, trials=outcome, default_metric=metric, default_mode=mode)


def _resuming(said: bool | str | None) -> ResumeConfig | None:
    """Of ``tune.run(resume=)``; a folder without an experiment begins one (``AUTO``)."""
    if not said:
        return None
    kinds = ResumeConfig.ResumeType
    words = set(str(said).upper().split("+"))
    if "RESTART_ERRORED" in words or "RESTART_ERRORED_ONLY" in words:
        return ResumeConfig(errored=kinds.RESTART)
    errored = bool(words & {"ERRORED", "ERRORED_ONLY"})
    return ResumeConfig(errored=kinds.RESUME if errored else kinds.SKIP)


REGISTERED: dict[str, Any] = {}
"""``tune.register_trainable``."""


def registered(trainable: Any) -> Any:
    """What a name stands for: the user's own, or an algorithm of RLlib.

    Raises
    ------
    NotEmulatedError
        An algorithm of RLlib that is not emulated.
    """
    if not isinstance(trainable, str):
        return trainable
    if trainable not in REGISTERED:
        from raysim.rayapi.rllib.algorithms import ALGORITHMS, OTHERS

        if trainable in OTHERS:
            raise NotEmulatedError(f"RLlib's {trainable}", ", ".join(ALGORITHMS))
        return ALGORITHMS.get(trainable, trainable)
    return REGISTERED[trainable]


def _name_of(trainable: Any) -> str:
    return str(getattr(trainable, "__name__", "func"))


def _is_class(trainable: Any) -> bool:
    return inspect.isclass(trainable) and issubclass(trainable, Trainable)


def _saves(trainable: Any) -> bool:
    """A class under ``Tuner`` saves when it ends, if it can."""
    return _is_class(trainable) and trainable.save_checkpoint is not Trainable.save_checkpoint


def _check_trainable(trainable: Any) -> None:
    if _is_class(trainable):
        return
    if isinstance(trainable, str):
        raise TuneError(f"Unknown trainable: {trainable}")
    if not callable(trainable):
        raise TuneError("Improper 'run' - not string nor trainable.")
    if inspect.isclass(trainable):
        raise NotEmulatedError(
            f"tune.Tuner of {trainable!r}", "functions of a configuration and tune.Trainable"
        )
    _check_signature(trainable)


def _say_first_failure(trials: Sequence[Trial]) -> None:
    """Why a trial failed, as Ray logs it; once: the others mostly fail alike."""
    failed = [trial for trial in trials if trial.status == "ERROR" and trial.error is not None]
    if failed:
        said = f"Trial task failed for trial {failed[0].trial_id}"
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        sys.stderr.write(f"{said}{more}\n{exception_of(failed[0].error, '')}\n")


class _Fit:
    """One call of ``fit``: an experiment, played in the driver.

    Parameters
    ----------
    trainable, space, tune, settings
        The tuner's.
    folder
        Where it is kept.
    resume
        What to do with the trials that are there; None: it begins.
    resources
        Of each trial, if it is not the trainable that says so.
    at_end
        Whether trials save when they end, if the settings do not say.
    """

    def __init__(
        self, trainable: Any, space: dict[str, Any], tune: TuneConfig, settings: RunConfig,
        folder: Path, resume: ResumeConfig | None, resources: PlacementGroupFactory | None = None,
        *, at_end: bool = False,
    ) -> None:  # fmt: skip
        self._trainable, self._space = trainable, space
        self._tune, self._settings = tune, settings
        self._folder, self._resume, self._at_end = folder, resume, at_end
        self._resources = resources or resources_of(trainable)
        if hasattr(trainable, "check_stop"):  # of RLlib: what is not learned ends no trial
            trainable.check_stop(settings.stop, tune.time_budget_s)
        self._observer = Observer(settings.callbacks) if settings.callbacks else None
        self._lacks = ""  # what a result has not that it must have
        self._folders = TrialFolders(
            folder, tune.trial_name_creator, tune.trial_dirname_creator, session_here()
        )

    def run(self) -> tuple[Trial, ...]:
        """All its trials, when they have ended."""
        if self._tune.mode not in {None, "", "min", "max"}:
            raise ValueError(
                "The `mode` parameter passed to `Tuner(...)` must be one of ['min', 'max']"
            )
        cpus = float(cluster_resources().get("CPU", 1.0))
        session = session_here()
        if not session.libraries.setdefault(LIBRARY, False):
            session.libraries[LIBRARY] = True
            use_cores(this_fiber(), session.env.costs.tune_first_core_s, 1.0)
        self._folder.mkdir(parents=True, exist_ok=True)
        observer, samples = self._observer, self._tune.num_samples
        if observer is not None:
            total = samples * count(self._space)
            stop = self._settings.stop
            observer.set_up(stop=stop, num_samples=samples, total_num_samples=total)
        experiment = self._experiment()
        outcome = play(
            lambda process: TuneController(
                process, experiment, _no_stream, rng=global_generator(), cluster_cpus=cpus
            ).run()
        )
        if observer is not None and observer.error is not None:
            raise TuneError("".join(traceback.format_exception(observer.error))) from observer.error
        if self._lacks:
            raise TuneError(self._lacks)
        failure = self._settings.failure_config
        failed = [trial for trial in outcome.trials if trial.status == "ERROR"]
        if failed and failure is not None and failure.raises:
            raise_error(exception_of(failed[0].error, ""))
        _say_first_failure(outcome.trials)
        return tuple(outcome.trials)

    def _experiment(self) -> Experiment:
        tune, observer = self._tune, self._observer
        failure = self._settings.failure_config or FailureConfig()
        saving = self._settings.checkpoint_config or CheckpointConfig()
        stop = checked(self._settings.stop)
        is_class, name = _is_class(self._trainable), _name_of(self._trainable)
        where = Where(
            session=session_here(), code=dump_code(self._trainable), is_class=is_class, name=name,
            folder=self._folder,
        )  # fmt: skip
        kind = ClassTrainable if is_class else FunctionTrainable
        state = read_state(self._folder) if self._resume is not None else None
        if state is not None and observer is not None:
            observer.restore(state.callbacks)
        return Experiment(
            name=self._folder.name,
            trainable=lambda process, trial: kind(process, trial, where),
            param_space=self._space,
            num_samples=tune.num_samples,
            resources=self._resources,
            search_alg=searcher_of(tune),
            scheduler=scheduler_of(tune),
            metric=tune.metric,
            mode=tune.mode,
            stop=stop,
            stop_all=lambda: bool(self._lacks) or _stops_all(stop, observer),
            observer=observer,
            trainable_name=name,
            max_failures=failure.max_failures,
            fail_fast=bool(failure.fail_fast),
            max_concurrent_trials=tune.max_concurrent_trials,
            reuse_actors=tune.reuse_actors,
            time_budget_s=_budget_s(tune.time_budget_s, stop),
            checkpoint_freq=saving.checkpoint_frequency or 0,
            checkpoint_at_end=(
                self._at_end if saving.checkpoint_at_end is None else saving.checkpoint_at_end
            ),
            num_to_keep=saving.num_to_keep,
            checkpoint_score=_score_of(saving),
            on_dropped=_removed,
            keep_results=True,
            on_trial=self._folders.give,
            on_result=self._took,
            on_snapshot=self._write,
            restored=() if state is None else requeued(state.trials, self._resume),
            restored_search=None if state is None else state.search,
        )

    def _took(self, trial: Trial, result: Mapping[str, Any]) -> None:
        """A result (``_validate_result_metrics``)."""
        self._folders.log(trial, result)
        metric = self._tune.metric
        strict = os.environ.get("TUNE_DISABLE_STRICT_METRIC_CHECKING", "0") != "1"
        if strict and metric and metric != DEFAULT_METRIC and metric not in flat(result):
            self._lacks = (
                "Traceback (most recent call last):\nValueError: "
                "Trial returned a result which did not include the specified metric(s) "
                f"`{metric}` that `tune.TuneConfig()` expects. Make sure your calls to "
                "`tune.report()` include the metric, or set the TUNE_DISABLE_STRICT_METRIC_CHECKING"
                f" environment variable to 1. Result: {result}"
            )

    def _write(self, trials: Sequence[Trial], search: SearchAlgorithm) -> None:
        callbacks = [] if self._observer is None else self._observer.states()
        State(list(trials), search, callbacks, str(self._folder)).write()


def _score_of(saving: CheckpointConfig) -> Callable[[Mapping[str, Any]], float | None] | None:
    """What checkpoints are kept by (``_get_checkpoint_score``)."""
    attribute = saving.checkpoint_score_attribute
    if attribute is None:
        return None
    sign = 1 if saving.checkpoint_score_order == "max" else -1

    def score(metrics: Mapping[str, Any]) -> float | None:
        value = flat(metrics).get(attribute)
        if value is None:
            return None
        return -inf if isnan(value) else sign * float(value)

    return score


def _removed(checkpoint: TrialCheckpoint) -> None:
    shutil.rmtree(checkpoint.state.path, ignore_errors=True)


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
