"""Reading and writing NVMe as DeepSpeed's asynchronous I/O does (``csrc/aio``, DeepNVMe).

Every rank of a node keeps ``queue_depth`` blocks in flight per thread on one striped volume that
they share. Not modelled: threads short of cores, alignment, GPUDirect Storage's shorter way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from raysim.hardware.specs import NodeSpec, Provenance

STRIPE_SHARE = 0.77
NEAR = "nvme"

PROVENANCE = {
    "stripe_share": Provenance(
        basis="measured",
        source="DeepNVMe on an Azure NC96ads A100 v4: 10 GB/s read of four SSDs of 3.25 GB/s each "
        "in RAID-0, as fio; DeepSpeed blog, 2024-08",
    ),
    "volume": Provenance(
        basis="assumed",
        source="nvme_path is on a stripe over all NVMe disks of the node, as DeepSpeed's own "
        "measurements have it; without NVMe disks, on its first disk",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """What ``nvme_path`` is on."""

    read_bytes_per_s: float
    write_bytes_per_s: float
    latency_s: float
    capacity_bytes: int


def nvme_volume(node: NodeSpec) -> Volume | None:
    """The node's NVMe disks as one stripe, else its first disk; None without disks."""
    near = [(disk, count) for disk, count in node.disks if disk.kind == NEAR]
    used = near or [(disk, 1) for disk, _ in node.disks[:1]]
    if not used:
        return None
    return Volume(
        read_bytes_per_s=sum(d.read_bytes_per_s * n for d, n in used),
        write_bytes_per_s=sum(d.write_bytes_per_s * n for d, n in used),
        latency_s=max(d.latency_s for d, _ in used),
        capacity_bytes=sum(d.capacity_bytes * n for d, n in used),
    )


def transfer_seconds(
    size_bytes: float,
    volume: Volume,
    kind: Literal["read", "write"],
    ranks_per_node: int,
    *,
    block_bytes: int,
    blocks: int,
) -> float:
    """Seconds until every rank of a node has moved ``size_bytes``, all at the same time.

    ``blocks`` of ``block_bytes`` are in flight per rank: ``queue_depth`` times the threads.
    """
    if size_bytes <= 0:
        return 0.0
    rate = volume.read_bytes_per_s if kind == "read" else volume.write_bytes_per_s
    in_flight = ranks_per_node * block_bytes * blocks / volume.latency_s
    return volume.latency_s + size_bytes * ranks_per_node / min(STRIPE_SHARE * rate, in_flight)
