"""Search spaces drawn from a seed: the same configurations, in the same order."""
# cluster: 2 CPU

import os
import tempfile

os.environ["RAY_AIR_NEW_OUTPUT"] = "0"

import numpy as np
import ray
from ray import tune
from ray.tune.search import BasicVariantGenerator


def objective(config):
    tune.report({"score": config["lr"] * config["units"]})


SPACE = {
    "lr": tune.loguniform(1e-4, 1e-1),
    "units": tune.choice([8, 16, 32]),
    "drop": tune.quniform(0, 0.5, 0.1),
    "layers": tune.randint(1, 5),
    "half": tune.sample_from(lambda config: config["units"] // 2),
}


def fit(folder, name, **changes):
    grid = tune.Tuner(
        objective,
        param_space=SPACE,
        tune_config=tune.TuneConfig(metric="score", mode="max", num_samples=3, **changes),
        run_config=tune.RunConfig(name=name, storage_path=folder, verbose=0),
    ).fit()
    for result in grid:
        print(name, {k: round(v, 6) for k, v in result.config.items()})


ray.init()
with tempfile.TemporaryDirectory() as folder:
    np.random.seed(7)  # noqa: NPY002 - Tune's own default draws from this one
    fit(folder, "global")
    fit(folder, "seeded", search_alg=BasicVariantGenerator(random_state=3))
    points = [{"lr": 0.01, "units": 8}]
    fit(
        folder,
        "points",
        search_alg=BasicVariantGenerator(points_to_evaluate=points, random_state=5),
    )
    big = tune.with_parameters(lambda config, data: {"n": len(data) + config["k"]}, data=[0] * 1000)
    grid = tune.Tuner(
        tune.with_resources(big, {"cpu": 0.5}),
        param_space={"k": tune.grid_search([1, 2])},
        run_config=tune.RunConfig(name="parameters", storage_path=folder, verbose=0),
    ).fit()
    print(sorted(r.metrics["n"] for r in grid))
