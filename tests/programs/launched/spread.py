"""Tensors and modules over a mesh: what each rank holds, what all hold together."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\n")  # in one piece: ranks share the pipe
    sys.stdout.flush()


def main(device):
    mesh = init_device_mesh(device, (2,), mesh_dim_names=("tp",))
    rank = mesh.get_local_rank()
    group = mesh.get_group("tp")
    say(rank, mesh.shape, mesh.size(), dist.get_world_size(group), dist.get_rank(group))
    whole = distribute_tensor(torch.randn(5, 8, device=device), mesh, [Shard(0)])
    say(rank, isinstance(whole, DTensor), tuple(whole.shape), tuple(whole.to_local().shape))
    turned = whole.redistribute(placements=[Shard(1)])
    say(rank, turned.placements, tuple(turned.to_local().shape), tuple((turned @ turned.T).shape))
    say(rank, tuple(whole.full_tensor().shape), (whole + 1).placements)
    summed = DTensor.from_local(torch.ones(3, device=device), mesh, [Partial()])
    say(rank, tuple(summed.redistribute(placements=[Replicate()]).to_local().shape))
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        out = model(torch.randn(8, 16, device=device))
        out.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    state = optimizer.state[model[0].weight]["exp_avg"]
    say(rank, [tuple(p.to_local().shape) for p in model.parameters()], tuple(out.shape))
    say(rank, tuple(state.shape), tuple(state.to_local().shape), state.placements)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
