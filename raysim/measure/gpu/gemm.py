"""Matrix products by shape, data type and layout; FLOPs are ``2 m n k``.

``nt`` is a linear layer's forward pass (weights stored ``[n, k]``), ``nn`` the gradient of its
input, ``tn`` the gradient of its weights. Operands are the same in every repetition, so that small
ones are read from the caches.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from raysim.measure.gpu.device import Device, dtype_of
from raysim.measure.session import Point

TABLE = "gemm"
COLUMNS = ("device", "threads", "dtype", "layout", "m", "n", "k")

SQUARES = (256, 512, 1024, 2048, 4096, 8192, 16384)
TOKENS = (1, 16, 64, 256, 1024, 4096, 16384)
WEIGHTS = ((4096, 4096), (14336, 4096), (4096, 14336), (1024, 4096), (32000, 4096), (8192, 8192))
"""(n, k) of linear layers: attention, feed-forward up and down, grouped keys, heads."""
LAYOUT_SHAPES = ((4096, 4096, 4096), (1024, 14336, 4096))

CPU_SQUARES = (64, 128, 256, 512, 1024, 2048)
CPU_TOKENS = (1, 16, 64, 256, 1024)
CPU_WEIGHTS = ((256, 256), (1024, 256), (1024, 1024), (4096, 1024), (1024, 4096), (8192, 512))
CPU_LAYOUT_SHAPES = ((512, 512, 512), (256, 4096, 1024))


def points(device: Device, *, quick: bool) -> Iterator[Point]:
    """Squares, linear layers by tokens, and layouts; the types one after the other per shape."""
    dtypes = ("bf16", "fp16", "tf32", "fp32") if device.is_gpu else ("fp32", "bf16")
    if quick:
        shapes = [("nt", 64, 64, 64), ("tn", 64, 32, 16)]
    else:
        gpu = device.is_gpu
        squares = SQUARES if gpu else CPU_SQUARES
        layers = product(TOKENS, WEIGHTS) if gpu else product(CPU_TOKENS, CPU_WEIGHTS)
        turned = product(("nn", "tn"), LAYOUT_SHAPES if gpu else CPU_LAYOUT_SHAPES)
        shapes = [("nt", side, side, side) for side in squares]
        shapes += [("nt", m, n, k) for m, (n, k) in layers]
        shapes += [(layout, *shape) for layout, shape in turned]
    for (layout, m, n, k), dtype in product(shapes, dtypes):
        yield _point(device, dtype, layout, m, n, k)


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

        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
        try:
            left, right = operand(m, k, layout[0]), operand(k, n, layout[1])
            return device.times(work, allowed_s)
        finally:
            torch.set_float32_matmul_precision(precision)

    shape = {"m": m, "n": n, "k": k}
    parameters = {"dtype": dtype, "layout": layout} | shape
    return device.point(parameters, measure)
