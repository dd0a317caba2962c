"""A grid of function trials: configurations, last results, the best."""
# cluster: 2 CPU

import os
import tempfile

os.environ["RAY_AIR_NEW_OUTPUT"] = "0"

import ray
from ray import tune


def objective(config):
    for step in range(config["steps"]):
        tune.report({"score": config["x"] * (step + 1), "nested": {"step": step}})


ray.init()
with tempfile.TemporaryDirectory() as folder:
    grid = tune.Tuner(
        objective,
        param_space={
            "x": tune.grid_search([3, 1, 2]),
            "steps": 3,
            "deep": {"y": tune.grid_search([10, 20])},
        },
        tune_config=tune.TuneConfig(metric="score", mode="max"),
        run_config=tune.RunConfig(name="grid", storage_path=folder, verbose=0),
    ).fit()
    print(len(grid), grid.num_errors, grid.num_terminated, grid.errors)
    for result in grid:
        m = result.metrics
        print(
            result.config,
            m["score"],
            m["nested"],
            m["training_iteration"],
            m["done"],
            m["iterations_since_restore"],
        )
    best = grid.get_best_result()
    print("best", best.config["x"], best.metrics["score"])
    worst = grid.get_best_result(metric="score", mode="min", scope="avg")
    print("worst", worst.config, worst.metrics["experiment_tag"])
    for key in (
        "trial_id",
        "time_total_s",
        "time_this_iter_s",
        "pid",
        "node_ip",
        "date",
        "timestamp",
    ):
        assert key in best.metrics, key
    frame = grid.get_dataframe()
    print(
        sorted(frame["score"].tolist()), sorted(frame["config/x"].tolist()), "nested/step" in frame
    )
    print(
        best.metrics_dataframe["score"].tolist(),
        best.metrics_dataframe["training_iteration"].tolist(),
    )
