"""Made-up hardware with round numbers, so that expected values can be worked out by hand."""

from __future__ import annotations

from typing import Any

from raysim.hardware.cluster import ClusterSpec, FabricSpec, NodeGroup
from raysim.hardware.specs import CpuSpec, DiskSpec, GpuSpec, NicSpec, NodeSpec, ObjectStorageSpec

GB = 1e9


def gpu(**changes: Any) -> GpuSpec:
    values: dict[str, Any] = {
        "name": "gpu", "architecture": "other", "compute_capability": 9.0, "sm_count": 100,
        "memory_bytes": 80 * 2**30, "memory_bytes_per_s": 3e12, "l2_bytes": 2**25,
        "flops_per_s": {"bf16": 1e15}, "scale_up": "nvlink", "scale_up_generation": 4,
        "scale_up_links": 8, "scale_up_bytes_per_s": 500 * GB, "pcie_generation": 5,
        "pcie_bytes_per_s": 60 * GB, "context_bytes": 2**29, "tdp_w": 700.0,
    }  # fmt: skip
    return GpuSpec(**(values | changes))


def nic(**changes: Any) -> NicSpec:
    values: dict[str, Any] = {
        "name": "nic", "kind": "infiniband", "bytes_per_s": 50 * GB, "latency_s": 2e-6,
        "efficiency": 1.0, "rdma": True,
    }  # fmt: skip
    return NicSpec(**(values | changes))


def disk(**changes: Any) -> DiskSpec:
    values: dict[str, Any] = {
        "name": "disk", "kind": "nvme", "capacity_bytes": 10**12, "read_bytes_per_s": 2 * GB,
        "write_bytes_per_s": GB, "read_iops": 1e5, "write_iops": 1e4, "latency_s": 1e-4,
    }  # fmt: skip
    return DiskSpec(**(values | changes))


def bucket(**changes: Any) -> ObjectStorageSpec:
    values: dict[str, Any] = {
        "name": "bucket", "read_bytes_per_s_per_connection": 0.1 * GB,
        "write_bytes_per_s_per_connection": 0.05 * GB, "requests_per_s": 1000.0, "latency_s": 0.02,
    }  # fmt: skip
    return ObjectStorageSpec(**(values | changes))


def node(**changes: Any) -> NodeSpec:
    """Eight GPUs on NVSwitch, eight NICs, two sockets; ports carry 400 GB/s after the 0.8 share."""
    cpu = CpuSpec(name="cpu", sockets=2, cores=64, memory_bytes_per_s=400 * GB, flops_per_s=4e12)
    values: dict[str, Any] = {
        "name": "box", "provider": "generic", "vcpus": 128, "memory_bytes": 2**41, "cpu": cpu,
        "gpu": gpu(), "gpu_count": 8, "gpu_fabric": "nvswitch", "nic": nic(), "nic_count": 8,
        "disks": ((disk(), 2),),
    }  # fmt: skip
    return NodeSpec(**(values | changes))


def bare_node(**changes: Any) -> NodeSpec:
    """No GPUs, one 10 GB/s Ethernet port."""
    wire = nic(kind="ethernet", bytes_per_s=10 * GB, latency_s=2e-5, rdma=False)
    plain: dict[str, Any] = {
        "name": "bare", "gpu": None, "gpu_count": 0, "gpu_fabric": None, "nic": wire,
        "nic_count": 1,
    }  # fmt: skip
    return node(**(plain | changes))


def cluster(
    count: int = 2, *, of: NodeSpec | None = None, bare: int = 0, **fabric: Any
) -> ClusterSpec:
    groups = [NodeGroup(name="gpu", node=of or node(), count=count)]
    if bare:
        groups.append(NodeGroup(name="cpu", node=bare_node(), count=bare))
    return ClusterSpec(groups=tuple(groups), fabric=FabricSpec(**fabric))
