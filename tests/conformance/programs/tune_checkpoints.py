"""Checkpoints of functions and classes: reported, kept, taken up again after a failure."""
# cluster: 2 CPU

import json
import os
import tempfile
from pathlib import Path

os.environ["RAY_AIR_NEW_OUTPUT"] = "0"

import ray
from ray import tune


def objective(config):
    start = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            start = json.loads(Path(folder, "state.json").read_text())["step"] + 1
    for step in range(start, 5):
        if step == 3 and not checkpoint:
            raise RuntimeError("before step 3")
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state.json").write_text(json.dumps({"step": step}))
            tune.report(
                {"step": step, "start": start}, checkpoint=tune.Checkpoint.from_directory(folder)
            )


class Counter(tune.Trainable):
    def setup(self, config):
        self.n = config["first"]

    def step(self):
        self.n += 1
        return {"n": self.n}

    def save_checkpoint(self, folder):
        Path(folder, "n.txt").write_text(str(self.n))

    def load_checkpoint(self, folder):
        self.n = int(Path(folder, "n.txt").read_text())


ray.init()
with tempfile.TemporaryDirectory() as folder:
    grid = tune.Tuner(
        objective,
        run_config=tune.RunConfig(
            name="function",
            storage_path=folder,
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=1),
            checkpoint_config=tune.CheckpointConfig(num_to_keep=2),
        ),
    ).fit()
    result = grid[0]
    print(
        result.error,
        result.metrics["step"],
        result.metrics["start"],
        result.metrics["training_iteration"],
    )
    print(json.loads(Path(result.checkpoint.path, "state.json").read_text()))
    print([m["step"] for _, m in result.best_checkpoints])

    grid = tune.Tuner(
        Counter,
        param_space={"first": tune.grid_search([0, 100])},
        run_config=tune.RunConfig(
            name="class",
            storage_path=folder,
            verbose=0,
            stop={"training_iteration": 5},
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=2, checkpoint_at_end=True),
        ),
    ).fit()
    for result in grid:
        kept = [Path(c.path, "n.txt").read_text() for c, _ in result.best_checkpoints]
        print(result.metrics["n"], result.metrics["training_iteration"], kept)
