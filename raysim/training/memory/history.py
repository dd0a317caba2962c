"""What torch's allocator did on a rank, tensor by tensor, with the module that asked and when.

Real counterpart: ``torch.cuda.memory._record_memory_history`` and ``_snapshot``. The rank's own
program is played again on the emulated allocator, as ``peaks`` plays it: setting up, the steps as
simulated, and the last one again until nothing new is asked of the driver.

Simplification: a change happens when the operation about to run starts on its stream; torch's host
thread asks earlier. A repeated step is drawn as long as the last simulated one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from raysim.hardware.specs import CpuRankSpec, GpuSpec
from raysim.training.allocator.blocks import Block
from raysim.training.allocator.caching import Allocator
from raysim.training.allocator.config import AllocatorConfig
from raysim.training.executor import Timeline
from raysim.training.memory.peaks import RankMemory, workspaces
from raysim.training.memory.replay import (
    WORKSPACE,
    Entry,
    Player,
    Replay,
    Trace,
    replay,
    resolve,
)

SETTING_UP = "setting up"


class Cause(NamedTuple):
    """Why memory changed."""

    category: str
    label: str
    """Of the tensor."""
    op: str
    """The operation about to run; for modules its dotted path."""
    phase: str
    """forward, backward, optimizer, ... or ``SETTING_UP``."""
    step: int
    micro_batch: int
    """-1: of none."""


_CUBLAS = Cause("temporary", "cuBLAS workspaces", "", SETTING_UP, 0, -1)


class Segment(NamedTuple):
    """Memory from the driver, as it is at the end."""

    blocks: list[Block]
    expandable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """Everything of one rank, from nothing held to the end, or to where memory ran out."""

    entries: list[Entry]
    segments: list[Segment]
    owners: dict[int, int]
    """Of each block in use, by its address: the change that took it."""
    outcome: Replay


@dataclass(frozen=True, kw_only=True)
class RankHistory:
    """What is needed to play one rank's memory again."""

    timeline: Timeline
    memory: RankMemory
    gpu: GpuSpec
    config: AllocatorConfig | None = None

    @property
    def has_allocator(self) -> bool:
        """Whether torch's CUDA allocator serves it: not on the CPU."""
        return not isinstance(self.gpu, CpuRankSpec)

    @cached_property
    def trace(self) -> Trace:
        """The program's changes as tensors."""
        return resolve(self.timeline.program)

    def play(self) -> Played:
        """As if memory had no end; where that is more than there is, within what there is."""
        capacity = self.gpu.memory_bytes - self.memory.outside_bytes
        share = self.config.per_process_memory_fraction if self.config is not None else 1.0
        played = self._play(None)
        if played.outcome.allocator.peak_reserved_bytes <= share * capacity:
            return played
        return self._play(capacity)

    def _play(self, capacity_bytes: int | None) -> Played:
        allocator = Allocator(self.config, capacity_bytes=capacity_bytes)
        entries: list[Entry] = []
        player = Player(self.trace, allocator, entries)
        outcome = replay(
            self.trace, allocator, workspaces=workspaces(self.timeline.program, self.gpu),
            player=player,
        )  # fmt: skip
        took = player.owners()
        owners = {block.address: took[t] for t, block in player.blocks.items()}
        live = list(player.blocks.values())
        live += player.workspaces
        owners |= {block.address: WORKSPACE for block in player.workspaces}
        runs = allocator.segments_now(live)
        segments = [Segment(run, allocator.expandable) for run in runs]
        return Played(entries=entries, segments=segments, owners=owners, outcome=outcome)

    def times_ns(self, entries: list[Entry]) -> Iterator[int]:
        """When each entry happened, never before the one in front of it."""
        last = len(self.timeline.program.step_ends) - 1
        begin, end = self.timeline.step_window(last) if last >= 0 else (0, 0)
        now = 0
        for entry in entries:
            if entry.event != WORKSPACE:
                now = max(now, self._starts_ns(entry.event) + entry.repeat * (end - begin))
            yield now

    def _starts_ns(self, event: int) -> int:
        """When the operation before which a change happens starts."""
        if event < len(self.timeline.program.initial):
            return 0
        position = self.trace.positions[event]
        starts = self.timeline.start_ns
        return starts[position] if position < len(starts) else 0

    def cause(self, event: int) -> Cause:
        """Why memory changed."""
        if event == WORKSPACE:
            return _CUBLAS
        program, change = self.timeline.program, self.trace.events[event]
        if event < len(program.initial) or not program.ops:
            return Cause(change.category, change.label, "", SETTING_UP, 0, -1)
        position = min(self.trace.positions[event], len(program.ops) - 1)
        op = program.ops[position]
        step = min(bisect_right(program.step_ends, position), len(program.step_ends) - 1)
        batch = program.micro_batches[position]
        return Cause(change.category, change.label, op.name, op.category, step, batch)
