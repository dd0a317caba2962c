"""SuperOffload: ZeRO-3's Adam in a process of its own beside each rank, which keeps other cores.

Sources: ``deepspeed/runtime/superoffload`` of 0.19 (``partition_grads``, ``_step_with_clipping``,
``superoffload_optimizer_worker``). Without gradient clipping a sub-group is stepped as soon as its
last gradient is on the host, while backward goes on; with clipping (DeepSpeed's default) in turns,
behind it. The process copies gradients into a buffer of its own first. A queue moves what it is
given into shared memory, which is not pinned: from then on gradients are copied to pageable memory.

Not modelled: CUDA contexts of those processes, rolling back after an overflow of fp16.
"""

from __future__ import annotations

from collections.abc import Iterable

from raysim.perf.host import HostPool
from raysim.training.engines.context import EngineContext
from raysim.training.program import CPU
from raysim.training.states.swapping import SubGroup

POLL_S = 1e-3 / 2
"""The rank asks for a result every millisecond: it comes, on average, half of one earlier."""
_PASS_BYTES = 2 * 4.0
"""Of one element, read and written in fp32."""


class AdamProcess:
    """What one rank's does; it is not there unless ``super_offload`` asks for it."""

    def __init__(self, c: EngineContext) -> None:
        offload = c.plan.zero.offload_optimizer
        self.c = c
        self.on = offload.device == "cpu" and offload.super_offload
        self.early = self.on and not c.plan.gradient_clipping
        """Whether it steps during backward."""
        self.share = offload.cpuadam_cores_perc if self.on else 0.0
        self.left: dict[int, int] = {}
        """Shards that have yet to come, by sub-group."""
        self.under_way: list[int] = []

    def pool(self, share: float) -> HostPool:
        """Threads on a share of the node's cores, which the same processes of all ranks share."""
        c, whole = self.c, self.c.plan.host_pool
        if not self.on:
            return whole
        most = max(1, int(share * c.cpu.cores / c.ranks_per_node))
        return HostPool(threads=min(whole.threads or most, most), bound=whole.bound)

    @property
    def rest(self) -> HostPool:
        """The rank's own threads."""
        return self.pool(1 - self.share)

    def arrived(self, groups: Iterable[SubGroup], last: int) -> None:
        """A shard of each of these is on its way to the host, by operation ``last``."""
        whole = []
        for group in groups if self.early else ():
            key = id(group)
            self.left[key] = self.left.get(key, len(group.shards)) - 1
            if not self.left[key] and not group.on_gpu:
                whole.append(group)
        if whole:
            self.c.builder.sync("gradients of a sub-group", (last,))
        self.under_way += [self._step(group.numel) for group in whole]

    def wait_for_all(self) -> None:
        """Before the step: what was begun during backward."""
        if self.under_way:
            self.c.builder.sync("wait for CPU Adam", tuple(self.under_way))
            self.c.builder.host("poll for results", POLL_S, "offload")
        self.under_way, self.left = [], {}

    def step(self, numel: int) -> int:
        """One sub-group behind backward, waited for."""
        b = self.c.builder
        done = self._step(numel)
        b.sync("wait for CPU Adam", (done,))
        b.host("poll for results", POLL_S, "offload")
        return done

    def _step(self, numel: int) -> int:
        c, b, pool = self.c, self.c.builder, self.pool(self.share)
        copied_s = c.costs.host_pass_s(_PASS_BYTES * numel, c.cpu, c.ranks_per_node, pool)
        b.background("copy gradients for Adam", CPU, "offload", copied_s)
        seconds = c.costs.cpu_adam_s(numel, c.cpu, c.ranks_per_node, pool)
        return b.background("DeepSpeedCPUAdam", CPU, "offload", seconds)
