"""Which kernel ``scaled_dot_product_attention`` takes on CUDA, and its plain path where none fits.

Sources: torch 2.11, ``aten/src/ATen/native/transformers``: ``cuda/sdp_utils.cpp`` and
``sdp_utils_cpp.h`` (what FlashAttention, cuDNN and the memory-efficient kernel refuse),
``attention.cpp`` (``_scaled_dot_product_attention_math``). Compute capability 8.0 and later. The
plain path keeps the score matrix, in fp32 whatever the type.

Not modelled: backends that a script has switched off, nested tensors, deterministic algorithms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from raysim.models.table import Attention

VISITED = "raysim_visited"
"""On a block mask of ``flex_attention``: share of the scores in its blocks."""
UNKNOWN_SHARE = 0.5
"""Taken of one whose blocks nobody knows: a causal mask's."""
HALF = (torch.float16, torch.bfloat16)
MOST_FLASH = 256
"""Columns of a head."""
_aten: Any = torch.ops.aten


def is_fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> bool:
    """Whether a kernel takes these, and no scores are kept."""
    given = (q, k, v)
    if any(t.dim() != 4 or t.stride(-1) != 1 for t in given):
        return False  # ``check_tensor_shapes``, ``check_last_dim_stride_equals_1_dense``
    widths, half = {q.shape[-1], v.shape[-1]}, q.dtype in HALF
    if half and mask is None and len(widths) == 1 and max(widths) <= MOST_FLASH:
        return True
    aligned = all(w % (8 if half else 4) == 0 for w in widths)
    in_rows = mask is None or mask.stride(-1) == 1
    # The memory-efficient kernel, which takes all that cuDNN does.
    return aligned and in_rows and q.dtype in (*HALF, torch.float32)


def core(
    q: torch.Tensor, k: torch.Tensor, width: int, batch: int, *, causal: bool,
    visited: float | None,
) -> Attention:  # fmt: skip
    """Shape of a fused one, with values of ``width`` columns a head, of a batch's sample.

    More samples than the batch has (windows of a picture) are so many heads; fewer are one sequence
    that all of the batch is.
    """
    samples = math.prod(q.shape[:-3]) / batch
    times = max(1.0, samples)
    return Attention(
        q_len=q.shape[-2], kv_len=k.shape[-2], heads=round(q.shape[-3] * times),
        kv_heads=round(k.shape[-3] * times), head_dim=q.shape[-1], v_head_dim=width, causal=causal,
        samples=min(1.0, samples), visited=visited,
        implementation="sdpa" if visited is None else "flex_attention",
    )  # fmt: skip


def visited(block_mask: Any, known: Callable[[torch.Tensor], torch.Tensor | None]) -> float:
    """Share of the scores in the blocks that a ``BlockMask`` leaves (``flex_attention.py``).

    ``known``: values of a tensor, if somebody knows them.
    """
    said: float | None = getattr(block_mask, VISITED, None)
    if said is not None:
        return said
    given = [block_mask.kv_num_blocks, block_mask.full_kv_num_blocks]
    counts = [known(t) for t in given if t is not None]
    sides = zip(block_mask.seq_lengths, block_mask.BLOCK_SIZE, strict=True)
    blocks = math.prod(-(-length // side) for length, side in sides)
    if any(t is None for t in counts):
        return UNKNOWN_SHARE
    left = sum(float(t.sum()) for t in counts if t is not None)
    share: float = left / (math.prod(given[0].shape[:-1]) * blocks)
    return share


def output(q: torch.Tensor, width: int) -> torch.Tensor:
    """Of the kernel that takes it, ``width`` columns a head: in 16 bits laid out as the query is.

    ``flash_api.cpp`` makes it like the query, cuDNN's ``MHA.cpp`` with matching strides;
    ``attention.cu`` of the memory-efficient kernel by token.
    """
    if q.dtype in HALF and width == q.shape[-1]:
        return torch.empty_like(q)
    return q.new_empty(*q.shape[:-3], q.shape[-2], q.shape[-3], width).transpose(-3, -2)


def plain(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    dropout: float,
    causal: bool,
    scale: float | None = None,
) -> torch.Tensor:
    """Line by line what ``_scaled_dot_product_attention_math`` does, with CUDA's dropout."""
    kind = q.dtype
    if kind in HALF:
        q, k, v = (t.to(torch.float32) for t in (q, k, v))
    root = math.sqrt(1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    repeats = q.shape[-3] // k.shape[-3] if q.dim() > 3 else 1
    if repeats > 1:
        k, v = (t.repeat_interleave(repeats, -3) for t in (k, v))
    scores = (q * root) @ (k.transpose(-2, -1) * root)
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=kind).masked_fill_(mask.logical_not(), -math.inf)
    if mask is not None:
        scores.add_(mask)
    weights = _aten._safe_softmax(scores, -1)  # noqa: SLF001  (it has no other name)
    if dropout:
        weights = torch.native_dropout(weights, dropout, True)[0]
    if kind in HALF:
        weights.to(kind)  # returned beside the output, to nobody
    out: torch.Tensor = (weights @ v).to(kind)
    return out
