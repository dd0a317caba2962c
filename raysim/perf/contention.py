"""What a collective takes from compute that runs beside it: streaming multiprocessors (SMs).

NCCL's kernel has one block per channel and a block holds its SM until the collective ends, so a
product beside it has the rest. Its time grows by :func:`compute_slowdown` when it has many waves
of tiles; one that fills all SMs exactly once needs a second wave and up to twice the time (NVIDIA
developer forum 337991: 132 tiles beside an all-gather of 24 blocks on H100).

Not modelled: memory bandwidth that NCCL's copies take, clocks that fall with power, NCCL's copy
engine collectives, NCCL_MIN_CTAS and NCCL_MAX_CTAS.
"""

from __future__ import annotations

from raysim.hardware.specs import CpuRankSpec
from raysim.perf.collectives import GroupShape
from raysim.perf.nccl import Algorithm

_ONE_NODE = {"nvswitch": 24, "nvlink_mesh": 12, "pcie": 4}
"""Ring channels inside a node: 24 blocks on H100 (developer forum 337991, 339078), two per NVLink
on A100 (12 links) and V100 (6), two PCIe rings, doubled (``ncclTopoPostset``)."""
_NVLS = {"hopper": (16, 16), "blackwell": (24, 32)}
"""NVLS channels on one node and on more: ``NVLS_NCHANNELS_*`` of ``src/transport/nvls.cc``."""
_P2P = 16
"""Of a message between two ranks below 256 MiB (``addP2pToPlan``); more beyond."""
_MOST = 32
_HOPPER_LEAST = 16


_PERSISTENT = ("hopper", "blackwell")
"""Where cuBLAS runs persistent products: one block per SM, each with its share of the tiles."""


def hides_exchanges(architecture: str) -> bool:
    """Whether a product gains by running beside a collective that was issued before it.

    Persistent products do not: the blocks that find NCCL's on their SM start, with their whole
    share of the tiles, only when the collective ends, so that the two times add (developer forum
    337991 shows it at one wave; assumed for all).
    """
    return architecture not in _PERSISTENT


def channels(group: GroupShape, algorithm: Algorithm) -> int:
    """Channels, and so SMs, that NCCL 2.29 uses for large messages by default."""
    if group.ranks <= 1:
        return 0
    if algorithm in ("nvls", "nvls_tree"):
        return _NVLS.get(group.architecture, (16, 16))[group.nodes > 1]
    if algorithm == "p2p":
        return _P2P if group.fabric != "pcie" or group.nodes > 1 else 2
    if group.nodes == 1:
        return _ONE_NODE[group.fabric]
    # One ring per NIC, each of them twice; from Hopper on four times where that is below 16.
    rings = 2 * max(1, round(group.inter_bytes_per_s / group.nic.bytes_per_s))
    if group.architecture in ("hopper", "blackwell") and rings < _HOPPER_LEAST:
        rings *= 2
    return min(rings, _MOST)


def held_share(group: GroupShape, algorithm: Algorithm) -> float:
    """Of the GPU's SMs, those that NCCL's blocks hold while ``algorithm`` runs over ``group``."""
    if isinstance(group.gpu, CpuRankSpec):  # gloo's cost is its ranks' own
        return 0.0
    sms = group.gpu.sm_count
    return min(channels(group, algorithm), sms - 1) / sms


def compute_slowdown(group: GroupShape, algorithm: Algorithm) -> float:
    """Factor on the time of products of many waves while ``algorithm`` runs over ``group``.

    1.14 to 1.22 on H100; measured trainings show less, 1.05 to 1.15 over a whole step, as only a
    part of it has a collective beside it.
    """
    return 1.0 / (1.0 - held_share(group, algorithm))
