"""A trainer's loop: ranks, reports, checkpoints kept, what fit() returns."""
# cluster: 2 CPU

import json
import tempfile
import time
from pathlib import Path

import ray
import ray.train
from ray.train import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def loop(config):
    context = ray.train.get_context()
    rank = context.get_world_rank()
    assert ray.train.get_checkpoint() is None
    for epoch in range(config["epochs"]):
        time.sleep(0.2)
        metrics = {"epoch": epoch, "score": [3, 9, 1, 5][epoch], "rank": rank}
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, f"rank{rank}.json").write_text(json.dumps({"epoch": epoch}))
            checkpoint = Checkpoint.from_directory(folder)
            ray.train.report(metrics, checkpoint=checkpoint, checkpoint_dir_name=f"epoch_{epoch}")
        with ray.train.get_checkpoint().as_directory() as folder:
            assert json.loads(Path(folder, f"rank{rank}.json").read_text()) == {"epoch": epoch}
    return {
        "rank": rank, "size": context.get_world_size(), "local": context.get_local_rank(),
        "local_size": context.get_local_world_size(), "node": context.get_node_rank(),
        "name": context.get_experiment_name(),
    }  # fmt: skip


def silent():
    ray.train.report({"value": 1})
    return ray.train.get_context().get_world_size()


ray.init()
with tempfile.TemporaryDirectory() as storage:
    result = TorchTrainer(
        loop,
        train_loop_config={"epochs": 4},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="run",
            storage_path=storage,
            checkpoint_config=CheckpointConfig(
                num_to_keep=2, checkpoint_score_attribute="score", checkpoint_score_order="max"
            ),
        ),
    ).fit()
    print(sorted(result.return_value.items()))
    print(result.metrics, result.error)
    print(Path(result.path).relative_to(storage), Path(result.checkpoint.path).name)
    print(sorted(p.name for p in Path(result.checkpoint.path).iterdir()))
    print([(Path(c.path).name, m["score"]) for c, m in result.best_checkpoints])
    best = result.get_best_checkpoint("score", "max")
    print(Path(best.path).name)
    print(list(result.metrics_dataframe["epoch"]))

    result = TorchTrainer(silent, run_config=RunConfig(name="silent", storage_path=storage)).fit()
    print(result.metrics, result.checkpoint, result.return_value, result.best_checkpoints)
