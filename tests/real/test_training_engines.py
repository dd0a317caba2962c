"""Several DeepSpeed engines in one loop: steps of each, memory beside them, files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from raysim.rayapi.checkpoint import Checkpoint  # noqa: E402
from raysim.rayapi.shapes import prediction  # noqa: E402
from raysim.rayapi.unsupported import NotEmulatedError  # noqa: E402
from raysim.raylibs.report import LibraryReport  # noqa: E402
from tests.real.test_launched_scripts import launched  # noqa: E402

WIDTH, WORDS, STEPS = 256, 1000, 4
BLOCK = 8 * WIDTH**2 + 7 * WIDTH
NUMEL = {
    "Actor": WORDS * WIDTH + 4 * BLOCK + WORDS * (WIDTH + 1),
    "Critic": WORDS * WIDTH + 2 * BLOCK + WIDTH + 1,
}


def ran(*words: str) -> tuple[dict[str, Any], LibraryReport]:
    """Rows of the table of steps, the last of each model's."""
    asked = ("deepspeed", "--num_gpus", "2", "--no_local_rank", "engines.py", *words)
    _, report = launched(*asked)
    return {row[0].split(",")[0]: row for row in report.tables[0].rows}, report


@pytest.mark.parametrize("stage", [2, 3])
def test_actor_and_critic_step_in_turns_beside_frozen_engines(
    stage: int, tmp_path: Path, predicted: list[prediction.Prediction]
) -> None:
    rows, _ = ran("ppo", str(stage), str(tmp_path))
    assert rows.keys() == NUMEL.keys()
    assert {(p.plan.model.name, p.plan.zero.stage) for p in predicted} == {
        (name, stage) for name in NUMEL
    }
    shard, weights = 12 / 2, 2 / 2 if stage == 3 else 2
    for name, other in (("Actor", "Critic"), ("Critic", "Actor")):
        # Weights in 16 bits, of ZeRO-3's (frozen ones too) a half; fp32 weights and Adam's moments.
        beside = weights * (sum(NUMEL.values()) + NUMEL[other]) + shard * NUMEL[other]
        alone = max(p.outcome.fullest.peak_bytes for p in predicted if p.plan.model.name == name)
        assert rows[name][4] - alone == pytest.approx(beside, rel=0.01)
        saved = Checkpoint(str(tmp_path / name.lower())).size_bytes
        each = 12 if stage == 3 else 14  # ZeRO-3 makes its 16-bit weights of the fp32 ones
        assert saved == pytest.approx(each * NUMEL[name], rel=0.02)


def test_a_frozen_engine_gathers_its_shards(tmp_path: Path) -> None:
    """By links between GPUs, while one without ZeRO has them."""
    (whole, _), (sharded, _) = (ran("ppo", stage, str(tmp_path)) for stage in ("2", "3"))
    assert sharded["Actor"][2] > whole["Actor"][2]


def test_a_gans_engines_step_for_themselves(predicted: list[prediction.Prediction]) -> None:
    rows, report = ran("gan", "1")
    assert {name: row[1] for name, row in rows.items()} == {
        "Judge": STEPS - 1, "Maker_and_Judge": STEPS,  # the first judge's knew no maker yet
    }  # fmt: skip
    assert {p.plan.zero.stage for p in predicted} == {1}
    both = next(p for p in predicted if p.plan.model.name == "Maker_and_Judge")
    numel = 64 * 1024 + 1024 + 2 * (1024 * 512) + 512 + 1024 + 1024 + 1
    assert (
        sum(layer.body.numel for layer in both.plan.model.layers) == numel
    )  # its backward goes through both
    assert report.metrics["step_seconds"] > both.step_ns * 1e-9


UNLIKE = """
import deepspeed
import torch
def engine(module, stage):
    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": stage},
              "optimizer": {"type": "Adam", "params": {"lr": 0.1}}}
    return deepspeed.initialize(model=module, config=config)[0]
first, second = engine(torch.nn.Linear(8, 8), 3), engine(torch.nn.Linear(8, 8), 1)
second.backward(second(first(torch.rand(4, 8).cuda())).sum())
"""


def test_a_backward_through_engines_that_shard_unlike_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "unlike.py").write_text(UNLIKE)
    with pytest.raises(NotEmulatedError, match="engines of other ZeRO stages"):
        launched("deepspeed", "--num_gpus", "2", "--no_local_rank", str(tmp_path / "unlike.py"))
