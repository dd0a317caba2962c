"""Wrappers that public training programs have written themselves, each the smallest that failed."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.real
pytest.importorskip("torch")

from tests.real.test_launched_scripts import launched  # noqa: E402

AROUND_AN_ENGINE = """
import deepspeed, torch
from torch import nn

class Actor(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
    def forward(self, x):
        return self.model(x).float()

actor = Actor(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)))
engine, *_ = deepspeed.initialize(model=actor.model, config={
    "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "bf16": {"enabled": True}})
actor.model = engine
for _ in range(2):
    engine.backward(actor(torch.randn(4, 64, device="cuda").bfloat16()).sum())
    engine.step()
"""
OF_ITS_OWN = """
import torch, torch.distributed as dist
from torch import nn

class Buckets:
    def __init__(self, group):
        self.group = group

class Parallel(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module, self.buckets, self.nodes = module, Buckets(dist.group.WORLD), []
        for p in module.parameters():
            node = p.expand_as(p).grad_fn.next_functions[0][0]
            node.register_hook(self.reduce)
            self.nodes.append(node)
    def reduce(self, *_):
        pass
    def forward(self, x):
        return self.module(x)

dist.init_process_group("nccl")
model = Parallel(nn.Linear(64, 64).cuda())
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.randn(4, 64, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("launcher", "script", "row"),
    [
        ("deepspeed --num_gpus 2", AROUND_AN_ENGINE, ("Sequential, ZeRO-2, 2 GPUs", 2)),
        ("torchrun --nproc-per-node 2", OF_ITS_OWN, ("Parallel, DDP, 1 GPUs", 2)),
    ],
    ids=["OpenRLHF's around DeepSpeed's engine", "picotron's with groups and graph nodes"],
)
def test_a_module_around_the_model(
    launcher: str, script: str, row: tuple[str, int], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(script)
    _, report = launched(*launcher.split(), str(tmp_path / "train.py"))
    assert report.tables[0].rows[0][:2] == row
