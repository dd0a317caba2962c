"""Logits are in memory until backward is over where a script has them in a variable."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.real
pytest.importorskip("torch")

from tests.real.test_launched_scripts import launched  # noqa: E402

SCRIPT = """
import os, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside, self.head = nn.Embedding(50_000, 64), nn.Linear(64, 50_000)

    def forward(self, x):
        logits = self.head(self.inside(x))
        return logits, nn.functional.cross_entropy(logits.view(-1, 50_000), x.view(-1))

dist.init_process_group("nccl")
model = DistributedDataParallel(Language().cuda())
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    x = torch.zeros(16, 1024, dtype=torch.long, device="cuda")
    {step}
    optimizer.step()
    optimizer.zero_grad()
"""
STEPS = {
    "held": "logits, loss = model(x); loss.backward()",
    "in a tuple": "out = model(x); out[1].backward()",
    "gone": "loss = model(x)[1]; loss.backward()",
}


def test_logits_in_a_variable_stay(tmp_path: Path) -> None:
    peaks = {}
    for name, step in STEPS.items():
        script = tmp_path / "language.py"
        script.write_text(SCRIPT.replace("{step}", step))
        _, report = launched("torchrun", "--nproc-per-node", "2", str(script))
        peaks[name] = report.metrics["gpu_mem_peak_bytes"]
    logits_bytes = 16 * 1024 * 50_000 * 4
    assert peaks["held"] == peaks["in a tuple"]
    assert peaks["held"] - peaks["gone"] == pytest.approx(logits_bytes, rel=0.05)


def test_what_is_made_of_logits_stays_too(tmp_path: Path) -> None:
    """Backward of a look-up needs no input; the script has it in a variable, or has not."""
    peaks = {}
    for name, step in {
        "held": "y = model(x)[0].float() * 2; nn.functional.cross_entropy(y.mT, x).backward()",
        "gone": "nn.functional.cross_entropy((model(x)[0].float() * 2).mT, x).backward()",
    }.items():
        script = tmp_path / "language.py"
        script.write_text(SCRIPT.replace("{step}", step))
        _, report = launched("torchrun", "--nproc-per-node", "2", str(script))
        peaks[name] = report.metrics["gpu_mem_peak_bytes"]
    logits_bytes = 16 * 1024 * 50_000 * 4
    assert peaks["held"] - peaks["gone"] == pytest.approx(logits_bytes, rel=0.05)
