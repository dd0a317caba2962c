"""Seconds of single kernels and copies on one GPU, and of its host's work: products, passes, steps.

What a layer table's operators are made of (``compute``), and what runs beside them: optimizers,
copies, passes over main memory. Times are GPU-busy time where nothing else is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from raysim.hardware.specs import CpuSpec, GpuSpec, Provenance
from raysim.perf import host, optimizer
from raysim.perf.constants import (
    GpuConstants,
    TrainingConstants,
    constants_for,
)
from raysim.perf.gemm import GemmConstants, gemm_seconds
from raysim.perf.host_speed import host_costs
from raysim.perf.shares import FP8_SOURCE, fp8_constants
from raysim.perf.sustained import NODE_GPUS

Dtype = Literal["fp32", "tf32", "fp16", "bf16", "fp8"]


class Kernels:
    """How long products, passes over memory, optimizer steps and copies take on one GPU type.

    Deterministic and stateless but for caches. Parameters are those of ``ComputeModel``.
    """

    def __init__(
        self, gpu: GpuSpec, *, allow_tf32: bool, sustained_share: float | None,
        given: TrainingConstants | None, cpu: CpuSpec | None, gpus: int = NODE_GPUS,
    ) -> None:  # fmt: skip
        self.gpu = gpu
        self.given = given or TrainingConstants()
        self.host = self._host(cpu)
        """What the training process's own Python costs."""
        self.allow_tf32 = allow_tf32
        self.constants = self._constants(sustained_share, gpus)
        self._gemms: dict[tuple[float, int, int, Dtype, int, int | None, float], float] = {}
        self._fp8_gemms: dict[tuple[float, int, int, str, int, int | None, float], float] = {}

    def _constants(self, sustained_share: float | None, gpus: int) -> GpuConstants:
        return constants_for(self.gpu, sustained_share, self.given, gpus)

    def _host(self, cpu: CpuSpec | None) -> host.HostCosts:
        return host_costs(self.given, cpu)

    @property
    def provenance(self) -> dict[str, Provenance]:
        """Origin of every constant that the times computed so far depend on, by name."""
        return {**host.PROVENANCE, **self.constants.provenance}

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know of this GPU's times, for example an emulated data type."""
        return self.constants.notes

    def gemm_s(
        self, m: float, n: int, k: int, dtype: Dtype, groups: int = 1, *, lead: int | None = None,
        imbalance: float = 1.0,
    ) -> float:  # fmt: skip
        """GPU seconds of ``groups`` products ``[m / groups, k] x [k, n]`` in one kernel.

        ``lead`` divides the operands' leading dimensions where those are not ``n`` and ``k``;
        ``imbalance`` is the rows of the fullest group over the mean.
        """
        key = (m, n, k, dtype, groups, lead, imbalance)
        known = self._gemms.get(key)
        if known is None:
            known = gemm_seconds(
                self._gemm(dtype), m, n, k, groups=groups, lead=lead, imbalance=imbalance
            )
            self._gemms[key] = known
        return known

    def fp8_gemm_s(
        self, m: float, n: int, k: int, dtype: Dtype, groups: int = 1, *, lead: int | None = None,
        imbalance: float = 1.0,
    ) -> float:  # fmt: skip
        """The same with operands that are fp8 already, and a result in ``dtype``.

        The faster of two: a 16-bit product on units that are so much faster, as cuBLAS's on Hopper
        are, and the fp8 tables' rows less the cast of an operand that they hold.
        """
        wide: Dtype = "bf16" if "bf16" in self.gpu.flops_per_s else dtype
        if "fp8" not in self.gpu.flops_per_s:
            return self.gemm_s(m, n, k, wide, groups, lead=lead, imbalance=imbalance)
        key = (m, n, k, "fp8", groups, lead, imbalance)
        known = self._fp8_gemms.get(key)
        if known is None:
            known = self._fp8_gemms[key] = min(
                gemm_seconds(c, m, n, k, groups=groups, lead=lead, imbalance=imbalance)
                for c in fp8_constants(self.constants, wide)
            )
            self.constants.provenance["fp8 products"] = FP8_SOURCE
        return known

    def _gemm(self, dtype: Dtype) -> GemmConstants:
        return self.constants.gemm("tf32" if dtype == "fp32" and self.allow_tf32 else dtype)

    def _rate(self, dtype: Dtype) -> float:
        c = self._gemm(dtype)
        return c.peak_flops_per_s * c.efficiency

    def memory_s(self, moved_bytes: float, *, kernels: int = 1) -> float:
        """GPU seconds of memory-bound kernels that read and write ``moved_bytes`` in all."""
        c = self.constants
        return kernels * c.kernel_floor_s + moved_bytes / c.memory_bytes_per_s

    def optimizer_s(
        self, optimizer_name: str, numel: float, *, fused: bool = True,
        low_precision_copy: bool = False, momentum: float = 0.0, foreach: bool = True,
        element_bytes: float = 4.0, sizes: Sequence[int] = (),
        on_muon: Mapping[tuple[int, int], float] = MappingProxyType({}),
    ) -> float:  # fmt: skip
        """GPU seconds of one optimizer step over ``numel`` elements.

        ``element_bytes`` is the width of parameters and states, which torch keeps alike.
        ``foreach`` False is torch's loop over the tensors, unless ``fused``. ``sizes`` are elements
        of each tensor; () is one tensor. ``on_muon``: how many matrices of each shape, rows and
        columns, Muon orthogonalizes.

        Raises
        ------
        CalibrationError
            The optimizer is unknown.
        """
        if numel <= 0:
            return 0.0
        key = optimizer.optimizer_key(optimizer_name, momentum=momentum)
        moved, kernels = optimizer.step_traffic(
            key, numel, fused=fused, foreach=foreach, tensors=len(sizes),
            low_precision_copy=low_precision_copy, element_bytes=element_bytes,
        )  # fmt: skip
        seconds = self.memory_s(moved, kernels=kernels)
        if key == "muon":
            seconds += sum(n * self._muon_s(*shape) for shape, n in on_muon.items())
        return seconds

    def _muon_s(self, rows: int, columns: int) -> float:
        """Newton-Schulz of one matrix, in bf16; what ``addmm`` adds is copied first."""
        dtype: Dtype = "bf16" if "bf16" in self.gpu.flops_per_s else "fp32"
        products = optimizer.muon_products(rows, columns)
        each = sum(self.gemm_s(m, n, k, dtype) for m, n, k in products)
        added = sum(m * n for m, n, _ in products[1:])
        return optimizer.MUON_STEPS * (each + self.memory_s(2 * 2.0 * added, kernels=2))

    def optimizer_host_s(
        self, optimizer_name: str, tensors: int, *, fused: bool, momentum: float, foreach: bool,
        matrices: int = 0,
    ) -> float:  # fmt: skip
        """Seconds the host takes to queue one step over so many tensors, matrices among them."""
        key = optimizer.optimizer_key(optimizer_name, momentum=momentum)
        return self.on_host_s(optimizer.step_host_s(
            key, tensors, fused=fused, foreach=foreach, matrices=matrices,
            eager_s=host.HostCosts().eager_s,
        ))  # fmt: skip

    def on_host_s(self, seconds: float) -> float:
        """What takes the reference host so long, on this one."""
        return seconds * self.host.operator_s / host.OPERATOR_S

    def copy_s(self, size_bytes: float, kind: host.CopyKind, *, pinned: bool = True) -> float:
        """Seconds of one copy between host and GPU, or within the GPU, alone on its link."""
        rate = self.constants.memory_bytes_per_s
        return host.copy_seconds(self.gpu, size_bytes, kind, pinned=pinned, d2d_bytes_per_s=rate)

    def cpu_adam_s(
        self, numel: float, cpu: CpuSpec, ranks_per_node: int, pool: host.HostPool
    ) -> float:
        """Seconds of DeepSpeed's CPU Adam, copy in 16 bits included; ``numel``: of each rank."""
        return host.cpu_adam_seconds(
            numel, cpu, ranks_per_node, pool, low_precision_copy=True,
            stream_share=self.given.host_stream_share,
        )  # fmt: skip

    def host_pass_s(
        self, size_bytes: float, cpu: CpuSpec, ranks_per_node: int, pool: host.HostPool
    ) -> float:
        """Seconds of one plain pass (norm, unscale, cast) over ``size_bytes`` of host memory."""
        share = self.given.host_stream_share
        return host.host_pass_seconds(size_bytes, cpu, ranks_per_node, pool, stream_share=share)
