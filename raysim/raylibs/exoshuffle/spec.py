"""What is sorted, by which plan, at which costs.

Real counterpart: ``AppConfig`` of ``cloudsort/config/common.py`` of Exoshuffle-CloudSort
(arXiv:2301.03734).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from raysim.hardware.cores import Capacity
from raysim.hardware.specs import ObjectStorageSpec

PART_BYTES = 2_000_000_000
"""CloudSort's input partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Of a core, per byte; everything that a byte costs on its way is in them.

    Fitted on two stages of two published runs on i4i nodes (``validation/README.md``).
    """

    map_core_s_per_byte: float = 7.43e-9
    """Download, sort and cut, put, send."""
    merge_core_s_per_byte: float = 5.87e-9
    """Receive and merge, store; once more in the last merge, with the upload."""
    variation: float = 0.1
    """Coefficient of variation of a task's work (assumed): equal tasks would stay in step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes and parallelism of one sort."""

    total_bytes: int
    input_part_bytes: int = PART_BYTES
    output_part_bytes: int = PART_BYTES
    map_parallelism: float = 0.5
    """Map tasks at once, per CPU of a node; ``map_parallelism_multiplier``."""
    reduce_parallelism: float = 0.5
    """Last merges at once, per CPU of a node."""
    merge_factor: int = 2
    """A merge takes so many rounds of blocks of all nodes; map slots per merger."""

    @property
    def maps(self) -> int:
        """Map tasks of the whole sort."""
        return math.ceil(self.total_bytes / self.input_part_bytes)

    @property
    def reduces(self) -> int:
        """Output partitions of the whole sort."""
        return math.ceil(self.total_bytes / self.output_part_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a node does of a plan, and how the played nodes stand for all."""

    plan: Plan
    nodes: int
    played: int
    """Nodes that are played; the others, by symmetry, do the same at the same time."""
    cpus: int
    machine: Capacity
    """What those CPUs are worth."""
    storage: ObjectStorageSpec | None
    """Input and output; None: the nodes' own disks."""
    costs: Costs

    @property
    def stands_for(self) -> float:
        """Nodes per played one: a played block is so many blocks."""
        return self.nodes / self.played

    @property
    def map_slots(self) -> int:
        """Per node."""
        return max(int(self.plan.map_parallelism * self.cpus), 1)

    @property
    def reduce_slots(self) -> int:
        """Per node."""
        return max(int(self.plan.reduce_parallelism * self.cpus), 1)

    @property
    def mergers(self) -> int:
        """Per node."""
        return max(self.map_slots // self.plan.merge_factor, 1)

    @property
    def merge_blocks(self) -> int:
        """Played blocks that a merge takes."""
        return self.plan.merge_factor * self.played

    @property
    def maps(self) -> int:
        """Played map tasks."""
        return math.ceil(self.plan.maps / self.stands_for)

    @property
    def reduces(self) -> int:
        """Last merges of a node."""
        return math.ceil(self.plan.reduces / self.nodes)

    def block_bytes(self, *, own: bool) -> int:
        """A map's block for a played node; its own node's stays there, as one block of all."""
        size_bytes = self.plan.input_part_bytes
        if own:
            return size_bytes // self.nodes
        return (size_bytes - size_bytes // self.nodes) // (self.played - 1)
