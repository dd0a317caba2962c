"""Where ZeRO-3 keeps and steps each sub-group: GPU, host or NVMe; what is swapped, through what.

Sources: ``deepspeed/runtime/zero/stage3.py`` (``_create_fp32_partitions``,
``_create_param_groups_fp16_flat_cpu_memory``), ``runtime/swap_tensor`` of 0.19. Pure functions.

Simplifications: the optimizer has one group of parameters. A swapped sub-group steps on the CPU
whatever ``ratio`` says. Gradients split at the I/O's alignment are counted whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from raysim.errors import ScenarioError
from raysim.training.layers.sections import Gradient
from raysim.training.settings.deepspeed import ZeroConfig
from raysim.training.states.zero import sub_groups

MIN_AIO_BYTES = 1024**2
ALIGNED_BYTES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SubGroup:
    """A tile of the optimizer step: shards of parameters in a row."""

    shards: tuple[Gradient, ...]
    """``numel`` counts this rank's elements."""
    on_gpu: bool
    """Its master weights and states are on the GPU, which steps them."""
    swapped: bool
    """They are on NVMe between steps."""
    swapped_parameters: tuple[Gradient, ...] = ()
    """Shards whose low-precision weights are on NVMe."""
    flat_in_host: bool = True
    """Its offloaded low-precision weights have a place in the host's flat buffer."""

    @property
    def numel(self) -> int:
        """Elements on this rank."""
        return sum(s.numel for s in self.shards)


def smallest_swap_bytes(zero: ZeroConfig) -> int:
    """Tensors below this stay in memory."""
    return max(MIN_AIO_BYTES, zero.aio.block_size)


def aligned(numel: int, width: float, zero: ZeroConfig) -> float:
    """Bytes on disk, or of a buffer, for ``numel`` elements."""
    unit = ALIGNED_BYTES * zero.aio.intra_op_parallelism
    return -(-numel * width // unit) * unit


def place(
    shards: Iterable[Gradient], zero: ZeroConfig, *, low_bytes: float, master_bytes: float
) -> tuple[SubGroup, ...]:
    """Sub-groups of this rank's shards, in the order they step."""
    groups = sub_groups(shards, zero.sub_group_size)
    offload, least = zero.offload_optimizer, smallest_swap_bytes(zero)
    # Twin-Flow's line: ``i >= int((1 - ratio) * n)`` steps on the CPU.
    on_gpu = len(groups) if offload.device == "none" else int((1 - offload.ratio) * len(groups))
    total = sum(s.numel for group in groups for s in group)
    room = total if total <= zero.offload_param.max_in_cpu else zero.offload_param.max_in_cpu
    placed, end = [], 0
    for i, group in enumerate(groups):
        numel = sum(s.numel for s in group)
        end += numel
        swapped = offload.device == "nvme" and numel * master_bytes >= least
        in_host = zero.offload_param.device != "nvme" or end <= room
        placed.append(
            SubGroup(
                shards=tuple(group),
                on_gpu=i < on_gpu and not swapped,
                swapped=swapped,
                flat_in_host=in_host,
                swapped_parameters=()
                if in_host
                else tuple(s for s in group if s.numel * low_bytes >= least),
            )
        )
    return tuple(placed)


def swapped_gradients(group: SubGroup, zero: ZeroConfig, master_bytes: float) -> float:
    """Bytes of a swapped sub-group's gradients that go to NVMe; the small ones stay on the GPU."""
    least = smallest_swap_bytes(zero)
    return sum(s.numel * master_bytes for s in group.shards if s.numel * master_bytes >= least)


def buffers_needed(groups: Iterable[SubGroup], zero: ZeroConfig, tensors: int) -> int:
    """Pinned buffers in use at once: master weights, states (``tensors``) and gradients of each.

    While one sub-group steps, the next may be read and the last written
    (``pipelined_optimizer_swapper.py``).
    """
    swapped = sum(g.swapped for g in groups)
    offload = zero.offload_optimizer
    at_once = 1 + offload.pipeline_read + offload.pipeline_write
    return (tensors + 1) * min(swapped, at_once)


def check_swapping(groups: Iterable[SubGroup], zero: ZeroConfig, tensors: int) -> None:
    """Refuse what DeepSpeed's swappers assert at the first step.

    Raises
    ------
    ScenarioError
        Too few buffers for the optimizer, or a parameter's shard beyond a buffer.
    """
    groups = tuple(groups)
    need, given = buffers_needed(groups, zero, tensors), zero.offload_optimizer.buffer_count
    if zero.offload_optimizer.device == "nvme" and need > given:
        raise ScenarioError(
            f"offload_optimizer.buffer_count: {given} swap buffers, the step needs {need} "
            f"({tensors + 1} per sub-group in flight); DeepSpeed's swapper runs out of them. "
            "Increase buffer_count, or turn pipeline_read and pipeline_write off"
        )
    room = zero.offload_param.buffer_size
    largest = max((s.numel for g in groups for s in g.swapped_parameters), default=0)
    if largest > room:
        raise ScenarioError(
            f"offload_param.buffer_size: a shard of {largest:,} elements exceeds the buffer's "
            f"{room:,}; DeepSpeed asserts that it fits. Increase buffer_size"
        )
