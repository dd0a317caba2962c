"""Operators that move blocks without tasks of their own: inputs, limit, union.

Real counterpart: ``_internal/execution/operators/{input_data_buffer,limit_operator,
union_operator}.py``. ``Operator`` is what the executor knows of any of them.

Not modelled: the task that slices a limit's last block (its reader takes fewer rows of it).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from raysim.raycore.scripts import Script
from raysim.raylibs.data.blocks import Block, sliced, total
from raysim.raylibs.data.defaults import DataContext
from raysim.raylibs.data.metrics import OpMetrics
from raysim.raylibs.data.resources import NO_LIMIT, NONE, Resources

if TYPE_CHECKING:
    from raysim.raylibs.data.map_operator import DataTask


class Operator(Protocol):
    """One operator of a running plan."""

    name: str
    links: Links
    metrics: OpMetrics
    throttled: bool
    """Takes part in budgets."""
    materializes: bool
    """Gives nothing before it has all its input."""
    tasks: dict[int, DataTask]
    """Running, by number."""

    def can_add_input(self) -> bool:
        """Whether it would take one more block."""

    def dispatch(self) -> Script:
        """Take one block from a queue, and start a task if there is enough for one."""

    def all_inputs_done(self) -> Script:
        """No more blocks will come; a TaskError if what has come cannot be used."""

    @property
    def finished(self) -> bool:
        """Nothing runs and nothing more will; output may still wait to be taken."""

    @property
    def internal(self) -> tuple[int, int]:
        """(Blocks, bytes) taken from its queues that wait inside."""

    @property
    def producing(self) -> int:
        """Running tasks that may hold blocks of output."""

    def usage(self) -> Resources:
        """CPUs and GPUs that its tasks or actors hold."""

    def per_task(self) -> Resources:
        """What one task more takes."""

    def least_and_most(self) -> tuple[Resources, Resources]:
        """What it needs to run at all, and what it can use."""


class Links:
    """An operator's queues and neighbours."""

    def __init__(self, inputs: list[Operator]) -> None:
        self.inputs = inputs
        self.after: list[Operator] = []
        self.out: deque[Block] = deque()
        self.out_bytes = 0
        self.inputs_done = False
        self.stopped = False
        """Nothing behind it wants more."""

    def give(self, block: Block) -> None:
        """Put a block out."""
        self.out.append(block)
        self.out_bytes += block.size_bytes

    def take(self) -> Block:
        """The block that waits longest."""
        block = self.out.popleft()
        self.out_bytes -= block.size_bytes
        return block

    @property
    def waiting(self) -> bool:
        """Whether some input queue has a block."""
        return any(op.links.out for op in self.inputs)

    @property
    def waiting_blocks(self) -> int:
        """Blocks in the input queues."""
        return sum(len(op.links.out) for op in self.inputs)

    def next_input(self) -> Block:
        """From the first input that has one."""
        for op in self.inputs:
            if op.links.out:
                return op.links.take()
        raise AssertionError("asked for a block where none waits")

    def clear(self) -> list[Block]:
        """Everything that waits before it, out of the way."""
        gone: list[Block] = []
        for op in self.inputs:
            while op.links.out:
                gone.append(op.links.take())
        return gone


class TakesNothing:
    """What operators answer that hold no CPUs and no GPUs: they work on the driver."""

    @property
    def producing(self) -> int:
        """As ``Operator``."""
        return 0

    def usage(self) -> Resources:
        """As ``Operator``."""
        return NONE

    def per_task(self) -> Resources:
        """As ``Operator``."""
        return NONE

    def least_and_most(self) -> tuple[Resources, Resources]:
        """As ``Operator``."""
        return NONE, NO_LIMIT


class Passing(TakesNothing):
    """An operator without tasks: what it is given it gives on, or not."""

    throttled = False

    def __init__(self, name: str, inputs: list[Operator], context: DataContext) -> None:
        self.name = name
        self.links = Links(inputs)
        self.metrics = OpMetrics(context)
        self.tasks: dict[int, DataTask] = {}
        self.materializes = False
        """Set: nothing is given on before all is there."""
        self.order: Callable[[int], Sequence[int]] | None = None
        """In which blocks then go on."""
        self.rows_left: int | None = None
        """Of a limit."""
        self._held: list[Block] = []

    def can_add_input(self) -> bool:
        """As ``Operator``."""
        return self.rows_left is None or self.rows_left > 0

    def dispatch(self) -> Script:
        """As ``Operator``."""
        block = self.links.next_input()
        if self.rows_left is not None:
            if block.rows > self.rows_left:
                block, _ = sliced(block, self.rows_left)
            self.rows_left -= block.rows
        self._held.append(block)
        if not self.materializes:
            self._give()
        yield from ()

    def _give(self) -> None:
        for block in self._held:
            self._count(block)
            self.links.give(block)
        self._held.clear()

    def _count(self, block: Block) -> None:
        self.metrics.rows_out += block.rows
        self.metrics.bytes_out += block.size_bytes
        self.metrics.blocks_out += 1

    def all_inputs_done(self) -> Script:
        """As ``Operator``."""
        if self.order is not None:
            self._held = [self._held[i] for i in self.order(len(self._held))]
        self._give()
        self.links.inputs_done = True
        yield from ()

    @property
    def finished(self) -> bool:
        """As ``Operator``."""
        return self.links.inputs_done or self.links.stopped or self.rows_left == 0

    @property
    def internal(self) -> tuple[int, int]:
        """As ``Operator``."""
        return len(self._held), total(self._held)[1]
