"""Scripts whose models ask for values: masks and labels made on the GPU, random numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from tests.real.test_launched_scripts import launched  # noqa: E402

SCRIPT = """
import torch
from torch import nn
from torch.nn import functional as F

class Speech(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))  # first, and without a dimension
        self.inside, self.head = nn.Embedding(40, 64), nn.Linear(64, 32)
        self.more = nn.Linear(64, 64)

    def forward(self, tokens, mask, labels):
        h = self.inside(tokens) * self.scale
        if not mask.all():
            raise ValueError("a mask of ones")
        if torch.rand(()) > 0.5:  # a layer that is dropped: nobody knows
            h = self.more(h)
        wanted = labels != 0
        targets = labels.masked_select(wanted)
        assert len(targets) == labels.numel(), "labels are drawn from 1 on"
        log = F.log_softmax(self.head(h), dim=-1, dtype=torch.float32).transpose(0, 1)
        frames = torch.full((len(tokens),), tokens.shape[1], device=tokens.device)
        return F.ctc_loss(log, targets, frames, wanted.sum(-1))

model = Speech().cuda()
optimizer = torch.optim.AdamW(model.parameters())
tokens = torch.randint(0, 40, (8, 100), device="cuda")
labels = torch.randint(1, 32, (8, 10), device="cuda")
for _ in range(3):
    model(tokens, torch.ones_like(tokens), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained", int(labels.min()) > 0, int(torch.zeros_like(labels).sum()))
"""


def test_a_model_branches_on_masks_labels_and_random_numbers(tmp_path: Path) -> None:
    script = tmp_path / "speech.py"
    script.write_text(SCRIPT)
    printed, report = launched("python", str(script))
    assert "trained True 0" in printed
    assert report.metrics["step_seconds"] > 0


MASKED = """
import numpy as np, torch
from torch import nn

class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside, self.instead = nn.Linear(16, 16), nn.Parameter(torch.zeros(16))

    def forward(self, x):
        h = self.inside(x)
        mask = np.arange(8 * 50).reshape(8, 50) % 5 == 0
        h[torch.tensor(mask, device=h.device)] = self.instead
        return h.mean()

model = Masked().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(8, 50, 16, device="cuda")).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_model_masks_places_that_numpy_has_drawn(tmp_path: Path) -> None:
    """As wav2vec 2.0 does in training (SpecAugment); its backward picks those places."""
    script = tmp_path / "masked.py"
    script.write_text(MASKED)
    _, report = launched("python", str(script))
    assert report.ok


ANSWERED = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel

config = GPT2Config(n_layer=1, n_head=2, n_embd=64, vocab_size=100, eos_token_id=0, bos_token_id=1)
model = GPT2LMHeadModel(config).cuda()
prompts = torch.tensor([[5, 6, 7], [8, 9, 10]]).cuda()
ids = model.generate(prompts, max_new_tokens=4, do_sample=True, num_return_sequences=2)
answers = ids[:, 3:]
ends = torch.isin(answers, torch.tensor([0], device="cuda"))
first = torch.full((len(ends),), ends.size(1), device="cuda")
first[ends.any(dim=1)] = ends.int().argmax(dim=1)[ends.any(dim=1)]
print(ids[:, :3].tolist(), first.tolist(), tuple(ids.shape))
"""


def test_answers_that_nobody_has_computed_are_as_long_as_they_may_be(tmp_path: Path) -> None:
    """TRL's GRPO looks for their ends by a mask."""
    script = tmp_path / "answered.py"
    script.write_text(ANSWERED)
    printed, _ = launched("python", str(script))
    prompts = [[5, 6, 7], [5, 6, 7], [8, 9, 10], [8, 9, 10]]
    assert printed[-1] == f"{prompts} {[4] * 4} (4, 7)"


def test_ctc_has_the_shapes_of_a_real_run() -> None:
    def loss(device: str) -> tuple[torch.Size, torch.Size, list[torch.Size]]:
        kept: list[torch.Size] = []
        log = torch.randn(50, 4, 32).log_softmax(-1).to(device).requires_grad_()
        targets = torch.randint(1, 32, (4, 10)).to(device)
        lengths = torch.full((4,), 50, device=device), torch.full((4,), 10, device=device)
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: (kept.append(t.shape), t)[1], lambda t: t
        ):
            value = torch.nn.functional.ctc_loss(log, targets, *lengths, reduction="none")
        value.sum().backward()
        return value.shape, log.grad.shape, sorted(shape for shape in kept if len(shape) > 1)

    assert loss("meta") == loss("cpu")
