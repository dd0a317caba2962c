"""``scaled_dot_product_attention`` where no fused kernel takes what it is given.

Real counterpart: ``_scaled_dot_product_attention_math`` (``aten/src/ATen/native/transformers``),
which torch falls back to where a mask needs a gradient (T5's biases) or the last dimension of an
operand is strided. 16 bits are cast to fp32 there, products too, unless
``allow_fp16_bf16_reduction_math_sdp`` is set.

Not modelled: sizes that fused kernels refuse, heads shared by queries.
"""

from __future__ import annotations

import torch


def is_needed(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> bool:
    """Whether no fused kernel of CUDA takes them."""
    if query.shape[-3:-2] != key.shape[-3:-2]:
        return False
    strided = any(t.stride(-1) != 1 and t.shape[-1] > 1 for t in (query, key, value))
    return strided or (mask is not None and mask.requires_grad)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    dropout_p: float,
) -> torch.Tensor:
    """Operator by operator; what ``_safe_softmax`` looks for has no gradient."""
    narrow = query.dtype
    with torch.autocast("cuda", enabled=False):
        query, key, value = (t.float() for t in (query, key, value))
        share = query.shape[-1] ** -0.25
        scores = torch.matmul(query * share, key.transpose(-2, -1) * share)
        if mask is None and is_causal:
            mask = torch.zeros(scores.shape[-2:], device=scores.device)
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=scores.dtype)
        if mask is not None:
            scores = scores.add_(mask.float())
        weights = torch.softmax(scores, -1)
        with torch.no_grad():
            torch.where(scores.isneginf().all(-1, keepdim=True), 0.0, weights)
        if dropout_p > 0.0:
            weights = torch.native_dropout(weights, dropout_p, True)[0]
        return torch.matmul(weights, value).to(narrow)
