"""Convolutions on a GPU: against cuDNN's times, and what their shape and memory format decide."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from raysim.hardware import catalog
from raysim.models.shapes import Convolution
from raysim.models.table import Gemm, Operator
from raysim.perf.compute import ComputeModel
from raysim.perf.constants import kept
from raysim.perf.workspaces import workspace_bytes

H100 = catalog.gpu("H100-SXM-80GB")
SMS = H100.sm_count
TABLE = Path("validation/data/nvidia-h100-80gb-hbm3-1gpu/2026-11-26/convolution.csv")
WORKSPACES = Path("validation/data/nvidia-h100-80gb-hbm3-1gpu/2026-11-27/workspace.csv")


def layer(
    given: int, made: int, side: int, kernel: int, *, stride: int = 1, groups: int = 1,
    last: bool = False, dims: int = 2,
) -> Operator:  # fmt: skip
    """As the measured ones are padded: half the kernel, patches not at all."""
    padding = 0 if kernel == stride else kernel // 2
    positions = ((side + 2 * padding - kernel) // stride + 1) ** dims
    output = float(made * positions)
    moved = given * side**dims + output
    taps = kernel**dims
    gemm = Gemm(rows=float(positions * groups), n=made // groups, k=given // groups * taps,
                groups=groups)  # fmt: skip
    return Operator(
        name="layer", kind="conv", moved=moved, moved_backward=2 * moved, output=output, gemm=gemm,
        conv=Convolution(taps=taps, steps=stride**dims, channels_last=last), kernels_backward=2,
    )  # fmt: skip


@pytest.fixture
def model() -> ComputeModel:
    return ComputeModel(H100)


def test_measured_ones(model: ComputeModel) -> None:
    ratios = []
    with TABLE.open() as file:
        for r in csv.DictReader(file):
            op = layer(
                int(r["channels_in"]), int(r["channels_out"]), int(r["side"]), int(r["kernel"]),
                stride=int(r["stride"]), groups=int(r["groups"]), last=r["layout"] == "last",
                dims=int(r["dims"]),
            )  # fmt: skip
            dtype = "bf16" if r["dtype"] == "bf16" else "fp32"
            seconds = model.operator_s(
                op, batch=int(r["batch"]), dtype=dtype, backward=r["way"] == "backward"
            )
            ratios.append(math.log(seconds / float(r["value"])))
    assert len(ratios) == 164
    assert abs(median(ratios)) < 0.08
    assert median(abs(ratio) for ratio in ratios) < 0.14
    assert sum(abs(ratio) > 0.5 for ratio in ratios) < 16


@pytest.mark.parametrize("backward", [False, True])
def test_channels_first_is_copied_before_and_behind_each_call(
    model: ComputeModel, backward: bool
) -> None:
    first, last = (
        model.operator_s(
            layer(256, 256, 32, 3, last=last), batch=32, dtype="bf16", backward=backward
        )
        for last in (False, True)
    )
    both_ways = 2 * 2 * 2 * 32 * 256 * 32 * 32  # bytes of input and output, read and written
    calls = 2 if backward else 1
    assert first - last > calls * both_ways / H100.memory_bytes_per_s
    assert first - last < 2.5 * calls * both_ways / H100.memory_bytes_per_s


def test_a_product_by_itself_is_not_copied(model: ComputeModel) -> None:
    first, last, linear = (
        model.operator_s(op, batch=32, dtype="bf16")
        for op in (
            layer(128, 128, 32, 1), layer(128, 128, 32, 1, last=True),
            Operator(name="linear", kind="gemm", gemm=Gemm(rows=1024, n=128, k=128)),
        )
    )  # fmt: skip
    assert last == linear
    assert first < 1.5 * last  # planes one by one; copies would double it
    assert model.operator_s(layer(128, 128, 32, 1, stride=2), batch=32, dtype="bf16") > 0.9 * last


def test_the_input_is_read_once_and_not_once_per_tap(model: ComputeModel) -> None:
    wide = layer(64, 64, 64, 3, last=True)
    assert wide.gemm is not None
    expanded = model.gemm_s(32 * wide.gemm.rows, wide.gemm.n, wide.gemm.k, "bf16")
    assert model.operator_s(wide, batch=32, dtype="bf16") < 0.7 * expanded


def test_a_depthwise_one_moves_its_tensors_and_multiplies_without_tensor_cores(
    model: ComputeModel,
) -> None:
    moved_s = 2 * 2 * 32 * 256 * 64 * 64 / model.constants.memory_bytes_per_s
    few = model.operator_s(layer(256, 256, 64, 1, groups=256, last=True), batch=32, dtype="bf16")
    assert few == pytest.approx(moved_s + model.constants.kernel_floor_s)
    many = model.operator_s(layer(256, 256, 64, 7, groups=256, last=True), batch=32, dtype="bf16")
    flops = 2 * 32 * 256 * 64 * 64 * 49
    assert flops / H100.flops_per_s["fp32"] < many < 10 * flops / H100.flops_per_s["fp32"]
    native = model.operator_s(layer(256, 256, 64, 7, groups=256), batch=32, dtype="bf16")
    assert native > 3 * many  # torch's own kernel


def test_fp32_runs_as_tf32_unless_cudnn_may_not() -> None:
    allowed, exact = ComputeModel(H100), ComputeModel(H100)
    exact.cudnn_tf32 = False
    op = layer(256, 256, 32, 3, last=True)
    assert exact.operator_s(op, batch=32, dtype="fp32") > 4 * allowed.operator_s(
        op, batch=32, dtype="fp32"
    )
    assert exact.operator_s(op, batch=32, dtype="bf16") == allowed.operator_s(
        op, batch=32, dtype="bf16"
    )


def test_a_first_layer_has_no_gradient_of_its_input(model: ComputeModel) -> None:
    op = layer(64, 64, 64, 3, last=True)
    both = model.operator_s(op, batch=32, dtype="bf16", backward=True)
    weights = replace(op, gradients="weights", moved_backward=op.moved)
    alone = model.operator_s(weights, batch=32, dtype="bf16", backward=True)
    assert 0.4 * both < alone < 0.8 * both


def test_three_channels_cost_as_much_as_eight(model: ComputeModel) -> None:
    three, eight = (
        model.operator_s(layer(c, 64, 224, 7, stride=2, last=True), batch=64, dtype="bf16")
        for c in (3, 7)
    )
    assert three == pytest.approx(eight, rel=0.1)


def test_a_transposed_one_is_the_gradient_of_a_strided_one(model: ComputeModel) -> None:
    strided = layer(128, 256, 64, 4, stride=2, last=True)
    assert strided.gemm is not None
    gemm = Gemm(rows=strided.gemm.rows, n=strided.gemm.k, k=strided.gemm.n)
    assert strided.conv is not None
    up = replace(
        strided, gemm=gemm, output=strided.moved - strided.output,
        conv=replace(strided.conv, transposed=True),
    )  # fmt: skip
    forward = model.operator_s(up, batch=32, dtype="bf16")
    inputs = replace(strided, gradients="inputs", moved_backward=strided.moved, kernels_backward=1)
    assert forward == model.operator_s(inputs, batch=32, dtype="bf16", backward=True)


def test_a_weight_gradient_of_tf32_is_turned_on_hopper() -> None:
    # 4096 x 4096 x 4096 with both operands across k: 0.530 ms, along k 0.339 (gemm.csv)
    hopper = ComputeModel(H100, allow_tf32=True)
    op = Operator(name="up", kind="gemm", gemm=Gemm(rows=4096, n=4096, k=4096))
    weight = hopper.weight_gradient_s(op, batch=1, dtype="fp32")
    assert weight == pytest.approx(530e-6, rel=0.05)
    assert hopper.gemm_s(4096, 4096, 4096, "fp32") == pytest.approx(339e-6, rel=0.06)
    ampere = ComputeModel(catalog.gpu("A100-SXM-80GB"), allow_tf32=True)
    along = ampere.operator_s(op, batch=1, dtype="fp32")
    assert ampere.weight_gradient_s(op, batch=1, dtype="fp32") == pytest.approx(along, rel=0.05)


def test_a_first_layer_is_not_copied(model: ComputeModel) -> None:
    made = 64 * 32 * 112 * 112  # MobileNet's in fp32, 116 us
    seconds = model.operator_s(layer(3, 32, 224, 3, stride=2), batch=64, dtype="fp32")
    assert seconds == pytest.approx(116e-6, rel=0.2)
    assert workspace_bytes(layer(3, 32, 224, 3, stride=2), 64, 4, sms=SMS) == 0
    assert workspace_bytes(layer(32, 32, 112, 3), 64, 4, sms=SMS) > 2 * 4 * made


def test_a_depthwise_gradient_is_of_all_positions_of_its_input(model: ComputeModel) -> None:
    one, two = (
        model.operator_s(
            layer(96, 96, 112, 3, stride=stride, groups=96), batch=64, dtype="fp32", backward=True
        )
        for stride in (1, 2)
    )
    assert two == pytest.approx(1551e-6, rel=0.2)  # MobileNet's; a quarter of the outputs
    assert two > one / 3


def test_planes_of_odd_bytes_are_copied_or_loaded_slowly(model: ComputeModel) -> None:
    odd, even = (
        model.operator_s(layer(512, 2048, side, 1), batch=128, dtype="bf16") / side**2
        for side in (7, 8)
    )
    assert 7 * 7 * odd == pytest.approx(68e-6, rel=0.2)  # ResNet-50's, which is copied
    assert odd > 1.5 * even


def test_a_weights_gradient_of_many_positions_runs_as_fast_as_forward(model: ComputeModel) -> None:
    """EDSR's, 256 channels of 16 times 96 x 96 in fp16: 222 us, 0.79 of the peak."""
    layers = layer(256, 256, 96, 3, last=True)
    forward, both = (
        model.operator_s(layers, batch=16, dtype="fp16", backward=way) for way in (False, True)
    )
    assert both < 2.2 * forward


def test_workspaces_hold_channels_last_copies() -> None:
    last_of_edsr = layer(64, 3, 192, 3)  # its output is padded to four channels
    copies = 4 * 16 * 192 * 192 * (64 + 4)
    assert workspace_bytes(last_of_edsr, 16, 4, sms=SMS) == pytest.approx(copies, rel=0.001)
    assert workspace_bytes(layer(64, 3, 192, 3, last=True), 16, 4, sms=SMS) == 0
    assert workspace_bytes(layer(64, 256, 56, 1), 16, 4, sms=SMS) == 0
    assert workspace_bytes(layer(96, 96, 56, 3, groups=96), 16, 4, sms=SMS) == 0


def test_workspaces_are_those_that_were_measured() -> None:
    """Within a tenth, or 2 MiB, in all but a seventh of what cuDNN's heuristics chose."""
    rows, off = 0, []
    with WORKSPACES.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["benchmark"] != "0":
                continue
            n = {k: int(row[k]) for k in ("batch", "side", "kernel", "stride", "groups", "dims")}
            op = layer(
                int(row["channels_in"]), int(row["channels_out"]), n["side"], n["kernel"],
                stride=n["stride"], groups=n["groups"], last=row["layout"] == "last",
                dims=n["dims"],
            )  # fmt: skip
            width, backward = 2 if row["dtype"] == "bf16" else 4, row["way"] == "backward"
            found = workspace_bytes(op, n["batch"], width, backward=backward, sms=SMS)
            measured = float(row["value"])
            rows += 1
            if abs(found - measured) > max(0.1 * measured, 2**21):
                off.append(row)
    assert rows > 100
    assert len(off) <= rows / 7


def test_first_layers_pad_their_few_channels_in_16_bits() -> None:
    stem, patches = layer(3, 64, 256, 7, stride=2), layer(3, 768, 256, 16, stride=16)
    assert workspace_bytes(stem, 32, 2, sms=SMS) == pytest.approx(100.7e6, rel=0.01)
    as_they_are = workspace_bytes(stem, 32, 4, sms=SMS)
    assert as_they_are == pytest.approx(159.4e6, rel=0.01)
    assert workspace_bytes(patches, 32, 4, sms=SMS) == 0
    last = layer(3, 64, 256, 7, stride=2, last=True)
    assert workspace_bytes(last, 32, 2, sms=SMS) == pytest.approx(33.6e6, rel=0.01)


def test_a_weights_gradient_is_summed_from_parts() -> None:
    filters, alone = layer(128, 128, 32, 3, last=True), layer(256, 256, 32, 1)
    assert workspace_bytes(filters, 32, 2, backward=True, sms=SMS) == 4 * (4 * 128 * 1152)
    # its nine tiles of 128 by 128 fill 20 SMs when there are two parts of each
    assert workspace_bytes(filters, 32, 2, backward=True, sms=20) == 2 * (4 * 128 * 1152)
    assert workspace_bytes(alone, 32, 2, backward=True, sms=SMS) == 32 * 4 * 256**2  # a sample each
    depthwise = layer(384, 384, 16, 7, groups=384, last=True)
    parts = workspace_bytes(depthwise, 32, 2, backward=True, sms=SMS)
    assert parts == pytest.approx(19.27e6, rel=0.001)


def test_gathers_of_a_first_layer_go_by_cycles_not_by_tensor_cores() -> None:
    volta = catalog.gpu("V100-SXM2-32GB")
    stem = layer(3, 64, 224, 7, stride=2, last=True)
    times = [ComputeModel(gpu).operator_s(stem, batch=256, dtype="fp16") for gpu in (volta, H100)]
    cycles = H100.cycles_per_s / volta.cycles_per_s
    assert times[0] / times[1] == pytest.approx(cycles, rel=0.05)
    assert H100.flops_per_s["fp16"] / volta.flops_per_s["fp16"] > 3 * cycles


def test_winograd_where_there_are_no_tensor_cores() -> None:
    volta = ComputeModel(catalog.gpu("V100-SXM2-32GB"))
    three, five = layer(256, 256, 32, 3), layer(256, 256, 32, 5)
    per_tap = [
        volta.operator_s(op, batch=64, dtype="fp32") / taps for op, taps in ((three, 9), (five, 25))
    ]
    assert per_tap[1] / per_tap[0] > 1.3


@pytest.mark.parametrize("efficiency", [0.2, 0.74, 1.0])
def test_slower_tensor_cores_keep_more_of_their_peak(efficiency: float) -> None:
    shares = [kept(efficiency, slower) for slower in (2.0, 1.0, 0.5, 0.1)]
    assert shares == sorted(shares)
    assert shares[:2] == [efficiency, efficiency]
    # What is lost per operation is a time of its own, as long on either.
    assert (1 / shares[2] - 1) == pytest.approx(0.5 * (1 / efficiency - 1))
