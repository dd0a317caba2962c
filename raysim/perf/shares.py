"""Shares: what kernels without tables keep of rates around them; what a rank has of a product."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from raysim.hardware.specs import Provenance
from raysim.models.table import Attention, Gemm, Operator, Split
from raysim.perf.attention import score_elements
from raysim.perf.constants import MEASURED, MEMORY_SHARE, GpuConstants
from raysim.perf.gemm import GemmConstants

CONV_SHARE = 0.8
"""Implicit-GEMM convolution over the plain product of the same shape; assumed."""
PRODUCT_SHARES = {"conv": CONV_SHARE, "scan": 1.0}
"""Of a plain product's rate, for what multiplies inside kernels of its own."""
COLUMN_SUM_S = 0.2e-6
"""Times the root of its rows: what a sum over rows takes beyond its traffic. 4,096 rows 12 us,
8,192 14, 16,384 26, 25,216 33, 65,536 46 to 61, 262,144 65 to 98: what is left of measured ones
at two to four widths each when their traffic is taken off."""
PLANE_SUM_SHARE = 0.4
"""Of streaming bandwidth, a sum over samples and positions that lie channels first: 1.1 to 1.2
TB/s."""
SUM_SOURCE = Provenance(
    basis="measured",
    source="sums for biases in training steps on H100 (training_operators.json, "
    f"script_operators.json of {MEASURED}); on others assumed",
)
ROUTING_SHARE = 0.556
"""Bandwidth that permutations of tokens keep, over streaming kernels': 0.50 of 0.90 on B200."""
FP32_FUSED_SCORE_SHARE = 0.25
"""Score traffic that a CPU's fused attention keeps, over eager's; assumed."""
FP32_FUSED_SHARE, FP32_FUSED_SHARE_BACKWARD = 0.31, 0.35
"""Of the fp32 peak that memory-efficient attention reaches in fp32, softmax included, beside its
traffic: ViT's on H100 (``vit-fp32-b32`` of ``script_operators.json``)."""

COMPILED_KINDS = ("norm", "elementwise", "loss")
COMPILED_TRAFFIC_SHARE = 0.41
"""Traffic that ``torch.compile`` leaves of eager's outside products and attention."""

COMPILED_SOURCE = Provenance(
    basis="assumed",
    source="fusion leaves 0.41 of eager's traffic outside products and attention: between 0.30, "
    "TinyLlama's Triton kernels on H100 under torch 2.11, and 0.6, what torchtitan's Llama 3 8B "
    "gained on 8 H100 under torch 2.6, 6667 over 5762 tokens/s/GPU",
)
IMBALANCE_SOURCE = Provenance(
    basis="assumed", source="given: rows of the fullest expert over the mean"
)
CONV_SOURCE = Provenance(basis="assumed", source="implicit GEMM at 0.8 of the plain product's rate")
ROUTING_SOURCE = Provenance(
    basis="measured", source="fused permutation on B200 at 0.50 of its bandwidth, SimuMax v1.2"
)
FP8_SHARE = 0.9
"""Share of the 16-bit product's efficiency that cuBLAS keeps in fp8."""
FP8_SOURCE = Provenance(
    basis="measured",
    source="16-bit products at the fp8 units' rate, 0.9 of it: 5 % mean error on products of 1,024 "
    f"rows and more, 8 % on all 49, torch._scaled_mm on H100 ({MEASURED}/gemm.csv); on Blackwell "
    "fp8 tables less the traffic of the cast they hold (5 bytes per element), where faster",
)
TABLE_CAST_BYTES = 5.0 / MEMORY_SHARE
"""Per element of the operand that the fp8 tables' rows cast: read for its largest value, read and
written again, at what streaming kernels reach of the bandwidth."""
FP32_ATTENTION_SOURCE = Provenance(
    basis="measured",
    source="memory-efficient fp32 attention at a third of the fp32 peak, with allow_tf32 or not: "
    f"ViT's on H100 (script_operators.json of {MEASURED}); on others assumed",
)
CPU_ATTENTION_SOURCE = Provenance(
    basis="assumed", source="fused attention of a CPU moves a quarter of eager's scores"
)


def fp32_attention_s(
    c: GpuConstants, a: Attention, *, batch: float, heads: int, kv_heads: int, backward: bool
) -> float:
    """GPU seconds of ``sdpa`` in fp32, which is the memory-efficient kernel and keeps no scores.

    Its products are CUTLASS's of fp32 (``OpMultiplyAddFastF32``: three of tf32 where a GPU has
    that type), whatever ``allow_tf32`` says.
    """
    c.provenance["attention.fp32"] = FP32_ATTENTION_SOURCE
    both, peak = a.head_dim + a.v_head_dim, c.gpu.flops_per_s["fp32"]
    flops = 2.0 * batch * heads * score_elements(a) * both
    io_bytes = 4.0 * batch * (a.q_len * heads + a.kv_len * kv_heads) * both
    pass_s = c.kernel_floor_s + io_bytes / c.memory_bytes_per_s
    if backward:
        return 2.0 * pass_s + 2.5 * flops / (FP32_FUSED_SHARE_BACKWARD * peak)
    return pass_s + flops / (FP32_FUSED_SHARE * peak)


def bias_sum_s(
    c: GpuConstants, op: Operator, beside: float, moved_bytes: float, batch: float
) -> float:
    """Seconds that the sum for an operator's bias takes beyond its traffic.

    ``beside`` is what backward moves beside its products, of a sample: the gradient of the output
    once, if there is a bias, and where two gradients of the input meet three times the input.
    """
    if not c.system:  # a CPU sums as it streams
        return 0.0
    given = op.moved - op.output if op.conv is not None else 0.0
    if op.gemm is not None and op.conv is None:
        given = op.gemm.rows * op.gemm.k
    joined = (beside - op.output) / (3.0 * given) if given else 1.0
    if op.gemm is None or not op.output or not beside:
        return 0.0
    if abs(joined - round(joined)) > 0.01 or round(joined) < 0:
        return 0.0
    c.provenance["sums"] = SUM_SOURCE
    if op.conv is not None and not op.conv.channels_last:
        whole = moved_bytes * op.output / beside
        return (1.0 / PLANE_SUM_SHARE - 1.0) * whole / c.memory_bytes_per_s
    return COLUMN_SUM_S * math.sqrt(op.gemm.rows / op.gemm.groups * batch)


class ProductShape(NamedTuple):
    """How often a product runs, and over what."""

    scale: float
    weight_scale: float
    """The same of the product that makes the weight gradient."""
    rows: float
    n: int
    k: int
    groups: int
    imbalance: float
    """Rows of the fullest group over the mean."""


def fp8_constants(c: GpuConstants, wide: str) -> tuple[GemmConstants, GemmConstants]:
    """Of products whose operands are fp8 already: as cuBLAS's, and as the tables'.

    ``wide`` is the 16-bit type whose products are the yardstick.
    """
    own, table = c.gemm(wide), c.gemm("fp8")
    faster = c.gpu.flops_per_s["fp8"] / c.gpu.flops_per_s[wide]
    cublas = replace(
        own, peak_flops_per_s=own.peak_flops_per_s * faster, k_half=own.k_half * faster,
        efficiency=own.efficiency * FP8_SHARE, element_bytes=1,
    )  # fmt: skip
    cast = max(0.0, table.cast_passes - TABLE_CAST_BYTES / 3.0)
    return cublas, replace(table, cast_passes=cast)


def shard(gemm: Gemm, split: Split, tp: int) -> Gemm:
    """What one of ``tp`` tensor-parallel ranks computes of a product; uneven shares round up."""
    if split in ("column", "vocab", "heads"):
        return Gemm(rows=gemm.rows, n=-(-gemm.n // tp), k=gemm.k, groups=gemm.groups)
    if split == "row":
        return Gemm(rows=gemm.rows, n=gemm.n, k=-(-gemm.k // tp), groups=gemm.groups)
    if split == "expert":
        return Gemm(rows=gemm.rows / tp, n=gemm.n, k=gemm.k, groups=-(-gemm.groups // tp))
    return gemm
