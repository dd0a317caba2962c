"""``xformers.ops``: attention, computed by torch's own fused one.

Real counterpart: ``xformers/ops/fmha`` (0.0.33).

Not modelled: biases but causal ones (the whole attention is computed).
"""

from __future__ import annotations

from typing import Any

from raysim.rayapi.standins.absent.flash_attn import flash_attn_func

__version__ = "0.0.33"


class LowerTriangularMask:
    """``xformers.ops.LowerTriangularMask``: causal."""


def memory_efficient_attention(
    query: Any, key: Any, value: Any, attn_bias: Any = None, p: float = 0.0,
    scale: float | None = None, **_more: Any,
) -> Any:  # fmt: skip
    """Of (batch, length, heads, size), or without heads."""
    causal = isinstance(attn_bias, LowerTriangularMask)
    if query.dim() == 4:
        return flash_attn_func(query, key, value, p, scale, causal)
    q, k, v = query.unsqueeze(2), key.unsqueeze(2), value.unsqueeze(2)
    return flash_attn_func(q, k, v, p, scale, causal).squeeze(2)


class ops:  # noqa: N801  (a module of theirs)
    """``import xformers.ops`` as ``xformers.ops``."""

    memory_efficient_attention = staticmethod(memory_efficient_attention)
    LowerTriangularMask = LowerTriangularMask
