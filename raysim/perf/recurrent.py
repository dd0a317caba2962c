"""Seconds of recurrent layers as cuDNN runs them, one call for all layers, steps and directions.

The input's products of all steps are one or few; the recurrent one of each step reads its weights
again and waits for the step before it, with a kernel for what is by element behind it. Backward
has the same two, and the weights' gradients over all steps at once.

Not modelled: persistent kernels (of few samples), layers side by side on streams of cuDNN's own,
dropout between layers.
"""

from __future__ import annotations

from raysim.hardware.specs import Provenance
from raysim.models.shapes import Recurrent
from raysim.perf.constants import MEASURED, GpuConstants
from raysim.perf.gemm import GemmConstants, gemm_seconds, granule

PRODUCT_SHARE = 0.4
"""Rate of its products over cuBLAS's of that shape, a kernel's start aside."""
ODD_SHARE = 0.25
"""The same where rows of a state do not start at multiples of 16 bytes, which it then loads one
element at a time (650 units)."""
SOURCE = Provenance(
    basis="measured",
    source="cuDNN's products at 0.4 of cuBLAS's rate, steps of two LSTMs (64 by 650 and 256 by "
    f"1,500) on H100 ({MEASURED}/script_operators.json); on others assumed",
)


def recurrent_s(
    c: GpuConstants, product: GemmConstants, shape: Recurrent, batch: float, *, backward: bool
) -> float:
    """GPU seconds of one pass; ``product`` is of the type that cuDNN computes in."""
    c.provenance["recurrent"] = SOURCE
    steps = shape.steps * (batch if shape.over_steps else 1.0)
    rows = shape.rows * (1.0 if shape.over_steps else batch)
    wide = shape.gates * shape.width
    by_element = c.kernel_floor_s + (
        shape.passes * rows * shape.width * product.element_bytes / c.memory_bytes_per_s
    )
    odd = shape.width * product.element_bytes % 16 > 0
    share, total = ODD_SHARE if odd else PRODUCT_SHARE, 0.0
    for given in shape.inputs:
        if backward:
            lead = granule(wide, shape.width)
            step = gemm_seconds(product, rows, shape.width, wide, lead=lead)
            whole = gemm_seconds(product, rows * steps, given, wide, lead=granule(wide, given))
            depth = max(1, round(rows * steps))
            for k in (given, shape.width):
                weights = gemm_seconds(product, wide, k, depth, lead=granule(wide, k))
                whole += weights / product.turned
        else:
            step = gemm_seconds(product, rows, wide, shape.width)
            whole = gemm_seconds(product, rows * steps, wide, given)
        start = product.fixed_s  # a kernel's start is no slower
        total += steps * (start + (step - start) / share + by_element)
        total += whole / share
    return total
