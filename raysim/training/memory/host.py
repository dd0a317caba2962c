"""Main memory and disk of a node: its processes, and what offload keeps there, pinned or not.

Sources: ``deepspeed/runtime/zero/stage_1_and_2.py``, ``stage3.py``, ``runtime/swap_tensor``,
``ops/adam/cpu_adam.py`` of 0.19; torch's ``CachingHostAllocator.h``.

ZeRO-1/2 pin master weights, their gradients and low-precision staging, each in one piece. ZeRO-3
pins gradients in the master's type sub-group by sub-group, and low-precision ones and weights each
in one piece; its master weights are pageable, as are all moments. Buffers that pass data to NVMe
are locked by DeepSpeed itself, to the byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from raysim.hardware.specs import NodeSpec, Provenance
from raysim.models.table import COMPUTE_DTYPE_BYTES
from raysim.perf.nvme import nvme_volume
from raysim.training.layers.sections import Gradient
from raysim.training.plan import TrainingPlan
from raysim.training.states.optimizer import state_bytes_per_element
from raysim.training.states.swapping import aligned, place, smallest_swap_bytes, swapped_gradients
from raysim.training.states.zero import (
    flat_partition_numel,
    pinned_bytes,
    shard_numel,
)
from raysim.units import GIB

HOST_PROCESS_BYTES = 3 * GIB
PROVENANCE = {
    "host process": Provenance(
        basis="measured", source="BigScience chronicles: about 3 GB of host memory per GPU process"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Peak of the fullest node's main memory, and what its disk must hold."""

    peak_bytes: int
    capacity_bytes: int
    by_category: dict[str, int]
    disk_bytes: int = 0
    """Swapped to NVMe, over all ranks of the node."""
    disk_capacity_bytes: int = 0

    @property
    def in_memory(self) -> bool:
        """Whether main memory is enough."""
        return self.peak_bytes <= self.capacity_bytes

    @property
    def on_disk(self) -> bool:
        """Whether the disk is."""
        return self.disk_bytes <= self.disk_capacity_bytes

    @property
    def fits(self) -> bool:
        """Whether both are."""
        return self.in_memory and self.on_disk

    def holding(self, category: str, size_bytes: int) -> HostMemory:
        """The same with something more in memory."""
        by_category = self.by_category | ({category: size_bytes} if size_bytes else {})
        peak_bytes = self.peak_bytes + size_bytes
        return replace(self, peak_bytes=peak_bytes, by_category=by_category)


def _fsdp_host(plan: TrainingPlan, numel: int, stored: int, ranks_per_node: int) -> dict[str, int]:
    """Shards, their gradients and the optimizer's states, which torch's offload keeps together.

    Simplification: shards of parameters are pinned one by one; rounding each up is left out.
    """
    width, ranks = COMPUTE_DTYPE_BYTES[plan.precision], plan.fsdp.shard_ranks(plan.mesh.dp)
    own, kept = (-(-n // ranks) * ranks_per_node * width for n in (numel, stored))
    states = state_bytes_per_element(plan) / 4
    return {"parameter": kept, "gradient": own, "optimizer_state": round(own * states)}


def host_memory(
    plan: TrainingPlan,
    numel: int,
    stored: int,
    node: NodeSpec,
    ranks_per_node: int,
    sizes: Sequence[int] = (),
    experts: Mapping[int, int] = MappingProxyType({}),
) -> HostMemory:
    """Main memory and disk space per node.

    Parameters
    ----------
    numel, stored
        Trainable and stored parameter elements of one pipeline stage's shard.
    sizes
        Elements of each trainable parameter; (): one flat lump, cut at ``sub_group_size``.
    experts
        Of ``numel``, elements of experts that are flattened apart (``moe_groups``), by how many
        ranks share their mixture.
    """
    zero = plan.zero
    by_category = {"process": float(HOST_PROCESS_BYTES)}
    disk = 0.0
    if zero.stage == 3:
        held = _Zero3(plan, numel, stored, sizes)
        by_category |= held.memory()
        disk = held.disk_bytes()
    elif zero.stage and zero.offload_optimizer.device != "none":
        by_category |= _zero12(plan, numel, max(sizes, default=0), experts)
    each = {k: round(v) * ranks_per_node for k, v in by_category.items() if v}
    if plan.engine == "fsdp" and plan.fsdp.cpu_offload:
        each |= _fsdp_host(plan, numel, stored, ranks_per_node)
    volume = nvme_volume(node)
    return HostMemory(
        peak_bytes=sum(each.values()),
        capacity_bytes=node.memory_bytes,
        by_category=each,
        disk_bytes=round(disk) * ranks_per_node,
        disk_capacity_bytes=volume.capacity_bytes if volume is not None else 0,
    )


def _zero12(
    plan: TrainingPlan, numel: int, largest: int, experts: Mapping[int, int]
) -> dict[str, float]:
    """Of one rank: its slice in one piece; gradients summed over micro-batches, and one in transit.

    Simplification: sums are pinned parameter by parameter; rounding each up is left out.
    """
    ranks = plan.mesh.weight_ranks
    parts = [flat_partition_numel(numel - sum(experts.values()), ranks)]
    parts += [flat_partition_numel(n, ranks // among) for among, n in experts.items()]
    own = sum(parts)
    low = COMPUTE_DTYPE_BYTES[plan.precision]
    whole = pinned_bytes if plan.zero.offload_optimizer.pin_memory else float
    staging = sum(whole(n * low) for n in parts) if plan.precision != "fp32" else 0.0
    masters = sum(whole(n * 4.0) for n in parts)
    return {
        "optimizer_state": 2 * masters + staging + own * state_bytes_per_element(plan),
        "gradient": whole(largest * low) + plan.sums_on_host * own * low,
    }


class _Zero3:
    """What one rank of stage 3 keeps outside its GPU."""

    def __init__(self, plan: TrainingPlan, numel: int, stored: int, sizes: Sequence[int]) -> None:
        self.plan = plan
        self.zero = plan.zero
        self.ranks = plan.zero.shard_ranks(plan.mesh.weight_ranks)
        self.low = COMPUTE_DTYPE_BYTES[plan.precision]
        self.master = 2.0 if plan.bf16_master_weights_and_grads else 4.0
        states = state_bytes_per_element(plan)
        self.states = states / 2 if plan.bf16_optimizer_states else states
        self.stored = shard_numel(stored, self.ranks)
        self.groups = place(
            self._shards(numel, sizes), self.zero, low_bytes=self.low, master_bytes=self.master
        )
        self.own = sum(g.numel for g in self.groups)

    def _shards(self, numel: int, sizes: Sequence[int]) -> list[Gradient]:
        if not sizes:
            own = flat_partition_numel(numel, self.ranks)
            step = min(self.zero.sub_group_size, own) or 1
            parts = [min(step, own - at) for at in range(0, own, step)]
        else:
            parts = [shard_numel(size, self.ranks) for size in sizes]
        return [Gradient(str(i), part) for i, part in enumerate(parts)]

    def memory(self) -> dict[str, float]:
        """Bytes by category."""
        found = {}
        if self.zero.offload_optimizer.device != "none" and self.own:
            found["optimizer_state"] = self._optimizer()
        if self.zero.offload_param.device != "none" and self.own:
            found["parameter"] = self._weights()
        if self.zero.swaps and self.own:
            found["swap_buffer"] = self._buffers()
        return found

    def _optimizer(self) -> float:
        pinned = pinned_bytes if self.zero.offload_optimizer.pin_memory else float
        accum = COMPUTE_DTYPE_BYTES[self.plan.grad_accum_dtype or self.plan.precision]
        here = [g.numel for g in self.groups if not g.on_gpu and not g.swapped]
        pageable = sum(here) * (self.master + self.states)
        if self.zero.offload_optimizer.super_offload and here:
            # Gradients in shared memory, beside pinned ones that torch caches; the other's buffer.
            shared = sum(here) * self.master if pinned is pinned_bytes else 0.0
            pageable += shared + pinned(4.0 * max(here))
        return pageable + sum(pinned(n * self.master) for n in here) + pinned(self.own * accum)

    def _weights(self) -> float:
        """Shards are pinned one by one, then moved into one flat buffer, which is always pinned.

        Torch caches the first ones and never gives them back. Frozen weights are not moved.
        """
        offload = self.zero.offload_param
        pinned = pinned_bytes if offload.pin_memory else float
        swaps = offload.device == "nvme"
        room = min(self.own, offload.max_in_cpu) if swaps else self.own
        least = smallest_swap_bytes(self.zero)
        here = [s.numel * self.low for g in self.groups for s in g.shards]
        if swaps:
            here = [size for size in here if size < least]
        cached = sum(pinned(size) for size in here) if offload.pin_memory else 0.0
        frozen = max(0, self.stored - self.own) * self.low
        return pinned_bytes(room * self.low) + cached + frozen + self._second(pinned)

    def _second(self, pinned: Callable[[float], float]) -> float:
        """hpZ's second shards, which live where the first do."""
        hpz = min(self.zero.zero_hpz_partition_size, self.ranks)
        if hpz <= 1:
            return 0.0
        shards = (s.numel * self.ranks // hpz for g in self.groups for s in g.shards)
        return sum(pinned(numel * self.low) for numel in shards)

    def _buffers(self) -> float:
        """What passes tensors to NVMe and back."""
        zero, optimizer, param = self.zero, self.zero.offload_optimizer, self.zero.offload_param
        total = 0.0
        if optimizer.device == "nvme":
            largest = max(g.numel for g in self.groups)
            total += optimizer.buffer_count * aligned(largest, self.master, zero)
        if param.device == "nvme":
            total += param.buffer_count * aligned(param.buffer_size, self.low, zero)
            if any(not g.flat_in_host for g in self.groups):
                fullest = max(self.groups, key=lambda g: g.numel)
                total += sum(aligned(s.numel, self.low, zero) for s in fullest.shards)
        return total

    def disk_bytes(self) -> float:
        """Files of this rank; weights are written when partitioned, wherever they go later."""
        zero, least = self.zero, smallest_swap_bytes(self.zero)
        tensors = 1 + round(self.states / self.master)
        total = 0.0
        for group in self.groups:
            if group.swapped:
                total += tensors * aligned(group.numel, self.master, zero)
                total += swapped_gradients(group, zero, self.master)
            if zero.offload_param.device == "nvme":
                sizes = (s.numel for s in group.shards if s.numel * self.low >= least)
                total += sum(aligned(n, self.low, zero) for n in sizes)
        return total
