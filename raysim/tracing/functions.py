"""Functions of torch that the meta device runs unlike CUDA, and which of them are losses.

A ``TorchFunctionMode`` stands in for fused attention, dropout and RMS norms, and tells the listener
when a loss function runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from raysim.tracing import peers
from raysim.tracing.attention import is_fused, plain, visited
from raysim.tracing.autocast import Casts
from raysim.tracing.recording import Listener
from raysim.tracing.storages import PLAIN

_OF_OPERATOR: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.scaled_dot_product_attention.default: functional.scaled_dot_product_attention,
    torch.ops.aten.dropout.default: torch.dropout,
}
"""What calls those operators; graphs of ``torch.export`` call them themselves."""


FLEX: ContextVar[Any] = ContextVar("flex", default=None)
"""Within a call of ``flex_attention``: its block mask, or ``True`` for none."""


class _Attention(torch.autograd.Function):
    """Fused attention on the meta device; keeps what CUDA's kernels keep."""

    @staticmethod
    def forward(
        ctx: Any,
        listener: Listener,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: torch.Tensor | None,
        causal: bool,
        visited: float | None,
    ) -> torch.Tensor:
        """Shapes only."""
        out, lse, bias = listener.attend(q, k, v, mask, causal=causal, visited=visited)
        ctx.save_for_backward(q, k, v, out, lse, bias)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:  # noqa: ARG004
        """Gradients of q, k and v."""
        q, k, v, *_ = ctx.saved_tensors
        return None, torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), None, None, None


class Functions(TorchFunctionMode):
    """Stands in for what the meta device would run unlike CUDA."""

    def __init__(self, listener: Listener | None, casts: Casts | None = None) -> None:
        super().__init__()
        self.listener = listener
        self.casts = casts
        body = functional.multi_head_attention_forward
        # Functions called inside another one escape this mode; this one's body gets ours by name.
        inside = {
            "scaled_dot_product_attention": self._attend,
            "dropout": _dropout,
            "has_torch_function": lambda _: False,
        }
        self._multi_head = FunctionType(
            body.__code__, {**body.__globals__, **inside}, body.__name__, body.__defaults__
        )
        self._multi_head.__kwdefaults__ = body.__kwdefaults__

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run a torch function, or what stands in for it."""
        kwargs = kwargs or {}
        func = _OF_OPERATOR.get(func, func)
        if func is functional.scaled_dot_product_attention:
            return self._attend(*args, **kwargs)
        if func is functional.dropout or func is torch.dropout:
            return _dropout(*args, **kwargs)
        if func is functional.multi_head_attention_forward:
            return self._multi_head(*args, **kwargs)
        if func is functional.rms_norm or func is torch.rms_norm:
            return self._rms_norm(*args, **kwargs)
        name = getattr(func, "__name__", "").partition(".")[0]  # an operator's has its overload
        is_loss = name.endswith("_loss") or name.startswith(
            ("cross_entropy", "binary_cross_entropy")
        )
        if is_loss and self.listener is not None:
            with self.listener.in_loss():
                return func(*args, **kwargs)
        return func(*args, **kwargs)

    def _rms_norm(
        self,
        input: torch.Tensor,  # noqa: A002 (torch's name)
        normalized_shape: list[int],
        weight: torch.Tensor | None = None,
        eps: float | None = None,
    ) -> torch.Tensor:
        """CUDA's one kernel is that of layer norms without means (``layer_norm_kernel.cu``).

        It takes a weight of the input's type alone (``layer_norm.cpp``, ``rms_norm_symint``).
        """
        casts = self.casts is not None and self.casts.on  # both to fp32
        listener = self.listener
        compiled = listener is None or listener.walk.in_compiled  # which writes its own
        alone = weight is None or weight.dtype == input.dtype or casts
        if compiled or not alone or type(input) not in PLAIN:
            return functional.rms_norm(input, normalized_shape, weight, eps)
        return torch.native_layer_norm(input, normalized_shape, weight, None, eps or 0.0)[0]

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,  # inside the kernel
        is_causal: bool = False,
        scale: float | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """``scaled_dot_product_attention`` as one fused kernel, where there is one for it."""
        if type(query) not in PLAIN and hasattr(query, "placements"):
            mine = partial(self._attend, dropout_p=dropout_p, is_causal=is_causal, scale=scale)
            return peers.attend(mine, query, key, value, attn_mask)
        if self.casts is not None:
            query, key, value, attn_mask = self.casts.halved((query, key, value, attn_mask))
        if FLEX.get() is not None or is_fused(query, key, value, attn_mask):
            return self._fused_attention(query, key, value, attn_mask, causal=is_causal)
        with nullcontext() if self.casts is None else self.casts.off():
            return plain(
                query, key, value, attn_mask, dropout=dropout_p, causal=is_causal, scale=scale
            )

    def _fused_attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        *,
        causal: bool,
    ) -> torch.Tensor:
        out: torch.Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
            self.listener, query, key, value, mask, causal, self._visited()
        )
        return out

    def _visited(self) -> float | None:
        """Of FlexAttention: the share of the scores that its mask leaves."""
        asked = FLEX.get()
        if asked is None or asked is True or self.listener is None:
            return None if asked is None else 1.0
        return visited(asked, self.listener.values.known)


def _dropout(
    input: torch.Tensor,  # noqa: A002 (torch's name)
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,  # noqa: ARG001
    *,
    train: bool | None = None,
) -> torch.Tensor:
    """CUDA's ``native_dropout``: one kernel, a mask of one byte per element."""
    if not (training if train is None else train) or p == 0:
        return input
    return torch.native_dropout(input, p, True)[0]
