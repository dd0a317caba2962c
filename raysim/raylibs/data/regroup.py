"""Blocks cut at row numbers and put together anew, without a shuffle: repartitions and zips.

Real counterpart: ``_internal/planner/exchange/split_repartition_task_scheduler.py`` and
``operators/zip_operator.py``: all input first, then a task for every block of the output, which
gets the blocks, or parts of them, that it is made of. Parts keep their order.

A block that is cut stays one object; Ray makes new ones with a task for each block that is cut.
"""

from __future__ import annotations

import itertools
import pickle
from typing import TYPE_CHECKING

from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Script, keep
from raysim.raycore.tasks import TaskError
from raysim.raylibs.data.blocks import Block, sliced, total
from raysim.raylibs.data.defaults import DataContext
from raysim.raylibs.data.metrics import OpMetrics
from raysim.raylibs.data.operators import Links, Operator, TakesNothing
from raysim.raylibs.data.stages import Regrouped

if TYPE_CHECKING:
    from raysim.raylibs.data.map_operator import DataTask


class Regroup(TakesNothing):
    """Takes all input; what belongs to one task of the next stage has its number as ``split``."""

    throttled = False
    materializes = True

    def __init__(
        self, stage: Regrouped, name: str, inputs: list[Operator], context: DataContext,
        process: CoreProcess,
    ) -> None:  # fmt: skip
        self.stage = stage
        self.name = name
        self.links = Links(inputs)
        self.metrics = OpMetrics(context)
        self.process = process
        self.tasks: dict[int, DataTask] = {}
        self._held: list[list[Block]] = [[] for _ in inputs]
        """Of each input."""

    def can_add_input(self) -> bool:
        """As ``Operator``."""
        return True

    def dispatch(self) -> Script:
        """As ``Operator``."""
        for held, op in zip(self._held, self.links.inputs, strict=True):
            if op.links.out:
                held.append(op.links.take())
                break
        yield from ()

    def all_inputs_done(self) -> Script:
        """As ``Operator``; a TaskError if inputs to be zipped do not fit."""
        rows = [total(held)[0] for held in self._held]
        if len(set(rows)) > 1:
            text = f"Cannot zip datasets of different number of rows: {rows[0]}, {rows[1]}"
            return TaskError("TASK_EXECUTION_EXCEPTION", text, pickle.dumps(ValueError(text)))
        parts = self.stage.partitions
        if parts is None:
            largest = max(self._held, key=lambda held: total(held)[1])
            ends = list(itertools.accumulate(b.rows for b in largest))
        else:
            ends = [int(rows[0] / parts * i) for i in range(1, parts)] + [rows[0]]
        cut: list[list[list[Block]]] = []
        for held in self._held:
            cut += [(yield from _cut(held, ends))]
        for number in range(len(ends)):
            for block in itertools.chain(*(pieces[number] for pieces in cut)):
                self._give(block._replace(split=number))
        self._held = [[] for _ in self._held]
        self.links.inputs_done = True
        return None

    def _give(self, block: Block) -> None:
        self.metrics.rows_out += block.rows
        self.metrics.bytes_out += block.size_bytes
        self.metrics.blocks_out += 1
        self.links.give(block)

    # what it is

    @property
    def finished(self) -> bool:
        """As ``Operator``."""
        return self.links.inputs_done or self.links.stopped

    @property
    def internal(self) -> tuple[int, int]:
        """As ``Operator``."""
        held = list(itertools.chain(*self._held))
        return len(held), total(held)[1]


def _cut(blocks: list[Block], ends: list[int]) -> Script:
    """What lies between each end and the one before it; nobody gets nothing."""
    left = list(reversed(blocks))
    cut: list[list[Block]] = []
    at = 0
    for end in ends:
        mine: list[Block] = []
        while left and (at < end or not left[-1].rows):
            block = left.pop()
            if block.rows > end - at:
                block, rest = sliced(block, end - at)
                left.append(rest)
                if rest.ref is not None and rest.owned:
                    yield keep(rest.ref)
            mine.append(block)
            at += block.rows
        if not mine and (left or cut):
            mine.append((yield from _nothing_of(left[-1] if left else cut[-1][-1])))
        cut.append(mine)
    return cut


def _nothing_of(block: Block) -> Script:
    """No row of a block: what an output without rows is made of."""
    if block.ref is not None and block.owned:
        yield keep(block.ref)
    return block._replace(rows=0, size_bytes=0)
