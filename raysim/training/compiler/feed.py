"""What a micro-batch costs before the GPU sees it: its loader, its copy, the script's own work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from raysim.hardware.specs import CpuSpec
from raysim.perf.compute import ComputeModel
from raysim.perf.host import REFERENCE_SINGLE_THREAD
from raysim.perf.host_loops import NO_WORK, Work
from raysim.perf.kernels import Dtype


class Product(NamedTuple):
    """A matrix product of a script's own: ``groups`` of ``[rows / groups, k] x [k, n]``."""

    dtype: Dtype
    rows: float
    n: int
    k: int
    groups: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What a training script does per micro-batch beside model and optimizer."""

    operators: float = 0.0
    kernels: float = 0.0
    moved_bytes: float = 0.0
    """Its own operators on the GPU; what products move is not in it."""
    products: tuple[tuple[Product, float], ...] = ()
    """Among them, and how many of each."""
    waits: bool = False
    """It asks for a value, and so waits for all that was queued."""
    beside: tuple[tuple[float, float], ...] = ()
    """Forwards without gradients, in stretches: seconds of the host that issues it, of the GPU."""
    loop: str = ""
    """A library's loop (``perf.host.LOOPS``)."""
    on_cpu: Work = NO_WORK
    """Its own operators on tensors of the CPU, by the thread that trains."""

    def gpu_seconds(self, costs: ComputeModel) -> float:
        """Of its own operators' kernels."""
        passes = self.kernels - sum(count for _, count in self.products)
        products_s = sum(
            count * costs.gemm_s(p.rows, p.n, p.k, p.dtype, p.groups) for p, count in self.products
        )
        moves = self.moved_bytes or passes > 0
        return products_s + (
            costs.memory_s(self.moved_bytes, kernels=round(passes)) if moves else 0.0
        )


NOTHING_OWN = Own()


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """What one micro-batch costs before the GPU sees it."""

    host_s: float = 0.0
    """The training process loads and collates itself."""
    loader_s: float = 0.0
    """Loader processes need this long per micro-batch, overlapping with the GPU."""
    host_work: Work = NO_WORK
    loader_work: Work = NO_WORK
    """Likewise, as it takes the reference host."""
    copy_bytes: float = 0.0
    """Copied to the GPU."""
    pageable: bool = False
    """From memory that is not pinned, by the training process itself: see ``STAGED_BYTES``."""
    own: Own = NOTHING_OWN

    def host_seconds(self, costs: ComputeModel, cpu: CpuSpec) -> float:
        """Of the training process, on its host."""
        return self.host_s + seconds(self.host_work + self.own.on_cpu, costs, cpu)

    def loader_seconds(self, costs: ComputeModel, cpu: CpuSpec) -> float:
        """Of loader processes, on their host."""
        return self.loader_s + seconds(self.loader_work, costs, cpu)


def seconds(work: Work, costs: ComputeModel, cpu: CpuSpec) -> float:
    """Of a thread: calls as the host dispatches, loops as its cores compute."""
    speed = cpu.single_thread / REFERENCE_SINGLE_THREAD
    return costs.on_host_s(work.calls_s) + work.loops_s / speed
