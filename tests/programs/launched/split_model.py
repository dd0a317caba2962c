"""A model that torch splits itself: by names, or where its forward says."""

import os
import sys

import torch
import torch.distributed as dist
from residual import Block
from torch import nn
from torch.distributed import pipelining
from torch.distributed.pipelining import SplitPoint, pipe_split, pipeline

WORDS, LENGTH, BATCH, LAYERS = 1000, 128, 16, 8
WIDTH = int(os.environ.get("WIDTH", "32"))


class Net(nn.Module):
    """``here``: layers before which its forward itself says that it may be split."""

    def __init__(self, here=()):
        super().__init__()
        self.here = here
        self.tokens, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList([Block(WIDTH) for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for i, block in enumerate(self.layers):
            if i in self.here:
                pipe_split()
            x = block(x)
        return self.head(self.norm(x))


def loss_fn(output, target):
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def main():
    name, per_rank, chunks = sys.argv[1], *map(int, sys.argv[2:4])
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    count = ranks * per_rank
    starts = [i * LAYERS // count for i in range(1, count)]
    example = torch.randint(0, WORDS, (BATCH // chunks, LENGTH))
    if "here" in sys.argv:
        pipe = pipeline(Net(here=starts), mb_args=(example,))
    else:
        spec = {f"layers.{start}": SplitPoint.BEGINNING for start in starts}
        named = {"mb_args": (), "mb_kwargs": {"ids": example}} if "named" in sys.argv else {}
        pipe = pipeline(Net(), **(named or {"mb_args": (example,)}), split_spec=spec)
    mine = [rank + i * ranks for i in range(per_rank)]
    stages = [pipe.build_stage(i, device) for i in mine]
    make = getattr(pipelining.schedules, name)
    schedule = make(stages if per_rank > 1 else stages[0], chunks, loss_fn=loss_fn)
    parts = [stage.submod for stage in stages]
    optimizer = torch.optim.AdamW([p for part in parts for p in part.parameters()])
    for _ in range(3):
        ids = torch.randint(0, WORDS, (BATCH, LENGTH), device=device)
        losses = []
        given = [ids] if 0 in mine else []
        last = {"target": ids, "losses": losses} if count - 1 in mine else {}
        optimizer.zero_grad()
        if "named" in sys.argv:
            out = schedule.step(**dict(zip(["ids"], given, strict=False)), **last)
        else:
            out = schedule.step(*given, **last)
        optimizer.step()
    shape = tuple(out.shape) if out is not None else None
    names = ",".join(n for part in parts for n, _ in part.named_parameters())
    sys.stdout.write(f"{rank} {mine} {names} {shape} {len(losses)} {pipe.num_stages}\n")
    sys.stdout.flush()
    dist.destroy_process_group()


main()
