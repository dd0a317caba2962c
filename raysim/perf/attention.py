"""Seconds of one attention core (scores, softmax, values), forward or backward, by implementation.

``sdpa`` and ``flash_attention_2`` never store the score matrix: they run near a rate that grows with
sequence length (``tables/attention.csv``). ``eager`` runs two batched products and stores several
score-sized matrices, so it is bound by memory.

Backward recomputes the scores: five products for two, 2.5 times the forward operations (Dao,
FlashAttention-2, arXiv 2307.08691, section 3.1.2); unfused backward keeps them and runs four.

Not modelled: dropout inside the kernel, paged key-value caches, variable-length batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from raysim.models.table import Attention

EAGER_SCORE_PASSES = 12.0
"""Score-sized reads and writes in 2-byte units of Hugging Face's ``eager_attention_forward``: product
(1), scaling (2), mask (2), softmax into fp32 (3), cast back (3), values product (1)."""
EAGER_SCORE_PASSES_BACKWARD = 22.0
"""The same for its backward: d(values) read and write (2), cast (3), softmax's backward over fp32
(6), scaling (2), two products (2), then gradients of the fp32 copies (7)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConstants:
    """A fused kernel's speed on one GPU: forward at head dimension 128, and what changes it."""

    flops_per_s: float
    """Forward, long sequences, enough blocks to fill the GPU."""
    seq_half: float
    """Key length at which half that rate is reached."""
    head_dim_exponent: float
    """Rate below head dimension 128 falls with ``(d / 128) ** exponent``."""
    backward_ratio: float
    """Backward's rate over forward's, both in operations per second."""
    fixed_s: float
    block_rows: int
    """Query rows of one thread block."""
    sm_count: int
    memory_bytes_per_s: float
    """Achievable, not the datasheet's."""
    element_bytes: int


def score_elements(a: Attention) -> float:
    """Elements of one head's score matrix that are computed: all, the causal half, or the window."""
    full = float(a.q_len) * a.kv_len
    if a.window is not None and a.window < a.kv_len:
        seen = a.q_len * float(a.window)
        return seen - a.window * (a.window - 1) / 2.0 if a.causal else min(full, 2.0 * seen)
    if a.causal and a.q_len == a.kv_len:
        return full / 2.0
    return full


def fused_seconds(
    c: AttentionConstants, a: Attention, *, batch: float, heads: int, kv_heads: int, backward: bool
) -> float:
    """GPU seconds of a fused core over ``batch`` samples with this many heads on the GPU."""
    area = score_elements(a)
    flops = 2.0 * batch * heads * area * (a.head_dim + a.v_head_dim)
    rate = c.flops_per_s
    width = (a.head_dim + a.v_head_dim) / 2.0
    if width < 128.0:
        rate *= (width / 128.0) ** c.head_dim_exponent
    seen = area / a.q_len
    rate *= seen / (seen + c.seq_half / 2.0)
    blocks = batch * heads * ceil((a.kv_len if backward else a.q_len) / c.block_rows)
    rate *= blocks / (ceil(blocks / c.sm_count) * c.sm_count) if blocks < 4 * c.sm_count else 1.0
    io = a.q_len * heads * (a.head_dim + a.v_head_dim) + a.kv_len * kv_heads * (
        a.head_dim + a.v_head_dim
    )
    moved = batch * io * c.element_bytes
    if backward:
        flops, rate, moved = 2.5 * flops, rate * c.backward_ratio, 3.0 * moved
    return c.fixed_s * (3.0 if backward else 1.0) + max(flops / rate, moved / c.memory_bytes_per_s)


def eager_bytes(
    a: Attention, *, batch: float, heads: int, element_bytes: int, backward: bool
) -> float:
    """Bytes of score-sized tensors an unfused core moves; the causal half is not skipped."""
    passes = EAGER_SCORE_PASSES_BACKWARD if backward else EAGER_SCORE_PASSES
    if element_bytes == 4:
        passes -= 4.0 if not backward else 6.0  # fp32 needs no cast and its softmax reads fp32
    return batch * heads * float(a.q_len) * a.kv_len * passes * element_bytes
