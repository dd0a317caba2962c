"""``flash_attn``'s kernels beside attention: rotary embeddings, norms, losses, by torch's.

Real counterparts, of 2.8: ``flash_attn/layers/rotary.py``, ``layer_norm`` and ``cross_entropy`` of
``ops/triton`` (each one kernel there, a region of ``torch.compile`` here), ``ops/rms_norm.py``,
``losses/cross_entropy.py``, ``utils/distributed.py``.

Not modelled: offsets and packed sequences of rotary embeddings, parallel norms (``x1``), losses
over pieces of a vocabulary (``process_group``).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from raysim.tracing.walk import compiled_function


def apply_rotary_emb(
    x: Any, cos: Any, sin: Any, interleaved: bool = False, inplace: bool = False, **_more: Any
) -> Any:
    """Of (batch, length, heads, size); cosines and sines are (length, half of what is turned)."""
    half, length = cos.shape[-1], x.shape[1]
    cos, sin = cos[:length].unsqueeze(-2), sin[:length].unsqueeze(-2)
    with compiled_function():
        turned = x[..., : 2 * half]
        one, two = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
        parts = one * cos - two * sin, one * sin + two * cos
        made = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
        made = made.to(x.dtype)
        if 2 * half < x.shape[-1]:
            made = torch.cat((made, x[..., 2 * half :]), -1)
    return x.copy_(made) if inplace and not x.requires_grad else made


class RotaryEmbedding(torch.nn.Module):
    """``flash_attn.layers.rotary``: of queries, keys and values in one, or of keys apart."""

    inv_freq: torch.Tensor

    def __init__(
        self, dim: int, base: float = 10000.0, interleaved: bool = False, **_more: Any
    ) -> None:
        super().__init__()
        self.dim, self.base, self.interleaved = dim, float(base), interleaved
        inverse = 1.0 / self.base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
        self.register_buffer("inv_freq", inverse, persistent=False)

    def forward(self, qkv: Any, kv: Any = None, seqlen_offset: Any = 0, **_more: Any) -> Any:
        """Of (batch, length, 3, heads, size); with ``kv``, queries and (batch, length, 2, ...)."""
        del seqlen_offset
        angles = torch.outer(torch.arange(qkv.shape[1], device=qkv.device).float(), self.inv_freq)
        cos, sin = angles.cos().to(qkv.dtype), angles.sin().to(qkv.dtype)
        if kv is not None:
            key, value = kv.unbind(2)
            key = apply_rotary_emb(key, cos, sin, self.interleaved)
            return apply_rotary_emb(qkv, cos, sin, self.interleaved), torch.stack((key, value), 2)
        query, key, value = qkv.unbind(2)
        turned = [apply_rotary_emb(part, cos, sin, self.interleaved) for part in (query, key)]
        return torch.stack((*turned, value), 2)


def layer_norm_fn(
    x: Any, weight: Any, bias: Any, residual: Any = None, x1: Any = None, weight1: Any = None,
    bias1: Any = None, eps: float = 1e-6, dropout_p: float = 0.0, rowscale: Any = None,
    prenorm: bool = False, residual_in_fp32: bool = False, is_rms_norm: bool = False,
    **_more: Any,
) -> Any:  # fmt: skip
    """A norm of ``x`` and what is added to it; ``prenorm``: their sum too."""
    del x1, weight1, bias1, rowscale
    with compiled_function():
        summed = functional.dropout(x, dropout_p) if dropout_p else x
        summed = summed if residual is None else summed + residual
        summed = summed.float() if residual_in_fp32 and prenorm else summed
        shape, given = (x.shape[-1],), summed.to(weight.dtype)
        if is_rms_norm:
            out = functional.rms_norm(given, shape, weight, eps)
        else:
            out = functional.layer_norm(given, shape, weight, bias, eps)
    return (out.to(x.dtype), summed) if prenorm else out.to(x.dtype)


def rms_norm_fn(x: Any, weight: Any, bias: Any, **options: Any) -> Any:
    """Likewise."""
    return layer_norm_fn(x, weight, bias, **{**options, "is_rms_norm": True})


RMSNorm = torch.nn.RMSNorm


def cross_entropy_loss(
    logits: Any, labels: Any, *_: Any, ignore_index: int = -100, label_smoothing: float = 0.0,
    **_more: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Of each row, and their z-losses, which are zeros."""
    with compiled_function():
        losses = functional.cross_entropy(
            logits.float(), labels, ignore_index=ignore_index, label_smoothing=label_smoothing,
            reduction="none",
        )  # fmt: skip
    return losses, torch.zeros_like(losses)


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """``flash_attn.losses.cross_entropy``."""

    def __init__(
        self, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0,
        **_more: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
        )


def all_gather(given: Any, process_group: Any) -> Any:
    """``flash_attn.utils.distributed``: along the first dimension."""
    ranks = dist.get_world_size(process_group)
    out = given.new_empty(ranks * given.shape[0], *given.shape[1:])
    dist.all_gather_into_tensor(out, given.contiguous(), group=process_group)
    return out
