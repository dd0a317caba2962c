"""The operator that says which consumer gets a block.

Real counterpart: ``operators/output_splitter.py``. The consumer with the fewest rows so far gets
the next block; with locality hints a buffer of two blocks a consumer is searched for one on its
node, in bulk execution all blocks (``Dataset.split`` of Ray 2.2); with ``equal`` as much is kept
back as is needed to make all equal, and what is left over at the end is dropped.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Script, drop, keep
from raysim.raylibs.data.blocks import Block, locations, sliced, total
from raysim.raylibs.data.defaults import DataContext
from raysim.raylibs.data.metrics import OpMetrics
from raysim.raylibs.data.operators import Links, Operator, TakesNothing
from raysim.raylibs.data.specs import Split

if TYPE_CHECKING:
    from raysim.raylibs.data.map_operator import DataTask

BUFFERED_PER_CONSUMER = 2
"""``DEFAULT_OUTPUT_SPLITTER_MAX_BUFFERING_FACTOR``."""


class Splitter(TakesNothing):
    """``OutputSplitter``."""

    materializes = False
    throttled = False

    def __init__(
        self, split: Split, name: str, inputs: list[Operator], context: DataContext,
        process: CoreProcess,
    ) -> None:  # fmt: skip
        self.split = split
        self.name = name
        self.links = Links(inputs)
        self.metrics = OpMetrics(context)
        self.process = process
        self.tasks: dict[int, DataTask] = {}
        self.given = [0] * split.n
        """Rows that each consumer has been given."""
        self.local = self.remote = 0
        """Blocks given to a consumer on a node that holds them, and others."""
        self.dropped_rows = 0
        self._buffer: deque[Block] = deque()
        self._keep: float = BUFFERED_PER_CONSUMER * split.n if split.locality_hints else 0
        if not context.streaming:
            self._keep = math.inf

    def can_add_input(self) -> bool:
        """As ``Operator``."""
        return True

    def dispatch(self) -> Script:
        """As ``Operator``."""
        self._buffer.append(self.links.next_input())
        self._give_out(everything=False)
        yield from ()

    def all_inputs_done(self) -> Script:
        """As ``Operator``: give out what was kept back."""
        self._give_out(everything=not self.split.equal)
        if self.split.equal:
            yield from self._equalize()
        self.links.inputs_done = True

    def _give_out(self, *, everything: bool) -> None:
        while self._buffer and (everything or len(self._buffer) >= self._keep):
            target = self.given.index(min(self.given))
            index = self._nearest(target)
            block = self._buffer[index]
            if self.split.equal and not everything and not self._can_spare(target, index):
                return
            del self._buffer[index]
            self._give(target, block)

    def _nearest(self, target: int) -> int:
        """The first block in the buffer that is on the consumer's node, else the first."""
        hints = self.split.locality_hints
        for index, block in enumerate(self._buffer if hints else ()):
            if hints[target] in locations(self.process, block):
                return index
        return 0

    def _can_spare(self, target: int, index: int) -> bool:
        """Whether the others can still be made equal with what stays in the buffer."""
        given = list(self.given)
        given[target] += self._buffer[index].rows
        needed = sum(max(given) - rows for rows in given)
        return total(self._buffer)[0] - self._buffer[index].rows >= needed

    def _give(self, target: int, block: Block) -> None:
        self.given[target] += block.rows
        if self.split.locality_hints:
            near = self.split.locality_hints[target] in locations(self.process, block)
            self.local += near
            self.remote += not near
        self.metrics.rows_out += block.rows
        self.metrics.bytes_out += block.size_bytes
        self.metrics.blocks_out += 1
        self.links.give(block._replace(split=target))

    def _equalize(self) -> Script:
        """The rest in equal parts, cutting blocks; the remainder is dropped."""
        left = total(self._buffer)[0]
        wanted = [max(self.given) - rows for rows in self.given]
        each = (left - sum(wanted)) // self.split.n
        for target, missing in enumerate(wanted):
            want = missing + each
            while want > 0:
                block = self._buffer.popleft()
                if block.rows > want:
                    block, rest = sliced(block, want)
                    self._buffer.appendleft(rest)
                    if rest.ref is not None:
                        yield keep(rest.ref)
                want -= block.rows
                self._give(target, block)
        for block in self._buffer:
            self.dropped_rows += block.rows
            if block.ref is not None and block.owned:
                yield drop(block.ref)
        self._buffer.clear()

    @property
    def finished(self) -> bool:
        """As ``Operator``."""
        return self.links.inputs_done or self.links.stopped

    @property
    def internal(self) -> tuple[int, int]:
        """As ``Operator``."""
        return len(self._buffer), total(self._buffer)[1]
