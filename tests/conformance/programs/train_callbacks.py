"""What a run's callbacks are told in its controller, and what becomes of an error of theirs."""
# cluster: 4 CPU

import json
import tempfile
from pathlib import Path

import ray
import ray.train
from ray.train import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig, UserCallback
from ray.train.torch import TorchTrainer


class Told(UserCallback):
    def __init__(self):
        self.count = 0

    def write(self, *said):
        with log.open("a") as file:
            file.write(json.dumps(said) + "\n")

    def after_report(self, run_context, metrics, checkpoint):
        self.count += 1
        name, workers = run_context.get_run_config().name, run_context.scaling_config.num_workers
        ranks = [m["rank"] for m in metrics]
        self.write(self.count, name, ranks, metrics[0]["i"], checkpoint is not None, workers)
        self.write(run_context.train_loop_config)

    def after_exception(self, run_context, worker_exceptions):
        self.write({rank: type(error).__name__ for rank, error in worker_exceptions.items()})


class Raises(UserCallback):
    def after_report(self, run_context, metrics, checkpoint):
        raise KeyError("callback")


def loop(config):
    rank = ray.train.get_context().get_world_rank()
    for i in range(3):
        metrics = {"i": i, "rank": rank, "loss": [1, 3, 2][i]}
        with tempfile.TemporaryDirectory() as folder:
            saved = Checkpoint.from_directory(folder) if i and rank == 0 else None
            ray.train.report(metrics, checkpoint=saved)
    if config["fails"] and rank == 0:
        raise ValueError("loop")


def fit(name, callback, fails=False):
    keep = CheckpointConfig(
        num_to_keep=1, checkpoint_score_attribute="loss", checkpoint_score_order="max"
    )
    settings = RunConfig(
        name=name, storage_path=folder, callbacks=[callback], checkpoint_config=keep
    )
    return TorchTrainer(
        loop, train_loop_config={"fails": fails}, run_config=settings,
        scaling_config=ScalingConfig(num_workers=2),
    ).fit()  # fmt: skip


ray.init()
with tempfile.TemporaryDirectory() as folder:
    log = Path(folder, "log")
    told = Told()
    result = fit("well", told)
    print(result.metrics["i"], [m["i"] for _, m in result.best_checkpoints], told.count)
    try:
        fit("badly", told, fails=True)
    except ray.train.TrainingFailedError as error:
        print(type(error).__name__)
    print(log.read_text())
    try:
        fit("raises", Raises())
    except ray.train.TrainingFailedError as error:
        print(type(error).__name__)
try:
    RunConfig(callbacks=[1])
except ValueError as error:
    print(str(error)[:66])
print(ScalingConfig(num_workers=2, resources_per_worker={"CPU": 2}).total_resources)
