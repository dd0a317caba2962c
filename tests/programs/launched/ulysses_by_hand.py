"""Attention over sequences that two ranks share: ``deepspeed.sequence`` in one's own model."""

import sys

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.sequence.layer import DistributedAttention
from torch import nn
from torch.nn import functional

WIDTH, HEADS, KV_HEADS, SEQ = 64, 4, 2, 32


class Core(nn.Module):
    def forward(self, q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out.transpose(1, 2)


class Block(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, WIDTH // HEADS * (HEADS + 2 * KV_HEADS))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.attention = DistributedAttention(Core(), group, scatter_idx=2, gather_idx=1)

    def forward(self, x):
        batch, seq, width = x.shape
        heads = self.qkv(x).view(batch, seq, HEADS + 2 * KV_HEADS, WIDTH // HEADS)
        q, k, v = heads.split([HEADS, KV_HEADS, KV_HEADS], dim=2)
        return x + self.out(self.attention(q, k, v, 0).reshape(batch, seq, width))


def main(device, steps):
    deepspeed.init_distributed("gloo" if device == "cpu" else "nccl")
    world, rank = dist.get_world_size(), dist.get_rank()
    groups = [dist.new_group([i, i + 1]) for i in range(0, world, 2)]
    model = nn.Sequential(*[Block(groups[rank // 2]) for _ in range(2)])
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(model.parameters()),
        config={
            "train_micro_batch_size_per_gpu": 2, "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": 1},
        },
    )  # fmt: skip
    for _ in range(steps):
        x = torch.randn(2, SEQ // 2, WIDTH, device=device)
        engine.backward(engine(x).pow(2).mean())
        engine.step()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
