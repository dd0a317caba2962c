"""Batch norms on a GPU against those timed in training steps, by type and memory format."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest

from raysim.hardware import catalog
from raysim.models.shapes import BatchNorm
from raysim.models.table import Operator
from raysim.perf.compute import ComputeModel
from raysim.perf.constants import TrainingConstants
from raysim.perf.cpu_rank import compute_model

H100 = catalog.gpu("H100-SXM-80GB")
OPERATORS = Path("validation/data/nvidia-h100-80gb-hbm3-1gpu/2026-11-26/script_operators.json")
STEPS = {
    "resnet-bf16-b128": ("bf16", False), "resnet-fp32-b64": ("fp32", False),
    "resnet-fp16-cl-b64": ("fp16", True), "resnet-fp16-cl-b256": ("fp16", True),
}  # fmt: skip


def norm(channels: int, positions: int, *, last: bool = False) -> Operator:
    elements = float(channels * positions)
    return Operator(
        name="norm", kind="norm", moved=2 * elements, output=elements,
        batch_norm=BatchNorm(channels=channels, channels_last=last),
    )  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_measured_ones(step: str) -> None:
    dtype, last = STEPS[step]
    model = ComputeModel(H100)
    ratios, predicted, measured = [], 0.0, 0.0
    for name, shapes, calls, seconds in json.loads(OPERATORS.read_text())[step]:
        if "batch_norm" in name:
            batch, channels, height, width = json.loads(shapes)[0]
            one = model.operator_s(
                norm(channels, height * width, last=last), batch=batch, dtype=dtype,
                backward="backward" in name,
            )  # fmt: skip
            ratios.append(abs(one * calls / seconds - 1))
            predicted, measured = predicted + one * calls, measured + seconds
    assert len(ratios) > 5
    assert median(ratios) < 0.15
    assert predicted == pytest.approx(measured, rel=0.15)


def test_few_channels_leave_a_gpu_idle_where_positions_lie_together() -> None:
    model = ComputeModel(H100)
    few, many = (
        model.operator_s(norm(c, 2**20 // c), batch=64, dtype="fp32", backward=True)
        for c in (16, 256)
    )
    assert few > 5 * many  # of as many elements
    few, many = (
        model.operator_s(norm(c, 2**20 // c, last=True), batch=64, dtype="fp32", backward=True)
        for c in (16, 256)
    )
    assert few == pytest.approx(many)


def test_a_cpu_moves_what_the_operator_says() -> None:
    rank = compute_model(catalog.gpu("cpu-rank"), TrainingConstants())
    op = norm(64, 1024)
    assert rank.operator_s(op, batch=8, dtype="fp32") == pytest.approx(
        rank.memory_s(4 * op.moved * 8)
    )
