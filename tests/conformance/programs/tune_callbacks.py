"""Callbacks of an experiment, and rules by which trials or all of it stop."""
# cluster: 2 CPU

import os
import tempfile
import time
from pathlib import Path

os.environ["RAY_AIR_NEW_OUTPUT"] = "0"

import ray
from ray import tune
from ray.tune.logger import LoggerCallback
from ray.tune.stopper import (
    CombinedStopper,
    ExperimentPlateauStopper,
    FunctionStopper,
    MaximumIterationStopper,
    Stopper,
    TimeoutStopper,
    TrialPlateauStopper,
)


class Heard(tune.Callback):
    """Prints every event."""

    def setup(self, stop=None, num_samples=None, total_num_samples=None, **info):
        print("setup", num_samples, total_num_samples)
        self.steps = 0

    def on_step_begin(self, iteration, trials, **info):
        self.steps += 1

    def on_step_end(self, iteration, trials, **info):
        assert iteration >= 1

    def on_trial_start(self, iteration, trials, trial, **info):
        print("start", trial.config["x"], trial.trainable_name, len(trials))

    def on_trial_result(self, iteration, trials, trial, result, **info):
        print("result", trial.config["x"], result["training_iteration"], result["score"])

    def on_trial_save(self, iteration, trials, trial, **info):
        print("save", trial.config["x"])

    def on_checkpoint(self, iteration, trials, trial, checkpoint, **info):
        print("checkpoint", trial.config["x"], type(checkpoint).__name__)

    def on_trial_complete(self, iteration, trials, trial, **info):
        print("complete", trial.config["x"], trial.last_result["training_iteration"])

    def on_trial_error(self, iteration, trials, trial, **info):
        print("error", trial.config["x"], trial.status)

    def on_trial_recover(self, iteration, trials, trial, **info):
        print("recover", trial.config["x"])

    def on_experiment_end(self, trials, **info):
        print("end", [trial.status for trial in trials], self.steps > len(trials))


class Logged(LoggerCallback):
    """The shorter form."""

    def log_trial_start(self, trial):
        print("log: start", trial.config["x"])

    def log_trial_result(self, iteration, trial, result):
        assert result["trial_id"] == trial.trial_id

    def log_trial_end(self, trial, failed=False):
        print("log: end", trial.config["x"], failed)


class Failing(tune.Callback):
    """Its error is the experiment's."""

    def on_trial_result(self, iteration, trials, trial, result, **info):
        raise RuntimeError("from a callback")


class Budget(Stopper):
    """So many results of all trials."""

    def __init__(self, results):
        self.left = results

    def __call__(self, trial_id, result):
        self.left -= 1
        return False

    def stop_all(self):
        return self.left <= 0


def train(config):
    for step in range(3):
        if config["x"] == 2 and step == 1:
            raise ValueError("x is two")
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state").write_text(str(step))
            saved = tune.Checkpoint.from_directory(folder) if step == 1 else None
            tune.report({"score": 10 * config["x"] + step}, checkpoint=saved)
        time.sleep(0.3)


def falling(config):
    for step in range(12):
        time.sleep(0.05)
        tune.report({"loss": 1 / (step + 1) if config["x"] == 1 else 0.5})


def slow(config):
    for step in range(100):
        time.sleep(0.3)
        tune.report({"loss": step})


ray.init()
with tempfile.TemporaryDirectory() as folder:

    def fit(trainable, stop=None, callbacks=(), failures=0, name="run", both=True):
        space = {"x": tune.grid_search([1, 2] if both else [1])}
        return tune.Tuner(
            trainable,
            param_space=space,
            tune_config=tune.TuneConfig(max_concurrent_trials=1),
            run_config=tune.RunConfig(
                name=name,
                storage_path=folder,
                verbose=0,
                stop=stop,
                callbacks=list(callbacks),
                failure_config=tune.FailureConfig(max_failures=failures),
                progress_reporter=tune.CLIReporter(metric_columns=["score"]),
            ),
        ).fit()

    def steps(grid):
        return [(result.metrics or {}).get("training_iteration") for result in grid]

    grid = fit(train, callbacks=[Heard(), Logged()], failures=1)
    print(steps(grid), grid.num_errors)

    for title, rule in {
        "so many": MaximumIterationStopper(3),
        "plateau": TrialPlateauStopper("loss", std=0.02),
        "any": CombinedStopper(
            MaximumIterationStopper(6),
            FunctionStopper(lambda trial_id, result: result["loss"] < 0.3),
        ),
        "function": lambda trial_id, result: result["training_iteration"] >= 2,
        "of the experiment": ExperimentPlateauStopper("loss", top=3, std=0.1),
        "own": Budget(4),
    }.items():
        print(title, steps(fit(falling, rule, name=title)))
    timed = steps(fit(slow, TimeoutStopper(4), name="timeout", both=False))
    print("in time", 0 < timed[0] < 50)

    for wrong in (3, Budget):
        try:
            fit(falling, wrong, name="wrong")
        except Exception as error:
            print(type(error).__name__, str(error).splitlines()[0])
    try:
        fit(falling, callbacks=[Failing()], name="failing", both=False)
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0])
