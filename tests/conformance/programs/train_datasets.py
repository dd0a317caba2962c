"""A trainer's datasets: shares of ranks, epochs, a dataset that all read whole."""
# cluster: 4 CPU

import tempfile

import ray
import ray.train
from ray.train import DataConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def loop(config):
    shard = ray.train.get_dataset_shard("train")
    whole = ray.train.get_dataset_shard("test")
    seen = []
    for _ in range(config["epochs"]):
        rows = [int(i) for batch in shard.iter_torch_batches(batch_size=25) for i in batch["id"]]
        seen.append((len(rows), len(set(rows))))
        assert sum(len(b["id"]) for b in whole.iter_batches(batch_size=None)) == 30
        ray.train.report({"rows": len(rows)})
    try:
        ray.train.get_dataset_shard("none")
    except KeyError as error:
        text = str(error)
    again = ray.train.get_dataset_shard("train") is shard
    return seen, text, again


ray.init()
ray.data.DataContext.get_current().enable_progress_bars = False
with tempfile.TemporaryDirectory() as storage:
    result = TorchTrainer(
        loop,
        train_loop_config={"epochs": 2},
        datasets={
            "train": ray.data.range(200, override_num_blocks=8).map_batches(lambda b: b),
            "test": lambda: ray.data.range(30),
        },
        dataset_config=DataConfig(datasets_to_split=["train"]),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="run", storage_path=storage),
    ).fit()
print(result.return_value)
