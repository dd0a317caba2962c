"""Operators that a GPU has no kernel of its own for: which others they are made of.

Real counterpart: PyTorch's ``CompositeExplicitAutograd`` kernels (``native_functions.yaml``), which
call other ATen operators below autograd: ``masked_fill`` copies and fills, ``slice_backward`` makes
zeros and copies, ``binary_cross_entropy_with_logits`` is seven passes, ``logsumexp`` eight. A mode
hears each as one operator; here its kernel is run under a mode of its own.

Not modelled: what a CUDA kernel calls inside itself; composites that ask for values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch._library.custom_ops import OPDEFS
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from raysim.tracing import operators

_KEYS = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001  (the same)
_WHOLE = frozenset({"_to_copy", "clone", "copy", "repeat"})
"""One kernel, whatever they call: on meta ``repeat`` takes Python's ``unfold``."""


_TORCHS = frozenset({"aten", "prims", "raysim"})
_TAKEN_APART = frozenset({"linear", "matmul"})
"""Products, by autograd, were it on."""


class Part(NamedTuple):
    """One operator that was called."""

    func: OpOverload
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    out: Any


def run(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, Sequence[Part]]:
    """Run an operator on meta: its result, and itself or, of a composite, what it is made of."""
    key = _composite_key(func)
    if key is not None:
        with suppress(IndexError, RuntimeError, TypeError, ValueError), Heard() as heard:
            out = func._op_dk(key, *args, **kwargs)  # noqa: SLF001  (its only door)
            several = sum(_launches(part) for part in heard.parts) > 1
            if several and not (is_own(func) and any(map(multiplies, heard.parts))):
                return out, heard.parts
            return out, (Part(func, args, kwargs, out),)  # once: ``transpose_`` would turn it back
    out = func(*args, **kwargs)
    return out, (Part(func, args, kwargs, out),)


def is_own(func: OpOverload) -> bool:
    """Whether ``torch.library.custom_op`` has made it (``own_operators``)."""
    return func.namespace not in _TORCHS and func._schema.name in OPDEFS  # noqa: SLF001


def multiplies(part: Part) -> bool:
    """Whether it is a product, taken apart or not."""
    name = operators.aten_name(part.func)
    return operators.is_product(name) or name in _TAKEN_APART


def _composite_key(func: OpOverload) -> Any:
    """By which torch finds what makes it of others; what has a kernel on CPUs has one on GPUs."""
    name = operators.aten_name(func)
    if (
        name in _WHOLE
        or operators.is_exchange(func)
        or operators.is_known(name)
        or operators.launches_nothing(func, name)
    ):
        return None
    said = func.name()  # type: ignore[no-untyped-call]
    found = None if _has_kernel(said, "CPU") else [k for k in _KEYS if _has_kernel(said, k)]
    return getattr(torch._C.DispatchKey, found[0]) if found else None  # noqa: SLF001


def _launches(part: Part) -> bool:
    return not operators.launches_nothing(part.func, operators.aten_name(part.func))


class Heard(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operators that a composite calls, and those that they are made of."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.parts: list[Part] = []

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run it."""
        out, parts = run(func, args, kwargs or {})
        self.parts += parts
        return out
