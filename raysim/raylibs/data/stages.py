"""What a plan is made of: operators before they run.

Real counterpart: the operators of ``_internal/logical/operators`` after planning, before
``build_streaming_topology``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from raysim.raylibs.data.blocks import Block
from raysim.raylibs.data.specs import Limit, Map, Source, Split, Union


@dataclass(frozen=True, slots=True, kw_only=True)
class MapStage:
    """One map operator: what its tasks run, one step after the other."""

    name: str
    steps: tuple[Map, ...]
    reads: Source | None = None
    """The first of it reads rows of this source."""
    splits: int = 1
    """Cut what the read yields into so many blocks."""
    cuts: bool = False
    """Of a shuffle: its output goes into an exchange."""
    fetches: bool = False
    """Of a shuffle: its input comes from an exchange."""
    drops_empty: bool = False
    """Partitions without rows are no tasks, unless a map runs behind in those."""
    fuses: bool = True
    """A map behind it may run in its tasks."""
    samples: bool = False
    """Its tasks only look: their inputs go on when all of them have."""
    merges: bool = False
    """A task gets all blocks of one number (``Block.split``), which come one after the other."""
    bulk: bool = False
    """Within one function of Ray's driver, which starts all its tasks at once: without budgets."""
    gather_bytes: int = 0
    """Blocks of one node are put together up to this."""

    @property
    def first(self) -> Map:
        """Whose resources the tasks hold; fused steps agree on them."""
        return next((s for s in self.steps if s.actors), self.steps[0])

    @property
    def changes_rows(self) -> bool:
        """Whether its last step reads rows, or makes more or fewer of them one by one."""
        read = self.reads is not None and len(self.steps) == 1
        return read or self.steps[-1].changes_rows

    @property
    def cv_frac(self) -> float:
        """Of its tasks' times: the most that one of its steps varies."""
        return max(s.cv_frac for s in self.steps)

    @property
    def width(self) -> float:
        """Threads that a task keeps busy: the most of its steps."""
        return max(s.width for s in self.steps)

    @property
    def min_rows_per_bundle(self) -> int:
        """Blocks are put together up to this; of fused steps the largest batch."""
        return max((s.batch_size or 0 for s in self.steps), default=0)

    @property
    def exact_rows(self) -> int:
        """Tasks get multiples of so many rows."""
        return self.steps[0].block_rows if self.steps[0].exact else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Blocks or read tasks that are there from the start."""

    blocks: tuple[Block, ...]
    name: str = "Input"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collect:
    """All blocks before the first goes on."""

    name: str = "Collect"
    order: Callable[[int], Sequence[int]] | None = None
    """In which they go on; None: as they came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeStage:
    """Between the maps of a shuffle and the tasks that fetch what they have cut."""

    partitions: int
    """Of all input, or of each round's."""
    round_maps: int = 0
    """Gives partitions of every so many maps; 0: once, of all."""
    local: bool = False
    """Those who fetch run where it lies."""
    name: str = "Exchange"


@dataclass(frozen=True, slots=True, kw_only=True)
class Regrouped:
    """All blocks of its inputs, cut and put together anew."""

    partitions: int | None = None
    """Of equal rows; None: as the largest input is cut, of inputs that are zipped."""
    name: str = "Regroup"


Stage = MapStage | Limit | Inputs | Union | Split | Collect | ExchangeStage | Regrouped
