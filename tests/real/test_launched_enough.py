"""Loops that are stopped once they have shown what a step takes."""

from __future__ import annotations

from dataclasses import replace
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


OF_RAY = f"""
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

def loop():
{"".join(f"    {line}" for line in LOOP.splitlines(keepends=True))}
for _ in range(RUNS):
    TorchTrainer(loop, scaling_config=ScalingConfig(num_workers=1, use_gpu=True)).fit()
"""


def summary(tmp_path: Path, until: str | None, text: str = LOOP) -> dict[str, Any]:
    script = tmp_path / "loop.py"
    script.write_text(text)
    (tmp_path / "cluster.yaml").write_text("nodes: 1\nnode: hgx-h100-8\n")
    how: Any = {"launcher": "python"} if text == LOOP else {"cluster": tmp_path / "cluster.yaml"}
    made = script_scenario(script, until=until, **how)
    made = replace(made, job=replace(made.job, stops=True))
    found: dict[str, Any] = raysim.run(made, record=False).summary
    return found


def steps(found: dict[str, Any]) -> int:
    tables = (t for report in found["libraries"] for t in report["tables"])
    return sum(row[1] for t in tables if t["title"] == "Training steps" for row in t["rows"])


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


def test_a_program_s_only_training_run_is_stopped_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of several is not: what each takes is the program's answer."""
    monkeypatch.setattr(enough, "MOST_CALLS", 4_000)
    found = summary(tmp_path, None, OF_RAY.replace("RUNS", "1"))
    assert 50 < steps(found) < 200
    assert "by itself" in found["verdict"]["text"]
    monkeypatch.setattr(enough, "MOST_CALLS", 100_000)
    assert steps(summary(tmp_path, None, OF_RAY.replace("RUNS", "2"))) == 2002
