"""Tokens packed in one sequence, as people train small models fast: a block mask of documents,
weights that the layers cast themselves, tables kept as plain attributes, an optimizer of one's own.
"""

import subprocess
import time

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

LENGTH, WIDTH, HEADS, DOCUMENT = 32768, 512, 4, 1024


class Casted(nn.Linear):
    def forward(self, x):
        return functional.linear(x, self.weight.to(x.dtype))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = Casted(WIDTH, 3 * WIDTH, bias=False)
        self.out = Casted(WIDTH, WIDTH, bias=False)
        self.table = None

    def forward(self, x, mask):
        if self.table is None:
            self.table = torch.arange(len(x[0]), device="cuda").float().cos().bfloat16()
        q, k, v = (self.qkv(x) * self.table[None, :, None]).view(1, -1, 3 * HEADS, 128).chunk(3, 2)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        y = flex_attention(q, k, v, block_mask=mask)
        return x + self.out(y.transpose(1, 2).reshape(x.shape))


class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.embed = nn.Embedding(1000, WIDTH).bfloat16()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def mask(self, tokens):
        documents = (tokens == 0).cumsum(0)

        def causal(b, h, q, kv):
            return q >= kv

        def same(b, h, q, kv):
            return (q >= kv) & (documents[q] == documents[kv])

        if self.kind == "own":  # of blocks of 128, one before and its own
            rows = torch.arange(LENGTH // 128, device="cuda")
            near = (rows[:, None] >= rows) & (rows[:, None] - rows < 2)
            counts = near.sum(-1, dtype=torch.int32)[None, None]
            places = near.argsort(dim=-1, descending=True).to(torch.int32)[None, None]
            return BlockMask.from_kv_blocks(counts, places, mask_mod=causal)
        chosen = same if self.kind == "documents" else causal
        return create_block_mask(chosen, None, None, LENGTH, LENGTH, device="cuda", _compile=True)

    def forward(self, tokens):
        mask = self.mask(tokens)
        x = self.embed(tokens)[None]
        for block in self.blocks:
            x = block(x, mask)
        return x.float().square().mean()


class Own(torch.optim.Optimizer):
    def __init__(self, params, products):
        super().__init__(params, {"lr": 0.1, "products": products})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                held = self.state[p].setdefault("buffer", torch.zeros_like(p))
                held.lerp_(p.grad, 0.1)
                x = held.bfloat16()
                for _ in range(group["products"]):
                    x = x @ (x.T @ x)
                p.add_(x, alpha=-0.1)


def train(kind, products):
    tokens = torch.empty(LENGTH, dtype=torch.uint16, pin_memory=True)
    tokens[:] = 1
    tokens[::DOCUMENT] = 0
    tokens = tokens.to("cuda", torch.int32, non_blocking=True)
    model = torch.compile(Model(kind).cuda())
    optimizer = Own(model.parameters(), products)
    model.eval()
    for _ in range(3):  # without no_grad, as some do
        loss = model(tokens)
        del loss
    model.train()
    for step in range(6):
        if step == 3:
            torch.cuda.synchronize()
            before = time.perf_counter()
        model(tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    return (time.perf_counter() - before) / 3


said = subprocess.run(["nvidia-smi", "-L"], check=True, capture_output=True, text=True)
print(said.stdout.splitlines()[0])
print(*(train(*each) for each in [("causal", 0), ("documents", 0), ("own", 0), ("own", 64)]))
print(torch.cuda.max_memory_allocated())
