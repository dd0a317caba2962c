"""Regression under DistributedDataParallel, on GPUs or not: prints what every rank ends with."""

import argparse
import os
import sys

import rank_of
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--fail", action="store_true")
    args = parser.parse_args()
    gpus = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpus else "gloo")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    rank_of.ME = rank
    device = torch.device("cuda", local_rank) if gpus else torch.device("cpu")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(args.samples, args.width), torch.randn(args.samples, 1))
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data, shuffle=False))
    model = nn.Sequential(nn.Linear(args.width, args.width), nn.Tanh(), nn.Linear(args.width, 1))
    model = DistributedDataParallel(model.to(device), device_ids=[local_rank] if gpus else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.barrier()
    if args.fail and rank == 1:
        raise ValueError("rank 1 has had enough")
    weight = sum(p.sum().item() for p in model.parameters())
    said = f"rank {rank_of.ME} of {dist.get_world_size()}: loss {loss.item():.6f} {weight:.5f}\n"
    sys.stdout.write(said)  # at once: lines of ranks do not mix
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
