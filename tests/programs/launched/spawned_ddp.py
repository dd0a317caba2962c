"""A script that starts its own processes: torch.multiprocessing.spawn, a rank per GPU."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def worker(rank, world_size, said):
    said.append(rank)
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "12355"
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    model = DistributedDataParallel(nn.Linear(512, 512).to(rank), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(64, 512, device=rank)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"{__name__} rank {rank} of {world_size}, {said}")
    dist.destroy_process_group()


if __name__ == "__main__":
    count, said = torch.cuda.device_count(), []
    mp.spawn(worker, args=(count, said), nprocs=count)
    print(f"{__name__} ends, {said}")
