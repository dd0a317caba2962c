"""Three micro-batches a step, whose gradients are reduced each, or once: accumulating.py HOW."""

import contextlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel


def main():
    how = sys.argv[1]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    if device == "cuda":
        torch.cuda.set_device(dist.get_rank())
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.ReLU(), nn.Linear(64, 8, bias=False))
    model = model.to(device)
    if how.startswith("ddp"):
        model = DistributedDataParallel(model)
    elif how.startswith("fsdp1"):
        place = torch.device(device, dist.get_rank()) if device == "cuda" else torch.device("cpu")
        model = FullyShardedDataParallel(model, device_id=place)
    else:
        fully_shard(model, mesh=init_device_mesh(device, (dist.get_world_size(),)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for micro in range(3):
        last = micro == 2
        without = contextlib.nullcontext()
        if how.endswith("no_sync") and not last:
            without = model.no_sync()
        elif how == "ddp attribute":
            model.require_backward_grad_sync = last
        elif how == "fsdp2 set":
            model.set_requires_gradient_sync(last)
        with without:
            model(torch.randn(4, 64, device=device)).square().mean().backward()
    optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
