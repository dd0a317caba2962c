"""Trials that raise: which end, which are tried again, what is kept."""
# cluster: 2 CPU

import os
import tempfile
from pathlib import Path

os.environ["RAY_AIR_NEW_OUTPUT"] = "0"

import ray
from ray import tune


def objective(config):
    for step in range(3):
        if step == 1 and config["x"] == 1:
            raise ValueError("x is one")
        tune.report({"score": step})


def stubborn(config):
    tune.report({"score": 1})
    failed = Path(config["folder"], f"failed-{config['x']}")
    if not failed.exists():
        failed.touch()
        raise RuntimeError("once")
    tune.report({"score": 2})


ray.init()
with tempfile.TemporaryDirectory() as folder:
    grid = tune.Tuner(
        objective,
        param_space={"x": tune.grid_search([0, 1, 2])},
        run_config=tune.RunConfig(name="errors", storage_path=folder, verbose=0),
    ).fit()
    print(len(grid), grid.num_errors, grid.num_terminated)
    for result in grid:
        print(
            result.config,
            result.metrics["score"],
            type(result.error).__name__,
            isinstance(result.error, ValueError),
        )
    print(str(grid.errors[0]).splitlines()[-1])

    grid = tune.Tuner(
        stubborn,
        param_space={"x": tune.grid_search([0, 1]), "folder": folder},
        run_config=tune.RunConfig(
            name="again",
            storage_path=folder,
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=1),
        ),
    ).fit()
    print(
        grid.num_errors,
        [r.metrics["score"] for r in grid],
        [r.metrics["training_iteration"] for r in grid],
    )

    try:
        tune.run(objective, config={"x": 1}, name="run", storage_path=folder, verbose=0)
    except tune.TuneError as error:
        print(type(error).__name__, error.args[0])

try:
    tune.Tuner(lambda: None).fit()
except Exception as error:
    print(type(error).__name__)
