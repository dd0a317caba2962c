"""Ray Tune: eight trials of a function that sleeps and reports, four at a time."""
# cluster: 4 CPU
# role: validation

import json
import tempfile
import time

import ray
from ray import tune


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


def trial(settings):
    for step in range(4):
        time.sleep(0.25)
        tune.report({"score": settings["x"] * step})


ray.init()
with tempfile.TemporaryDirectory() as folder:
    start = time.perf_counter()
    tune.Tuner(
        tune.with_resources(trial, {"cpu": 1}),
        param_space={"x": tune.grid_search(list(range(8)))},
        run_config=tune.RunConfig(storage_path=folder, verbose=0),
    ).fit()
    row("grid_8_trials_of_1s", start)
