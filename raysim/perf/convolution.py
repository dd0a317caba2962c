"""Seconds of a convolution on a GPU as torch hands it to cuDNN, by shape, memory format and pass.

A dense one is an implicit product on tensor cores: tiles of output positions by output channels, as
deep as input channels times taps, while the input itself is read once, not once per tap. cuDNN's
kernels for that want channels last. What lies channels first is copied before and behind each call,
weights too; only a product by itself (one tap, no stride) is not. Gradients of input and weight are
two calls. Channels are padded to 16 bytes; a first layer of one or three is bound by its gathers.

Depthwise ones multiply without tensor cores: cuDNN's where channels lie last, else torch's own.

Fitted on 104 of the 156 measurements of ``convolution.csv`` (``validation/fits/convolution.py``).

Not modelled: choices of cuDNN's heuristics (some products by themselves are copied too), dilation,
FFT and Winograd kernels, workspaces.
"""

from __future__ import annotations

from typing import NamedTuple

from raysim.hardware.specs import Provenance
from raysim.models.table import Operator
from raysim.perf.constants import MEASURED, GpuConstants
from raysim.perf.gemm import GemmConstants, gemm_seconds, granule, inner_product_seconds

DATA_SHARE = {2: 0.88, 4: 1.0}
"""Rate of forward and of the input's gradient over a plain product's, by bytes per element."""
WEIGHT_SHARE = {2: 0.54, 4: 0.45}
"""The same of the weight's gradient; without tensor cores both are as plain products."""
VECTOR_BYTES = 16
"""Channels of a position that one load takes."""
GATHER_SHARE = 0.073
"""Of the peak, where a position's channels are fewer than that, counted as if they were not."""
LAYOUT_SHARE = 0.60
"""Of the bandwidth, kernels that copy activations between the memory formats."""
DEPTHWISE_SHARE = {"forward": 0.16, "inputs": 0.08, "weights": 0.16}
"""Of the fp32 peak that multiply-adds of cuDNN's depthwise kernels reach, channels last: 7 by 7 in
``convolution.csv`` 0.20 forward, 0.12 backward; kernels of ConvNeXt and SegFormer 0.16 and 0.13,
0.085 and 0.079, 0.21 and 0.11 (``script_operators.json``)."""
NATIVE_DEPTHWISE_SHARE = {"forward": 0.043, "inputs": 0.026, "weights": 0.026}
"""The same of torch's own, which take channels first (``DepthwiseConv2d.cu``)."""

SOURCE = Provenance(
    basis="measured",
    source="cuDNN's convolutions on H100 as implicit products and copies between memory formats: "
    f"14 % mean error on held-out shapes, 9 % median ({MEASURED}/convolution.csv); on others as "
    "shares of their own products and bandwidth, assumed",
)


class _Shape(NamedTuple):
    """Of a batch."""

    rows: float
    """Output positions; of a transposed one those of its input, whose gradient it would be."""
    n: int
    """Output channels of a group."""
    k: int
    """Input channels of a group times taps."""
    taps: int
    groups: int
    steps: int
    """Input positions per output position."""
    small_bytes: float
    """Of the output."""
    large_bytes: float
    """Of the input."""
    weight_bytes: float

    @property
    def is_product(self) -> bool:
        return self.taps == self.steps == 1

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.k == self.taps


def convolution_s(
    c: GpuConstants, product: GemmConstants, op: Operator, batch: float, *, backward: bool
) -> float:
    """GPU seconds of one pass; ``product`` is of the type that cuDNN computes in.

    Backward makes the gradients that the operator says, but a bias's.
    """
    assert op.conv is not None, "a convolution without its shape"
    c.provenance["conv"] = SOURCE
    s = _shape(op, batch, product.element_bytes)
    passes = ("inputs",) * op.of_inputs + ("weights",) * op.of_weights
    if not backward:
        passes = ("inputs",) if op.conv.transposed else ("forward",)
    elif op.conv.transposed:
        passes = tuple("forward" if p == "inputs" else p for p in passes)
    first = not op.conv.channels_last
    copies = first and not s.is_product
    bias_s = 0.0
    if op.conv.biased and not backward:
        made = op.output * batch
        bias_s = c.kernel_floor_s + made * c.index_s
        bias_s += 2.0 * made * product.element_bytes / c.memory_bytes_per_s
    if s.is_depthwise:
        return bias_s + sum(_depthwise_s(c, s, p, native=first) for p in passes)
    copies_s = _copies_s(c, s) if copies else 0.0
    return bias_s + sum(_call_s(product, s, p) + copies_s for p in passes)


def _shape(op: Operator, batch: float, element_bytes: int) -> _Shape:
    assert op.gemm is not None
    assert op.conv is not None
    g, conv, whole = op.gemm, op.conv, batch * element_bytes
    large, small = (op.moved - op.output) * whole, op.output * whole
    n, k = g.n, g.k
    if conv.transposed:  # its product is of the channels it is given by the taps of those it makes
        n, k, large, small = g.k, g.n, small, large
    return _Shape(
        rows=g.rows * batch / g.groups, n=n, k=k, taps=conv.taps, groups=g.groups,
        steps=conv.steps, small_bytes=small, large_bytes=large,
        weight_bytes=float(n * k * g.groups * element_bytes),
    )  # fmt: skip


def _call_s(c: GemmConstants, s: _Shape, way: str) -> float:
    """One call of cuDNN on what lies channels last."""
    if s.is_product and s.groups == 1:
        lead = granule(s.n, s.k)
        if way == "forward":
            return gemm_seconds(c, s.rows, s.n, s.k)
        if way == "inputs":
            return gemm_seconds(c, s.rows, s.k, s.n, lead=lead)
        depth = max(1, round(s.rows))
        return gemm_seconds(c, s.n, s.k, depth, lead=lead) / c.turned
    moved = s.small_bytes + s.large_bytes + s.weight_bytes
    vector = VECTOR_BYTES // c.element_bytes
    channels = -(-s.k // s.taps // vector) * vector
    if s.k // s.taps < vector and s.groups == 1 and c.tensor_cores:
        compute = 2.0 * s.rows * s.n * channels * s.taps / (c.peak_flops_per_s * GATHER_SHARE)
        return c.fixed_s + max(compute, moved / (c.memory_bytes_per_s * c.memory_efficiency))
    rows, n, k = s.rows * s.groups, s.n, channels * s.taps
    share = 1.0
    if c.tensor_cores:
        share = (WEIGHT_SHARE if way == "weights" else DATA_SHARE)[c.element_bytes]
    if way == "inputs":
        rows, n, k = rows * s.steps, channels, max(1, s.n * s.taps // s.steps)
    return inner_product_seconds(c, rows, n, k, moved, share=share, groups=s.groups)


def _copies_s(c: GpuConstants, s: _Shape) -> float:
    """Both operands to channels last, the result back."""
    moved = 2.0 * (s.small_bytes + s.large_bytes + s.weight_bytes)
    return 3 * c.kernel_floor_s + moved / (c.gpu.memory_bytes_per_s * LAYOUT_SHARE)


def _depthwise_s(c: GpuConstants, s: _Shape, way: str, *, native: bool) -> float:
    share = (NATIVE_DEPTHWISE_SHARE if native else DEPTHWISE_SHARE)[way]
    flops = 2.0 * s.rows * s.groups * s.n * s.k
    memory = (s.small_bytes + s.large_bytes) / c.memory_bytes_per_s
    compute = flops / (share * c.gpu.flops_per_s["fp32"])
    return c.kernel_floor_s + max(compute, memory)
