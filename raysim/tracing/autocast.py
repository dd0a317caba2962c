"""``torch.autocast`` to 16 bits while a module runs on the meta device.

Real counterpart: ``aten/src/ATen/autocast_mode.cpp``, CUDA's lists. Autocast stands above autograd,
so that a cast is an operator with a gradient, kept and heard like any other. torch looks for
tensors on CUDA; those of the meta device need kernels of their own, which hang at a dispatch key
that no device here has, and end with the trace. Which operators have one is asked of torch.

A weight is copied once a forward, by autocast's cache. Those copies are the training engine's to
account for (``training.engines.ddp``), and their operators are not noted here.

Not modelled: recurrent layers of cuDNN, whose weights autocast flattens; operators that it bans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_map_only

from raysim.tracing.operators import tensors

_C: Any = torch._C  # noqa: SLF001 (dispatch keys have no other door)
_names, _has_kernel = _C._dispatch_get_all_op_names, _C._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001
_including = _C._IncludeDispatchKeyGuard  # noqa: SLF001
_library: Any = torch.library.Library  # which torch has not typed
ASKED = "cuda"
"""Device whose autocast modules switch on and off."""
STANDS_IN, KEY = "ipu", "AutocastIPU"

HALF = frozenset(
    [
        "_convolution", "_convolution.deprecated", "_scaled_dot_product_flash_attention",
        "_thnn_fused_gru_cell", "_thnn_fused_lstm_cell", "addbmm", "addmm", "addmv", "addr",
        "baddbmm", "bmm", "chain_matmul", "conv1d", "conv2d", "conv3d", "conv_tbc",
        "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "convolution",
        "einsum", "gru_cell", "linalg_multi_dot", "linalg_vecdot", "linear", "lstm_cell",
        "matmul", "mm", "mv", "prelu", "rnn_relu_cell", "rnn_tanh_cell",
        "scaled_dot_product_attention",
    ]
)  # fmt: skip
"""Take 16 bits."""
SETS_DTYPE = frozenset(
    [
        "cumprod", "cumsum", "linalg_matrix_norm", "linalg_matrix_norm.str_ord",
        "linalg_vector_norm", "log_softmax.int", "prod", "prod.dim_int", "softmax.int", "sum",
        "sum.dim_IntList",
    ]
)  # fmt: skip
"""Return fp32, unless they are told what to return."""
PROMOTES = frozenset(
    [
        "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "grid_sampler", "index_put",
        "scatter_add", "tensordot", "vdot",
    ]
)  # fmt: skip
"""Take the widest type of what they read."""
NORMS = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}
"""Become others, which are told to return fp32."""
LEFT_ALONE = frozenset(["binary_cross_entropy", "cudnn_convolution", "cudnn_convolution_transpose"])
"""Banned, and what convolutions call on CUDA. All others of autocast's operators take fp32."""

CopyOf = Callable[[torch.Tensor, torch.dtype], torch.Tensor]
Kernel = Callable[..., Any]
Given = TypeVar("Given")


def operators() -> Iterator[str]:
    """Names, with overloads, of what ``torch.autocast`` changes on CUDA."""
    for name in _names():
        space, _, own = name.partition("::")
        if space == "aten" and _has_kernel(name, "AutocastCUDA"):
            yield own


class Casts:
    """Casts what operators are given while autocast is on; ``copy`` makes the copy of a weight."""

    def __init__(self, dtype: torch.dtype, copy: CopyOf) -> None:
        self.dtype = dtype
        self._copy = copy
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """By identity, with the weight, which thus keeps it."""

    @property
    def on(self) -> bool:
        """Not where a module has switched it off."""
        return bool(torch.is_autocast_enabled(ASKED))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Autocast as a training script has it on around forward and loss."""
        before = torch.is_autocast_enabled(ASKED), torch.get_autocast_dtype(ASKED)
        library, others = _library("aten", "IMPL"), _library("_", "IMPL")
        others.fallback(torch.library.fallthrough_kernel, KEY)
        for name in operators():
            if name not in LEFT_ALONE:
                library.impl(name, self._kernel(name), KEY)
        torch.set_autocast_enabled(ASKED, True)
        torch.set_autocast_dtype(ASKED, self.dtype)
        torch.set_autocast_enabled(STANDS_IN, True)
        try:
            with _including(getattr(_C.DispatchKey, KEY)):
                yield
        finally:
            torch.set_autocast_enabled(STANDS_IN, False)
            torch.set_autocast_enabled(ASKED, before[0])
            torch.set_autocast_dtype(ASKED, before[1])
            for made in (library, others):
                made._destroy()  # noqa: SLF001
            self._copies.clear()

    @contextmanager
    def off(self) -> Iterator[None]:
        """Inside an operator, whose own are not cast."""
        before = torch.is_autocast_enabled(ASKED)
        torch.set_autocast_enabled(ASKED, False)
        try:
            yield
        finally:
            torch.set_autocast_enabled(ASKED, before)

    def halved(self, given: Given) -> Given:
        """Tensors as an operator that takes 16 bits gets them."""
        return self._cast(given, self.dtype) if self.on else given

    def _kernel(self, name: str) -> Kernel:
        op, typed = _operator(name), _operator(NORMS.get(name, name))

        def run(*args: Any, **kwargs: Any) -> Any:
            torch.set_autocast_enabled(STANDS_IN, False)
            try:
                if not self.on:
                    return op(*args, **kwargs)
                if name in SETS_DTYPE or name in NORMS:
                    if _is_eligible(args[0]) and not _says_dtype(args, kwargs):
                        return typed(*args, **{**kwargs, "dtype": torch.float32})
                    return op(*args, **kwargs)
                kind = self._wanted(name, args, kwargs)
                return op(*self._cast(args, kind), **self._cast(kwargs, kind))
            finally:
                torch.set_autocast_enabled(STANDS_IN, True)

        return run

    def _wanted(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.dtype:
        """The type an operator takes."""
        if name in HALF:
            return self.dtype
        if name in PROMOTES:
            wide = any(t.dtype == torch.float32 for t in tensors((args, kwargs)))
            return torch.float32 if wide else self.dtype
        return torch.float32

    def _cast(self, given: Given, kind: torch.dtype) -> Given:
        made: Given = tree_map_only(torch.Tensor, lambda t: self._one(t, kind), given)
        return made

    def _one(self, tensor: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
        if tensor.dtype == kind or not _is_eligible(tensor):
            return tensor
        if not (tensor.is_leaf and tensor.requires_grad and kind == self.dtype):
            return tensor.to(kind)
        if id(tensor) not in self._copies:
            self._copies[id(tensor)] = tensor, self._copy(tensor, kind)
        return self._copies[id(tensor)][1]


def _operator(name: str) -> OpOverload:
    packet, _, overload = name.partition(".")
    found: OpOverload = getattr(getattr(torch.ops.aten, packet), overload or "default")
    return found


def _is_eligible(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype != torch.float64


def _says_dtype(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether it is told what to return; of softmax, the third that it is given."""
    return any(isinstance(a, torch.dtype) for a in (*args, *kwargs.values()))
