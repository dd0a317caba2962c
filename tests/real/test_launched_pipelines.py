"""``torch.distributed.pipelining``: ranks answer as real ones, time and memory as schedules say."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from raysim.rayapi.shapes import prediction  # noqa: E402
from tests.real.test_launched_scripts import (  # noqa: E402
    PROGRAMS,
    launched,
    said_by_real_ranks,
)


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ("4", ["ScheduleGPipe", "4", "1", "8"]),
        ("4", ["Schedule1F1B", "2", "1", "4"]),
        ("2", ["ScheduleInterleaved1F1B", "2", "2", "4"]),
        ("2", ["ScheduleInterleavedZeroBubble", "2", "2", "4"]),
        ("2", ["ScheduleZBVZeroBubble", "2", "2", "4"]),
        ("2", ["ScheduleDualPipeV", "2", "2", "4"]),
    ],
    ids=lambda v: v[0] if isinstance(v, list) else v,
)
def test_ranks_answer_as_real_ones(ranks: str, words: list[str]) -> None:
    launcher = ["--nproc-per-node", ranks]
    expected = said_by_real_ranks(*launcher, str(PROGRAMS / "stages.py"), *words)
    lines, report = launched("torchrun", *launcher, "stages.py", *words)
    assert sorted(lines) == sorted(expected)
    assert report.metrics["step_seconds"] > 0


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs have something to do."""
    monkeypatch.setenv("WIDTH", "4096")


def step_of(*words: str) -> tuple[float, float]:
    _, report = launched("torchrun", "--nproc-per-node", "4", "stages.py", *words)
    return report.metrics["step_seconds"], report.metrics["gpu_mem_peak_bytes"]


@pytest.mark.usefixtures("wide")
def test_more_micro_batches_leave_a_smaller_bubble_and_1f1b_keeps_fewer_of_them() -> None:
    """Of p stages and m micro-batches the bubble is (p - 1) / (m + p - 1) of a step's passes."""
    (two, _), (four, at_most), (eight, _) = (
        step_of("ScheduleGPipe", "4", "1", m) for m in ("2", "4", "8")
    )
    assert two > four > eight
    expected = ((2 + 3) / 2) / ((4 + 3) / 4)
    assert two / four == pytest.approx(expected, rel=0.15)  # the update is beside the passes
    same, fewer = step_of("Schedule1F1B", "4", "1", "8")[0], step_of("Schedule1F1B", "4", "1", "8")
    assert same == pytest.approx(eight, rel=0.1)
    assert fewer[1] < at_most


@pytest.mark.usefixtures("wide")
def test_each_rank_has_the_layers_of_its_own_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[prediction.Prediction] = []
    real = prediction.predict

    def kept(*args: Any) -> prediction.Prediction:
        found.append(real(*args))
        return found[-1]

    monkeypatch.setattr(prediction, "predict", kept)
    lines, _ = launched(
        "torchrun", "--nproc-per-node", "2", "stages.py", "ScheduleInterleaved1F1B", "2", "2", "8"
    )
    plan = found[0].outcome.plan
    assert (plan.mesh.pp, plan.mesh.dp, plan.gradient_accumulation_steps) == (2, 1, 8)
    bounds = [*plan.pipeline.first_layers, len(plan.model.layers)]
    held: Counter[int] = Counter()
    for stage, (start, end) in enumerate(pairwise(bounds)):
        held[stage % 2] += sum(layer.body.numel for layer in plan.model.layers[start:end])
    said = {int(rank): int(numel) for rank, _, _, numel, *_ in map(str.split, lines)}
    assert said == held
