"""A controller without a cluster, for schedulers; and experiments on small clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from inspect import isgenerator
from typing import Any

import numpy as np

from raysim.raycore.cluster import Cluster
from raysim.raylibs.tune.controller import TuneController
from raysim.raylibs.tune.defaults import TuneCosts, TuneDefaults
from raysim.raylibs.tune.experiment import Experiment
from raysim.raylibs.tune.program import Step
from raysim.raylibs.tune.trial import Trial, TrialCheckpoint
from tests.stories.ray_scripts import run


def sample_configs(seed: int, trials: int) -> list[dict[str, Any]]:
    """Configurations with settings of each kind; some lack one."""
    rng = np.random.default_rng(seed)
    configs = []
    for _ in range(trials):
        config: dict[str, Any] = {
            "lr": float(rng.uniform(0.001, 1)), "units": int(rng.choice([8, 16, 32])),
            "n": {"m": float(rng.uniform(0, 1))}, "k": int(rng.choice([1, 2])),
        }  # fmt: skip
        if rng.random() < 0.3:
            del config["lr"]
        configs.append(config)
    return configs


class Bench:
    """At most ``slots`` trials run; results come in random order; the log says what was decided."""

    search_alg = None

    def __init__(
        self, scheduler: Any, configs: list[dict[str, Any]], seed: int, *,
        slots: int = 5, max_iterations: int = 40, rng: Any = None,
    ) -> None:  # fmt: skip
        self.scheduler = scheduler
        self.log: list[tuple[Any, ...]] = []
        self.draws = np.random.default_rng(seed)
        self.slots = slots
        self.max_iterations = max_iterations
        self._rng = rng
        self.trials: list[Any] = []
        for i, config in enumerate(configs):
            trial = self.trial(f"t{i:03d}", dict(config))
            self.trials.append(trial)
            scheduler.on_trial_add(self, trial)
        self.iterations = dict.fromkeys((t.trial_id for t in self.trials), 0)
        self.limit = {t.trial_id: int(self.draws.integers(3, max_iterations)) for t in self.trials}

    def trial(self, trial_id: str, config: dict[str, Any]) -> Any:
        return Trial(trial_id, config, experiment_tag=trial_id)

    # what schedulers ask for

    def rng(self) -> Any:
        return self._rng

    def get_trials(self) -> list[Any]:
        return self.trials

    def get_live_trials(self) -> list[Any]:
        return [t for t in self.trials if not t.is_finished()]

    def first_waiting(self) -> Any:
        for status in ("PENDING", "PAUSED"):
            for trial in self.trials:
                if trial.status == status:
                    return trial
        return None

    def stop_trial(self, trial: Any) -> None:
        if trial.is_finished():
            return
        self.log.append(("stop", trial.trial_id))
        if trial.status in ("PENDING", "PAUSED"):
            self.scheduler.on_trial_remove(self, trial)
        else:
            self.scheduler.on_trial_complete(self, trial, trial.last_result)
        trial.status = "TERMINATED"

    def pause_trial(self, trial: Any, should_checkpoint: bool = True) -> None:
        self.log.append(("pause", trial.trial_id))
        if should_checkpoint:
            self.saved(trial)
        trial.status = "PAUSED"

    def saved(self, trial: Any) -> None:
        trial.checkpoint = TrialCheckpoint(
            trial_id=trial.trial_id, iteration=0, size_bytes=0, metrics={}
        )

    def schedule_trial_save(self, trial: Any, result: Any = None) -> Any:
        self.log.append(("save", trial.trial_id))
        self.saved(trial)
        return trial.checkpoint

    # the loop

    def run(self, steps: int = 1500) -> None:
        for _ in range(steps):
            running = [t for t in self.trials if t.status == "RUNNING"]
            while len(running) < self.slots:
                trial = self.scheduler.choose_trial_to_run(self)
                self.log.append(("choose", trial and trial.trial_id))
                if trial is None:
                    break
                trial.status = "RUNNING"
                running.append(trial)
            if not running:
                break
            self.result(running[int(self.draws.integers(len(running)))])
        self.log.append(tuple((t.trial_id, t.status, _shown(t)) for t in self.trials))

    def result(self, trial: Any) -> None:
        self.iterations[trial.trial_id] += 1
        iteration = self.iterations[trial.trial_id]
        score = float(np.round(self.draws.normal() + iteration * 0.1, 2))
        result = {"score": score, "training_iteration": iteration}
        if self.draws.random() < 0.01 and not hasattr(trial, "x"):
            self.log.append(("error", trial.trial_id))
            self.scheduler.on_trial_error(self, trial)
            trial.status = "ERROR"
            return
        if iteration >= self.limit[trial.trial_id]:
            decision = "STOP"
        else:
            decision = self.scheduler.on_trial_result(self, trial, result)
            if isgenerator(decision):
                decision = finished(decision)
        trial.last_result = result
        self.log.append((trial.trial_id, iteration, decision))
        if decision == "STOP":
            self.stop_trial(trial)
        elif decision == "PAUSE":
            self.pause_trial(trial)


def finished(script: Any) -> Any:
    """What a script returns that asks nothing."""
    try:
        next(script)
    except StopIteration as end:
        return end.value
    raise AssertionError("the script waits")


def _shown(trial: Any) -> Any:
    return trial.experiment_tag, sorted(
        (k, v) for k, v in trial.config.items() if not isinstance(v, dict)
    )


# ---- on a cluster


def sleeping(
    iterations: int, *, seconds: float = 1.0, checkpoint_bytes: int | None = None
) -> Callable[..., Iterator[Step]]:
    """Each iteration sleeps and reports ``score``, which grows with ``config["x"]``."""

    def steps(config: Mapping[str, Any], _rng: Any, start: int) -> Iterator[Step]:
        for i in range(start, iterations):
            yield Step(
                duration_s=seconds,
                metrics={"score": config.get("x", 0) * (i + 1)},
                checkpoint_bytes=checkpoint_bytes,
            )

    return steps


def tuned(cluster: Cluster, experiment: Experiment, *, until: str = "2h", cpus: float = 4) -> Any:
    """The TuneResult of an experiment, alone on a cluster."""

    def main(process: Any) -> Any:
        controller = TuneController(process, experiment, cluster.sim.rng, cluster_cpus=cpus)
        return (yield from controller.run())

    return run(cluster, main, until=until)


def cheap(**changes: Any) -> TuneDefaults:
    """A driver and imports that cost nothing, so that only the trials show."""
    costs = TuneCosts(event_s=0, result_s=0, logger_result_s=0, trial_s=0, state_trial_s=0)
    return replace(TuneDefaults(costs=costs, trainable_core_s=0.0), **changes)
