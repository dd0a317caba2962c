"""Who stops when: ASHA one trial after the other, stop rules, time multiplexed PBT."""
# cluster: 1 CPU

import os
import tempfile

os.environ["RAY_AIR_NEW_OUTPUT"] = "0"

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, MedianStoppingRule


def objective(config):
    for step in range(9):
        tune.report({"loss": config["x"] + 10 - step})


def fit(folder, name, **changes):
    return tune.Tuner(
        objective,
        param_space={"x": tune.grid_search([5, 3, 4, 1, 9, 2, 0, 7])},
        tune_config=tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=1, **changes),
        run_config=tune.RunConfig(name=name, storage_path=folder, verbose=0),
    ).fit()


ray.init()
with tempfile.TemporaryDirectory() as folder:
    asha = ASHAScheduler(max_t=8, grace_period=1, reduction_factor=2)
    grid = fit(folder, "asha", scheduler=asha)
    print("asha", [(r.config["x"], r.metrics["training_iteration"]) for r in grid])
    median = MedianStoppingRule(
        time_attr="training_iteration", grace_period=2, min_samples_required=2
    )
    grid = fit(folder, "median", scheduler=median)
    print("median", [(r.config["x"], r.metrics["training_iteration"]) for r in grid])
    print("best", grid.get_best_result().config)
