"""Electric power of a node, from what its GPUs and cores do.

Cores and memory by Cloud Carbon Footprint's coefficients, GPUs between idle and their TDP, fans,
switches and conversion as a share of the GPUs' TDP. Two constants rest on one machine, an 8-GPU
H100 HGX (Latif et al., arXiv:2412.08602; Newkirk et al., arXiv:2506.14551): 8.48 kW at most, with
GPUs at their limit, and 76 % of 10.2 kW when training. Not modelled: power caps, clocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from raysim.hardware.specs import NodeSpec

GPU_IDLE = 0.15
"""Of TDP, assumed: 60 W of an A100's 400, 105 of an H100's 700."""
GPU_COMPUTING = 0.92
"""Of TDP while kernels run, so that an H100 HGX in training takes 7.75 kW."""
GPU_COMMUNICATING = 0.5
"""Of TDP while only collectives run, assumed: half-way, as power falls between computing phases."""
HOST_SHARE = 0.26
"""Fans, NVSwitches, NICs and conversion, over the GPUs' TDP: what is left of the HGX's 8.48 kW."""
MEMORY_W_PER_GB = 0.392
"""Cloud Carbon Footprint, methodology."""
VCPU_W: Mapping[str, tuple[float, float]] = {
    "aws": (0.74, 3.5), "gcp": (0.71, 4.26), "azure": (0.78, 3.76),
}  # fmt: skip
"""Idle and full, by provider: Cloud Carbon Footprint, methodology; others as AWS."""
PUE: Mapping[str, float] = {"aws": 1.135, "gcp": 1.1, "azure": 1.185}
"""Power usage effectiveness by provider: Cloud Carbon Footprint, methodology."""
PUE_ELSEWHERE = 1.56
"""Average of data centers, Uptime Institute's Global Data Center Survey 2024."""
GB = 1e9


class Activity(NamedTuple):
    """Shares of time."""

    computing: float = 0.0
    """Of a GPU: kernels run."""
    communicating: float = 0.0
    """Of a GPU: only collectives run."""
    cores: float = 0.5
    """Of the cores: busy; by default as hyperscale servers on average (US Data Center Energy Usage
    Report 2016)."""


def node_w(node: NodeSpec, does: Activity) -> float:
    """Watts of a node on average, without cooling."""
    idle, full = VCPU_W.get(node.provider, VCPU_W["aws"])
    cores = node.vcpus * (idle + does.cores * (full - idle))
    memory = node.memory_bytes / GB * MEMORY_W_PER_GB
    if node.gpu is None:
        return cores + memory
    gpus_w = node.gpu.tdp_w * node.gpu_count
    waits = max(0.0, 1 - does.computing - does.communicating)
    share = does.computing * GPU_COMPUTING + does.communicating * GPU_COMMUNICATING
    return cores + memory + gpus_w * (share + waits * GPU_IDLE + HOST_SHARE)


def usual_pue(node: NodeSpec) -> float:
    """Power of the building over that of its machines."""
    return PUE.get(node.provider, PUE_ELSEWHERE)
