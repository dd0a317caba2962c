"""Collectives of real DeepSpeed steps on CPU ranks, one process per rank.

``python -m torch.distributed.run --nproc-per-node 2 deepspeed_steps.py cases.json found.json``. A
case is ``{"name", "config", "model": {hidden, layers, vocab, seq, checkpoint}}``, its config a
DeepSpeed JSON. What is found is, for the third step of each case, every collective in order as
``[phase, operation, bytes of the whole buffer, times in a row]``. The table of the same model is
``tests/deepspeed_reference.gpt``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

STEPS = 3
"""ZeRO-3 records its trace in the first."""
PHASE = "init"
SEEN: list[tuple[str, str, int]] = []
WHOLE = {
    # operation: argument whose size is the whole buffer's
    "all_reduce": ("tensor", 0),
    "all_gather_into_tensor": ("output_tensor", 0),
    "reduce_scatter_tensor": ("input", 1),
    "broadcast": ("tensor", 0),
    "reduce": ("tensor", 0),
}


def listen() -> None:
    """Wrap torch.distributed before DeepSpeed takes its functions."""

    def wrap(name: str, keyword: str, position: int) -> Callable[..., Any]:
        real = getattr(dist, name)
        label = name.removesuffix("_into_tensor").removesuffix("_tensor")

        def heard(*args: Any, **kwargs: Any) -> Any:
            tensor = args[position] if len(args) > position else kwargs[keyword]
            SEEN.append((PHASE, label, tensor.numel() * tensor.element_size()))
            return real(*args, **kwargs)

        return heard

    for name, (keyword, position) in WHOLE.items():
        setattr(dist, name, wrap(name, keyword, position))


class Block(nn.Module):
    """Pre-norm transformer block; weights in the order of use."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1 = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.proj = nn.Linear(hidden, hidden)
        self.ln2 = nn.LayerNorm(hidden)
        self.fc = nn.Linear(hidden, 4 * hidden)
        self.out = nn.Linear(4 * hidden, hidden)

    def forward(self, x: Any) -> Any:
        batch, seq, hidden = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(batch, seq, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        h = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(h.transpose(1, 2).reshape(batch, seq, hidden))
        return x + self.out(functional.gelu(self.fc(self.ln2(x))))


class Gpt(nn.Module):
    """Token embedding, blocks, final norm, untied head; the loss is inside."""

    def __init__(self, hidden: int, layers: int, vocab: int, *, checkpoint: bool = False) -> None:
        super().__init__()
        self.checkpoint = checkpoint
        self.emb = nn.Embedding(vocab, hidden)
        self.h = nn.ModuleList(Block(hidden, heads=4) for _ in range(layers))
        self.ln_f = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocab, bias=False)

    def forward(self, ids: Any) -> Any:
        x = self.emb(ids)
        for block in self.h:
            x = checkpoint(block, x, use_reentrant=True) if self.checkpoint else block(x)
        logits = self.head(self.ln_f(x)).float()
        return functional.cross_entropy(logits.flatten(0, 1), ids.flatten())


def steps(case: dict[str, Any]) -> list[tuple[str, str, int]]:
    """Collectives of the case's last optimizer step."""
    global PHASE  # noqa: PLW0603 (one script, one thread)
    import deepspeed

    # Reductions for inference, which it would compile for half a minute.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    plain = functional.linear
    shape = dict(case["model"])
    seq, vocab = shape.pop("seq"), shape["vocab"]
    torch.manual_seed(0)
    model = Gpt(**shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    PHASE = "init"
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=case["config"])
    ids = torch.randint(vocab, (case["config"]["train_micro_batch_size_per_gpu"], seq))
    for _ in range(STEPS):
        SEEN.clear()
        for _ in range(engine.gradient_accumulation_steps()):
            PHASE = "forward"
            loss = engine(ids)
            PHASE = "backward"
            engine.backward(loss)
            PHASE = "step"
            engine.step()
    found = list(SEEN)
    engine.destroy()
    functional.linear = plain  # ZeRO-3's replacement outlives its engine
    return found


def main() -> None:
    """Run the cases of the first argument's file; rank 0 writes the second's."""
    listen()
    source, target = (Path(argument) for argument in sys.argv[1:3])
    found = {case["name"]: steps(case) for case in json.loads(source.read_text())}
    if int(os.environ["RANK"]) == 0:
        runs = {
            name: [[*call, len(list(run))] for call, run in groupby(calls)]
            for name, calls in found.items()
        }
        target.write_text(json.dumps(runs))
    dist.barrier()
    os._exit(0)  # at once: DeepSpeed's threads sometimes abort an interpreter that ends in order


if __name__ == "__main__":
    main()
