"""Ray Tune: what results' files and frames have, in which order."""
# cluster: 4 CPU

import json
import os
import tempfile
from pathlib import Path

os.environ["RAY_AIR_NEW_OUTPUT"] = "0"

import ray
from ray import tune


def objective(config):
    for i in range(2):
        tune.report({"loss": {"a": i, "b": config["x"]["y"]}, "i": i})


ray.init()
with tempfile.TemporaryDirectory() as storage:
    config = tune.RunConfig(name="run", storage_path=storage, verbose=0)
    grid = tune.Tuner(objective, param_space={"x": {"y": 3}}, run_config=config).fit()
    folder = Path(grid[0].path)
    print([list(json.loads(line)) for line in (folder / "result.json").read_text().splitlines()])
    print((folder / "progress.csv").read_text().splitlines()[0])
    print(list(grid.get_dataframe().columns))
    print(list(grid[0].metrics_dataframe.columns))
    print(sorted(grid[0].metrics))
    lacking = tune.TuneConfig(metric="nothing", mode="max")
    config = tune.RunConfig(name="other", storage_path=storage, verbose=0)
    try:
        tune.Tuner(
            objective, param_space={"x": {"y": 3}}, tune_config=lacking, run_config=config
        ).fit()
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0])
