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
PASSES = {"fill": 1, "copy": 2, "scale": 2, "add": 3, "gelu": 2, "layer_norm": 2, "softmax": 2}


def points(device: Device, *, quick: bool) -> Iterator[Point]:
    """Every operator at sizes within and beyond the caches."""
    sizes = (2**16, 2**20, 2**24, 2**26, 2**28) if device.is_gpu else (2**14, 2**18, 2**22, 2**24)
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
        "gelu": lambda: functional.gelu(x),
        "layer_norm": lambda: functional.layer_norm(x, (ROW,)),
        "softmax": lambda: torch.softmax(x, dim=-1),
    }
    return calls[op]
