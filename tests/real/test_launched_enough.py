"""Loops that are stopped once they have shown what a step takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real
pytest.importorskip("torch")

import raysim  # noqa: E402
from raysim.rayapi import enough  # noqa: E402
from raysim.scenario.script import script_scenario  # noqa: E402

LOOP = """
import torch
from itertools import count

model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in count():  # until the loss is small, as regression/main.py
    loss = model(torch.randn(8, 64, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if loss.item() < 1e-3 or step >= 1000:
        break
"""


def summary(tmp_path: Path, until: str | None) -> dict[str, Any]:
    script = tmp_path / "loop.py"
    script.write_text(LOOP)
    made = script_scenario(script, until=until, launcher="python")
    found: dict[str, Any] = raysim.run(made, record=False).summary
    return found


def steps(found: dict[str, Any]) -> int:
    (report,) = found["libraries"]
    table = next(t for t in report["tables"] if t["title"] == "Training steps")
    return sum(row[1] for row in table["rows"])


def test_a_loop_is_stopped_after_as_many_steps_as_asked(tmp_path: Path) -> None:
    found = summary(tmp_path, "20steps")
    assert steps(found) == 20
    assert found["verdict"]["ok"]
    assert "after 20 optimizer steps, as asked" in found["verdict"]["text"]


def test_a_loop_stops_by_itself_once_steps_are_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says so, and how to have the rest; ``end`` plays it."""
    monkeypatch.setattr(enough, "MOST_CALLS", 4_000)
    found = summary(tmp_path, None)
    assert 50 < steps(found) < 200
    assert "by itself" in found["verdict"]["text"]
    assert "--until end" in found["verdict"]["text"]
    assert steps(summary(tmp_path, "end")) == 1001
