"""Inputs of checkpointed layers: kept on the GPU, divided over tensor-parallel ranks, or offloaded.

Sources: ``runtime/activation_checkpointing/checkpointing.py`` and ``offload_activations.py`` of
DeepSpeed 0.19. ``cpu_checkpointing`` copies on a stream of its own to pinned memory, keeps the
newest input on the GPU and lets the one before it go only when its copy has had a layer's time;
backward fetches each when it needs it. With ``partition_activations`` copies are blocking instead.
``contiguous_memory_optimization`` makes ``number_checkpoints`` buffers when the first is needed.

Simplification: of a pipeline, whose micro-batches interleave, every input is copied both ways.
"""

from __future__ import annotations

from collections.abc import Sequence

from raysim.perf.host import fresh_pages_seconds
from raysim.training.engines.context import EngineContext
from raysim.training.layers.sections import Section
from raysim.training.plan import TrainingPlan
from raysim.training.program import COMPUTE, D2H, H2D, Call
from raysim.training.stages import StageSpec
from raysim.training.states.zero import pinned_bytes


def offloaded_bytes(plan: TrainingPlan, stages: Sequence[StageSpec]) -> int:
    """Main memory for one rank's inputs: pinned, which rounds up, unless they are divided."""
    if not plan.cpu_checkpointing:
        return 0
    most = 0
    for stage in stages:
        sizes = [_kept_bytes(plan, s) for s in stage.sections if s.checkpointed]
        if not plan.partition_activations:
            sizes = [pinned_bytes(size) for size in sizes]
            sizes = sizes[:-1] if plan.mesh.pp == 1 else sizes
        flying = min(plan.mesh.pp - stage.rank, plan.gradient_accumulation_steps)
        most = max(most, sum(sizes) * flying)
    return most


def _kept_bytes(plan: TrainingPlan, section: Section) -> int:
    """Bytes of its input that one rank keeps: its share under ``partition_activations``."""
    return section.input_bytes // (plan.mesh.tp if plan.partition_activations else 1)


class KeptInputs:
    """Emits what happens to a layer's input in forward, and to bring it back."""

    def __init__(self, context: EngineContext) -> None:
        self.plan = context.plan
        self.b = context.builder
        self.copy_s = context.copy_s
        self.kept: list[int] = []
        """Bytes of the micro-batch's inputs, in order, without a pipeline."""
        self.left = 0
        """How many of them have left the GPU."""
        self.surplus = 0

    @property
    def alike(self) -> bool:
        """Whether every micro-batch's inputs are treated alike, whatever went before."""
        plan = self.plan
        return not (
            plan.cpu_checkpointing
            or plan.checkpoint_buffers
            or plan.synchronize_checkpoint_boundary
        )

    def boundary(self) -> None:
        """A checkpointed layer begins or ends, in either direction."""
        if self.plan.synchronize_checkpoint_boundary:
            self.b.synchronize("checkpoint boundary")

    def keep(self, section: Section, sections: Sequence[Section]) -> None:
        """Forward is about to begin with it; ``sections`` are all of the stage."""
        size = _kept_bytes(self.plan, section)
        checkpointed = [s for s in sections if s.checkpointed]
        if section is checkpointed[0]:
            self.kept, self.left = [], 0
            if self.plan.checkpoint_buffers and not self.plan.cpu_checkpointing:
                self.surplus = max(0, self.plan.checkpoint_buffers - len(checkpointed)) * size
                self.b.alloc("activation", self.surplus, "unused contiguous buffers")
        if not self.plan.cpu_checkpointing:
            self.b.alloc("activation", size, "checkpoint")
        elif self.plan.partition_activations or self.plan.mesh.pp > 1:
            self._offload(size, blocking=self.plan.partition_activations)
        else:
            if len(self.kept) - self.left == 2:
                self.b.free("activation", self.kept[self.left], "checkpoint")
                self.left += 1
            self.b.alloc("activation", size, "checkpoint")
            self.kept.append(size)
            if len(self.kept) > 1:
                self._offload(self.kept[-2], blocking=False)

    def _offload(self, size: int, *, blocking: bool) -> None:
        seconds = self.copy_s(size, "d2h", pinned=not blocking)
        if (
            blocking
        ):  # ``partition.cpu()``: a new tensor, whose pages the copy is the first to touch
            seconds += fresh_pages_seconds(size)
        copy = self.b.copy("checkpoint to CPU", D2H, seconds, self.b.last_on(COMPUTE))
        if blocking:
            self.b.sync("checkpoint.cpu()", (copy,))

    def fetch(self, section: Section) -> tuple[int, ...]:
        """Backward needs it whole; returns what must have ended first."""
        size, arrived = _kept_bytes(self.plan, section), tuple[int, ...]()
        if self.surplus:
            self.b.free("activation", self.surplus, "unused contiguous buffers")
            self.surplus = 0
        if len(self.kept) > self.left:
            self.kept.pop()
        elif self.plan.cpu_checkpointing:
            self.b.alloc("activation", size, "checkpoint")
            # Blocking, behind all earlier kernels; else on its own stream as soon as it is issued.
            blocking = self.plan.partition_activations
            seconds = self.copy_s(size, "h2d", pinned=not blocking)
            waits = self.b.last_on(COMPUTE) if blocking else ()
            arrived = (self.b.copy("checkpoint to GPU", H2D, seconds, waits),)
            if blocking:
                self.b.sync("checkpoint.to(GPU)", arrived)
        if size < section.input_bytes:
            self.b.alloc("activation", section.input_bytes - size, "gathered checkpoint")
            call = Call("all_gather", "tp", section.input_bytes)
            waits = (*arrived, *self.b.last_on(COMPUTE))
            arrived = (self.b.collective("all-gather checkpoint", call, waits=waits),)
        return arrived
