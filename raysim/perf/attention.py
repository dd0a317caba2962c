"""Seconds of one attention core (scores, softmax, values), forward or backward.

``sdpa`` and ``flash_attention_1``, ``_2`` or ``_3`` never store the score matrix: time is a fixed
part, the products over the visited scores (causal, window) at the kernel's rate for its head
dimension, and the traffic of queries, keys, values and output, which these kernels hide badly
(``tables/attention.csv``, what is left in ``attention_grid.csv``). A mask of ``sdpa``'s own makes a
kernel visit every score; where torch does not choose cuDNN's, that is the memory-efficient one, as
it is for values of another width than the keys (DeepSeek). ``eager`` runs two batched products,
and between them the kernels that the operator counts: it is bound by the memory of several
score-sized matrices.

Backward recomputes the scores: five products for two, 2.5 times the forward operations (Dao,
FlashAttention-2, arXiv 2307.08691, section 3.1.2); unfused backward keeps them and runs four.

Scores are counted exactly, not in whole tiles: on measured windows of 128 tokens whole tiles were
2 points worse (``validation/fits/attention.py``). The grid is of forward; backward goes without.

Not modelled: dropout inside the kernel, for which sources say from 3 % (cuDNN on H200, NVIDIA's
TransformerEngine issue 3312) to 40 % (GB200, Dao-AILab's flash-attention pull request 2597); the
traffic of a mask; paged key-value caches, variable-length batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from raysim.models.table import Attention
from raysim.perf.tables import Curve, Grid

FP32_SCORE_PASSES = 6.0
"""Score-sized reads and writes between products, of an fp32 forward: scale 2, mask 2, softmax 2."""
FP32_SCORE_PASSES_BACKWARD = 8.0
"""The same for its backward: softmax's 6, two kernels; scaling 2."""
BLOCK_ROWS = 128
"""Query rows (backward: key rows) of one thread block."""


EARLIER_SHARE = 0.5
"""Rate of FlashAttention 1 and of the memory-efficient kernel over FlashAttention 2's; assumed from
the latter's paper (arXiv 2307.08691): twice FlashAttention, as fast as xformers' kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConstants:
    """A fused kernel's speed on one GPU: its forward, and backward relative to that."""

    flops_per_s: Curve
    """By head dimension: of the visited scores' operations, forward, enough blocks to fill the GPU;
    constant outside the measured dimensions."""
    backward_ratio: float
    """Backward's rate over forward's, both in operations per second."""
    fixed_s: float
    quantisation: float
    """Share of the last, partly filled wave of blocks that is paid."""
    sm_count: int
    io_bytes_per_s: float
    """Queries, keys, values and output, not overlapped with the products."""
    row_elements: float = 0.0
    """A row of a head costs as many elements besides those it moves: prologue and epilogue."""
    diagonal: float = 0.0
    """Keys that a causal row visits beyond its own: blocks on the diagonal, and their imbalance."""
    element_bytes: int = 2
    grid: Grid | None = None
    """What these leave of forward, over blocks per SM, query length and head dimension."""
    window_grid: Grid | None = None
    """The same for windows."""
    takes_masks: bool = False
    """Whether sdpa gives it masks too, as it does cuDNN's kernel, and not FlashAttention 2's."""


def score_elements(a: Attention) -> float:
    """Elements of one head's score matrix that are computed: all, causal part, or window."""
    q, kv = float(a.q_len), float(a.kv_len)
    full = q * kv
    if a.visited is not None:
        return full * a.visited
    if a.masked:
        return full
    causal = full - q * (q - 1.0) / 2.0 if a.causal and q <= kv else full
    if a.window is None or a.window >= a.kv_len:
        return causal
    if a.causal and a.q_len == a.kv_len:
        return q * a.window - a.window * (a.window - 1.0) / 2.0
    return min(causal, q * a.window * (1.0 if a.causal else 2.0))


def fused_seconds(
    c: AttentionConstants, a: Attention, *, batch: float, heads: int, kv_heads: int, backward: bool
) -> float:
    """GPU seconds of a fused core over ``batch`` samples with this many heads on the GPU."""
    both = a.head_dim + a.v_head_dim
    masked = a.masked and not c.takes_masks
    efficient = a.implementation == "sdpa" and (masked or a.head_dim != a.v_head_dim)
    earlier = a.implementation == "flash_attention_1"
    if earlier or a.implementation == "flash_attention_2":
        # it takes one width: transformers pads the narrower
        both = 2 * max(a.head_dim, a.v_head_dim)
    scores = score_elements(a)
    if a.causal and not a.masked and a.window is None:
        scores = min(scores + c.diagonal * a.q_len, float(a.q_len) * a.kv_len)
    flops = 2.0 * batch * heads * scores * both
    known = c.flops_per_s.sizes
    rate = c.flops_per_s.at(min(max(both / 2.0, known[0]), known[-1]))[0]
    if efficient or earlier:
        rate *= EARLIER_SHARE
    share = batch * heads * ceil((a.kv_len if backward else a.q_len) / BLOCK_ROWS) / c.sm_count
    whole = ceil(share)
    waves = whole if whole <= 1 else share + c.quantisation * (whole - share)
    rate *= share / waves
    rows = batch * (a.q_len * heads + a.kv_len * kv_heads)
    io = rows * (both + c.row_elements) * c.element_bytes
    if not backward:
        seconds = c.fixed_s + flops / rate + io / c.io_bytes_per_s
        grid = c.grid if a.window is None or a.masked else c.window_grid
        return seconds if grid is None else seconds * grid.factor(share, a.q_len, both / 2.0)
    # Backward reads and writes the same tensors and their gradients, in three kernels.
    return 2.0 * c.fixed_s + 2.5 * flops / (rate * c.backward_ratio) + 2.0 * io / c.io_bytes_per_s


def grouped_bytes(a: Attention, *, batch: float, heads: int, kv_heads: int) -> float:
    """Traffic of a fused backward that makes a gradient of keys and values per query head.

    Written in 16 bits, and read by the sum over the heads of a group.
    """
    if kv_heads == heads:
        return 0.0
    return 4.0 * batch * a.kv_len * heads * (a.head_dim + a.v_head_dim)


def product_elements(a: Attention) -> float:
    """Read and written by the two products of an unfused core, per sample."""
    scores = 2.0 * a.q_len * a.kv_len
    return a.heads * (scores + float(a.q_len + a.kv_len) * (a.head_dim + a.v_head_dim))


def fp32_score_elements(a: Attention, *, backward: bool) -> float:
    """Read and written between the products of an fp32 core, per sample; nothing is skipped."""
    passes = FP32_SCORE_PASSES_BACKWARD if backward else FP32_SCORE_PASSES
    return a.heads * float(a.q_len) * a.kv_len * passes
