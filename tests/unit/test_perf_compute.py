"""Operators, optimizer steps, copies and host times of one GPU type."""

from __future__ import annotations

import pytest

from raysim.errors import CalibrationError
from raysim.hardware import catalog
from raysim.models.table import Attention, Gemm, Operator
from raysim.perf.borrowed import GEFORCE
from raysim.perf.compute import ComputeModel
from raysim.perf.constants import TrainingConstants
from raysim.perf.cpu_rank import compute_model
from raysim.perf.host import STAGING_BYTES_PER_S, HostPool
from raysim.perf.optimizer import optimizer_key, step_bytes
from raysim.perf.shares import COMPILED_TRAFFIC_SHARE, shard
from raysim.perf.sustained import SUSTAINED, slowest_of

A100 = catalog.gpu("A100-SXM-80GB")
LINEAR = Operator(name="up", kind="gemm", gemm=Gemm(rows=2048, n=11008, k=4096), split="column")


@pytest.fixture
def model() -> ComputeModel:
    return ComputeModel(A100)


def test_backward_of_a_product_is_data_and_weight_gradient(model: ComputeModel) -> None:
    both = model.operator_s(LINEAR, batch=4, dtype="bf16", backward=True)
    data = model.gemm_s(8192, 4096, 11008, "bf16")
    weight = model.gemm_s(11008, 4096, 8192, "bf16")
    assert both == pytest.approx(data + weight)


def test_odd_token_counts_do_not_unalign_the_weight_gradient(model: ComputeModel) -> None:
    odd = Operator(name="up", kind="gemm", gemm=Gemm(rows=2047, n=11008, k=4096))
    even = Operator(name="up", kind="gemm", gemm=Gemm(rows=2048, n=11008, k=4096))
    ratio = model.operator_s(odd, batch=1, dtype="bf16", backward=True) / model.operator_s(
        even, batch=1, dtype="bf16", backward=True
    )
    assert 0.95 < ratio < 1.05


@pytest.mark.parametrize(
    ("split", "shape"),
    [
        ("column", (96, 16, 32, 8)), ("vocab", (96, 16, 32, 8)), ("row", (96, 64, 8, 8)),
        ("expert", (24, 64, 32, 2)), ("none", (96, 64, 32, 8)),
    ],
)  # fmt: skip
def test_tensor_parallel_shares(split: str, shape: tuple[int, ...]) -> None:
    part = shard(Gemm(rows=96, n=64, k=32, groups=8), split, 4)  # type: ignore[arg-type]
    assert (part.rows, part.n, part.k, part.groups) == shape


def test_heads_are_divided(model: ComputeModel) -> None:
    core = Attention(
        q_len=2048, kv_len=2048, heads=32, kv_heads=8, head_dim=128, v_head_dim=128, causal=True
    )
    split = Operator(name="core", kind="attention", attention=core, split="heads")
    whole = model.operator_s(split, batch=8, dtype="bf16")
    assert model.operator_s(split, batch=8, dtype="bf16", tp=4) == pytest.approx(
        whole / 4, rel=0.15
    )


def test_the_weight_gradient_is_the_second_product_of_backward(model: ComputeModel) -> None:
    both = model.operator_s(LINEAR, batch=4, dtype="bf16", backward=True)
    weight = model.weight_gradient_s(LINEAR, batch=4, dtype="bf16")
    assert LINEAR.gemm is not None
    rows, n, k = LINEAR.gemm.rows * 4, LINEAR.gemm.n, LINEAR.gemm.k
    assert both - weight == pytest.approx(model.gemm_s(rows, k, n, "bf16"))
    norm = Operator(name="norm", kind="norm", moved=1e6)
    assert model.weight_gradient_s(norm, batch=4, dtype="bf16") == 0.0


def test_a_loop_over_experts_runs_one_product_after_another(model: ComputeModel) -> None:
    gemm = Gemm(rows=1024, n=4096, k=4096, groups=8)
    loop = Operator(name="experts", kind="gemm", gemm=gemm, kernels=8)
    one = model.gemm_s(128, 4096, 4096, "bf16")
    assert model.operator_s(loop, batch=1, dtype="bf16") == pytest.approx(8 * one)
    grouped = Operator(name="experts", kind="gemm", gemm=gemm, kernels=1)
    assert model.operator_s(grouped, batch=1, dtype="bf16") < 8 * one


def test_memory_bound_operator_is_bytes_over_achieved_bandwidth(model: ComputeModel) -> None:
    norm = Operator(name="norm", kind="norm", moved=2e9)
    forward = model.operator_s(norm, batch=1, dtype="bf16")
    assert forward == pytest.approx(4e9 / (2.039e12 * 0.90), rel=0.01)
    assert model.operator_s(norm, batch=1, dtype="bf16", backward=True) == pytest.approx(
        2 * forward, rel=0.01
    )


def test_tiny_kernels_cost_their_floor(model: ComputeModel) -> None:
    tiny = Operator(name="add", kind="elementwise", moved=30, kernels=3)
    assert 6e-6 <= model.operator_s(tiny, batch=1, dtype="bf16") < 9e-6


def test_launches_default_to_twice_forward(model: ComputeModel) -> None:
    assert model.launches(Operator(name="a", kind="other", kernels=3), backward=True) == 6
    given = Operator(name="a", kind="other", kernels=3, kernels_backward=1)
    assert model.launches(given, backward=True) == 1
    assert model.launches(given) == 3


def test_fp32_products_skip_tensor_cores_unless_tf32_is_allowed() -> None:
    exact = ComputeModel(A100).gemm_s(4096, 4096, 4096, "fp32")
    tf32 = ComputeModel(A100, allow_tf32=True).gemm_s(4096, 4096, 4096, "fp32")
    assert exact > 2 * 4096**3 / 19.5e12
    assert exact / tf32 > 5


def test_bf16_on_v100_is_emulated_and_says_so() -> None:
    model = ComputeModel(catalog.gpu("V100-SXM2-32GB"))
    assert model.gemm_s(4096, 4096, 4096, "bf16") > 5 * model.gemm_s(4096, 4096, 4096, "fp16")
    assert "bf16" in model.notes[0]
    assert "emulated" in model.provenance["gemm.bf16"].source
    assert ComputeModel(A100).notes == ()


@pytest.mark.parametrize(("gpu", "measured_on"), [("H100-SXM-80GB", 8), ("B200", 1)])
def test_products_of_many_gpus_are_the_slowest_ones(gpu: str, measured_on: int) -> None:
    """The measured share is that of as many GPUs as were measured; bandwidth is everyone's."""
    found = {n: compute_model(catalog.gpu(gpu), TrainingConstants(), gpus=n) for n in (1, 8, 512)}
    one, node, many = (model.gemm_s(8192, 8192, 8192, "bf16") for model in found.values())
    assert found[measured_on].constants.sustained_share == pytest.approx(
        SUSTAINED[catalog.gpu(gpu).architecture]
    )
    assert one < node < many
    assert many / one == pytest.approx(slowest_of(512), rel=0.01)
    assert len({model.memory_s(1e9) for model in found.values()}) == 1


def test_a_share_that_a_profile_gives_is_one_gpus() -> None:
    given = TrainingConstants(sustained_share=0.9)
    one, many = (compute_model(A100, given, gpus=n).constants.sustained_share for n in (1, 64))
    assert one == 0.9
    assert many == pytest.approx(0.9 / slowest_of(64))


def test_a_sustained_share_slows_products_but_not_memory() -> None:
    cool, hot = ComputeModel(A100), ComputeModel(A100, sustained_share=0.8)
    ratio = cool.gemm_s(8192, 8192, 8192, "bf16") / hot.gemm_s(8192, 8192, 8192, "bf16")
    assert ratio == pytest.approx(0.8, abs=0.01)
    assert hot.memory_s(1e9) == cool.memory_s(1e9)
    assert hot.provenance["sustained_share"].basis == "assumed"
    assert "sustained_share" not in cool.provenance
    with pytest.raises(CalibrationError):
        ComputeModel(A100, sustained_share=0.0)


@pytest.mark.parametrize(("name", "system"), [("RTX-4090", "a100"), ("L40S", "l40s")])
def test_gaming_cards_are_not_held_back_by_power(name: str, system: str) -> None:
    """Their tensor cores run at half rate: long products reach what A100's share of them is."""
    gpu = catalog.gpu(name)
    model = ComputeModel(gpu, sustained_share=None, gpus=1)
    share = 2 * 4096**2 * 14336 / model.gemm_s(4096, 4096, 14336, "bf16")
    share /= gpu.flops_per_s["bf16"]
    assert system in model.provenance["gemm.bf16"].source
    assert (share > 0.8) == (name == "RTX-4090"), share


def test_provenance_tells_measured_from_borrowed() -> None:
    measured, borrowed = ComputeModel(A100), ComputeModel(catalog.gpu("A100-SXM-40GB"))
    for model in (measured, borrowed):
        model.gemm_s(1024, 1024, 1024, "bf16")
    assert measured.provenance["gemm.bf16"].basis == "measured"
    assert borrowed.provenance["gemm.bf16"].basis == "assumed"
    assert "a100" in borrowed.provenance["gemm.bf16"].source


@pytest.mark.parametrize("name", catalog.names("gpu"))
def test_every_catalog_gpu_can_be_priced(name: str) -> None:
    gpu = catalog.gpu(name)
    model = compute_model(gpu, TrainingConstants())
    for dtype in ("fp32", "fp16", "bf16", "fp8"):
        seconds = model.gemm_s(4096, 4096, 4096, dtype)  # type: ignore[arg-type]
        clocks = GEFORCE.factor if gpu.is_geforce else 1.0
        assert 2 * 4096**3 / seconds <= max(gpu.flops_per_s.values()) * clocks


@pytest.mark.parametrize(
    ("name", "fused", "copy", "each"),
    [
        ("AdamW", True, True, 30), ("FusedAdam", True, False, 28), ("Adam", False, True, 86),
        ("SGD", True, False, 12), ("Lion", True, False, 20), ("Adagrad", True, False, 20),
        ("FusedLamb", True, False, 52), ("adamw_8bit", True, False, 16),
    ],
)  # fmt: skip
def test_optimizer_traffic(name: str, fused: bool, copy: bool, each: float) -> None:
    assert step_bytes(optimizer_key(name), fused=fused, low_precision_copy=copy) == each


def test_fused_adam_of_a_billion_parameters_on_a100(model: ComputeModel) -> None:
    # DeepSpeed's FusedAdam: 28-30 bytes per parameter at 0.8 of the bandwidth, about 18 ms.
    seconds = model.optimizer_s("AdamW", 1e9, fused=True, low_precision_copy=True)
    assert seconds == pytest.approx(0.018, rel=0.05)
    slow = model.optimizer_s("AdamW", 1e9, fused=False, low_precision_copy=True)
    assert 2.5 < slow / seconds < 4


def test_momentum_and_muon_cost_more(model: ComputeModel) -> None:
    plain = model.optimizer_s("SGD", 1e8)
    assert model.optimizer_s("SGD", 1e8, momentum=0.9) == pytest.approx(plain * 20 / 12, rel=0.05)
    plain = model.optimizer_s("Muon", 1e8)

    def orthogonalized(rows: int, columns: int) -> float:
        return model.optimizer_s("Muon", 1e8, on_muon={(rows, columns): 6}) - plain

    products = 5 * 3 * 2 * 6 * 4096**3 / 312e12
    assert products < orthogonalized(4096, 4096) < 1.6 * products
    assert orthogonalized(1024, 4096) == pytest.approx(orthogonalized(4096, 1024))
    assert orthogonalized(1024, 4096) < orthogonalized(4096, 4096) / 6


def test_unknown_optimizer_is_refused_with_the_known_ones(model: ComputeModel) -> None:
    with pytest.raises(CalibrationError, match="adafactor"):
        model.optimizer_s("Sophia", 1e6)


def test_copies(model: ComputeModel) -> None:
    pinned = model.copy_s(1e9, "h2d")
    assert pinned == pytest.approx(1e9 / A100.pcie_bytes_per_s, rel=0.01)
    assert model.copy_s(1e9, "d2h", pinned=False) == pytest.approx(
        pinned + 1e9 / STAGING_BYTES_PER_S, rel=0.01
    )
    assert model.copy_s(1e9, "d2d") == pytest.approx(2e9 / (2.039e12 * 0.90), rel=0.01)
    assert model.copy_s(0, "h2d") == 0.0


def test_cpu_adam_shares_the_hosts_memory(model: ComputeModel) -> None:
    cpu = catalog.node("dgx-a100-80-8").cpu
    one = model.cpu_adam_s(1e9, cpu, 1, HostPool())
    assert model.cpu_adam_s(1e9, cpu, 8, HostPool()) == pytest.approx(8 * one)
    assert model.cpu_adam_s(1e9, cpu, 1, HostPool(bound=True)) == pytest.approx(one / 2)
    # Measured: 1.6e9 parameters per second on DGX-2 hosts, 1.4e9 on EPYC 7742 (ZeRO-Offload logs).
    assert 0.7e9 < 1e9 / one < 3.5e9


def test_times_are_the_same_in_any_order() -> None:
    first, second = ComputeModel(A100), ComputeModel(A100)
    shapes = [(64, 4096, 4096), (8192, 1024, 512), (3, 128, 50257)]
    forward = [first.gemm_s(*s, "bf16") for s in shapes]
    backward = [second.gemm_s(*s, "bf16") for s in reversed(shapes)]
    assert forward == backward[::-1]


def test_torch_compile_leaves_part_of_the_traffic_and_one_kernel() -> None:
    gpu = catalog.gpu("H100-SXM-80GB")
    eager, compiled = ComputeModel(gpu), ComputeModel(gpu, compiled=True)
    rotary = Operator(name="rotary", kind="elementwise", moved=1e9, kernels=5)
    assert compiled.launches(rotary) == 1
    assert compiled.launches(rotary, backward=True) == 1
    seconds = [m.operator_s(rotary, batch=1, dtype="bf16") for m in (eager, compiled)]
    assert seconds[1] == pytest.approx(COMPILED_TRAFFIC_SHARE * seconds[0], rel=0.02)
    product = Operator(name="up", kind="gemm", gemm=Gemm(rows=2048, n=4096, k=4096))
    same = [m.operator_s(product, batch=1, dtype="bf16") for m in (eager, compiled)]
    assert same[0] == same[1]
    assert "torchtitan" in compiled.provenance["compiled"].source


def test_the_rank_with_the_fullest_expert_is_priced() -> None:
    gpu = catalog.gpu("H100-SXM-80GB")
    experts = Operator(
        name="up", kind="gemm", gemm=Gemm(rows=65536, n=4096, k=4096, groups=64), split="expert"
    )

    def seconds(imbalance: float, tp: int) -> float:
        model = ComputeModel(gpu, expert_imbalance=imbalance)
        return model.operator_s(experts, batch=1, dtype="bf16", tp=tp)

    assert seconds(4.0, 1) < 1.1 * seconds(1.0, 1)  # one GPU holds all: only tiles fill less
    # Of 8 experts on a rank one has 4 times the mean, 7 have 60 / 63 of it: 1.33 times the rows.
    assert seconds(4.0, 8) / seconds(1.0, 8) == pytest.approx(1.33, rel=0.12)
    assert seconds(4.0, 64) / seconds(1.0, 64) == pytest.approx(4.0, rel=0.2)
    with pytest.raises(CalibrationError, match="at least 1"):
        ComputeModel(gpu, expert_imbalance=0.5)
