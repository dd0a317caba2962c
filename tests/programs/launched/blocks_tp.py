"""Blocks over a mesh of data by tensor parallelism: sequence parallel, the loss parallel."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional

VOCABULARY, WIDTH, HEADS, HIDDEN, LAYERS = 1000, 256, 8, 512, 2


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = HEADS
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x):
        batch, tokens, _ = x.shape
        q, k, v = (
            linear(x).view(batch, tokens, self.heads, -1).transpose(1, 2)
            for linear in (self.wq, self.wk, self.wv)
        )
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(out.transpose(1, 2).contiguous().view(batch, tokens, -1))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w3 = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.w2 = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x):
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.feed_forward = Attention(), FeedForward()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)

    def forward(self, x):
        h = x + self.attention(self.attention_norm(x))
        return h + self.feed_forward(self.ffn_norm(h))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        h = self.tok_embeddings(tokens)
        for layer in self.layers:
            h = layer(h)
        return self.output(self.norm(h))


def parallelized(model, tp):
    parallelize_module(
        model,
        tp,
        {
            "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "output": ColwiseParallel(
                input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
            ),
        },
    )
    whole = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
    for block in model.layers:
        block.attention.heads //= tp.size()
        plan = {
            "attention_norm": SequenceParallel(),
            "attention": PrepareModuleInput(**whole),
            "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
            "ffn_norm": SequenceParallel(),
            "feed_forward": PrepareModuleInput(**whole),
            "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
        }
        columns = ("attention.wq", "attention.wk", "attention.wv", "feed_forward.w1")
        plan |= {name: ColwiseParallel() for name in (*columns, "feed_forward.w3")}
        parallelize_module(block, tp, plan)
    return model


def step(model, tokens):
    with loss_parallel():
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
    return loss


def main(tp):
    device = sys.argv[2] if len(sys.argv) > 2 else "cuda"
    world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    mesh = init_device_mesh(device, (world // tp, tp), mesh_dim_names=("dp", "tp"))
    model = parallelized(Net().to(device), mesh["tp"])
    if world > tp:
        for block in model.layers:
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    for _ in range(4):
        torch.manual_seed(mesh["dp"].get_local_rank())
        tokens = torch.randint(VOCABULARY, (2, 64), device=device)
        loss = step(model, tokens)
        optimizer.step()
        optimizer.zero_grad()
    wq = model.layers[0].attention.wq.weight
    print(rank, tuple(wq.to_local().shape), tuple(wq.full_tensor().shape), tuple(wq.shape))
    if rank == 0:
        print(f"loss {loss.full_tensor().item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
