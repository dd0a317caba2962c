"""Rows of a table through Ray Data into a small network under DDP, on CPU workers."""

import argparse
import tempfile

import numpy as np
import ray
import ray.train
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model


def features(batch):
    x = np.stack([np.sin(batch["id"] * k) for k in (1, 2, 3, 4)], axis=1).astype(np.float32)
    return {"x": x, "y": x.sum(axis=1, keepdims=True)}


def train_loop(config):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, config["width"]), torch.nn.ReLU()]
    model = prepare_model(torch.nn.Sequential(*layers, torch.nn.Linear(config["width"], 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    shard = ray.train.get_dataset_shard("train")
    for epoch in range(config["epochs"]):
        total = batches = 0
        for batch in shard.iter_torch_batches(batch_size=64):
            loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total, batches = total + loss.item(), batches + 1
        ray.train.report({"epoch": epoch, "loss": total / batches})
    return total / batches


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    ray.init()
    table = ray.data.range(args.rows, override_num_blocks=8)
    train, test = table.map_batches(features).train_test_split(0.25)
    with tempfile.TemporaryDirectory() as storage:
        result = TorchTrainer(
            train_loop,
            train_loop_config={"width": args.width, "epochs": args.epochs},
            datasets={"train": train},
            scaling_config=ScalingConfig(num_workers=args.workers),
            run_config=RunConfig(name="tabular", storage_path=storage),
        ).fit()
    print(f"{train.count()} rows, {test.count()} apart, loss {result.return_value:.4f}")


if __name__ == "__main__":
    main()
