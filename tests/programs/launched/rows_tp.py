"""Ranks whose batches have lengths of their own, over one spread table."""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (dist.get_world_size(),))
w = distribute_tensor(torch.randn(64, 32, device="cuda"), mesh, [Shard(1)])


def rows(n):
    return distribute_tensor(
        torch.zeros(1, n, dtype=torch.long, device="cuda"), mesh, [Replicate()]
    )


for n in (dist.get_rank() + 8, 20):
    print(torch.nn.functional.embedding(rows(n), w).shape)
