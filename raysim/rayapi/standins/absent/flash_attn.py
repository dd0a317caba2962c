"""``flash_attn``: its functions, computed by torch's own fused attention.

Real counterpart: ``flash_attn/flash_attn_interface.py`` (2.8). Queries, keys and values are (batch,
length, heads, size) there, and heads come before the length in torch.

Not modelled: sliding windows, alibi slopes and soft caps (the whole attention is computed); packed
sequences of unequal length (taken for equal ones, so many as ``cu_seqlens`` says).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch.nn import functional

__version__ = "2.8.3"


def flash_attn_func(
    q: Any, k: Any, v: Any, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, **_more: Any,
) -> Any:  # fmt: skip
    """Of (batch, length, heads, size)."""
    out = functional.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), dropout_p=dropout_p,
        is_causal=causal, scale=softmax_scale, enable_gqa=q.shape[2] != k.shape[2],
    )  # fmt: skip
    return out.transpose(1, 2)


def flash_attn_qkvpacked_func(qkv: Any, *args: Any, **kwargs: Any) -> Any:
    """Of (batch, length, 3, heads, size)."""
    return flash_attn_func(*qkv.unbind(2), *args, **kwargs)


def flash_attn_kvpacked_func(q: Any, kv: Any, *args: Any, **kwargs: Any) -> Any:
    """Keys and values as (batch, length, 2, heads, size)."""
    return flash_attn_func(q, *kv.unbind(2), *args, **kwargs)


def flash_attn_varlen_func(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: Any = None,
    max_seqlen_k: Any = None, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, **_more: Any,
) -> Any:  # fmt: skip
    """Of (tokens, heads, size): sequences of one length."""
    del max_seqlen_q, max_seqlen_k
    many = max(1, cu_seqlens_q.shape[0] - 1)
    q3, k3, v3 = _apart(q, many), _apart(k, cu_seqlens_k.shape[0] - 1), _apart(v, many)
    out = flash_attn_func(q3, k3, v3, dropout_p, softmax_scale, causal)
    return out.flatten(0, 1)[: q.shape[0]]


def flash_attn_varlen_qkvpacked_func(
    qkv: Any, cu_seqlens: Any, max_seqlen: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Of (tokens, 3, heads, size)."""
    q, k, v = qkv.unbind(1)
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *args, **kwargs
    )


def _apart(packed: Any, many: int) -> Any:
    """(tokens, ...) as (many, length, ...), filled up where it does not divide."""
    each = -(-packed.shape[0] // many)
    missing = many * each - packed.shape[0]
    if missing:
        packed = torch.cat([packed, packed.new_zeros(missing, *packed.shape[1:])])
    return packed.unflatten(0, (many, each))


def unpad_input(hidden: Any, mask: Any, *_: Any) -> Any:
    """``bert_padding``: nobody knows what is padding, so all of it stays."""
    batch, length = mask.shape[:2]
    ends = torch.arange(0, (batch + 1) * length, length, dtype=torch.int32)
    return hidden.flatten(0, 1), torch.arange(batch * length), ends, length, ends[1:] - ends[:-1]


def pad_input(hidden: Any, _indices: Any, batch: int, length: int) -> Any:
    """Its inverse."""
    return hidden.unflatten(0, (batch, length))


def index_first_axis(hidden: Any, indices: Any) -> Any:
    """Rows by number."""
    return hidden[: indices.shape[0]]


def rearrange(*args: Any, **kwargs: Any) -> Any:
    """einops' own, which the real package needs."""
    return import_module("einops").rearrange(*args, **kwargs)
