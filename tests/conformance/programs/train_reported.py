"""Ray Train: what a loop hears of the checkpoints that are kept."""
# cluster: 4 CPU

import tempfile
from pathlib import Path

import ray
from ray import train
from ray.train import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def loop(config):
    heard = [len(train.get_all_reported_checkpoints())]
    for i in range(4):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "x").write_text(str(i))
            checkpoint = Checkpoint.from_directory(folder) if i != 2 else None
            train.report({"loss": abs(2 - i), "i": i}, checkpoint=checkpoint)
        found = train.get_all_reported_checkpoints()
        heard.append([(each.metrics["i"], each.status.name) for each in found])
    Path(config["told"]).write_text(str(heard))


ray.init()
with tempfile.TemporaryDirectory() as storage:
    told = Path(storage, "told")
    kept = CheckpointConfig(
        num_to_keep=2, checkpoint_score_attribute="loss", checkpoint_score_order="min"
    )
    TorchTrainer(
        loop,
        train_loop_config={"told": str(told)},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(name="run", storage_path=storage, checkpoint_config=kept),
    ).fit()
    print(told.read_text())
try:
    train.get_all_reported_checkpoints()
except RuntimeError as error:
    print(str(error).split(".")[0])
