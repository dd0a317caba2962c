"""Seconds of one matrix product on the GPU, from its shape, the data type and few fitted constants.

Models a cuBLAS-like library: it picks, from a set of thread-block tiles and k-splits, the one
whose waves over the streaming multiprocessors (SMs) finish first, and cannot beat the memory
roofline. The constants per GPU and data type are fitted to measured kernels (``tables/gemm.csv``),
what unaligned sizes and batches cost is measured apart from them (``tables/layout.csv``);
what they leave unexplained are coarse factors over the shape (``tables/gemm_grid.csv``), over n and
k, and over waves of tiles and k (``tables/gemm_planes.csv``): what the library chose otherwise.

Not modelled: operand layouts (NN, NT, TN) beyond their alignment, epilogue fusion, power capping by
operand values, clocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil, inf
from typing import NamedTuple

from raysim.errors import CalibrationError
from raysim.perf.tables import Grid, Plane

TILES: tuple[tuple[int, int, float], ...] = tuple(
    (rows, columns, float(rows * columns))
    for rows, columns in (
        (256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64),
    )
)  # fmt: skip
"""Thread-block tiles (rows, columns, area) that cuBLAS and CUTLASS ship for tensor cores."""
TF32_TURNED = {"hopper": 0.67}
"""What weight gradients keep of tf32's rate: warpgroup products take tf32 operands along k alone
(PTX ``wgmma``); products of 4,096 rows and more in ``gemm.csv``, 0.65 to 0.69."""
LARGEST_TILE = 32768.0
TILE = 128
"""Side of the tile that the residual counts waves of."""
SPLIT_K_MIN = 128
"""A k-slice shorter than this is never worth a reduction."""


class Splits(NamedTuple):
    """Into how many slices a library cuts k."""

    slices: tuple[int, ...]
    waves: int
    """Splitting k serves to fill the SMs: not beyond this many."""


TENSOR_SPLITS = Splits((1, 2, 4, 8, 16), 2)
PLAIN_SPLITS = Splits(tuple(range(1, 33)), 4)
"""Without tensor cores any number of slices occurs: weight gradients of 36 to 144 tiles keep 48 of
51 TFLOP/s on the 132 SMs of H100."""
ALIGNED_BYTES = 32
"""A sector of the L2 cache: rows that start at multiples of it cost nothing."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Share of the rate that products keep by how their operands lie, on one GPU.

    Kernels copy 16 bytes at a time where every row starts at a multiple of that. Others copy 4 or 8
    (on Ampere, what ``cp.async`` of PTX takes), rows that start at odd 16-bit elements none so.
    """

    half: float = 1.0
    """Rows of both operands, along k, start at multiples of 16 bytes but not of 32."""
    narrow: float = 1.0
    """Rows of an operand or of the result start at multiples of 4 or 8 bytes."""
    both: float = 1.0
    """Rows of both operands do."""
    odd: float = 1.0
    """Any row starts at other bytes."""
    batched: float = 1.0
    """Products batched in one kernel, over one product of that shape."""

    def aligned(self, along_k: int, others: int) -> float:
        """By the bytes that divide both operands' rows along k, and all other leading sizes."""
        if min(along_k, others) < 4:
            return self.odd
        if along_k < 16:
            return self.both
        if others < 16:
            return self.narrow
        return self.half if along_k < ALIGNED_BYTES else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmConstants:
    """What a fit leaves of one GPU's matrix products in one data type."""

    peak_flops_per_s: float
    """Datasheet peak, dense."""
    memory_bytes_per_s: float
    sm_count: int
    cycles_per_s: float = inf
    """Of all SMs together."""
    efficiency: float
    """Share of the peak that a full wave of the largest tile sustains at large k, cool."""
    memory_efficiency: float
    """Share of the datasheet's memory bandwidth that operand traffic reaches."""
    k_half: float
    """Prologue and epilogue of a tile, counted in k: half the rate is reached here."""
    tile_exponent: float
    """A tile of area A runs at ``(A / 32768) ** tile_exponent`` of the largest one's rate."""
    quantisation: float
    """Share of the last, partly filled wave that is paid: 1 whole waves, 0 perfect balance."""
    sharpness: float
    """Exponent of the norm that joins compute and memory time; large: the plain roofline's max."""
    fixed_s: float
    """What the shortest kernel takes on the GPU."""
    split_s: float = 0.0
    """What splitting k adds: a second kernel sums the partial products."""
    slowdown: float = 0.0
    """Share by which long products run slower (power limit, cache misses), reached gradually ..."""
    slowdown_s: float = 1e-3
    """... half of it at this compute time."""
    cast_passes: float = 0.0
    """fp8: passes over the 16-bit activation that cast it, in units of 3 bytes per element."""
    element_bytes: int
    output_bytes: int = 2
    tensor_cores: bool = True
    turned: float = 1.0
    """Share of the rate that products keep both of whose operands lie across k: a weight's
    gradient."""
    layout: Layout = Layout()
    grid: Grid | None = None
    sides: Plane | None = None
    """A factor over n and k."""
    waves: Plane | None = None
    """A factor over waves of 128 x 128 tiles on the SMs, and k."""


def granule(*sizes: int) -> int:
    """The largest power of two that divides all ``sizes``."""
    joined = 0
    for size in sizes:
        joined |= size
    return joined & -joined


def gemm_seconds(
    c: GemmConstants,
    m: float,
    n: int,
    k: int,
    *,
    groups: int = 1,
    lead: int | None = None,
    imbalance: float = 1.0,
) -> float:
    """GPU seconds of ``groups`` products ``[m / groups, k] x [k, n]`` run as one kernel.

    ``m`` counts rows over all groups and may be fractional (routed tokens). ``lead`` is a divisor
    of all leading dimensions where operands do not both lie along k; None: they do, as in torch's
    linear, and the result along n. ``imbalance`` is the rows of the fullest group over the mean:
    uneven rows fill tiles less, the work is the same.
    """
    if m <= 0 or n <= 0 or k <= 0:
        return 0.0
    rows = max(1.0, m / groups)
    rate = c.peak_flops_per_s * c.efficiency
    if c.tensor_cores:
        rate *= _layout_share(c, n, k, lead) * (c.layout.batched if groups > 1 else 1.0)
    each: tuple[float, ...] = (rows,)
    if imbalance > 1.0 and groups > 1:
        each = tuple(rows * share for share in group_loads(groups, imbalance))
    compute = _compute_seconds(c, each, n, k, groups, rate / c.sm_count)
    compute *= 1.0 + c.slowdown * compute / (compute + c.slowdown_s)
    moved = groups * (c.element_bytes * (rows * k + k * n) + c.output_bytes * rows * n)
    joined = _joined(c, compute, moved)
    cast = c.cast_passes * 3.0 * groups * rows * k / c.memory_bytes_per_s
    return _residual(c, rows, n, k, groups) * (c.fixed_s + joined + cast)


def inner_product_seconds(
    c: GemmConstants, m: float, n: int, k: int, moved_bytes: float, *, share: float, groups: int = 1
) -> float:
    """GPU seconds of products inside a kernel of another kind, which moves ``moved_bytes``.

    ``share`` is its rate over that of a plain product's tiles. ``m`` counts rows of all groups.
    """
    rate = c.peak_flops_per_s * c.efficiency * share
    each = (max(1.0, m / groups),)
    compute = _compute_seconds(c, each, n, k, groups, rate / c.sm_count)
    compute *= 1.0 + c.slowdown * compute / (compute + c.slowdown_s)
    return c.fixed_s + _joined(c, compute, moved_bytes)


def _joined(c: GemmConstants, compute: float, moved_bytes: float) -> float:
    """Compute and memory time together."""
    memory = moved_bytes / (c.memory_bytes_per_s * c.memory_efficiency)
    high, low = (compute, memory) if compute > memory else (memory, compute)
    joined: float = high * (1.0 + (low / high) ** c.sharpness) ** (1.0 / c.sharpness)
    return joined


def _layout_share(c: GemmConstants, n: int, k: int, lead: int | None) -> float:
    """Share of the rate that the leading dimensions leave."""
    if lead is None:
        return c.layout.aligned(granule(k) * c.element_bytes, granule(n) * c.element_bytes)
    return c.layout.aligned(ALIGNED_BYTES, lead * c.element_bytes)


def _residual(c: GemmConstants, rows: float, n: int, k: int, groups: int) -> float:
    """The factor that the constants leave unexplained."""
    factor = 1.0
    if c.grid is not None:
        factor *= c.grid.factor(rows * groups, n, k)
    if c.sides is not None:
        factor *= c.sides.factor(n, k)
    if c.waves is not None and groups == 1:  # how the library fills SMs with one product
        tiles = ceil(rows / TILE) * -(-n // TILE)
        factor *= c.waves.factor(tiles / c.sm_count, k)
    return factor


def _compute_seconds(
    c: GemmConstants,
    rows: tuple[float, ...],
    n: int,
    k: int,
    groups: int,
    flops_per_s_per_sm: float,
) -> float:
    """The fastest tile and k-split: waves of tiles, each ``2 tm tn (k + k_half)`` operations.

    ``rows`` of each group, or of all if they are equal.
    """
    sms, quantisation, k_half = c.sm_count, c.quantisation, c.k_half
    whole_rows, alike = tuple(ceil(r) for r in rows), groups // len(rows)
    reduction = 0.5 * c.split_s * flops_per_s_per_sm
    splits = TENSOR_SPLITS if c.tensor_cores else PLAIN_SPLITS
    best = inf
    for (tile_rows, tile_columns, _), work in zip(TILES, _tile_work(c.tile_exponent), strict=True):
        high = sum(-(-r // tile_rows) for r in whole_rows) * alike
        count = high * -(-n // tile_columns)
        for split in splits.slices:
            if split > 1 and (count * split > splits.waves * sms or k < split * SPLIT_K_MIN):
                break
            share = count * split / sms
            whole = ceil(share)
            waves = whole if whole <= 1 else share + quantisation * (whole - share)
            work_done = waves * work * (k / split + k_half)
            best = min(best, work_done if split == 1 else work_done + reduction)
    return 2.0 * best / flops_per_s_per_sm


@cache
def group_loads(groups: int, imbalance: float) -> tuple[float, ...]:
    """Rows of each group over the mean, fullest first: a power law of the rank.

    Raises
    ------
    CalibrationError
        ``imbalance``, the first of them, is not in [1, ``groups``].
    """
    if not 1.0 <= imbalance <= groups:
        raise CalibrationError(
            f"imbalance {imbalance} of {groups} experts: the fullest has between the mean and all"
        )
    low, high = 0.0, 64.0
    for _ in range(60):  # of the exponent; the fullest group's share grows with it
        exponent = 0.5 * (low + high)
        total = sum((i + 1.0) ** -exponent for i in range(groups))
        low, high = (exponent, high) if groups / total < imbalance else (low, exponent)
    return tuple(groups / total * (i + 1.0) ** -exponent for i in range(groups))


@cache
def _tile_work(exponent: float) -> tuple[float, ...]:
    """Area of each tile over its relative rate."""
    return tuple(area * (LARGEST_TILE / area) ** exponent for _, _, area in TILES)
