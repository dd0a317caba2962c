"""Matrix products by shape, data type and layout; FLOPs are ``2 m n k``.

``nt`` is a linear layer's forward pass (weights stored ``[n, k]``), ``nn`` the gradient of its
input, ``tn`` the gradient of its weights. ``fp8`` is ``torch``'s scaled product of e4m3 operands
(one scale each, quantised before) with a bf16 result. Operands are the same in every repetition, so
that small ones are read from the caches.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from raysim.measure.gpu.device import Device, dtype_of
from raysim.measure.session import Point

TABLE = "gemm"
COLUMNS = ("device", "threads", "dtype", "layout", "m", "n", "k")

Shape = tuple[str, int, int, int]
"""Layout, m, n, k."""
SQUARES = (256, 512, 1024, 2048, 4096, 8192, 16384)
TOKENS = (1, 16, 64, 256, 1024, 4096, 16384)
WEIGHTS = ((4096, 4096), (14336, 4096), (4096, 14336), (1024, 4096), (32000, 4096), (8192, 8192))
"""(n, k) of linear layers: attention, feed-forward up and down, grouped keys, heads."""
TURNED_TOKENS = (2048, 4096, 16384)
"""Tokens whose gradients are measured for each of the weights."""
SQUARES_ONLY = frozenset({"fp16", "fp32"})
"""Types of a GPU of which squares tell enough: as fast as bf16, and on other units."""

CPU_SQUARES = (64, 128, 256, 512, 1024, 2048)
CPU_TOKENS = (1, 16, 64, 256, 1024)
CPU_WEIGHTS = ((256, 256), (1024, 256), (1024, 1024), (4096, 1024), (1024, 4096), (8192, 512))
CPU_LAYOUT_SHAPES = ((512, 512, 512), (256, 4096, 1024))


def points(device: Device, *, quick: bool) -> Iterator[Point]:
    """Squares, linear layers by tokens, and layouts; the types one after the other per shape."""
    dtypes = ("bf16", "fp16", "tf32", "fp32", "fp8") if device.is_gpu else ("fp32", "bf16")
    for layout, m, n, k in _quick() if quick else _gpu() if device.is_gpu else _cpu():
        for dtype in dtypes:
            square_only = device.is_gpu and dtype in SQUARES_ONLY
            if (m == n == k or not square_only) and (dtype != "fp8" or layout == "nt"):
                yield _point(device, dtype, layout, m, n, k)


def _quick() -> list[Shape]:
    return [("nt", 64, 64, 64), ("tn", 64, 32, 16)]


def _gpu() -> list[Shape]:
    shapes = [("nt", side, side, side) for side in SQUARES]
    shapes += [("nt", m, n, k) for m, (n, k) in product(TOKENS, WEIGHTS)]
    for tokens, (n, k) in product(TURNED_TOKENS, WEIGHTS):
        shapes += [("nn", tokens, k, n), ("tn", n, k, tokens)]
    return shapes


def _cpu() -> list[Shape]:
    shapes = [("nt", side, side, side) for side in CPU_SQUARES]
    shapes += [("nt", m, n, k) for m, (n, k) in product(CPU_TOKENS, CPU_WEIGHTS)]
    turned = product(("nn", "tn"), CPU_LAYOUT_SHAPES)
    return shapes + [(layout, *shape) for layout, shape in turned]


def _point(device: Device, dtype: str, layout: str, m: int, n: int, k: int) -> Point:
    def measure(allowed_s: float) -> list[float]:
        import torch

        def operand(rows: int, columns: int, stored: str) -> torch.Tensor:
            turned = stored == "t"
            shape = (columns, rows) if turned else (rows, columns)
            made = torch.randn(*shape, device=device.name, dtype=dtype_of(dtype))
            return made.t() if turned else made

        def work() -> object:
            return torch.mm(left, right)

        def scaled() -> object:
            return torch._scaled_mm(  # noqa: SLF001  (what fp8 training calls)
                left, right, one, one, out_dtype=torch.bfloat16
            )

        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
        try:
            left, right = operand(m, k, layout[0]), operand(k, n, layout[1])
            one = torch.ones((), device=device.name)
            if dtype == "fp8":
                left, right = (x.to(torch.float8_e4m3fn) for x in (left, right))
            return device.times(scaled if dtype == "fp8" else work, allowed_s)
        finally:
            torch.set_float32_matmul_precision(precision)

    shape = {"m": m, "n": n, "k": k}
    parameters = {"dtype": dtype, "layout": layout} | shape
    return device.point(parameters, measure)
