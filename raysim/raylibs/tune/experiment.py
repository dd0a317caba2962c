"""An experiment: what is tried, how often, under which rules; and what came of it.

Real counterpart: ``ray/tune/tune_config.py``, ``RunConfig``, ``experiment/experiment.py`` and
``result_grid.py`` (ray 2.60).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from raysim.raycore.scripts import Script
from raysim.raylibs.tune.defaults import TuneDefaults
from raysim.raylibs.tune.program import SpecTrainable, TrialProgram
from raysim.raylibs.tune.resources import PlacementGroupFactory
from raysim.raylibs.tune.schedulers import FIFOScheduler, TrialScheduler
from raysim.raylibs.tune.search.algorithms import (
    BasicVariantGenerator,
    ConcurrencyLimiter,
    SearchAlgorithm,
    Searcher,
    SearchGenerator,
)
from raysim.raylibs.tune.trial import Trial, TrialCheckpoint


class Trainable(Protocol):
    """What a trial's actor runs: methods are scripts, or plain functions that take no time.

    A method that fails returns a ``TaskError``.
    """

    def setup(self, config: Mapping[str, Any]) -> Any:
        """In the actor's constructor."""

    def train(self) -> Any:
        """The next result; ``{"__duplicate__": True}`` at a function's end."""

    def save(self) -> Any:
        """A ``TrialCheckpoint``, or None if there is none."""

    def restore(self, checkpoint: TrialCheckpoint) -> Any:
        """Go on from one."""

    def reset(self, trial: Trial) -> Any:
        """Be another trial; whether that works."""

    def stop(self) -> Any:
        """The last call."""


MakeTrainable = Callable[[Any, Trial], Trainable]
"""(process of the actor, trial) -> its trainable; where users' functions and other libraries come
in: ``rayapi`` hands in one that runs the user's code in a fiber, Train one that runs its
controller."""

Stopper = Callable[[str, Mapping[str, Any]], bool]
"""(trial_id, result) -> whether the trial is to stop."""


Observer = Callable[[str, dict[str, Any]], Script]
"""Of Ray's callbacks: ``("trial_start", {"iteration": 3, "trials": [...], "trial": trial})``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Everything ``Tuner.fit()`` needs.

    Parameters
    ----------
    trainable
        A spec, or what makes a trainable in the trial's actor.
    param_space, num_samples
        What is tried.
    resources
        Of a trial; a function of its configuration.
    search_alg, scheduler
        New objects: they remember what they have seen.
    metric, mode
        What is to be max or min.
    stop, stop_all
        Values of a result at which a trial stops, or a function; whether all are to stop now.
    max_failures
        So often a trial starts again, from its last checkpoint; -1: always.
    max_concurrent_trials, reuse_actors, time_budget_s
        As in ``TuneConfig``.
    checkpoint_freq, checkpoint_at_end, num_to_keep
        As in ``CheckpointConfig``.
    checkpoint_score
        Of a checkpoint's metrics, the more the better; None: later ones are better.
    on_dropped
        Called with each checkpoint that is not kept any more.
    loggers
        Whether results are written as JSON, CSV and TensorBoard events, Ray's default.
    keep_results
        All results of all trials stay in memory.
    on_result
        Called with each (trial, result) at the instant the driver processes it.
    on_trial
        Called with each trial as it is made, before its actor is asked for.
    on_snapshot
        Called with all trials and the search algorithm where Ray writes its state.
    restored, restored_search
        Of an experiment that goes on: its trials as they were left, and its search algorithm.
    observer
        What the driver does when something has happened: a script of (event, what it is about).
    trainable_name
        As trials are called.
    """

    name: str = "tune"
    trainable: TrialProgram | MakeTrainable
    param_space: Mapping[str, Any] = field(default_factory=dict)
    num_samples: int = 1
    resources: PlacementGroupFactory | Callable[[Mapping[str, Any]], PlacementGroupFactory] = field(
        default_factory=PlacementGroupFactory
    )
    search_alg: BasicVariantGenerator | Searcher | None = None
    scheduler: TrialScheduler | None = None
    metric: str | None = None
    mode: str | None = None
    stop: Mapping[str, Any] | Stopper = field(default_factory=dict)
    stop_all: Callable[[], bool] | None = None
    max_failures: int = 0
    fail_fast: bool = False
    max_concurrent_trials: int | None = None
    reuse_actors: bool = False
    time_budget_s: float | None = None
    checkpoint_freq: int = 0
    checkpoint_at_end: bool = False
    num_to_keep: int | None = None
    checkpoint_score: Callable[[Mapping[str, Any]], float | None] | None = None
    on_dropped: Callable[[TrialCheckpoint], object] | None = None
    loggers: bool = True
    keep_results: bool = False
    on_result: Callable[[Trial, Mapping[str, Any]], object] | None = None
    on_trial: Callable[[Trial], object] | None = None
    on_snapshot: Callable[[Sequence[Trial], SearchAlgorithm], object] | None = None
    restored: tuple[Trial, ...] = ()
    restored_search: SearchAlgorithm | None = None
    observer: Observer | None = None
    trainable_name: str = ""
    defaults: TuneDefaults = field(default_factory=TuneDefaults)

    def made_by(self, streams: Callable[[str], Any]) -> MakeTrainable:
        """What makes a trial's trainable; a program's trials draw from streams of their own."""
        program = self.trainable
        if not isinstance(program, TrialProgram):
            return program

        def make(process: Any, trial: Trial) -> SpecTrainable:
            return SpecTrainable(
                process, program, trial, lambda trial_id: streams(f"tune/{self.name}/{trial_id}")
            )

        return make

    def algorithm(self) -> SearchAlgorithm:
        """The search algorithm, limited (``Tuner``'s and ``tune.run``'s rules)."""
        given, limit = self.search_alg, self.max_concurrent_trials
        if given is None:
            return BasicVariantGenerator(max_concurrent=limit or 0)
        if isinstance(given, BasicVariantGenerator):
            given.max_concurrent = given.max_concurrent or limit or 0
            return given
        if limit and not isinstance(given, ConcurrencyLimiter):
            given = ConcurrencyLimiter(given, limit)
        return SearchGenerator(given)

    def search(self, rng: Any) -> SearchAlgorithm:
        """The search algorithm at work; of an experiment that goes on, the one it had."""
        if self.restored_search is not None:
            self.restored_search.resume(rng, self.make_trial)
            return self.restored_search
        made = self.algorithm()
        made.begin(self.param_space, self.num_samples, rng, self.make_trial)
        return made

    def make_trial(
        self, trial_id: str, config: dict[str, Any], tag: str, evaluated: dict[str, Any]
    ) -> Trial:
        """Of a configuration; it waits for resources."""
        asked = self.resources
        resources = asked if isinstance(asked, PlacementGroupFactory) else asked(config)
        return Trial(
            trial_id, config, resources=resources, experiment_tag=tag, evaluated_params=evaluated,
            trainable_name=self.trainable_name,
        )  # fmt: skip

    def keep(self, trial: Trial, checkpoint: TrialCheckpoint) -> None:
        """A trial's last one, and its best ones (``_CheckpointManager``)."""
        before, trial.checkpoint = trial.checkpoint, checkpoint
        kept, score = trial.checkpoints, self.checkpoint_score
        mine = score(checkpoint.metrics) if score is not None else None
        place = len(kept)
        if score is not None and mine is not None:
            scores = [score(c.metrics) for c in kept]
            place = next((i for i, s in enumerate(scores) if s is not None and s > mine), place)
        kept.insert(place, checkpoint)
        if self.num_to_keep is None:
            return
        trial.checkpoints = kept[-self.num_to_keep :]
        gone = [c for c in kept[: -self.num_to_keep] if c is not checkpoint]
        if before is not None and before not in kept and before.trial_id == trial.trial_id:
            gone.append(before)  # it was there for being the last
        if self.on_dropped is not None:
            for dropped in gone:
                self.on_dropped(dropped)

    def written(self, trials: Iterable[Trial], search_alg: SearchAlgorithm) -> None:
        """Its state, where Ray writes it."""
        if self.on_snapshot is not None:
            self.on_snapshot(list(trials), search_alg)

    def trial_scheduler(self) -> TrialScheduler:
        """The scheduler; it is told metric and mode."""
        scheduler = self.scheduler or FIFOScheduler()
        if not scheduler.set_search_properties(self.metric, self.mode) and self.metric:
            raise ValueError(
                "You passed a `metric` or `mode` argument to `Tuner(...)`, but the "
                "scheduler you are using was already instantiated with their own `metric` and "
                "`mode` parameters. Either remove the arguments from your scheduler or from "
                "your call to `Tuner(...)`"
            )
        return scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneResult:
    """What an experiment came to.

    Parameters
    ----------
    trials
        In the order they were added.
    began_ns, ended_ns
        Of ``fit()``.
    n_results
        Processed by the driver.
    driver_busy_s
        Of its one thread, with results, trials and snapshots.
    results_lag_s
        Sum over results of how long each waited for the driver.
    actors_started
        Trainables, reused ones once.
    warnings
        (cause, fix) of what made it slow.
    """

    trials: tuple[Trial, ...]
    began_ns: int
    ended_ns: int
    n_results: int
    driver_busy_s: float
    results_lag_s: float
    actors_started: int
    warnings: tuple[tuple[str, str], ...] = ()

    @property
    def took_s(self) -> float:
        """From ``fit()`` to its return."""
        return (self.ended_ns - self.began_ns) / 1e9

    @property
    def num_errors(self) -> int:
        """Trials that failed for good."""
        return sum(t.status == "ERROR" for t in self.trials)

    def best(self, metric: str, mode: str) -> Trial | None:
        """Of the trials' last results."""
        scored = [t for t in self.trials if metric in t.last_result]
        sign = 1 if mode == "max" else -1
        return max(scored, key=lambda t: sign * t.last_result[metric], default=None)
