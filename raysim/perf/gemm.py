"""Seconds of one matrix product on the GPU, from its shape, the data type and few fitted constants.

Models a cuBLAS-like library: it picks, from a set of thread-block tiles and k-splits, the one whose
whole waves over the streaming multiprocessors (SMs) finish first, and cannot beat the memory roofline.
The constants per GPU and data type are fitted to measured kernels (``tables/gemm.csv``).

Not modelled: operand layouts (NN, NT, TN), epilogue fusion, power capping by operand values, clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

TILES: tuple[tuple[int, int], ...] = (
    (256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64),
)  # fmt: skip
"""Thread-block tiles (rows, columns) that cuBLAS and CUTLASS ship for tensor cores."""
SPLITS = (1, 2, 4, 8, 16)
SPLIT_K_MIN = 128
"""A k-slice shorter than this is never worth a reduction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmConstants:
    """What a fit leaves of one GPU's matrix products in one data type."""

    peak_flops_per_s: float
    """Datasheet peak, dense."""
    memory_bytes_per_s: float
    sm_count: int
    efficiency: float
    """Share of the peak that a full wave of the largest tile sustains at large k."""
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
    element_bytes: int


def alignment_factor(n: int, k: int, element_bytes: int) -> float:
    """Share of the rate kept when rows of the operands are not aligned to 16 bytes.

    Tensor-core kernels load 16 bytes at a time; unaligned leading dimensions fall back to narrower
    loads. Source: NVIDIA matrix multiplication guide; measured on H100, a SwiGLU width of 10,922
    reaches 273 TFLOP/s and 10,944 reaches 398 (ml-engineering), the two figures behind 0.69 here.
    """
    lanes = 16 // element_bytes
    worst = min(_lowest_bit(n), _lowest_bit(k))
    if worst >= lanes:
        return 1.0
    return 0.69 if worst >= 2 else 0.35


def _lowest_bit(value: int) -> int:
    """The largest power of two dividing ``value``."""
    return value & -value if value > 0 else 1 << 30


def gemm_seconds(c: GemmConstants, m: float, n: int, k: int, groups: int = 1) -> float:
    """GPU seconds of ``groups`` products that share ``m`` rows evenly, each ``[m / groups, k] x [k, n]``.

    ``m`` counts rows over all groups and may be fractional (routed tokens).
    """
    if m <= 0 or n <= 0 or k <= 0:
        return 0.0
    rows = max(1.0, m / groups)
    rate = c.peak_flops_per_s * c.efficiency * alignment_factor(n, k, c.element_bytes)
    compute = _compute_seconds(c, rows, n, k, groups, rate, TILES)
    moved = c.element_bytes * groups * (rows * k + k * n + rows * n)
    memory = moved / (c.memory_bytes_per_s * c.memory_efficiency)
    high, low = (compute, memory) if compute > memory else (memory, compute)
    joined: float = high * (1.0 + (low / high) ** c.sharpness) ** (1.0 / c.sharpness)
    return c.fixed_s + joined


def _compute_seconds(
    c: GemmConstants,
    rows: float,
    n: int,
    k: int,
    groups: int,
    rate: float,
    tiles: Sequence[tuple[int, int]],
) -> float:
    """The fastest tile and k-split: waves of tiles, each ``2 tm tn (k + k_half)`` operations."""
    sms, quantisation = c.sm_count, c.quantisation
    per_sm = rate / sms
    best = float("inf")
    for tm, tn in tiles:
        area = tm * tn
        count = ceil(rows / tm) * ceil(n / tn) * groups
        speed = per_sm * (area / 32768.0) ** c.tile_exponent
        for split in SPLITS:
            if split > 1 and (count * split > 2 * sms or k < split * SPLIT_K_MIN):
                break
            share = count * split / sms
            waves = ceil(share) if share <= 1.0 else share + quantisation * (ceil(share) - share)
            seconds = waves * 2.0 * area * (k / split + c.k_half) / speed
            if seconds < best:
                best = seconds
    return best
