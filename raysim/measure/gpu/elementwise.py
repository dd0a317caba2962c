"""Elementwise and row-wise operators: the share of memory bandwidth that such kernels reach.

Bytes moved are ``passes x elements x bytes per element``; ``passes`` counts tensors read and
written once each, as in ``copy`` 2, ``add`` 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

from raysim.measure.gpu.device import Device, dtype_of
from raysim.measure.session import Point

TABLE = "elementwise"
COLUMNS = ("device", "threads", "dtype", "op", "passes", "elements")

ROW = 1024
"""Width of the rows that layer_norm and softmax reduce."""
PASSES = {
    "fill": 1, "copy": 2, "scale": 2, "add": 3, "broadcast": 2, "transpose": 2, "gelu": 2,
    "silu": 2, "silu_backward": 3, "dropout": 2, "mean": 1, "layer_norm": 2, "softmax": 2,
    "softmax_backward": 3,
}  # fmt: skip
"""``broadcast`` multiplies rows by one row; ``transpose`` copies columns into rows; ``dropout``'s
mask, a byte per element, is not counted."""


def points(device: Device, *, quick: bool) -> Iterator[Point]:
    """Every operator at sizes within and beyond the caches."""
    sizes = (2**16, 2**20, 2**24, 2**27) if device.is_gpu else (2**14, 2**18, 2**22, 2**24)
    dtypes = ("bf16", "fp32") if device.is_gpu else ("fp32", "bf16")
    for elements, op, dtype in product((2**12,) if quick else sizes, PASSES, dtypes):
        yield _point(device, dtype, op, elements)


def _point(device: Device, dtype: str, op: str, elements: int) -> Point:
    def measure(allowed_s: float) -> list[float]:
        return device.times(_work(device, dtype, op, elements), allowed_s)

    parameters = {"dtype": dtype, "op": op, "passes": PASSES[op]}
    return device.point(parameters | {"elements": elements}, measure)


def _work(device: Device, dtype: str, op: str, elements: int) -> Callable[[], object]:
    """One call of ``op``; outputs are given where torch takes them, so that none is allocated."""
    import torch
    from torch.nn import functional

    x = torch.randn(elements // ROW, ROW, device=device.name, dtype=dtype_of(dtype))
    y, out = torch.empty_like(x).normal_(), torch.empty_like(x)
    calls: dict[str, Callable[[], object]] = {
        "fill": out.zero_,
        "copy": lambda: out.copy_(x),
        "scale": lambda: torch.mul(x, 0.5, out=out),
        "add": lambda: torch.add(x, y, out=out),
        "broadcast": lambda: torch.mul(x, y[0], out=out),
        "transpose": lambda: out.view(ROW, -1).copy_(x.t()),
        "gelu": lambda: functional.gelu(x),
        "silu": lambda: functional.silu(x),
        "silu_backward": lambda: torch.ops.aten.silu_backward(y, x),
        "dropout": lambda: functional.dropout(x, 0.1),
        "mean": lambda: x.mean(-1, keepdim=True),
        "layer_norm": lambda: functional.layer_norm(x, (ROW,)),
        "softmax": lambda: torch.softmax(x, dim=-1),
        "softmax_backward": lambda: torch.ops.aten._softmax_backward_data(  # noqa: SLF001
            y, x, -1, x.dtype
        ),
    }
    return calls[op]
