"""Operators that ``torch.library.custom_op`` has made: the products inside them.

Real counterpart: ``torch/_library/custom_ops.py``. Autograd and the compiler see one operator; its
body is Python that calls others. It is run once more, on shapes, and heard: where there are
products (an fp8 head's ``torch._scaled_mm``), the operator is priced as the first, in its type, and
its backward by those that run there.

Not modelled: what runs beside the products, but for the tensors that go in and out; bodies that
shapes alone do not get through, kernels in Triton among them (told).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS
from torch._ops import OpOverload

from raysim.models.table import Gemm
from raysim.tracing import operators
from raysim.tracing.composite import Heard, Part, is_own, multiplies


def tell(say: Callable[[str], object] | None, own: Iterable[str]) -> None:
    """Of operators that nothing was heard in, what they are taken for."""
    if say is not None and (names := ", ".join(own)):
        say(
            f"{names}: taken for what is read and written, products inside take no time "
            "(torch.library.custom_op); call torch's own operators to have them priced"
        )


def hear(
    call: operators.Call, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any],
    grows: operators.IsBatch, unheard: dict[str, None],
) -> torch.dtype:  # fmt: skip
    """Have the call be the product inside it, if there is one; the type of what it makes."""
    found = _products(func, args, kwargs)
    if not found:
        unheard[func._schema.name] = None  # noqa: SLF001
        return torch.float32
    first, name = found[0], _name(found[0])
    a, b = first.args[1:3] if name == "addmm" else first.args[:2]
    sides = a.numel() // a.shape[-1], b.shape[0 if name == "linear" else -1]
    rows = [t.shape[0] for t in operators.tensors((args, kwargs)) if t.dim() and grows(t)]
    m, n = sides if sides[0] in rows else sides[::-1]
    call.kind, call.gemm = "gemm", Gemm(rows=float(m), n=n, k=a.shape[-1])
    call.flops = 2.0 * m * n * a.shape[-1]
    call.narrow, call.exact = a.itemsize == 1, a.dtype == torch.float32
    made: torch.dtype = first.out.dtype
    return made


def hear_backward(
    call: operators.Call, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
) -> bool:
    """Whether an operator of a product's backward is one, or has such inside: its gradients'."""
    if call.gemm is None:
        return False
    found: Sequence[Part] = ()
    if operators.is_product(operators.aten_name(func)):
        found = (Part(func, args, kwargs, out),)
    elif is_own(func):
        found = _products(func, args, kwargs)
    weights = {*call.weight_shapes, *(shape[::-1] for shape in call.weight_shapes)}
    for part in found:
        call.moved_backward += call.moved  # the same three matrices, in another order
        made = [t for t in operators.tensors(part.out) if tuple(t.shape) not in weights]
        call.products_backward.append(bool(made))
    call.kernels_backward += max(0, len(found) - 1)
    return bool(found)


def _products(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Part]:
    body = OPDEFS[func._schema.name]._init_fn  # noqa: SLF001  (it has no other door)
    with suppress(Exception), Heard() as heard:
        body(*args, **kwargs)
        return [part for part in heard.parts if multiplies(part)]
    return ()


def _name(part: Part) -> str:
    return operators.aten_name(part.func)
