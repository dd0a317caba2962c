"""FSDP2 from the meta device: what its parameters say, whole state dicts, a second run resumes."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor


def main(folder):
    dist.init_process_group("nccl")
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(30, 30) for _ in range(3)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    assert all(p.placements == (Shard(0),) for p in model.parameters())
    model.to_empty(device="cuda")
    path = Path(folder, "whole.pt")
    resumes = path.exists()
    if resumes:
        read = torch.load(path, mmap=True, weights_only=True, map_location="cpu")
        now = model.state_dict()
        cut = {
            name: nn.Parameter(distribute_tensor(read["model"][name], p.device_mesh, p.placements))
            for name, p in now.items()
        }
        model.load_state_dict(cut, strict=False, assign=True)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.randn(4, 30, device="cuda")).sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        norm = norm.full_tensor()
        optimizer.step()
        optimizer.zero_grad()
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    whole = {
        "model": get_model_state_dict(model=model, options=options),
        "optimizer": get_optimizer_state_dict(model=model, optimizers=optimizer, options=options),
    }
    weight = model.state_dict()["0.weight"]
    print(rank, resumes, tuple(weight.full_tensor().shape), tuple(weight.to_local().shape))
    if rank == 0:
        torch.save(whole, path)
    dist.destroy_process_group()


main(sys.argv[1])
