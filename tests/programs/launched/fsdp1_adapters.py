"""Blocks of a frozen and two trained weights under FSDP1 with original parameters: what is kept."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(64, 64, bias=False)
        self.a, self.b = nn.Linear(64, 4, bias=False), nn.Linear(4, 64, bias=False)
        self.base.weight.requires_grad = False

    def forward(self, x):
        return x + self.base(x) + self.b(self.a(x))


def main():
    dist.init_process_group("gloo")
    model = FullyShardedDataParallel(
        nn.Sequential(Block(), Block()), auto_wrap_policy=ModuleWrapPolicy({Block}),
        use_orig_params=True, device_id=torch.device("cpu"),
    )  # fmt: skip
    flat = next(m for m in FullyShardedDataParallel.fsdp_modules(model)[1:])._handle.flat_param
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    with model.no_sync():
        model(torch.randn(8, 64)).sum().backward()
    unsynced = flat.grad.numel()
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    states = torch.tensor(sum(s["exp_avg"].numel() for s in optimizer.state.values()))
    dist.all_reduce(states)
    if os.environ["RANK"] == "0":
        print(f"without sync {unsynced}, with sync {flat.grad.numel()}, states of {states // 2}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
