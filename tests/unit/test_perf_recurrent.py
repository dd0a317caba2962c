"""Recurrent layers as cuDNN runs them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from raysim.hardware import catalog
from raysim.models.shapes import Recurrent
from raysim.models.table import Operator
from raysim.perf.compute import ComputeModel

OPERATORS = Path("validation/data/nvidia-h100-80gb-hbm3-1gpu/2026-11-26/script_operators.json")


def lstm(width: int, layers: int, steps: int, rows: int) -> Operator:
    shape = Recurrent(
        gates=4, width=width, inputs=(width,) * layers, directions=1, steps=1.0, rows=float(rows),
        over_steps=True,
    )  # fmt: skip
    return Operator(name="lstm", kind="scan", recurrent=shape)


@pytest.fixture
def model() -> ComputeModel:
    return ComputeModel(catalog.gpu("H100-SXM-80GB"))


@pytest.mark.parametrize("step", ["lstm-b64", "lstm-b256-w1500"])
def test_measured_ones(model: ComputeModel, step: str) -> None:
    measured = predicted = 0.0
    for name, shapes, _, seconds in json.loads(OPERATORS.read_text())[step]:
        if "cudnn_rnn" in name:
            steps, rows, width = json.loads(shapes)[0]
            predicted += model.operator_s(
                lstm(width, 2, steps, rows), batch=steps, dtype="fp32",
                backward="backward" in name,
            )  # fmt: skip
            measured += seconds
    assert predicted == pytest.approx(measured, rel=0.35)


def test_steps_wait_for_each_other(model: ComputeModel) -> None:
    few = model.operator_s(lstm(512, 1, 1, 1), batch=64, dtype="fp32")
    alike = model.operator_s(lstm(512, 1, 1, 32), batch=64, dtype="fp32")
    assert alike < 1.5 * few  # samples of one step go together
    assert model.operator_s(lstm(512, 1, 1, 1), batch=2048, dtype="fp32") > 20 * few
    assert few > 64 * 4 * 4 * 512 * 512 / 3.35e12  # weights are read for each


def test_samples_may_be_rows_instead(model: ComputeModel) -> None:
    over_steps = lstm(512, 1, 1, 32)
    assert over_steps.recurrent is not None
    rows = replace(over_steps.recurrent, steps=64.0, rows=1.0, over_steps=False)
    by_rows = replace(over_steps, recurrent=rows)
    for backward in (False, True):
        assert model.operator_s(
            over_steps, batch=64, dtype="fp32", backward=backward
        ) == model.operator_s(by_rows, batch=32, dtype="fp32", backward=backward)
