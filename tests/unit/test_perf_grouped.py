"""Transformer Engine's grouped products beside times measured on eight B200."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from raysim.hardware import catalog
from raysim.models.table import Gemm, Operator
from raysim.perf.compute import ComputeModel

FILE = Path(__file__).parents[2] / "validation" / "data" / "published" / "b200_grouped.json"


def experts(groups: int, rows: int, n: int, k: int) -> Operator:
    return Operator(
        name="experts", kind="gemm", split="expert",
        gemm=Gemm(rows=float(groups * rows), n=n, k=k, groups=groups),
    )  # fmt: skip


def model(kernel: str) -> ComputeModel:
    costs = ComputeModel(catalog.gpu("B200"), sustained_share=None)
    costs.gradient_buffer_bytes = 4
    costs.grouped_kernel = kernel  # type: ignore[assignment]
    return costs


def test_each_pass_of_measured_shapes() -> None:
    costs = model("streams")
    off: dict[str, list[float]] = {"forward": [], "input": [], "weight": []}
    for way, groups, rows, n, k, us in json.loads(FILE.read_text(encoding="utf-8"))["rows"]:
        op = experts(groups, rows, n, k)
        weight = costs.weight_gradient_s(op, batch=1, dtype="bf16")
        both = costs.operator_s(op, batch=1, dtype="bf16", backward=True)
        said = {
            "forward": costs.operator_s(op, batch=1, dtype="bf16"),
            "weight": weight,
            "input": both - weight,
        }[way]
        off[way].append(abs(said * 1e6 / us - 1))
    mean = {way: float(np.mean(errors)) for way, errors in off.items()}
    assert mean["forward"] < 0.12, mean
    assert mean["input"] < 0.12, mean
    assert mean["weight"] < 0.07, mean


def test_many_rows_per_expert_are_as_fast_as_plain_products() -> None:
    op = experts(8, 8192, 3072, 4096)
    plain = replace(op, gemm=Gemm(rows=8 * 8192.0, n=3072, k=4096), split="none")
    costs = model("streams")
    one, other = (costs.operator_s(o, batch=1, dtype="bf16") for o in (op, plain))
    assert abs(one / other - 1) < 0.06
    assert one < model("fused").operator_s(op, batch=1, dtype="bf16")
