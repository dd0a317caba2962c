"""Ray Tune: twelve trials of up to nine steps under ASHA, which stops the worse of them."""
# cluster: 4 CPU
# role: validation

import json
import tempfile
import time

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


def trial(settings):
    for step in range(1, 10):
        time.sleep(0.2)
        tune.report({"score": settings["x"] * step})


ray.init()
with tempfile.TemporaryDirectory() as folder:
    start = time.perf_counter()
    tune.Tuner(
        tune.with_resources(trial, {"cpu": 1}),
        param_space={"x": tune.grid_search([12 - x for x in range(12)])},
        tune_config=tune.TuneConfig(
            metric="score",
            mode="max",
            scheduler=ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3),
        ),
        run_config=tune.RunConfig(storage_path=folder, verbose=0),
    ).fit()
    row("asha_12_trials", start)
