"""Ray Tune: one trial; many results of one trial; six trials, three at a time."""
# cluster: 3 CPU
# role: calibration

import json
import tempfile
import time

import ray
from ray import tune


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


def trial(settings):
    for step in range(settings["results"]):
        time.sleep(settings["seconds"])
        tune.report({"score": step})


def fit(folder, space):
    tune.Tuner(
        tune.with_resources(trial, {"cpu": 1}),
        param_space=space,
        run_config=tune.RunConfig(storage_path=folder, verbose=0),
    ).fit()


ray.init()
with tempfile.TemporaryDirectory() as folder:
    start = time.perf_counter()
    fit(folder, {"results": 1, "seconds": 0.1})
    row("one_trial", start)

    start = time.perf_counter()
    fit(folder, {"results": 200, "seconds": 0.0})
    row("one_trial_of_200_results", start)

    start = time.perf_counter()
    fit(folder, {"results": 2, "seconds": tune.grid_search([0.2] * 6)})
    row("grid_6_trials", start)
