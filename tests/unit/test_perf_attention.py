"""Attention cores: what is computed, fused against eager, backward against forward."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raysim.hardware import catalog
from raysim.models.attention import Core, attend
from raysim.models.table import Attention, Operator
from raysim.models.tape import Tape, Tensor
from raysim.perf.attention import score_elements
from raysim.perf.compute import ComputeModel
from raysim.perf.constants import INDEX_S, MEMORY_SHARE, TRITON_BACKWARD
from raysim.perf.kernels import Dtype

CORE = Attention(
    q_len=4096, kv_len=4096, heads=32, kv_heads=8, head_dim=128, v_head_dim=128, causal=True
)


def seconds(core: Attention, gpu: str = "A100-SXM-80GB", *, backward: bool = False) -> float:
    op = Operator(name="core", kind="attention", attention=core, split="heads")
    return ComputeModel(catalog.gpu(gpu)).operator_s(op, batch=2, dtype="bf16", backward=backward)


@pytest.mark.parametrize(
    ("core", "elements"),
    [
        (replace(CORE, q_len=4, kv_len=4), 10),  # 1 + 2 + 3 + 4
        (replace(CORE, q_len=4, kv_len=4, causal=False), 16),
        (replace(CORE, q_len=2, kv_len=4), 7),  # 3 + 4
        (replace(CORE, q_len=5, kv_len=5, window=2), 9),  # 1 + 2 + 2 + 2 + 2
        (replace(CORE, q_len=4, kv_len=4, window=9), 10),
    ],
)
def test_scores_computed(core: Attention, elements: int) -> None:
    assert score_elements(core) == elements


def test_causal_costs_about_half() -> None:
    full = seconds(replace(CORE, causal=False))
    assert seconds(CORE) == pytest.approx(full / 2, rel=0.1)


def test_fused_backward_takes_between_two_and_four_forwards() -> None:
    assert 2.0 < seconds(CORE, backward=True) / seconds(CORE) < 4.0


def test_triton_s_kernel_is_slower_backward() -> None:
    """What llm-foundry's benchmarks ran; it keeps what FlashAttention keeps."""
    triton = replace(CORE, implementation="triton")
    for gpu in ("A100-SXM-80GB", "H100-SXM-80GB"):
        two = replace(CORE, implementation="flash_attention_2")
        assert seconds(triton, gpu) == seconds(two, gpu)
        ratio = seconds(two, gpu, backward=True) / seconds(triton, gpu, backward=True)
        assert ratio == pytest.approx(TRITON_BACKWARD, rel=0.05)


def eager_seconds(length: int, dtype: Dtype = "bf16", *, backward: bool = False) -> float:
    q, k, v = (
        Tensor(name=name, rows=length, width=heads * 128)
        for name, heads in (("q", 32), ("k", 8), ("v", 8))
    )
    core = Core(heads=32, kv_heads=8, head_dim=128, v_head_dim=128, implementation="eager")
    tape = Tape()
    attend(tape, "attn", q, k, v, core, cls="Attention")
    (op,) = tape.body().operators
    model = ComputeModel(catalog.gpu("H100-SXM-80GB"))
    return model.operator_s(op, batch=2, dtype=dtype, backward=backward)


def test_eager_is_bound_by_the_score_matrix() -> None:
    """Scaled 2, masked 2, cast 3, softmax in fp32 4, cast 3; products read and write one each."""
    scores = 2 * 32 * 4096 * 4096
    streamed = (2 + 2 + 3 + 4 + 3) * 2 * scores / (3.35e12 * MEMORY_SHARE)
    indexed = 3 * scores * INDEX_S  # mask and casts
    least = streamed + indexed + 2 * 2 * scores / 3.35e12
    assert least < eager_seconds(4096) < 1.25 * least
    assert eager_seconds(4096) > 5 * seconds(CORE)
    assert eager_seconds(8192) == pytest.approx(4 * eager_seconds(4096), rel=0.1)


def test_softmax_s_backward_multiplies_first() -> None:
    """Its two kernels move six elements a score, in fp32: 7.9 ps on an H100, as measured."""
    scores = 2 * 32 * 4096 * 4096
    streamed = (3 + 2 * 6 + 3 + 2) * 2 * scores / (3.35e12 * MEMORY_SHARE)
    least = streamed + 2 * scores * INDEX_S + 4 * 2 * scores / 3.35e12
    assert least < eager_seconds(4096, backward=True) < 1.25 * least


def test_eager_in_fp32_casts_nothing() -> None:
    scores = 2 * 32 * 4096 * 4096
    assert eager_seconds(4096, "fp32") > 6 * 4 * scores / 3.35e12


def test_a_sliding_window_is_cheaper() -> None:
    assert seconds(replace(CORE, window=1024)) < 0.6 * seconds(CORE)


def test_flash_rates_stay_in_published_bands() -> None:
    long = replace(CORE, q_len=16384, kv_len=16384)
    flops = 4 * 2 * 32 * 128 * 16384**2 / 2

    def tflops(gpu: str, *, backward: bool = False) -> float:
        return (2.5 if backward else 1.0) * flops / seconds(long, gpu, backward=backward) / 1e12

    # FlashAttention 2, causal, head dimension 128: A100 170-230 forward, 130-190 backward; H100
    # 350-400 forward. cuDNN, which sdpa takes there, as measured up to 32,768 tokens.
    assert 165 < tflops("A100-SXM-80GB") < 230
    assert 130 < tflops("A100-SXM-80GB", backward=True) < 190
    assert 620 < tflops("H100-SXM-80GB") < 680
    assert 480 < tflops("H100-SXM-80GB", backward=True) < 540
    long = replace(long, implementation="flash_attention_2")
    assert 340 < tflops("H100-SXM-80GB") < 410


def test_best_kernel_on_hopper_is_measured_flash_attention_3() -> None:
    two = replace(CORE, implementation="flash_attention_2")
    op, older = (Operator(name="core", kind="attention", attention=c) for c in (CORE, two))
    torch_like = ComputeModel(catalog.gpu("H100-SXM-80GB"))
    best = ComputeModel(catalog.gpu("H100-SXM-80GB"), fused_kernel="best")
    slow = torch_like.operator_s(older, batch=4, dtype="bf16")
    fast = best.operator_s(op, batch=4, dtype="bf16")
    assert 1.3 < slow / fast < 2.0
    assert best.provenance["attention.best"].basis == "measured"
    assert torch_like.provenance["attention.fa2"].basis == "measured"
    torch_like.operator_s(op, batch=4, dtype="bf16")
    assert "cudnn" in torch_like.provenance["attention.sdpa"].source


def test_flash_attention_3_is_asked_for_by_name() -> None:
    three = replace(CORE, implementation="flash_attention_3")
    gpu = "H100-SXM-80GB"
    two = replace(CORE, implementation="flash_attention_2")
    assert 1.3 < seconds(two, gpu) / seconds(three, gpu) < 2.1
    model = ComputeModel(catalog.gpu("A100-SXM-80GB"))
    op = Operator(name="core", kind="attention", attention=three)
    model.operator_s(op, batch=1, dtype="bf16")
    assert "needs Hopper" in model.provenance["attention.fa3"].source


def test_sdpa_with_a_mask_of_its_own_visits_every_score() -> None:
    flash = replace(CORE, window=1024, implementation="flash_attention_2")
    masked = replace(CORE, window=1024, masked=True)
    assert score_elements(masked) == 4096**2
    assert seconds(masked) > 4 * seconds(flash)


def test_masks_leave_cudnn_its_rate_and_flash_attention_2_is_left() -> None:
    for gpu, slower in (("H100-SXM-80GB", 1.0), ("A100-SXM-80GB", 2.0)):
        full = seconds(replace(CORE, causal=False), gpu)
        assert seconds(replace(CORE, masked=True), gpu) == pytest.approx(slower * full, rel=0.1)


def test_latent_attention_is_padded_by_flash_attention_2() -> None:
    latent = replace(CORE, kv_heads=32, head_dim=192, v_head_dim=128)
    padded = replace(latent, v_head_dim=192, implementation="flash_attention_2")
    flash = replace(latent, implementation="flash_attention_2")
    assert seconds(flash) == pytest.approx(seconds(padded), rel=0.05)
    assert seconds(latent) > 1.3 * seconds(flash)  # torch's flash kernel wants one width


def test_narrow_heads_run_slower() -> None:
    narrow = replace(CORE, heads=64, kv_heads=16, head_dim=64, v_head_dim=64)
    three = {"implementation": "flash_attention_3"}
    one, two = (seconds(replace(c, **three), "H100-SXM-80GB") for c in (narrow, CORE))  # type: ignore[arg-type]
    assert 1.1 < one / two < 1.7
