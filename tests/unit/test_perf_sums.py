"""Sums for biases, and products that stay fp32 in a 16-bit plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raysim.hardware import catalog
from raysim.models.shapes import Convolution
from raysim.models.table import Attention, Gemm, Operator
from raysim.perf.compute import ComputeModel
from raysim.perf.constants import TrainingConstants
from raysim.perf.cpu_rank import compute_model

H100 = catalog.gpu("H100-SXM-80GB")


def linear(rows: int, width: int, *, joined: bool = False) -> Operator:
    moved = float(rows * (width + 768))
    return Operator(
        name="linear", kind="gemm", gemm=Gemm(rows=float(rows), n=width, k=768), moved=moved,
        output=float(rows * width), moved_backward=2 * moved + 3.0 * rows * 768 * joined,
        kernels_backward=2 + joined,
    )  # fmt: skip


def bias_s(op: Operator) -> float:
    model = ComputeModel(H100)
    assert op.moved_backward is not None
    biased = replace(
        op, moved_backward=op.moved_backward + op.output,
        kernels_backward=op.backward_kernels + 1,
    )  # fmt: skip
    with_it, without = (
        model.operator_s(o, batch=1, dtype="bf16", backward=True) for o in (biased, op)
    )
    return with_it - without


@pytest.mark.parametrize(
    ("rows", "width", "measured_s"),  # aten::sum in steps of GPT-2, OPT, Pythia, ViT
    [
        (8192, 768, 18.6e-6), (8192, 5120, 45.7e-6), (16384, 768, 33.3e-6),
        (16384, 8192, 102.5e-6), (25216, 4096, 86.8e-6),
    ],
)  # fmt: skip
def test_measured_ones(rows: int, width: int, measured_s: float) -> None:
    assert bias_s(linear(rows, width)) == pytest.approx(measured_s, rel=0.35)
    joined = bias_s(linear(rows, width, joined=True))  # beside two gradients that meet
    assert joined == pytest.approx(bias_s(linear(rows, width)))


def test_gradients_that_meet_are_no_sum_for_a_bias() -> None:
    model = ComputeModel(H100)
    plain, joined = (
        model.operator_s(linear(16384, 1024, joined=j), batch=1, dtype="bf16", backward=True)
        for j in (False, True)
    )
    assert joined - plain == pytest.approx(model.memory_s(2 * 3.0 * 16384 * 768))


def test_a_convolution_s_bias_is_added_and_summed_by_kernels_of_torch() -> None:
    model = ComputeModel(H100)
    out = 128.0 * 64 * 64
    op = Operator(
        name="conv", kind="conv", moved=2 * out, moved_backward=4 * out, output=out,
        gemm=Gemm(rows=4096.0, n=128, k=1152), kernels_backward=2, conv=Convolution(taps=9),
    )  # fmt: skip
    biased = replace(
        op, conv=Convolution(taps=9, biased=True), moved_backward=5 * out, kernels_backward=3
    )
    forward, backward = (
        model.operator_s(biased, batch=64, dtype="bf16", backward=b)
        - model.operator_s(op, batch=64, dtype="bf16", backward=b)
        for b in (False, True)
    )
    # a U-Net's: aten::add_ 110 us and aten::sum 55 us, where streaming once takes 22
    assert forward == pytest.approx(110e-6, rel=0.2)
    assert backward == pytest.approx(55e-6, rel=0.15)


def test_exact_products_run_without_tensor_cores() -> None:
    model = ComputeModel(H100)
    op = linear(4096, 4096)
    half, exact = (
        model.operator_s(o, batch=1, dtype="bf16") for o in (op, replace(op, exact=True))
    )
    assert exact == model.operator_s(op, batch=1, dtype="fp32")
    assert exact > 8 * half
    core = Attention(q_len=512, kv_len=512, heads=12, kv_heads=12, head_dim=64, v_head_dim=64,
                     causal=False, implementation="eager")  # fmt: skip
    scores = Operator(name="core", kind="attention", attention=core, moved=1e8, moved_backward=2e8)
    kept = model.operator_s(scores, batch=16, dtype="bf16")
    assert model.operator_s(replace(scores, exact=True), batch=16, dtype="bf16") > 1.1 * kept


def test_a_cpu_sums_as_it_streams() -> None:
    rank = compute_model(catalog.gpu("cpu-rank"), TrainingConstants())
    op = linear(16384, 1024)
    assert op.moved_backward is not None
    biased = replace(op, moved_backward=op.moved_backward + op.output, kernels_backward=3)
    with_it, without = (
        rank.operator_s(o, batch=1, dtype="fp32", backward=True) for o in (biased, op)
    )
    assert with_it - without == pytest.approx(rank.memory_s(4 * op.output))
