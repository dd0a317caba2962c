"""Tensor parallelism by hand: autograd functions that call collectives, as Megatron's do."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, HIDDEN, LAYERS = 64, 256, 3


class Copied(torch.autograd.Function):
    """Into columns: gradients of all parts are summed."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Reduced(torch.autograd.Function):
    """Out of rows: parts are summed."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class Gathered(torch.autograd.Function):
    """Samples of all parts, whose gradients are scattered."""

    @staticmethod
    def forward(ctx, x, group, parts):
        ctx.group, ctx.parts = group, parts
        whole = torch.empty(parts * x.shape[0], *x.shape[1:], device=x.device)
        dist.all_gather_into_tensor(whole, x.contiguous(), group=group)
        return whole

    @staticmethod
    def backward(ctx, grad):
        own = torch.empty(grad.shape[0] // ctx.parts, *grad.shape[1:], device=grad.device)
        dist.reduce_scatter_tensor(own, grad.contiguous(), group=ctx.group)
        return own, None, None


class Mlp(nn.Module):
    def __init__(self, group, parts):
        super().__init__()
        self.group = group
        self.up = nn.Linear(WIDTH, HIDDEN // parts, bias=False)
        self.down = nn.Linear(HIDDEN // parts, WIDTH, bias=False)

    def forward(self, x):
        y = nn.functional.gelu(self.up(Copied.apply(x, self.group)))
        return x + Reduced.apply(self.down(y), self.group)


class Net(nn.Module):
    def __init__(self, group, parts):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Mlp(group, parts) for _ in range(LAYERS))
        self.last = nn.Linear(WIDTH, WIDTH)
        self.group, self.parts = group, parts

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(Gathered.apply(x, self.group, self.parts))


def main(parts, tokens):
    device = sys.argv[2]
    dist.init_process_group("gloo" if device == "cpu" else "nccl")
    world, rank = dist.get_world_size(), dist.get_rank()
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    near = [dist.new_group(list(range(i, i + parts))) for i in range(0, world, parts)]
    far = [dist.new_group(list(range(i, world, parts))) for i in range(parts)]
    model = Net(near[rank // parts], parts).to(device)
    if world > parts:
        model = DistributedDataParallel(model, process_group=far[rank % parts])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(int(sys.argv[3])):
        model(torch.randn(4, tokens, WIDTH, device=device)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[4]))
