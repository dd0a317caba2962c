"""Kernels between products: what they move, what they index, what a linear layer runs besides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raysim.errors import ScenarioError
from raysim.hardware import catalog
from raysim.models.autocast import autocasted
from raysim.models.table import Attention, Body, Gemm, Layer, Model, Module, Operator, Saved
from raysim.perf.compute import ComputeModel
from raysim.perf.constants import (
    INDEX_S,
    INDEX_SMS,
    KERNEL_FLOOR_S,
    MEMORY_SHARE,
    TrainingConstants,
)

H100 = catalog.gpu("H100-SXM-80GB")
A100 = catalog.gpu("A100-SXM-80GB")
LINEAR = Operator(
    name="linear", kind="gemm", gemm=Gemm(rows=4096, n=4096, k=4096), moved=2 * 4096**2,
    moved_backward=4 * 4096**2, kernels_backward=2,
)  # fmt: skip
CORE = Attention(
    q_len=4096, kv_len=4096, heads=32, kv_heads=8, head_dim=128, v_head_dim=128, causal=True,
    window=None, implementation="sdpa",
)  # fmt: skip


def seconds(o: Operator, gpu=H100, *, backward: bool = False, compiled: bool = False) -> float:
    model = ComputeModel(gpu, compiled=compiled)
    return model.operator_s(o, batch=1, dtype="bf16", backward=backward)


@pytest.mark.parametrize("gpu", [H100, A100], ids=lambda g: g.name)
def test_indexed_elements_take_time_beyond_their_bytes(gpu) -> None:
    plain = Operator(name="mul", kind="elementwise", moved=2e8)
    broadcast = replace(plain, indexed=1e8)
    more = seconds(broadcast, gpu) - seconds(plain, gpu)
    assert more == pytest.approx(1e8 * INDEX_S * INDEX_SMS / gpu.sm_count)
    assert seconds(broadcast, gpu, compiled=True) == seconds(plain, gpu, compiled=True)


def test_sums_beside_a_product_s_backward_take_theirs() -> None:
    biased = replace(LINEAR, moved_backward=5 * 4096**2, kernels_backward=3)
    more = seconds(biased, backward=True) - seconds(LINEAR, backward=True)
    streamed = 2 * 4096**2 / (H100.memory_bytes_per_s * MEMORY_SHARE)
    assert more == pytest.approx(streamed + KERNEL_FLOOR_S)
    assert seconds(biased) == seconds(LINEAR)
    assert seconds(biased, backward=True, compiled=True) == pytest.approx(
        seconds(LINEAR, backward=True, compiled=True)
    )


def test_a_cast_before_a_product_is_a_kernel_of_its_own() -> None:
    """Autocast's; its gradient is cast back, and joins another's in fp32."""
    x = Saved(name="x", numel=4096.0**2)
    shared = replace(
        LINEAR, reads=(x,), joined=("x",), autocast="half", moved_backward=7 * 4096**2,
        kernels_backward=3,
    )  # fmt: skip
    cast, product = cast_operators(shared)
    n, rate = 4096.0**2, H100.memory_bytes_per_s * MEMORY_SHARE
    for backward in (False, True):
        one = seconds(cast, backward=backward)
        assert one == pytest.approx(6 * n / rate + n * INDEX_S + KERNEL_FLOOR_S)
    more = seconds(product, backward=True) - seconds(shared, backward=True)
    assert more == pytest.approx(3 * 2 * n / rate)


def test_autocast_s_mixed_operators_cast_the_gradient_of_the_narrow_input() -> None:
    """A residual stream of fp32 and a branch of 16 bits: ten bytes an element, and back six."""
    wide, branch = Saved(name="x", numel=1e6), Saved(name="y", numel=1e6)
    product = replace(LINEAR, reads=(wide,), result="y", autocast="half")
    add = Operator(
        name="add", kind="elementwise", moved=3e6, moved_backward=0.0, kernels_backward=0,
        reads=(wide, branch), result="z",
    )  # fmt: skip
    *_, mixed = cast_operators(product, add)
    assert (mixed.moved, mixed.indexed) == (5e6, 1e6)
    assert (mixed.moved_backward, mixed.indexed_backward) == (3e6, 1e6)
    assert mixed.kernels_backward == 1


def cast_operators(*operators: Operator) -> list[Operator]:
    body = Body(modules=(Module(name="m", cls="M", operators=operators),))
    layer = Layer(name="l", kind="block", cls="L", body=body, output=1.0)
    model = Model(name="m", model_type="m", architecture="M", layers=(layer,), seq_len=1)
    return list(autocasted(model).layers[0].body.operators)


def test_compiled_models_of_transformers_mask_their_attention() -> None:
    """Every score is visited; A100's flash kernel takes no mask."""
    core = Operator(name="core", kind="attention", attention=CORE)
    assert seconds(core, compiled=True) == pytest.approx(2 * seconds(core), rel=0.2)
    assert seconds(core, A100, compiled=True) > 3 * seconds(core, A100)
    flash = replace(core, attention=replace(CORE, implementation="flash_attention_2"))
    assert seconds(flash, compiled=True) == seconds(flash)


def test_sixteen_bit_states_and_loops_of_an_optimizer() -> None:
    model = ComputeModel(H100)
    wide = model.optimizer_s("AdamW", 1e9, fused=False)
    narrow = model.optimizer_s("AdamW", 1e9, fused=False, element_bytes=2.0)
    assert wide == pytest.approx(80e9 / (0.89 * H100.memory_bytes_per_s * MEMORY_SHARE), rel=0.01)
    assert 0.5 < narrow / wide < 0.6
    sizes = [1000] * 500
    each = model.optimizer_s("AdamW", 5e5, fused=False, foreach=False, sizes=sizes)
    assert each == pytest.approx(500 * 8 * KERNEL_FLOOR_S, rel=0.1)


def test_an_optimizers_step_costs_the_host_by_its_tensors() -> None:
    model = ComputeModel(H100)

    def host_s(tensors: int, *, fused: bool = False, foreach: bool = True) -> float:
        return model.optimizer_host_s("AdamW", tensors, fused=fused, momentum=0.0, foreach=foreach)

    assert host_s(500, foreach=False) == pytest.approx(4000 * model.host.eager_s)
    assert host_s(500) == pytest.approx(110e-6 + 500 * 9.1e-6)
    assert host_s(500, fused=True) < 0.5 * host_s(500)
    rows = [
        model.optimizer_host_s("Adafactor", 10, fused=False, momentum=0.0, foreach=True, matrices=n)
        for n in (0, 10)
    ]
    assert rows[0] == pytest.approx(10 * 91e-6)
    assert rows[1] - rows[0] == pytest.approx(90 * model.host.eager_s)
    slow = ComputeModel(H100, given=TrainingConstants(host_speed=0.5))
    assert slow.optimizer_host_s(
        "AdamW", 500, fused=False, momentum=0.0, foreach=True
    ) == pytest.approx(2.0 * host_s(500))


def test_fp8_products_are_about_twice_as_fast_as_16_bit_ones() -> None:
    model = ComputeModel(H100)
    fast, slow = (
        model.fp8_gemm_s(8192, 8192, 8192, "bf16"), model.gemm_s(8192, 8192, 8192, "bf16"),
    )  # fmt: skip
    assert 1.6 < slow / fast < 2.0
    old = ComputeModel(A100)
    assert old.fp8_gemm_s(8192, 8192, 8192, "bf16") == old.gemm_s(8192, 8192, 8192, "bf16")


def test_gpus_are_known_as_nvidia_smi_spells_them() -> None:
    names = {
        "NVIDIA H100 80GB HBM3": "H100-SXM-80GB", "NVIDIA A100-SXM4-80GB": "A100-SXM-80GB",
        "Tesla T4": "T4", "NVIDIA H200": "H200-SXM-141GB",
    }  # fmt: skip
    assert {said: catalog.gpu(said).name for said in names} == names
    with pytest.raises(ScenarioError, match="unknown gpu"):
        catalog.gpu("NVIDIA Nothing 80GB")
