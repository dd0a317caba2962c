"""Stages of a small model under one of torch's schedules; a rank has some, replicas others."""

import os
import sys

import torch
import torch.distributed as dist
from residual import Block
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

WORDS, LENGTH, BATCH = 1000, 128, 16
WIDTH = int(os.environ.get("WIDTH", "32"))


class Stage(nn.Module):
    def __init__(self, index, count):
        super().__init__()
        self.tokens = nn.Embedding(WORDS, WIDTH) if index == 0 else None
        self.layers = nn.ModuleDict({str(i): Block(WIDTH) for i in range(8 // count)})
        last = index == count - 1
        self.norm = nn.LayerNorm(WIDTH) if last else None
        self.head = nn.Linear(WIDTH, WORDS) if last else None
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        x = x if self.tokens is None else self.tokens(x)
        for block in self.layers.values():
            x = block(x)
        x = x * self.scale
        return x if self.head is None else self.head(self.norm(x))


def sharded(part, mesh):
    """As torchtitan does: blocks one by one, what the last stage ends with together."""
    asked = {"mesh": mesh["replicas", "shards"] if "hybrid" in sys.argv else mesh["dp"]}
    if "bf16" in sys.argv:
        asked["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    if "blocks" in sys.argv:
        frees = {"reshard_after_forward": "always" in sys.argv}
        if part.tokens is not None:
            fully_shard(part.tokens, **asked, **frees)
        for block in part.layers.values():
            fully_shard(block, **asked, **frees)
        if part.head is not None:
            fully_shard([part.norm, part.head], **asked, **frees)
    return fully_shard(part, **asked)


def loss_fn(output, target):
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def main():
    name, depth, per_rank, chunks = sys.argv[1], *map(int, sys.argv[2:5])
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    rest = dist.get_world_size() // depth
    shape, names = (depth, rest), ("pp", "dp")
    if "hybrid" in sys.argv:
        shape, names = (depth, 2, rest // 2), ("pp", "replicas", "shards")
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)
    group, count = mesh.get_group("pp"), depth * per_rank
    place = dist.get_rank(group)
    v_shaped = name in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")
    mine = [place, count - 1 - place] if v_shaped else [place + i * depth for i in range(per_rank)]
    parts = [Stage(i, count).to(device) for i in mine]
    if "sharded" in sys.argv:
        parts = [sharded(p, mesh) for p in parts]
    elif mesh["dp"].size() > 1:
        parts = [DistributedDataParallel(p, process_group=mesh.get_group("dp")) for p in parts]
    stages = [
        pipelining.PipelineStage(p, i, count, device, group=group)
        for p, i in zip(parts, mine, strict=True)
    ]
    make = getattr(pipelining.schedules, name)
    schedule = make(stages if per_rank > 1 else stages[0], chunks, loss_fn=loss_fn)
    optimizer = torch.optim.AdamW([p for part in parts for p in part.parameters()])
    first, last = 0 in mine, count - 1 in mine
    for _ in range(3):
        ids = torch.randint(0, WORDS, (BATCH, LENGTH), device=device)
        losses = []
        optimizer.zero_grad()
        out = schedule.step(
            *([ids] if first else []), **({"target": ids, "losses": losses} if last else {})
        )
        optimizer.step()
    shape = tuple(out.shape) if out is not None else None
    numel = sum(p.numel() for part in parts for p in part.parameters())
    sys.stdout.write(f"{dist.get_rank()} {mine} {numel} {shape} {len(losses)}\n")
    sys.stdout.flush()
    dist.destroy_process_group()


main()
