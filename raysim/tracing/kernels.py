"""Kernels that the meta device lacks: those of packages that transformers' classes call, and CTC's.

causal-conv1d, flash-linear-attention and mamba-ssm need a GPU. Where they are not installed,
transformers runs plain PyTorch in their place, which launches other kernels and keeps other tensors
than the user's run will. So during a trace their functions are replaced by ones that keep what the
kernels keep and cost what ``models.mixers`` counts of them.

torch's ``ctc_loss`` has shapes for lengths that are numbers; here for tensors too, and backward's,
as ``aten/src/ATen/native/cuda/LossCTC.cu`` makes them; ``_grouped_mm`` has them for bf16 alone.

Not modelled: Mamba 1, packed sequences, cuDNN's CTC.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch.nn import functional

from raysim.models.mixers import CHUNK, ScanCost, delta_rule, state_space
from raysim.models.table import OperatorKind
from raysim.tracing.operators import Call
from raysim.tracing.recording import Listener

Given = Sequence[torch.Tensor | None]
Make = Callable[[], tuple[torch.Tensor, ...]]


class _Fused(torch.autograd.Function):
    """One fused function: what ``make`` returns first is its output, the rest is kept."""

    @staticmethod
    def forward(
        ctx: Any,
        listener: Listener,
        call: Call,
        make: Make,
        kept: Given,
        *given: torch.Tensor | None,
    ) -> torch.Tensor:
        """Shapes only."""
        out, *more = listener.fused(call, make, given)
        ctx.save_for_backward(*kept, *more)
        ctx.given = [None if t is None else (t.shape, t.dtype) for t in given]
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """Gradients of everything given."""
        made = (None if of is None else grads[0].new_empty(of[0], dtype=of[1]) for of in ctx.given)
        return None, None, None, None, *made


def _call(name: str, kind: OperatorKind, cost: ScanCost, batch: int, output: int) -> Call:
    """The whole batch's."""
    return Call(
        name=name, kind=kind, flops=cost.flops * batch, flops_backward=cost.flops_backward * batch,
        moved=cost.moved * batch, moved_backward=cost.moved_backward * batch, output=output,
        kernels=cost.kernels, kernels_backward=cost.kernels_backward,
    )  # fmt: skip


def _conv(
    listener: Listener,
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,  # noqa: ARG001 (inside the kernel)
    **_: Any,
) -> torch.Tensor:
    """``causal_conv1d_fn``: keeps its input alone."""
    x, n = hidden_states, float(hidden_states.numel())
    flops = 2.0 * n * weight.shape[-1]
    cost = ScanCost(flops, 2 * flops, 2 * n, 3 * n, 1, 3)
    call = _call("causal_conv1d", "conv", cost, 1, x.numel())
    out: torch.Tensor = _Fused.apply(  # type: ignore[no-untyped-call]
        listener, call, lambda: (x.new_empty(x.mT.shape).mT,), (x,), x, weight, bias
    )
    return out


def _delta_rule(
    listener: Listener,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """``chunk_gated_delta_rule`` and ``chunk_kda``.

    Kept are normed queries and keys with their lengths, values, decays added up, the inverse and,
    where channels decay by themselves, the decays given and the queries' scores.
    """
    batch, rows, key_heads, key_dim = key.shape
    heads, value_dim = value.shape[-2:]
    by_channel = g.dim() == key.dim()
    cost = delta_rule(rows, key_heads, heads, key_dim, value_dim, by_channel=by_channel)

    def make() -> tuple[torch.Tensor, ...]:
        lengths = (t.new_empty(t.shape[:-1], dtype=torch.float32) for t in (query, key))
        copies = (t.new_empty(t.shape) for t in (value, query, key, value))
        scores = (value.new_empty(batch, rows, heads, CHUNK) for _ in range(1 + by_channel))
        return (*copies, *lengths, *scores, g.new_empty(g.shape, dtype=torch.float32))

    call = _call("chunk_kda" if by_channel else "chunk_gated_delta_rule", "scan", cost, batch,
                 value.numel())  # fmt: skip
    kept = (beta, g) if by_channel else (beta,)
    out: torch.Tensor = _Fused.apply(  # type: ignore[no-untyped-call]
        listener, call, make, kept, query, key, value, g, beta
    )
    return out, None


def _state_space(
    listener: Listener,
    zxbcdt: torch.Tensor,
    conv1d_weight: torch.Tensor,
    conv1d_bias: torch.Tensor | None,
    dt_bias: torch.Tensor,
    A: torch.Tensor,  # noqa: N803 (the kernel's names)
    D: torch.Tensor,  # noqa: N803
    chunk_size: int,
    *,
    headdim: int,
    ngroups: int,
    outproj_weight: torch.Tensor,
    outproj_bias: torch.Tensor | None = None,
    rmsnorm_weight: torch.Tensor | None = None,
    **_: Any,
) -> torch.Tensor:
    """``mamba_split_conv1d_scan_combined``: keeps its input and the scan's output."""
    batch, rows, wide = zxbcdt.shape
    heads = A.shape[0]
    width = heads * headdim
    state = (wide - 2 * width - heads) // (2 * ngroups)
    cost = state_space(rows, heads, headdim, state, ngroups, chunk_size, conv1d_weight.shape[-1])

    def make() -> tuple[torch.Tensor, ...]:
        out, scanned = (zxbcdt.new_empty(batch, rows, width) for _ in range(2))
        rstd = zxbcdt.new_empty(batch, rows, ngroups, dtype=torch.float32)
        return (out, scanned) if rmsnorm_weight is None else (out, scanned, rstd)

    call = _call("mamba_scan", "scan", cost, batch, batch * rows * width)
    given = (zxbcdt, conv1d_weight, conv1d_bias, dt_bias, A, D, rmsnorm_weight)
    out = _Fused.apply(listener, call, make, (zxbcdt,), *given)  # type: ignore[no-untyped-call]
    # the function's last product computes its input again, so that autograd keeps nothing of it
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        return functional.linear(out, outproj_weight, outproj_bias)


STAND_INS: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": _conv,
    "torch_chunk_gated_delta_rule": _delta_rule,
    "chunk_kimi_delta_attention": _delta_rule,
    "mamba2_split_conv1d_scan_combined": _state_space,
}
"""By what transformers calls the functions in its modules."""


@contextmanager
def stood_in(model: torch.nn.Module, listener: Listener) -> Iterator[None]:
    """With the kernels that transformers' own modules among ``model``'s call."""
    names = dict.fromkeys(type(m).__module__ for m in model.modules())
    with ExitStack() as stack:
        for name in names:
            module = sys.modules.get(name)
            for function, instead in STAND_INS.items():
                if name.startswith("transformers.") and hasattr(module, function):
                    stack.enter_context(patch.object(module, function, partial(instead, listener)))
        yield


def _ctc_loss(
    log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: torch.Tensor, *_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses, and the log-probabilities of each prefix of a target with blanks between."""
    frames, batch = log_probs.shape[0], max(1, input_lengths.numel())
    longest = targets.shape[1] if targets.dim() > 1 else -(-targets.numel() // batch)
    lead = log_probs.shape[1:-1]
    return log_probs.new_empty(lead), log_probs.new_empty(*lead, frames, 2 * longest + 1)


def _ctc_loss_backward(_: torch.Tensor, log_probs: torch.Tensor, *__: Any) -> torch.Tensor:
    return torch.empty_like(log_probs)


_library: Any = torch.library.Library  # which torch has not typed
_META = _library("aten", "IMPL")
for _name, _kernel in (
    ("_ctc_loss.Tensor", _ctc_loss),
    ("_ctc_loss_backward", _ctc_loss_backward),
    ("_ctc_loss_backward.Tensor", _ctc_loss_backward),
):
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{_name}", "Meta"):  # noqa: SLF001
        _META.impl(_name, _kernel, "Meta")


def _grouped_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Of fp32 and fp16 too, which CUDA takes and torch's shapes refuse; columns of 16 bytes."""
    if mat_a.dtype == mat_b.dtype == torch.bfloat16:
        made: torch.Tensor = _OF_BF16(mat_a, mat_b, offs, bias, out_dtype)
        return made
    wide = torch.float32, torch.float16, torch.bfloat16
    if mat_a.dtype not in wide or mat_b.dtype != mat_a.dtype:
        raise RuntimeError(
            f"grouped products take Float32, BFloat16 or Float16 matrices, both of one type, got "
            f"{mat_a.dtype} and {mat_b.dtype}"
        )
    sizes = [*mat_a.shape[-2:-1], mat_b.shape[-1]]
    if mat_a.dim() == mat_b.dim():
        groups = mat_a.shape[0] if mat_a.dim() == 3 else offs.shape[0]  # type: ignore[union-attr]
        sizes = [groups, *sizes]
    aligned = 16 // mat_a.element_size()
    row = -(-sizes[-1] // aligned) * aligned
    strides = [row, 1] if len(sizes) == 2 else [sizes[1] * row, row, 1]
    return torch.empty_strided(sizes, strides, dtype=mat_a.dtype, device="meta")


_OF_BF16: Any = getattr(torch._meta_registrations, "meta_grouped_mm", None)  # noqa: SLF001
if _OF_BF16 is not None:
    _META.impl("_grouped_mm", _grouped_mm, "Meta", allow_override=True)
