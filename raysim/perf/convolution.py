"""Seconds of a convolution on a GPU as torch hands it to cuDNN, by shape, memory format and pass.

A dense one is an implicit product on tensor cores: tiles of output positions by output channels, as
deep as input channels times taps, while the input itself is read once, not once per tap. cuDNN's
kernels for that want channels last. What lies channels first is copied before and behind each call,
weights too; only a product by itself (one tap, no stride) is not, where planes start at 16 bytes.
Gradients of input and weight are two calls. Channels are padded to 16 bytes; a first layer of one
or three is bound by its gathers, or channels first by kernels that take it as it lies.

Depthwise ones multiply without tensor cores: cuDNN's where channels lie last, else torch's own.

Fitted on 104 of the 156 measurements of ``convolution.csv`` (``validation/fits/convolution.py``).

Not modelled: choices of cuDNN's heuristics, dilation, FFT, Winograd on tensor cores, what
``torch.backends.cudnn.benchmark`` finds.
"""

from __future__ import annotations

from itertools import product
from math import inf
from typing import NamedTuple

from raysim.hardware.specs import Provenance
from raysim.models.table import Operator
from raysim.perf.constants import MEASURED, GpuConstants, kept
from raysim.perf.gemm import (
    LARGEST_TILE,
    SPLIT_K_MIN,
    TENSOR_SPLITS,
    TILES,
    GemmConstants,
    gemm_seconds,
    granule,
    inner_product_seconds,
)

DATA_SHARE = {2: 0.88, 4: 1.0}
"""Rate of forward and of the input's gradient over a plain product's, by bytes per element."""
WEIGHT_SHARE = {2: 0.74, 4: 0.45}
"""The same of the weight's gradient; without tensor cores both are as plain products."""
SM_FLOPS_PER_S = {2: 989e12 / 132, 4: 494.7e12 / 132}
"""Peak of a multiprocessor of the GPU that these were measured on: slower ones keep more."""
WINOGRAD = 1.5
"""Rate over a product's of 3 by 3 filters without tensor cores: Winograd's F(2 x 2, 3 x 3) has 2.25
times fewer products (arXiv 1509.09308), of which transforms take a part that is assumed."""
VECTOR_BYTES = 16
"""Channels of a position that one load takes."""
GATHERS_PER_CYCLE = 19.6
"""Of a multiprocessor, where a position's channels are fewer than that: one for each tap and output
channel. Loads bind, which are as many per cycle on Volta as on Hopper."""
DIRECT = {"forward": (0.5, 45.0), "inputs": (0.5, 45.0), "weights": (0.65, 115.0)}
"""Of the fp32 peak that kernels without tensor cores reach, channels first, where a position has so
few; and the depth of the product at which they reach half of it. Forward 0.35 and 0.31 at depths
of 147 and 768 (``convolution.csv``), 0.18 and 0.34 at 27 and 48 (first layers of MobileNet and a
DCGAN); the weight's gradient 0.11, 0.22 and, at 147 of ResNet-50's, 0.40."""
PLANE_SHARE = 0.35
"""Of tf32's rate, products of planes that do not start at multiples of ``VECTOR_BYTES``: 7 by 7 of
MobileNet. In 16 bits they are copied, as they are where that is faster."""
LAYOUT_SHARE = 0.60
"""Of the bandwidth, kernels that copy activations between the memory formats."""


MOST_PARTIAL_BYTES = 2**23
"""Per byte of an element: of 512 channels 16 MiB in 16 bits, 32 in fp32; of 1,024 8 and 24."""
PARTIAL_TILE = 128
"""Side of the tiles of weights that the parts are of."""
PARTIAL_ROWS, PRODUCT_PARTIAL_ROWS = 8192, 1500
"""Positions that a part has at least; of a product by itself. The number of parts: of filters 3 to
13 in ``workspace.csv``, one more at most here; of products 4 to 99, within a factor of two."""
LARGE_TAPS = 49
"""Of filters over few channels that fp32 copies for: 7 by 7 of ResNet's. Neither for patches of 16
by 16 nor for 10 in a row, the others of ``workspace.csv``."""
DEPTHWISE_PARTS = 256
"""Exactly, of cuDNN's."""


class Depthwise(NamedTuple):
    """What kernels of one pass reach."""

    share: float
    """Of the fp32 peak."""
    beside: float
    """Multiply-adds' time that a position takes beside its taps."""
    others: float = 1.35
    """Times as long where the kernel is not 1, 3 or 5 wide, for which there are kernels made."""
    wide: float = 1.0
    """The same in fp32."""


DEPTHWISE = {
    "forward": Depthwise(0.3, 8.0, wide=2.7),
    "inputs": Depthwise(0.15, 8.0, wide=12.6),
    "weights": Depthwise(0.28, 8.0, wide=12.6),
}
"""cuDNN's, channels last: 3 by 3 and 5 by 5 of MobileNet and EfficientNet in 16 bits, 7 by 7 of
``convolution.csv``, of which one was measured in fp32."""
NATIVE_DEPTHWISE = {
    "forward": Depthwise(0.0734, 15.0),
    "inputs": Depthwise(0.55, 300.0),
    "weights": Depthwise(0.015, 0.0, others=1.0),
}
"""torch's own (``DepthwiseConv2d.cu``), which take channels first: 3 by 3 and 5 by 5 of the same
networks in fp32, 7 by 7 of ``convolution.csv``. An input's gradient is indices above all, 17 ps."""
MADE_TAPS = {1, 9, 25}

SOURCE = Provenance(
    basis="measured",
    source="cuDNN's convolutions on H100 as implicit products and copies between memory formats: "
    f"14 % mean error on held-out shapes, 9 % median ({MEASURED}/convolution.csv), first layers "
    "and depthwise ones of scripts' steps beside; on others as shares of their own products and "
    "bandwidth, assumed",
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
    positions: int
    """Of a sample's output, which lie side by side: channels first; 0: last."""
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

    def is_direct(self, element_bytes: int) -> bool:
        """Its positions are narrower than a load, so that channels last gain nothing."""
        few = self.k // self.taps * element_bytes < VECTOR_BYTES
        return few and self.groups == 1 and not self.is_product


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
        width = product.element_bytes
        return bias_s + sum(_depthwise_s(c, s, p, width, native=first) for p in passes)
    if first and s.is_direct(product.element_bytes):
        return bias_s + sum(_direct_s(c, s, p) for p in passes)
    if first and s.is_product and s.groups == 1 and s.positions > 1:
        return bias_s + sum(_planes_s(c, product, s, p) for p in passes)
    copies_s = _copies_s(c, s) if copies else 0.0
    return bias_s + sum(_call_s(product, s, p) + copies_s for p in passes)


def copied_bytes(op: Operator, batch: float, element_bytes: int) -> int:
    """Bytes of a call's operands and result as channels last, padded, where they lie first.

    Where they lie last only an input of few channels is padded. In fp32 it is not, and copied for
    large filters only.
    """
    if op.conv is None:
        return 0
    s = _shape(op, batch, element_bytes)
    few = s.is_direct(element_bytes)
    if s.is_product or s.is_depthwise or (op.conv.channels_last and not few):
        return 0
    vector = VECTOR_BYTES // element_bytes
    given, made = s.k // s.taps * s.groups, s.n * s.groups
    large = s.large_bytes * -(-given // vector) * vector / given
    if few and element_bytes > 2:
        is_copied = given > 1 and s.steps < LARGE_TAPS <= s.taps and not op.conv.channels_last
        return round(s.large_bytes + s.small_bytes + s.weight_bytes) if is_copied else 0
    if op.conv.channels_last:
        return round(large + s.weight_bytes)
    small = s.small_bytes * -(-made // vector) * vector / made
    return round(large + small + s.weight_bytes)


def partial_bytes(op: Operator, batch: float, element_bytes: int, sms: int) -> int:
    """Bytes of a weight's gradient in parts, in fp32, which another kernel adds up.

    Of a product by itself, channels first, each sample's; else what splits the sum over positions
    so that tiles of weights fill the GPU's ``sms``.
    """
    if op.conv is None or not op.of_weights:
        return 0
    s = _shape(op, batch, element_bytes)
    partial = 4.0 * s.n * s.k * s.groups
    if s.is_depthwise:
        return round(DEPTHWISE_PARTS * partial) if op.conv.channels_last else 0
    if s.is_product and not op.conv.channels_last:
        return round(min(batch * partial, MOST_PARTIAL_BYTES * element_bytes))
    tiles = -(-s.n // PARTIAL_TILE) * -(-s.k // PARTIAL_TILE) * s.groups
    deepest = s.rows // (PRODUCT_PARTIAL_ROWS if s.is_product else PARTIAL_ROWS)
    parts = min(sms // tiles, deepest)
    return round(parts * partial) if parts > 1 else 0


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
        steps=conv.steps, positions=0 if conv.channels_last else max(1, round(g.rows / g.groups)),
        small_bytes=small, large_bytes=large,
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
        compute = s.rows * s.n * s.taps / (c.cycles_per_s * GATHERS_PER_CYCLE)
        return c.fixed_s + max(compute, moved / (c.memory_bytes_per_s * c.memory_efficiency))
    rows, n, k = s.rows * s.groups, s.n, channels * s.taps
    share = _share(c, s, way)
    if way == "inputs":
        rows, n, k = rows * s.steps, channels, max(1, s.n * s.taps // s.steps)
    elif way == "weights" and c.tensor_cores and c.element_bytes == 2:
        return _sum_s(c, s, k, moved)
    return inner_product_seconds(c, rows, n, k, moved, share=share, groups=s.groups)


def _share(c: GemmConstants, s: _Shape, way: str) -> float:
    """Of a plain product's rate, with the tensor cores that there are."""
    if not c.tensor_cores:
        return WINOGRAD if s.taps == 9 and s.steps == s.groups == 1 else 1.0
    share = (WEIGHT_SHARE if way == "weights" else DATA_SHARE)[c.element_bytes]
    return kept(share, c.peak_flops_per_s / c.sm_count / SM_FLOPS_PER_S[c.element_bytes])


def _planes_s(c: GpuConstants, product: GemmConstants, s: _Shape, way: str) -> float:
    """A product of each sample's planes, which lie along its positions, by the weights."""
    moved = s.small_bytes + s.large_bytes + s.weight_bytes
    odd = s.positions * product.element_bytes % VECTOR_BYTES > 0
    copied_s = _call_s(product, s, way) + (_copies_s(c, s) if odd else 0.0)
    if s.k * product.element_bytes < VECTOR_BYTES:
        return c.kernel_floor_s + moved / c.memory_bytes_per_s
    if way == "weights" or (odd and product.element_bytes < 4):
        return copied_s
    n, k = (s.n, s.k) if way == "forward" else (s.k, s.n)
    planes = max(1, round(s.rows / s.positions))
    share = PLANE_SHARE if odd else 1.0
    whole_s = inner_product_seconds(product, s.rows, n, k, moved, share=share, groups=planes)
    return min(whole_s, copied_s) if odd else whole_s


def _sum_s(c: GemmConstants, s: _Shape, k: int, moved: float) -> float:
    """A weight's gradient, which sums over positions.

    Tiles of weights that leave SMs idle are split along the sum: each part writes its own in fp32,
    and another kernel adds them.
    """
    rate = c.peak_flops_per_s * c.efficiency * _share(c, s, "weights") / c.sm_count
    best = inf
    deepest = max(1, round(s.rows) // SPLIT_K_MIN)
    for (high, wide, area), filled in product(TILES, range(1, TENSOR_SPLITS.waves + 1)):
        count = -(-s.n // high) * -(-k // wide) * s.groups
        parts = min(max(1, filled * c.sm_count // count), deepest)
        waves = -(-count * parts // c.sm_count)
        work = area * (LARGEST_TILE / area) ** c.tile_exponent * (s.rows / parts + c.k_half)
        sums = 0.0
        if parts > 1:
            partial = 4.0 * parts * s.n * k * s.groups
            sums = c.fixed_s + 2.0 * partial / (c.memory_bytes_per_s * c.memory_efficiency)
        best = min(best, 2.0 * waves * work / rate + sums)
    return c.fixed_s + max(best, moved / (c.memory_bytes_per_s * c.memory_efficiency))


def _direct_s(c: GpuConstants, s: _Shape, way: str) -> float:
    """One call on what lies channels first, in multiply-adds."""
    share, half = DIRECT[way]
    rate = c.gpu.flops_per_s["fp32"] * share * s.k / (s.k + half)
    moved = s.small_bytes + s.large_bytes + s.weight_bytes
    return c.kernel_floor_s + max(2.0 * s.rows * s.n * s.k / rate, moved / c.memory_bytes_per_s)


def _copies_s(c: GpuConstants, s: _Shape) -> float:
    """Both operands to channels last, the result back."""
    moved = 2.0 * (s.small_bytes + s.large_bytes + s.weight_bytes)
    return 3 * c.kernel_floor_s + moved / (c.gpu.memory_bytes_per_s * LAYOUT_SHARE)


def _depthwise_s(
    c: GpuConstants, s: _Shape, way: str, element_bytes: int, *, native: bool
) -> float:
    k = (NATIVE_DEPTHWISE if native else DEPTHWISE)[way]
    positions = s.rows * s.groups * s.n * (s.steps if way == "inputs" else 1)
    work = (s.taps + k.beside) / k.share * (1.0 if s.taps in MADE_TAPS else k.others)
    if element_bytes > 2:
        work *= k.wide
    memory = (s.small_bytes + s.large_bytes) / c.memory_bytes_per_s
    return c.kernel_floor_s + max(2.0 * positions * work / c.gpu.flops_per_s["fp32"], memory)
