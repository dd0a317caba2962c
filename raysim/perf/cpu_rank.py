"""A training process on torch's ``cpu`` device with the gloo backend, as if it were a device.

Everything a rank does, Python, operators, gloo's copies and sums, takes turns on its core, so its
program has one stream. A product is its arithmetic plus the packing of its operands; everything
else moves bytes; every operator pays the dispatcher. Collectives are gloo's ring over loopback.

Valid while every rank has a core: with more ranks than cores divide the rates by what each gets.
Not modelled: caches, vector widths other than the measured host's, several threads per rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from raysim.hardware.specs import GpuSpec, Provenance
from raysim.models.table import Operator
from raysim.perf import optimizer
from raysim.perf.compute import ComputeModel, Dtype
from raysim.perf.constants import TrainingConstants


@dataclass(frozen=True, slots=True, kw_only=True)
class GlooSpec:
    """Ring collectives of gloo over loopback."""

    latency_s: float
    """One step of the ring, or one message: Python, gloo's thread and the kernel's TCP."""
    bytes_per_s: float
    """That one rank sends, and receives, while it reduces or copies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuRankSpec(GpuSpec):
    """One rank's core and its share of the host's memory bandwidth."""

    product_flops_per_s: float
    """Arithmetic of fp32 products, operands packed."""
    dispatch_s: float
    """One eager operator, Python included."""
    optimizer_bytes_per_s: float
    """Of ``torch.optim``'s loop over parameters, states read and written pass by pass."""
    gloo: GlooSpec


def cpu_rank(
    *,
    name: str,
    memory_bytes: int,
    product_flops_per_s: float,
    memory_bytes_per_s: float,
    optimizer_bytes_per_s: float,
    dispatch_s: float,
    gloo: GlooSpec,
    provenance: Provenance,
) -> CpuRankSpec:
    """A rank with these rates; what only a GPU has is neutral."""
    rates = (
        "product_flops_per_s", "memory_bytes_per_s", "optimizer_bytes_per_s", "dispatch_s", "gloo",
    )  # fmt: skip
    return CpuRankSpec(
        name=name, architecture="cpu", compute_capability=0.0, sm_count=1,
        memory_bytes=memory_bytes, memory_bytes_per_s=memory_bytes_per_s, l2_bytes=0,
        flops_per_s={"fp32": product_flops_per_s},
        pcie_generation=0, pcie_bytes_per_s=memory_bytes_per_s, context_bytes=0, tdp_w=0.0,
        product_flops_per_s=product_flops_per_s, dispatch_s=dispatch_s,
        optimizer_bytes_per_s=optimizer_bytes_per_s, gloo=gloo,
        provenance=dict.fromkeys(rates, provenance),
    )  # fmt: skip


class CpuRankModel(ComputeModel):
    """Prices of operators on a :class:`CpuRankSpec`."""

    serial = True

    def __init__(self, rank: CpuRankSpec, given: TrainingConstants) -> None:
        super().__init__(rank, given=replace(given, launch_s=rank.dispatch_s))
        self.rank = rank

    def gemm_s(
        self,
        m: float,
        n: int,
        k: int,
        dtype: Dtype,  # noqa: ARG002  (every type is computed in fp32)
        groups: int = 1,
        *,
        lead: int | None = None,  # noqa: ARG002  (alignment is a GPU's)
    ) -> float:
        """Arithmetic, and packing of both operands (read and written) and of the result."""
        if m <= 0 or n <= 0 or k <= 0:
            return 0.0
        moved = 8.0 * (m * k + groups * n * k + m * n)
        return 2.0 * m * n * k / self.rank.product_flops_per_s + self.memory_s(moved)

    def _attention_s(
        self, op: Operator, batch: int, dtype: Dtype, tp: int, backward: bool
    ) -> float:
        """The CPU's fused kernel in any type: its products and a share of the scores' traffic."""
        assert op.attention is not None
        heads = -(-op.attention.heads // (tp if op.split != "none" else 1))
        return self._eager_attention_s(op, batch, dtype, heads, backward)

    def memory_s(self, moved_bytes: float, *, kernels: int = 1) -> float:  # noqa: ARG002
        """Bytes over bandwidth; the dispatch of ``kernels`` is the host's, as ``launch_s``."""
        return moved_bytes / self.rank.memory_bytes_per_s

    def optimizer_s(
        self,
        optimizer_name: str,
        numel: float,
        *,
        fused: bool = True,
        low_precision_copy: bool = False,
        momentum: float = 0.0,
        matrix_dim: int = 4096,  # noqa: ARG002  (Muon's)
    ) -> float:
        """torch's loop moves what ``foreach`` does, tensor by tensor."""
        key = optimizer.optimizer_key(optimizer_name, momentum=momentum)
        each = optimizer.step_bytes(key, fused=fused, low_precision_copy=low_precision_copy)
        return max(0.0, numel) * each / self.rank.optimizer_bytes_per_s

    def optimizer_launches(self, optimizer_name: str, tensors: int, *, fused: bool) -> int:
        """One operator per pass and tensor."""
        return tensors * optimizer.step_kernels(
            optimizer.optimizer_key(optimizer_name), fused=fused
        )


def compute_model(gpu: GpuSpec, given: TrainingConstants) -> ComputeModel:
    """Prices on a device as a training run has it: a GPU, or a rank on the CPU."""
    if isinstance(gpu, CpuRankSpec):
        return CpuRankModel(gpu, given)
    return ComputeModel(gpu, sustained_share=None, given=given)
