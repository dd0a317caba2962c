"""GPT-2 (124M) from scratch under torchrun: DDP, bf16 autocast, torch.compile, synthetic tokens."""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv, self.out = nn.Linear(width, 3 * width, False), nn.Linear(width, width, False)
        self.up, self.down = nn.Linear(width, 4 * width, False), nn.Linear(4 * width, width, False)

    def forward(self, x):
        samples, length, width = x.shape
        shape = (samples, length, self.heads, width // self.heads)
        q, k, v = (t.view(shape).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(samples, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, vocabulary=50304, length=1024, width=768, depth=12, heads=12):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width, bias=False), nn.Linear(width, vocabulary, False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions(
            torch.arange(tokens.shape[1], device=tokens.device)
        )
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--accumulation", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    dist.init_process_group("nccl")
    rank, device = dist.get_rank(), torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    raw = GPT().to(device)
    model = DistributedDataParallel(torch.compile(raw), device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, fused=True)
    tokens = args.batch_size * args.accumulation * 1024 * dist.get_world_size()
    for step in range(1, args.steps + 1):
        began = time.perf_counter()
        for micro in range(args.accumulation):
            model.require_backward_grad_sync = micro == args.accumulation - 1
            x = torch.randint(0, 50257, (args.batch_size, 1025)).pin_memory().to(device)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(x[:, :-1], x[:, 1:])
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        took = time.perf_counter() - began
        if rank == 0 and step % 50 == 0:
            print(f"step {step}: {took * 1e3:.0f} ms, {tokens / took:,.0f} tokens/s")
    if rank == 0 and args.out:
        torch.save(raw.state_dict(), Path(args.out) / "gpt2.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
