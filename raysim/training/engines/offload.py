"""The optimizer step on the host: norm, unscale, DeepSpeedCPUAdam, cast, copy back.

Sources: ``deepspeed/runtime/zero/stage_1_and_2.py`` and ``stage3.py`` of 0.19 (offload branches),
``csrc/adam/cpu_adam_impl.cpp``. All ranks of a node share its memory bandwidth, and each has the
threads that its launcher left it; the GPU idles, but for the sub-groups that Twin-Flow (``ratio``)
leaves to it.
"""

from __future__ import annotations

from collections.abc import Sequence

from raysim.perf.host import fresh_pages_seconds
from raysim.training.engines.context import FLAG_BYTES, EngineContext
from raysim.training.engines.superoffload import AdamProcess
from raysim.training.engines.swapper import Disk, OptimizerSwapper, ParameterSwapper
from raysim.training.layers.sections import Gradient
from raysim.training.program import CPU, D2H, H2D
from raysim.training.states.swapping import SubGroup, smallest_swap_bytes


def cpu_step(c: EngineContext, own: int, *, update_gpu: bool, overflow: bool) -> None:
    """Step ``own`` elements on the CPU after their gradients arrived; copy weights to the GPU."""
    b = c.builder
    arrived = (*b.last_on("d2h"), *b.last_on("compute"))
    if arrived:
        b.sync("wait for gradients", arrived)
    passes = c.host_pass_s(3 * 4.0 * own)
    b.background("norm and unscale on CPU", CPU, "offload", passes)
    if overflow:
        c.scalar_all_reduce("overflow", FLAG_BYTES)
    c.scalar_all_reduce("gradient norm", groups=["dp"] * len(c.flat_groups))
    c.average_expert_norms()
    seconds = _adam_s(c, own)
    adam = b.background("DeepSpeedCPUAdam", CPU, "offload", seconds, b.last_on(CPU))
    b.sync("wait for CPU Adam", (adam,))
    if update_gpu:
        back = c.copy_s(
            own * float(c.weight_bytes), "h2d", pinned=c.plan.zero.offload_optimizer.pin_memory
        )
        done = b.copy("weights to GPU", H2D, back, (adam,))
        b.compute("weights arrived", "copy", 0.0, launches=0, waits=(done,))


class GradientsToHost:
    """ZeRO-3's gradient shards on their way to the host (``partition_grads``).

    They accumulate in a host buffer, but are added on the GPU; at the boundary their sums go, in
    the master's type, to whoever steps them: host, NVMe or, by Twin-Flow, the GPU itself.
    """

    def __init__(
        self, c: EngineContext, disk: Disk, groups: Sequence[SubGroup], accum_bytes: int,
        process: AdamProcess,
    ) -> None:  # fmt: skip
        self.c, self.process = c, process
        self.disk = disk
        self.accum_bytes = accum_bytes
        self.pinned = c.plan.zero.offload_optimizer.pin_memory
        self.least = smallest_swap_bytes(c.plan.zero)
        self.group_of = {s.name: (group, s.numel) for group in groups for s in group.shards}
        self.kept = 0.0
        """Bytes of gradients too small for NVMe, which stay on the GPU until the step."""

    def accumulate(
        self, bucket: Sequence[Gradient], ready: int, own: int, *, boundary: bool
    ) -> int:
        """Add a bucket's ``own`` elements into the host's buffer; returns the last operation.

        There and back: the first micro-batch's are copied down and up again, later ones added to
        what comes up. Both are one stream's work here, in whose order they run.
        """
        c = self.c
        size = own * float(self.accum_bytes)
        seconds = sum(c.copy_s(size, kind, pinned=self.pinned) for kind in ("d2h", "h2d"))
        done = c.builder.copy("gradients to host and back", D2H, seconds, (ready,))
        return self._deliver(bucket, done) if boundary else done

    def _deliver(self, bucket: Sequence[Gradient], ready: int) -> int:
        """The boundary's second copy, in the master's type."""
        c, b = self.c, self.c.builder
        width = c.master_bytes
        host = disk = kept = 0.0
        for gradient in bucket:
            group, numel = self.group_of[gradient.name]
            if group.swapped and numel * width >= self.least:
                disk += numel * width
            elif group.swapped:
                kept += numel * width
            elif not group.on_gpu:
                host += numel * width
        if kept:
            b.alloc("gradient", kept, "gradients kept from NVMe")
            self.kept += kept
        if host:
            pinned = self.pinned and not self.process.on
            seconds = c.copy_s(host, "d2h", pinned=pinned)
            ready = b.copy("gradients to host", D2H, seconds, (ready,))
        self.process.arrived([self.group_of[g.name][0] for g in bucket], ready)
        if disk:
            copied = b.copy("gradients to host", D2H, c.copy_s(disk, "d2h"), (ready,))
            b.sync("gradients in swap buffers", (copied,))
            self.disk.write("gradients", disk, (copied,))
            ready = copied
        return ready

    def forget(self) -> None:
        """The step is done."""
        self.c.builder.free("gradient", self.kept, "gradients kept from NVMe")
        self.kept = 0.0


def step_sub_groups(
    c: EngineContext,
    groups: Sequence[SubGroup],
    states: OptimizerSwapper,
    weights: ParameterSwapper,
    process: AdamProcess,
    norm_group: str,
    *,
    update_gpu: bool,
) -> None:
    """ZeRO-3's step with an offloaded optimizer, sub-group by sub-group (``stage3.py``, ``step``).

    Norms were taken on the GPU at the boundary. ``update_gpu``: the updated weights go to the GPU;
    ``copy_`` casts them on the host, into new memory, which is not pinned.
    """
    b = c.builder
    arrived = (*b.last_on(D2H), *b.last_on("compute"))
    if arrived:
        b.sync("wait for gradients", arrived)
    process.wait_for_all()
    if c.plan.precision == "fp16":
        c.scalar_all_reduce("overflow", FLAG_BYTES)
    for _ in groups:
        c.scalar_all_reduce("gradient norm", groups=[norm_group])
    for i, group in enumerate(groups):
        if group.on_gpu:
            _step_on_gpu(c, group.numel, update_gpu=update_gpu)
            weights.write_back(group)
            continue
        if group.swapped:
            states.swap_in(i)
        _step_on_cpu(c, group.numel, process, update_gpu=update_gpu)
        weights.write_back(group)
        if group.swapped:
            states.swap_out(i)


def _step_on_gpu(c: EngineContext, numel: int, *, update_gpu: bool) -> None:
    """Twin-Flow's share: torch's AdamW, not fused, on master weights that never left the GPU."""
    b, low = c.builder, numel * float(c.weight_bytes)
    width = c.master_bytes
    b.compute("unscale", "optimizer", c.costs.memory_s(2.0 * numel * width))
    c.optimizer_step(numel, low_precision_copy=False, fused=False)
    cast = b.compute("cast", "optimizer", c.costs.memory_s(numel * width + low))
    if not update_gpu:
        done = b.copy("weights to host", D2H, c.copy_s(low, "d2h"), (cast,))
        b.sync("weights to host", (done,))


def _step_on_cpu(c: EngineContext, numel: int, process: AdamProcess, *, update_gpu: bool) -> None:
    b = c.builder
    passes = c.costs.host_pass_s(2 * 4.0 * numel, c.cpu, c.ranks_per_node, process.rest)
    done = b.background("unscale on CPU", CPU, "offload", passes)
    if process.early:
        b.sync("unscale on CPU", (done,))
    elif process.on:
        b.sync("unscale on CPU", (done,))
        done = process.step(numel)
    else:
        done = b.background("DeepSpeedCPUAdam", CPU, "offload", _adam_s(c, numel))
        b.sync("wait for CPU Adam", (done,))
    if update_gpu:
        low = numel * float(c.weight_bytes)
        if c.plan.precision != "fp32":
            fresh = fresh_pages_seconds(low, process.rest.cores(c.cpu, c.ranks_per_node))
            pages = b.background("cast to new memory", CPU, "offload", fresh)
            b.sync("cast to new memory", (pages,))
        done = b.copy("weights to GPU", H2D, c.copy_s(low, "h2d", pinned=False), (done,))
        b.sync("weights to GPU", (done,))


def _adam_s(c: EngineContext, numel: int) -> float:
    return c.costs.cpu_adam_s(numel, c.cpu, c.ranks_per_node, c.plan.host_pool)
