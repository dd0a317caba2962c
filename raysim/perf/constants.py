"""Which constants stand for which GPU: fitted where measured, else those of its architecture.

A GPU without measurements borrows the shape constants of a measured one of the same or the nearest
architecture and keeps its own peaks; its provenance then says ``assumed``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from raysim.hardware.specs import GpuSpec, Provenance
from raysim.perf.attention import AttentionConstants
from raysim.perf.gemm import GemmConstants

MEMORY_SHARE = 0.82
"""Streaming kernels over the datasheet's bandwidth: 0.75-0.85 across V100 to B200."""
KERNEL_FLOOR_S = 2.0e-6

# (efficiency, k_half, tile_exponent) per architecture, until a table says better.
_GEMM = {
    "volta": (0.78, 64.0, 0.25), "turing": (0.70, 64.0, 0.25), "ampere": (0.88, 96.0, 0.2),
    "ada": (0.80, 96.0, 0.2), "hopper": (0.80, 160.0, 0.3), "blackwell": (0.72, 200.0, 0.3),
    "cdna3": (0.55, 200.0, 0.3),
}  # fmt: skip
_ATTENTION = {
    "volta": 0.35, "turing": 0.35, "ampere": 0.60, "ada": 0.50, "hopper": 0.40, "blackwell": 0.45,
    "cdna3": 0.30,
}  # fmt: skip


@dataclass(slots=True)
class GpuConstants:
    """Constants of one GPU, built per data type on first use."""

    gpu: GpuSpec
    memory_bytes_per_s: float
    kernel_floor_s: float = KERNEL_FLOOR_S
    provenance: dict[str, Provenance] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    _gemm: dict[str, GemmConstants] = field(default_factory=dict)
    _attention: dict[tuple[str, int], AttentionConstants] = field(default_factory=dict)

    def gemm(self, dtype: str) -> GemmConstants:
        """Constants of products in ``dtype``; a type the GPU lacks runs at fp32's rate."""
        known = self._gemm.get(dtype)
        if known is None:
            known = self._gemm[dtype] = _gemm_constants(self.gpu, dtype)
        return known

    def attention(self, implementation: str, head_dim: int) -> AttentionConstants:
        """Constants of a fused attention kernel."""
        key = (implementation, head_dim)
        known = self._attention.get(key)
        if known is None:
            known = self._attention[key] = _attention_constants(self.gpu, self.memory_bytes_per_s)
        return known


def constants_for(gpu: GpuSpec) -> GpuConstants:
    """Constants of ``gpu`` with their provenance."""
    notes: tuple[str, ...] = ()
    if "bf16" not in gpu.flops_per_s:
        notes = (f"{gpu.name} has no bf16 units: bf16 products are priced at the fp32 rate",)
    memory = gpu.memory_bytes_per_s * MEMORY_SHARE
    provenance = {"memory_share": Provenance(basis="assumed", source="0.75-0.85 of the datasheet")}
    return GpuConstants(gpu=gpu, memory_bytes_per_s=memory, provenance=provenance, notes=notes)


def _gemm_constants(gpu: GpuSpec, dtype: str) -> GemmConstants:
    efficiency, k_half, exponent = _GEMM[gpu.architecture]
    size = {"fp32": 4, "tf32": 4, "fp8": 1}.get(dtype, 2)
    peak = gpu.flops_per_s.get(dtype)
    if peak is None:
        peak = gpu.flops_per_s["bf16" if dtype == "fp8" and "bf16" in gpu.flops_per_s else "fp32"]
    constants = GemmConstants(
        peak_flops_per_s=peak, memory_bytes_per_s=gpu.memory_bytes_per_s, sm_count=gpu.sm_count,
        efficiency=efficiency, memory_efficiency=0.85, k_half=k_half, tile_exponent=exponent,
        quantisation=0.8, sharpness=4.0, fixed_s=2.5e-6, element_bytes=size,
    )  # fmt: skip
    return replace(constants, efficiency=0.9) if peak == gpu.flops_per_s["fp32"] else constants


def _attention_constants(gpu: GpuSpec, memory: float) -> AttentionConstants:
    peak = gpu.flops_per_s.get("bf16", gpu.flops_per_s.get("fp16", gpu.flops_per_s["fp32"]))
    return AttentionConstants(
        flops_per_s=peak * _ATTENTION[gpu.architecture], seq_half=700.0, head_dim_exponent=0.3,
        backward_ratio=0.75, fixed_s=5e-6, block_rows=128, sm_count=gpu.sm_count,
        memory_bytes_per_s=memory, element_bytes=2,
    )  # fmt: skip
