"""Frozen datasheets: GPU, NIC, disk, CPU and rentable node, with where each number is from.

Rates are bytes per second in one direction unless the name says otherwise; floating-point peaks are
dense (no structured sparsity).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Basis = Literal["measured", "datasheet", "assumed"]
NicKind = Literal["ethernet", "infiniband", "roce", "efa"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where one number comes from."""

    basis: Basis
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """Common to all datasheets: a name and the provenance of each numeric field."""

    name: str
    provenance: Mapping[str, Provenance] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec(Spec):
    """One accelerator."""

    vendor: Literal["nvidia", "amd"] = "nvidia"
    architecture: str
    """volta, turing, ampere, ada, hopper, blackwell, cdna3; ``cpu``: a :class:`CpuRankSpec`."""
    compute_capability: float
    sm_count: int
    memory_bytes: int
    """What ``torch.cuda.get_device_properties().total_memory`` reports."""
    memory_bytes_per_s: float
    l2_bytes: int
    flops_per_s: Mapping[str, float] = field(hash=False)
    """Dense peak by dtype: fp32, tf32, fp16, bf16, fp8, fp4 where the part has it."""
    scale_up: Literal["nvlink", "xgmi"] | None = None
    scale_up_generation: int | None = None
    scale_up_links: int = 0
    scale_up_bytes_per_s: float = 0.0
    """Sum over links, one direction."""
    pcie_generation: int
    pcie_bytes_per_s: float
    """x16 as a pinned copy achieves it, one direction."""
    context_bytes: int
    """CUDA context and loaded kernels, before the first tensor."""
    tdp_w: float

    @property
    def cycles_per_s(self) -> float:
        """Of all multiprocessors together, as the peak in fp32 says it."""
        lanes = 64 if self.compute_capability <= 8.0 else 128  # CUDA programming guide
        return self.flops_per_s["fp32"] / 2.0 / lanes

    @property
    def accelerator_type(self) -> str:
        """What Ray finds it is (``_private/accelerators``): no bus and no memory in the name."""
        if self.vendor == "amd":
            return f"AMD-Instinct-{self.name}-OAM"
        if self.name.startswith("RTX-"):
            return f"GeForce-{self.name}" if self.is_geforce else self.name.removesuffix("-Ada")
        return self.name.partition("-")[0]

    @property
    def is_geforce(self) -> bool:
        """A gaming card, whose driver lets no GPU read another's memory."""
        return self.name.startswith("RTX-") and self.name[4:].isdigit()


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuRankSpec(GpuSpec):
    """One core of a host that runs a training process on torch's ``cpu`` device, with gloo.

    Rates are what a rank keeps while every core of the host has one.
    """

    product_flops_per_s: float
    """Arithmetic of fp32 products, operands packed."""
    optimizer_bytes_per_s: float
    """Of ``torch.optim``'s loop over tensors that fit into ``l2_bytes``, pass by pass."""
    optimizer_far_bytes_per_s: float
    """The same over larger ones, as ZeRO's flat partitions."""
    dispatch_s: float
    """One eager operator, Python and autograd included."""
    gloo_latency_s: float
    """One step of a ring, or one message: Python, gloo's thread and the kernel's TCP."""
    gloo_bytes_per_s: float
    """Sent plus received by one rank over loopback, while it reduces or copies."""
    gloo_staging_bytes_per_s: float
    """Into and out of the buffer that torch's all-gather and reduce-scatter stage in."""
    gloo_fresh_bytes_per_s: float
    """The same above 32 MiB, where every page of the buffer is new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NicSpec(Spec):
    """One network interface."""

    kind: NicKind
    bytes_per_s: float
    latency_s: float
    """One way, port to port through one switch."""
    efficiency: float
    """Share of the line rate that large NCCL messages reach; of TCP, that several streams do."""
    rdma: bool
    baseline_bytes_per_s: float | None = None
    """Of a rate that is "up to": what is guaranteed once the credits above it are used up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpec(Spec):
    """One disk or volume."""

    kind: Literal["nvme", "ebs", "network", "hdd"]
    capacity_bytes: int
    read_bytes_per_s: float
    write_bytes_per_s: float
    read_iops: float
    write_iops: float
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStorageSpec(Spec):
    """A bucket service, as one client node sees it."""

    read_bytes_per_s_per_connection: float
    write_bytes_per_s_per_connection: float
    requests_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedStorageSpec(Spec):
    """A file system or bucket that all nodes write to: limits in all, of one node, of one stream.

    GPFS, Lustre, FSx, NFS: as its operator or a benchmark (IOR) says.
    """

    write_bytes_per_s: float = math.inf
    read_bytes_per_s: float = math.inf
    node_write_bytes_per_s: float = math.inf
    node_read_bytes_per_s: float = math.inf
    stream_write_bytes_per_s: float = math.inf
    stream_read_bytes_per_s: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSpec(Spec):
    """One host's processors together."""

    sockets: int
    cores: int
    memory_bytes_per_s: float
    """Sum over sockets, as STREAM triad measures."""
    flops_per_s: float
    """fp32 peak over all cores."""
    single_thread: float = 1.0
    """Speed of one thread that has its socket's turbo, over an EPYC 7742's."""
    core_memory_bytes_per_s: float = 20e9
    """What one core alone reads and writes of main memory, updating it in place."""
    threads_per_core: int = 1
    """That the operating system sees as CPUs, as ``NodeSpec.vcpus`` counts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec(Spec):
    """A host one can rent or buy: the instance type of a cluster file."""

    provider: str
    """aws, gcp, azure, generic."""
    vcpus: int
    memory_bytes: int
    cpu: CpuSpec
    gpu: GpuSpec | None = None
    gpu_count: int = 0
    gpu_fabric: Literal["nvswitch", "nvlink_mesh", "pcie"] | None = None
    """How the GPUs of one node reach each other."""
    nic: NicSpec
    nic_count: int = 1
    host_nic: NicSpec | None = None
    """The Ethernet NIC of TCP traffic (Ray, storage) where ``nic`` carries only the GPUs' RDMA."""
    disks: tuple[tuple[DiskSpec, int], ...] = ()
    """Instance storage and the default root volume, each with a count."""
    nvlink_domain: int = 0
    """GPUs in one NVLink domain when it spans hosts (72 for NVL72); 0: the node itself."""
    usd_per_hour: float | None = None
    """On-demand list price; None where it is not rented by the hour."""
    price_note: str = ""
    """Region and date of the price."""
