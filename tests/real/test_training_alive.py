"""Tensors that a script itself has on the GPU are in its peak: by hand, one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real
pytest.importorskip("torch")

from tests.real.test_launched_scripts import launched  # noqa: E402

SCRIPT = """
import copy, torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(64, 1024, device="cuda")
{more}
for _ in range(3):
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    {step}
"""
LAYERS = 2 * (1024 * 1024 + 1024) * 4
MIB = 2**20


def script_bytes(folder: Path, more: str = "", step: str = "") -> tuple[Any, float]:
    """What the table says, and the whole peak."""
    script = folder / "script.py"
    script.write_text(SCRIPT.format(more=more, step=step))
    _, report = launched("python", str(script))
    (table,) = (t for t in report.tables if t.title.startswith("Memory of the fullest"))
    rows = {row[0]: row[1] for row in table.rows}
    return rows.get("tensors of the script", 0.0), report.metrics["gpu_mem_peak_bytes"]


@pytest.mark.parametrize(
    ("more", "step", "expected"),
    [
        ("ema = copy.deepcopy(model)", "", LAYERS),
        ("data = torch.randn(4096, 1024, device='cuda')", "", 16 * MIB),
        ("data = torch.randn(4096, 1024).cuda()\ndata = data.half()", "", 8 * MIB),
        ("queue = [torch.randn(4096, 1024).to('cuda') for _ in range(3)]", "", 48 * MIB),
        ("data = torch.randn(4096, 1024)", "", 0),
        ("data = torch.randn(4096, 1024, device='cuda')\ndel data", "", 0),
        ("parts = torch.randn(4096, 1024, device='cuda').chunk(4)[:1]", "", 16 * MIB),
    ],
    ids=["a copy of the weights", "data", "in 16 bits", "a list", "on the host", "gone", "a part"],
)
def test_what_a_script_holds_is_counted(
    tmp_path: Path, more: str, step: str, expected: int
) -> None:
    none, before = script_bytes(tmp_path)
    found, after = script_bytes(tmp_path, more, step)
    assert none == 0  # the batch is what the first layer keeps
    assert after - before == pytest.approx(expected, abs=16 * 1024)
    assert found == pytest.approx(expected, abs=16 * 1024)


LATE = """
import torch
from torch import nn

model = nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(8))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(4096, 2048, device="cuda")
for _ in range(3):
    {before}
    loss = model(x).square().mean()
    {between}
    loss.backward()
    optimizer.step()
    {after}
"""


@pytest.mark.parametrize("zero", ["optimizer.zero_grad()", "model.zero_grad()"])
def test_gradients_are_there_in_forward_until_they_are_zeroed(tmp_path: Path, zero: str) -> None:
    """The last activations come on top of the last step's gradients: of 8 matrices of 16 MiB."""
    peaks = {}
    for place in ("before", "between", "after"):
        lines = dict.fromkeys(("before", "between", "after"), "pass") | {place: zero}
        script = tmp_path / "late.py"
        script.write_text(LATE.format(**lines))
        _, report = launched("python", str(script))
        peaks[place] = report.metrics["gpu_mem_allocated_bytes"]
    assert peaks["before"] == peaks["after"]
    # Without them the peak is where the square's backward has four tensors of 32 MiB: its own
    # gradient, two that it makes of its input, their product; the square itself lies there before.
    expected = (8 * 16 + 32 - 4 * 32) * MIB
    assert peaks["between"] - peaks["after"] == pytest.approx(expected, abs=MIB)
