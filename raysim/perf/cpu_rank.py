"""A training process on torch's ``cpu`` device with the gloo backend, as if it were a device.

Everything a rank does, Python, operators, gloo's copies and sums, takes turns on its core, so its
program has one stream. A product is its arithmetic plus the packing of its operands; everything
else moves bytes; every operator pays the dispatcher.

Collectives as torch has gloo do them (``ProcessGroupGloo.cpp``): all-reduce is a ring; all-gather a
ring into one fresh buffer that is then copied out; reduce-scatter an all-reduce of a fresh copy, of
which a rank keeps its part. A rank's core sends and receives by turns, so a ring of both costs
twice what a message one way does.

Valid while every rank has a core: with more ranks than cores divide the rates by what each gets.
Not modelled: caches, vector widths other than the measured host's, several threads per rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from raysim.hardware.specs import CpuRankSpec, CpuSpec, GpuSpec, Provenance
from raysim.models.table import Operator
from raysim.perf import optimizer
from raysim.perf.compute import ComputeModel
from raysim.perf.constants import GpuConstants, TrainingConstants
from raysim.perf.host import HostCosts
from raysim.perf.host_speed import host_costs
from raysim.perf.kernels import Dtype
from raysim.perf.nccl import Operation, bus_factor
from raysim.perf.sustained import NODE_GPUS

FP32_BYTES = 4
OF_A_GPUS_HOST = (
    "host_speed", "operator_s", "module_s", "node_s", "launch_s", "collective_s", "checkpoint_s",
    "backward_s", "clip_s", "staging_bytes_per_s",
)  # fmt: skip
MMAP_THRESHOLD_MAX_BYTES = 32 << 20
"""glibc takes what is larger from the kernel each time, and gives it back (``mallopt(3)``)."""


def packed_bytes(m: float, n: int, k: int, groups: int = 1) -> float:
    """Both operands and the result of a product, each read and written once more."""
    return 2.0 * FP32_BYTES * (m * k + groups * n * k + m * n)


def gloo_s(op: Operation, size_bytes: float, ranks: int, rank: CpuRankSpec) -> tuple[float, float]:
    """Latency, and seconds of the bytes, of one collective; ``size_bytes`` is the full buffer."""
    as_ring = "all_reduce" if op == "reduce_scatter" else op
    steps = (2 if as_ring == "all_reduce" else 1) * max(1, ranks - 1)
    one_way = op in ("send_recv", "broadcast", "reduce")
    through = 1.0 if one_way else 2.0 * bus_factor(as_ring, ranks)
    seconds = through * size_bytes / rank.gloo_bytes_per_s
    if op in ("all_gather", "reduce_scatter"):
        fresh = size_bytes > MMAP_THRESHOLD_MAX_BYTES
        rate = rank.gloo_fresh_bytes_per_s if fresh else rank.gloo_staging_bytes_per_s
        seconds += size_bytes / rate
    return steps * rank.gloo_latency_s, seconds


class CpuRankModel(ComputeModel):
    """Prices of operators on a :class:`CpuRankSpec`."""

    serial = True

    def __init__(self, rank: CpuRankSpec, given: TrainingConstants) -> None:
        self.rank = rank
        super().__init__(rank, given=given)

    def _host(self, cpu: CpuSpec | None) -> HostCosts:  # noqa: ARG002  (a rank is its own host)
        """One price per operator, kernels counted; gloo's latency holds what a call of it costs."""
        each = self.rank.dispatch_s
        given = host_costs(replace(self.given, host_speed=1.0))
        return replace(
            given.captured(), engine_s=0.0, launch_s=each, collective_s=each,
            clip_s=0.0, clip_tensor_s=each,
        )  # fmt: skip

    @property
    def provenance(self) -> dict[str, Provenance]:
        """Without what only the host of a GPU pays."""
        return {k: v for k, v in super().provenance.items() if k not in OF_A_GPUS_HOST}

    def _constants(self, sustained_share: float | None, gpus: int) -> GpuConstants:  # noqa: ARG002
        """Nothing of a GPU's: no kernel floor, no clocks that power caps, no tables."""
        return GpuConstants(
            gpu=self.gpu, system="", exact=True,
            memory_bytes_per_s=self.gpu.memory_bytes_per_s, kernel_floor_s=0.0,
            index_s=0.0, sustained_share=1.0, slowest=1.0, provenance=dict(self.gpu.provenance),
        )  # fmt: skip

    def gemm_s(
        self,
        m: float,
        n: int,
        k: int,
        dtype: Dtype,  # noqa: ARG002  (every type is computed in fp32)
        groups: int = 1,
        *,
        lead: int | None = None,  # noqa: ARG002  (alignment is a GPU's)
        imbalance: float = 1.0,  # noqa: ARG002  (nor are tiles filled by uneven rows)
    ) -> float:
        """Arithmetic, and packing of both operands (read and written) and of the result."""
        if m <= 0 or n <= 0 or k <= 0:
            return 0.0
        moved = packed_bytes(m, n, k, groups)
        return 2.0 * m * n * k / self.rank.product_flops_per_s + self.memory_s(moved)

    def _rate(self, dtype: Dtype) -> float:  # noqa: ARG002  (as above)
        """Of products that have no shape of a matrix's: scans of recurrent layers."""
        return self.rank.product_flops_per_s

    def _attention_s(
        self, op: Operator, batch: float, dtype: Dtype, tp: int, backward: bool
    ) -> float:
        """The CPU's fused kernel in any type: its products and a share of the scores' traffic."""
        assert op.attention is not None
        heads = -(-op.attention.heads // (tp if op.split != "none" else 1))
        return self._eager_attention_s(op, batch, dtype, heads, backward)

    def memory_s(self, moved_bytes: float, *, kernels: int = 1) -> float:  # noqa: ARG002
        """Bytes over bandwidth; the dispatch of ``kernels`` is the host's, as ``host_s``."""
        return moved_bytes / self.rank.memory_bytes_per_s

    def optimizer_s(
        self,
        optimizer_name: str,
        numel: float,
        *,
        fused: bool = True,
        low_precision_copy: bool = False,
        momentum: float = 0.0,
        foreach: bool = True,  # noqa: ARG002  (on a CPU torch always loops)
        element_bytes: float = FP32_BYTES,
        sizes: Sequence[int] = (),
        on_muon: Mapping[tuple[int, int], float] = MappingProxyType({}),  # noqa: ARG002
    ) -> float:
        """torch's loop moves what ``foreach`` does, tensor by tensor.

        Between its passes a tensor stays in the core's cache, or is larger and streams. What Muon
        orthogonalizes is not priced here.
        """
        if numel <= 0:
            return 0.0
        key = optimizer.optimizer_key(optimizer_name, momentum=momentum)
        each = optimizer.step_bytes(key, fused=fused, low_precision_copy=low_precision_copy)
        each *= element_bytes / FP32_BYTES
        near = sum(size for size in sizes if FP32_BYTES * size <= self.rank.l2_bytes)
        far = numel - near
        rank = self.rank
        return each * (near / rank.optimizer_bytes_per_s + far / rank.optimizer_far_bytes_per_s)

    def optimizer_host_s(
        self,
        optimizer_name: str,
        tensors: int,
        *,
        fused: bool,
        momentum: float = 0.0,  # noqa: ARG002  (counted in its kernels)
        foreach: bool = True,  # noqa: ARG002  (on a CPU torch always loops)
        matrices: int = 0,  # noqa: ARG002  (its passes are counted, not its operators)
    ) -> float:
        """One operator per pass and tensor."""
        kernels = optimizer.step_kernels(optimizer.optimizer_key(optimizer_name), fused=fused)
        return tensors * kernels * self.host.eager_s


def compute_model(
    gpu: GpuSpec,
    given: TrainingConstants,
    cpu: CpuSpec | None = None,
    *,
    cuda_graphs: bool = False,
    compiled: bool = False,
    expert_imbalance: float = 1.0,
    gpus: int = NODE_GPUS,
) -> ComputeModel:
    """Prices on a device as a training run has it: a GPU in a host, or an eager rank on the CPU.

    A GPU's are of the slowest of the run's ``gpus``, for which the others wait.
    """
    if isinstance(gpu, CpuRankSpec):
        return CpuRankModel(gpu, given)
    return ComputeModel(
        gpu, sustained_share=None, given=given, cpu=cpu, cuda_graphs=cuda_graphs,
        compiled=compiled, expert_imbalance=expert_imbalance, gpus=gpus,
    )  # fmt: skip
