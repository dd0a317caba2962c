"""What ZeRO-Infinity reads from NVMe and writes to it: shards of weights, optimizer tiles.

Sources: ``deepspeed/runtime/swap_tensor`` of 0.19: ``partitioned_param_swapper.py``,
``partitioned_optimizer_swapper.py``, ``pipelined_optimizer_swapper.py``. Reads and writes of a rank
take turns on the disk that its node's ranks share.

Simplification: a gradient's write never waits for a free buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from raysim.errors import ScenarioError
from raysim.perf.nvme import transfer_seconds
from raysim.training.engines.context import EngineContext
from raysim.training.layers.sections import Gradient
from raysim.training.states.swapping import SubGroup, aligned, check_swapping, swapped_gradients
from raysim.training.states.zero import optimizer_state_bytes

NVME = "nvme"
"""The disk, as a stream of this rank."""


class Disk:
    """Reads and writes of one rank."""

    def __init__(self, c: EngineContext) -> None:
        self.c = c

    def _seconds(self, size_bytes: float, kind: Literal["read", "write"]) -> float:
        c, aio = self.c, self.c.plan.zero.aio
        if c.volume is None:
            raise ScenarioError(
                "offloading to nvme needs a disk; this node type has none. Choose one with NVMe "
                "disks, or device: cpu"
            )
        return transfer_seconds(
            size_bytes, c.volume, kind, c.ranks_per_node,
            block_bytes=aio.block_size, blocks=aio.queue_depth * aio.intra_op_parallelism,
        )  # fmt: skip

    def read(self, what: str, size_bytes: float) -> int:
        """Start reading."""
        seconds = self._seconds(size_bytes, "read")
        return self.c.builder.background(f"read {what}", NVME, "offload", seconds)

    def write(self, what: str, size_bytes: float, waits: Sequence[int] = ()) -> int:
        """Start writing."""
        seconds = self._seconds(size_bytes, "write")
        return self.c.builder.background(f"write {what}", NVME, "offload", seconds, waits)


class ParameterSwapper:
    """Low-precision shards on NVMe, and the pinned buffers they pass through.

    A buffer is taken when its read is asked for and given back when the parameter is released.
    """

    def __init__(self, c: EngineContext, disk: Disk, groups: Iterable[SubGroup]) -> None:
        self.c = c
        self.disk = disk
        self.sizes = {s.name: s.numel for g in groups for s in g.swapped_parameters}
        """Elements of this rank's shards that are on NVMe."""
        self.free = c.plan.zero.offload_param.buffer_count
        self.here: set[str] = set()
        self.reading: dict[str, int] = {}

    def away(self, name: str) -> bool:
        """Whether a shard is on NVMe and nobody has asked for it."""
        return name in self.sizes and name not in self.here and name not in self.reading

    def ensure(self, parameters: Sequence[Gradient]) -> None:
        """Before an all-gather: what is away is read, and the host waits for all reads."""
        away = [p for p in parameters if self.away(p.name)]
        self._read(away)
        if away or any(p.name in self.reading for p in parameters):
            self.c.builder.sync("wait for NVMe reads", list(self.reading.values()))
            self.here.update(self.reading)
            self.reading.clear()

    def _read(self, parameters: Sequence[Gradient]) -> None:
        zero = self.c.plan.zero
        if len(parameters) > self.free:
            raise ScenarioError(
                f"offload_param.buffer_count: {zero.offload_param.buffer_count} buffers do not "
                f"hold the shards in use at once: {self.free} free for {len(parameters)} more. A "
                "buffer is held as long as its parameter is gathered: increase buffer_count, or "
                "lower stage3_max_reuse_distance, stage3_max_live_parameters or "
                "stage3_prefetch_bucket_size"
            )
        for p in parameters:
            size = aligned(self.sizes[p.name], self.c.weight_bytes, zero)
            self.reading[p.name] = self.disk.read(p.name, size)
        self.free -= len(parameters)

    def prefetch(self, upcoming: Iterable[Gradient], in_flight: int) -> None:
        """Ask for shards to come, up to twice the elements that are being gathered."""
        seen, wanted = 0, dict[str, Gradient]()
        for p in upcoming if self.sizes else ():
            if seen > 2 * in_flight or len(wanted) >= self.free:
                break
            if self.away(p.name):
                wanted.setdefault(p.name, p)
            seen += p.numel
        self._read(list(wanted.values()))

    def release(self, name: str) -> None:
        """Its parameter is partitioned again."""
        if name in self.here:
            self.here.discard(name)
            self.free += 1

    def write_back(self, group: SubGroup) -> None:
        """Updated weights of a sub-group go to NVMe; the host waits (``swap_out``)."""
        zero, width = self.c.plan.zero, self.c.weight_bytes
        size = sum(aligned(s.numel, width, zero) for s in group.swapped_parameters)
        if size:
            done = self.disk.write("weights", size, self.c.builder.last_on("cpu"))
            self.c.builder.sync("wait for NVMe writes", (done,))


class OptimizerSwapper:
    """Master weights, states and gradients of each sub-group, around its step."""

    def __init__(self, c: EngineContext, disk: Disk, groups: Sequence[SubGroup]) -> None:
        self.c = c
        self.disk = disk
        self.groups = groups
        self.settings = c.plan.zero.offload_optimizer
        self.tensors = 1 + round(optimizer_state_bytes(c.plan.optimizer) / 4)
        """Master weights and states."""
        self.ahead: tuple[int, ...] = ()
        """Reads of the next sub-group."""
        self.writing: tuple[int, ...] = ()
        check_swapping(groups, c.plan.zero, self.tensors)

    def _next(self, index: int) -> int | None:
        later = range(index + 1, len(self.groups))
        return next((i for i in later if self.groups[i].swapped), None)

    def _states_bytes(self, group: SubGroup) -> float:
        return self.tensors * aligned(group.numel, self.c.master_bytes, self.c.plan.zero)

    def _read(self, index: int) -> tuple[int, ...]:
        group, zero = self.groups[index], self.c.plan.zero
        gradients = swapped_gradients(group, zero, self.c.master_bytes)
        states = self.disk.read("optimizer states", self._states_bytes(group))
        return (states, self.disk.read("gradients", gradients)) if gradients else (states,)

    def swap_in(self, index: int) -> None:
        """Wait for a sub-group's tensors; with ``pipeline_read`` ask for the next one's."""
        reads = self.ahead or self._read(index)
        self.c.builder.sync("wait for NVMe reads", reads)
        following = self._next(index)
        self.ahead = ()
        if self.settings.pipeline_read and following is not None:
            self.ahead = self._read(following)

    def swap_out(self, index: int) -> None:
        """Write them; with ``pipeline_write`` the host goes on, unless it is the last."""
        b = self.c.builder
        if self.writing:
            b.sync("wait for NVMe writes", self.writing)
        size = self._states_bytes(self.groups[index])
        self.writing = (self.disk.write("optimizer states", size, b.last_on("cpu")),)
        if not self.settings.pipeline_write or self._next(index) is None:
            b.sync("wait for NVMe writes", self.writing)
            self.writing = ()
