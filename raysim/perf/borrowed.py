"""Whose measured tables stand for a GPU: its own, or those of its architecture or its like."""

from __future__ import annotations

from typing import NamedTuple

from raysim.hardware.specs import GpuSpec
from raysim.perf import tables


class Borrowed(NamedTuple):
    """From a measured system."""

    system: str
    factor: float
    """On its efficiency."""
    why: str


_BORROW = {
    "volta": Borrowed("v100", 1.0, "same architecture"),
    "turing": Borrowed("a100", 0.60, "70 W power limit, assumed"),
    "ampere": Borrowed("a100", 1.0, "same architecture"),
    "ada": Borrowed("l40s", 1.0, "same architecture"),
    "hopper": Borrowed("h100", 1.0, "same architecture"),
    "blackwell": Borrowed("b200", 1.0, "same architecture"),
    "cdna3": Borrowed("h100", 0.60, "best shape 668 of 1300 TFLOP/s on MI300X (ml-engineering)"),
}
"""What an architecture borrows."""
HALF_RATE = Borrowed("a100", 1.0, "tensor cores at half their rate, which no power limit slows")
"""The same of A10G and L40, and of gaming cards, on which they sum in fp32 at twice the fp32
rate."""
GEFORCE = HALF_RATE._replace(factor=1.13, why=f"{HALF_RATE.why}, clocks above the datasheet's")
"""Of gaming cards: least squares over three models of timm's training table of an RTX 3090
(``validation/data/published/pictures.json``, ``role: calibration``)."""


def borrow(gpu: GpuSpec) -> Borrowed:
    """What stands for it where nothing of its own was measured."""
    tensor, plain = gpu.flops_per_s.get("bf16", 0.0), gpu.flops_per_s["fp32"]
    if not 0.0 < tensor < 2.1 * plain:
        return _BORROW[gpu.architecture]
    return GEFORCE if gpu.is_geforce else HALF_RATE


def measured_system(gpu: GpuSpec) -> tuple[str, bool]:
    """The measured system that stands for ``gpu``, and whether it is the same part.

    The same part: its name says so, it has as many SMs, and bandwidth and peak agree within 5 %.
    """
    name = gpu.name.lower()
    for system in tables.systems("gemm"):
        row = tables.rows("gemm", system)[0]
        if system in name.replace("-", " ").split() and gpu.sm_count == int(row["sm_count"]):
            peak = gpu.flops_per_s.get(row["dtype"], 0.0) / float(row["peak_flops_per_s"])
            memory = gpu.memory_bytes_per_s / float(row["memory_bytes_per_s"])
            if abs(peak - 1.0) <= 0.05 and abs(memory - 1.0) <= 0.05:
                return system, True
    if gpu.name.lower().startswith("gb"):
        return "gb200", False
    return borrow(gpu).system, False
