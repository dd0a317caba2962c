"""Fabric around a loop of one's own: prints what it ends with."""

import argparse

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils.data import DataLoader, TensorDataset


def spread(model, mesh):
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, mesh["tensor_parallel"], plan)
    return fully_shard(model, mesh=mesh["data_parallel"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accelerator", default="cpu")
    parser.add_argument("--strategy", default="ddp")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--save", default="")
    args = parser.parse_args()
    two_dimensions = args.strategy == "two_dimensions"
    if two_dimensions:
        args.strategy = ModelParallelStrategy(spread)
    fabric = Fabric(
        accelerator=args.accelerator, devices=2, strategy=args.strategy, precision=args.precision
    )
    fabric.launch()
    fabric.seed_everything(3, verbose=False)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1))
    if two_dimensions:
        model = fabric.setup_module(model)
        optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters()))
    else:
        model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters()))
    x = torch.randn(256, 64)
    data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)
    for inputs, targets in fabric.setup_dataloaders(data):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        fabric.backward(loss)
        optimizer.step()
    if args.save:
        state = {"model": model, "optimizer": optimizer, "seen": 256}
        fabric.save(args.save, state)
        fabric.load(args.save, state)
    fabric.print(
        f"{fabric.world_size} {fabric.device} {fabric.all_reduce(loss.detach()).item():.6f}"
    )


if __name__ == "__main__":
    main()
