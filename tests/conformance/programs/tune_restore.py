"""An experiment with a trial that fails, restored: its results, then what is left of it."""
# cluster: 2 CPU

import json
import os
import tempfile
from pathlib import Path

os.environ["RAY_AIR_NEW_OUTPUT"] = "0"

import ray
from ray import tune


def objective(config):
    start, checkpoint = 0, tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            start = json.loads(Path(folder, "state.json").read_text())["step"] + 1
    for step in range(start, 4):
        if step == 2 and config["x"] == 1 and Path(config["flag"]).exists():
            raise RuntimeError("the flag is there")
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state.json").write_text(json.dumps({"step": step}))
            tune.report(
                {"score": 10 * config["x"] + step, "start": start},
                checkpoint=tune.Checkpoint.from_directory(folder),
            )


def other(config):
    return {"score": 0}


def names(folder, wanted=bool):
    return sorted(p.name for p in Path(folder).iterdir() if wanted(p.name))


def show(title, grid):
    print(title, len(grid), "trials,", grid.num_errors, "errors,", grid.num_terminated, "ended")
    for r in sorted(grid, key=lambda r: r.config["x"]):
        kept = [Path(c.path).name for c, _ in r.best_checkpoints]
        files = names(r.path, lambda name: not name.startswith(("error", "events")))
        print(r.config["x"], r.metrics["score"], r.metrics["start"], r.error is None, kept)
        print(" ", r.metrics["training_iteration"], list(r.metrics_dataframe["score"]), files)


ray.init()
with tempfile.TemporaryDirectory() as storage:
    flag = Path(storage, "flag")
    flag.touch()
    path = str(Path(storage, "exp"))
    print(tune.Tuner.can_restore(path))
    tuner = tune.Tuner(
        objective,
        param_space={"x": tune.grid_search([0, 1, 2]), "flag": str(flag)},
        tune_config=tune.TuneConfig(metric="score", mode="max"),
        run_config=tune.RunConfig(
            name="exp",
            storage_path=storage,
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(
                num_to_keep=2, checkpoint_score_attribute="score", checkpoint_score_order="min"
            ),
        ),
    )
    print(tune.Tuner.can_restore(path))
    show("first", tuner.fit())
    flag.unlink()
    restored = tune.Tuner.restore(path, trainable=objective)
    show("left", restored.get_results())
    show("nothing to do", restored.fit())
    grid = tune.Tuner.restore(path, trainable=objective, resume_errored=True).fit()
    show("resumed", grid)
    best = grid.get_best_result()
    print(best.metrics["score"], best.filesystem.type_name)
    again = tune.Result.from_path(best.path)
    print(again.metrics["score"], len(again.best_checkpoints), again.error)
    print(names(path, lambda name: name.startswith("objective"))[0].split("_20")[0][-4:])
    for change in ({"trainable": other}, {"trainable": objective, "param_space": {"y": 1}}):
        try:
            tune.Tuner.restore(path, **change)
        except ValueError as error:
            print(str(error).splitlines()[0])

    analysis = tune.run(
        objective,
        name="run",
        config={"x": tune.grid_search([3, 5]), "flag": "/nowhere"},
        metric="score",
        mode="max",
        storage_path=storage,
        verbose=0,
        trial_dirname_creator=lambda trial: f"x{trial.config['x']}",
    )
    print(analysis.best_trial.config["x"], analysis.best_config["x"])
    print(analysis.best_result["score"], list(analysis.best_result_df["score"]))
    print(analysis.get_best_trial("score", "min").last_result["score"])
    print(sorted(len(d) for d in analysis.trial_dataframes.values()))
    print(sorted(analysis.results_df["score"]), analysis.results_df.index.name)
    best = analysis.best_trial
    print(Path(analysis.get_best_checkpoint(best, "score", "max").path).name)
    print(Path(analysis.get_last_checkpoint(best).path).name, names(storage))
    print(sorted(c["x"] for c in analysis.get_all_configs().values()))
    print(names(Path(storage, "run"), lambda name: name.startswith("x")))
