"""Blocks under ``fully_shard``, and what scripts set of them: reshard, prefetch, accumulate."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

WIDTH, BLOCKS, MICRO = 32, 4, 2


class Block(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, hidden), nn.Linear(hidden, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH * (i + 1)) for i in range(BLOCKS))
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def main(said):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = Net().cuda()
    blocks = list(model.blocks)
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    if said == "summed late":
        mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard"))
    for i, block in enumerate(blocks):
        frees = i < BLOCKS - 1 or said != "last stays"
        fully_shard(block, mesh=mesh, reshard_after_forward=frees)
    fully_shard(model, mesh=mesh)
    if said == "two ahead":
        for i, block in enumerate(blocks):
            block.set_modules_to_forward_prefetch(blocks[i + 1 : i + 3])
            block.set_modules_to_backward_prefetch(blocks[max(0, i - 2) : i][::-1])
    if said == "kept":
        model.set_reshard_after_forward(False)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        for micro in range(MICRO):
            if said in {"kept behind backward", "kept"}:
                model.set_requires_gradient_sync(micro == MICRO - 1)
                model.set_reshard_after_backward(micro == MICRO - 1)
            if said == "summed late":
                model.set_requires_all_reduce(micro == MICRO - 1)
            model.unshard(async_op=True).wait()
            model(torch.randn(4, WIDTH, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main(sys.argv[1])
