"""Seconds of a batch norm in training on a GPU, by type, memory format and channels.

torch gives bf16 to kernels of its own and all else to cuDNN (``_select_batch_norm_backend``). Where
positions of a channel lie together, one thread block takes a channel, so that few channels leave
most of the GPU idle, and time is a channel's elements over what a block gets through. Channels
last, and with many channels, traffic decides: forward reads twice and writes; backward reads both
tensors twice and writes.

Not modelled: kernels that keep a channel in registers (small ones), SyncBatchNorm, evaluation.
"""

from __future__ import annotations

from typing import NamedTuple

from raysim.hardware.specs import Provenance
from raysim.models.table import COMPUTE_DTYPE_BYTES, Operator
from raysim.perf.constants import MEASURED, GpuConstants

FORWARD_PASSES, BACKWARD_PASSES = 3, 5
"""Over tensors of the input's size."""


class Kernels(NamedTuple):
    """What one implementation reaches."""

    forward_share: float
    """Of the datasheet's bandwidth."""
    backward_share: float
    forward_block_per_s: float
    """Elements of its channel that a thread block gets through."""
    backward_block_per_s: float


NEVER = float("inf")
CUDNN_FIRST = Kernels(0.76, 0.76, 1.6e9, 0.62e9)
"""fp32, 64 to 2,048 channels of ResNet-50."""
CUDNN_LAST = Kernels(0.76, 0.90, NEVER, NEVER)
"""fp16, the same."""
NATIVE_FIRST = Kernels(0.37, 0.48, 0.80e9, 0.48e9)
"""bf16, the same; forward is two kernels, of which one alone takes channels by blocks."""
NATIVE_LAST = Kernels(0.41, 0.74, NEVER, NEVER)
"""bf16, 768 channels of SegFormer's head."""
BLOCKS_PER_SM = 4
"""Of 512 threads."""
SOURCE = Provenance(
    basis="measured",
    source="batch norms of torch and cuDNN in steps of ResNet-50 and SegFormer on H100: shares of "
    f"bandwidth, and a channel's elements per block ({MEASURED}/script_operators.json); on others "
    "assumed",
)


def batch_norm_s(
    c: GpuConstants, op: Operator, batch: float, dtype: str, *, backward: bool
) -> float:
    """GPU seconds of one pass over a batch in ``dtype``."""
    norm = op.batch_norm
    assert norm is not None, "a batch norm without its shape"
    c.provenance["batch_norm"] = SOURCE
    if dtype == "bf16":
        k = NATIVE_LAST if norm.channels_last else NATIVE_FIRST
    else:
        k = CUDNN_LAST if norm.channels_last else CUDNN_FIRST
    share, block = k.forward_share, k.forward_block_per_s
    if backward:
        share, block = k.backward_share, k.backward_block_per_s
    elements = op.output * batch
    passes = BACKWARD_PASSES if backward else FORWARD_PASSES
    traffic = passes * elements * COMPUTE_DTYPE_BYTES[dtype] / (c.gpu.memory_bytes_per_s * share)
    waves = max(1.0, norm.channels / (BLOCKS_PER_SM * c.gpu.sm_count))
    return c.kernel_floor_s + max(traffic, waves * elements / norm.channels / block)
