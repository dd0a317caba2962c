"""What B200 keeps of isolated rates in long loops, from kernels measured on a training machine."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest

from raysim.hardware import catalog
from raysim.models.table import Attention
from raysim.perf.attention import fused_seconds
from raysim.perf.compute import ComputeModel
from raysim.perf.sustained import SUSTAINED

FILE = Path(__file__).parents[2] / "validation" / "data" / "published" / "b200_kernels.json"
KERNELS = json.loads(FILE.read_text(encoding="utf-8"))


def test_products_keep_a_share_of_their_isolated_rate() -> None:
    """Calibration: the constant is the median over products of a millisecond and more."""
    isolated = ComputeModel(catalog.gpu("B200"))
    ratios = [isolated.gemm_s(m, n, k, "bf16") / (us * 1e-6) for m, n, k, us in KERNELS["products"]]
    assert len(ratios) > 150
    assert median(ratios) == pytest.approx(SUSTAINED["blackwell"], abs=0.01)


@pytest.mark.parametrize("which", ["fwd", "bwd"])
def test_fused_attention_keeps_its_rate(which: str) -> None:
    """From 16 heads on; forward was measured elsewhere, backward's ratio here."""
    constants = ComputeModel(catalog.gpu("B200"), sustained_share=None, gpus=1).constants.attention(
        "best"
    )
    errors = []
    for kind, seq, heads, kv_heads, qk, v, us in KERNELS["attention"]:
        if kind != which or max(heads, kv_heads) < 16:
            continue
        shape = Attention(
            q_len=seq, kv_len=seq, heads=heads, kv_heads=kv_heads, head_dim=qk, v_head_dim=v,
            causal=True, implementation="transformer_engine",
        )  # fmt: skip
        found = fused_seconds(
            constants, shape, batch=1, heads=heads, kv_heads=kv_heads, backward=which == "bwd"
        )
        errors.append(abs(found / (us * 1e-6) - 1))
    assert len(errors) > 10
    assert median(errors) < (0.09 if which == "fwd" else 0.13)


@pytest.mark.parametrize("gpu", ["GB200", "GB300"])
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_the_same_die_with_more_power_is_no_slower_in_training(gpu: str, dtype: str) -> None:
    """GB200's isolated table has throttled products, of which training would take a share again."""
    for size in (4096.0, 16384.0):
        plain, more = (
            ComputeModel(catalog.gpu(name), sustained_share=None) for name in ("B200", gpu)
        )
        assert more.gemm_s(size, int(size), int(size), dtype) < plain.gemm_s(
            size, int(size), int(size), dtype
        )
