"""Whose measured tables stand for a GPU: its own, or those of its architecture or its like."""

from __future__ import annotations

from raysim.hardware.specs import GpuSpec
from raysim.perf import tables

_BORROW = {
    "volta": ("v100", 1.0, "same architecture"),
    "turing": ("a100", 0.60, "70 W power limit, assumed"),
    "ampere": ("a100", 1.0, "same architecture"),
    "ada": ("l40s", 1.0, "same architecture"),
    "hopper": ("h100", 1.0, "same architecture"),
    "blackwell": ("b200", 1.0, "same architecture"),
    "cdna3": ("h100", 0.60, "best shape 668 of 1300 TFLOP/s on MI300X (ml-engineering)"),
}
"""Measured system an architecture borrows from, factor on its efficiency, and why."""
HALF_RATE = ("a100", 1.0, "tensor cores at half their rate, which no power limit slows")
"""The same of gaming cards, A10G and L40, on which they sum in fp32 at twice the fp32 rate."""


def borrow(gpu: GpuSpec) -> tuple[str, float, str]:
    """The system whose tables it borrows, the factor on their efficiency, and why."""
    tensor, plain = gpu.flops_per_s.get("bf16", 0.0), gpu.flops_per_s["fp32"]
    return HALF_RATE if 0.0 < tensor < 2.1 * plain else _BORROW[gpu.architecture]


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
    return borrow(gpu)[0], False
