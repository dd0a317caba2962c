"""Who takes the rows: a driver that iterates, trainers that step, a materialised dataset.

Real counterpart: the loop of a user's script, and ``train_loop_per_worker`` where Ray Train feeds
on ``get_dataset_shard`` (Train itself uses ``split.SplitShard`` the same way).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from raysim.raycore.ids import NodeID
from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Script, drop, sleep
from raysim.raycore.tasks import TaskError
from raysim.raylibs.actors import ActorHandle
from raysim.raylibs.data.blocks import Block
from raysim.raylibs.data.defaults import DataContext
from raysim.raylibs.data.executor import StreamingExecutor
from raysim.raylibs.data.iterate import Batching, BatchIterator, DriverStream, next_block
from raysim.raylibs.data.split import shard_of
from raysim.units import NS_PER_S, to_ns


class Consumed(NamedTuple):
    """What one consumer has seen."""

    rows: int
    batches: int
    stall_s: float
    """Waited for data, after the first batch of each epoch."""
    first_s: float
    """Waited for the first batch, summed over epochs."""
    busy_s: float


class Trainer:
    """A training worker: takes a batch, steps, takes the next."""

    def __init__(
        self, process: CoreProcess, index: int, batching: Batching, context: DataContext,
        step_s_per_row: float, epochs: int,
    ) -> None:  # fmt: skip
        self.process = process
        self.index = index
        self.batching = batching
        self.context = context
        self.step_s_per_row = step_s_per_row
        self.epochs = epochs

    def node(self) -> NodeID:
        """Where it is: a locality hint."""
        return self.process.me.node_id

    def train(self, coordinator: ActorHandle) -> Script:
        """All epochs."""
        shard = shard_of(self.process, coordinator, self.index, self.batching, self.context)
        rows = batches = 0
        busy_s = 0.0
        for _ in range(self.epochs):
            while True:
                batch = yield from shard.next_batch()
                if batch is None:
                    break
                if isinstance(batch, TaskError):
                    return batch
                rows += batch.rows
                batches += 1
                busy_s += self.step_s_per_row * batch.rows
                yield sleep(to_ns(self.step_s_per_row * batch.rows))
        return _consumed(shard.epochs, rows, batches, busy_s)


def _consumed(epochs: list[BatchIterator], rows: int, batches: int, busy_s: float) -> Consumed:
    first_ns = sum(e.first_ns for e in epochs)
    stall_ns = sum(e.stall_ns for e in epochs) - first_ns
    return Consumed(rows, batches, stall_ns / NS_PER_S, first_ns / NS_PER_S, busy_s)


def iterate(
    process: CoreProcess, executor: StreamingExecutor, batching: Batching, step_s_per_row: float
) -> Script:
    """``for batch in ds.iter_batches()`` of a driver."""
    batches = BatchIterator(process, DriverStream(executor), batching, executor.context)
    busy_s = 0.0
    while True:
        batch = yield from batches.next_batch()
        if isinstance(batch, TaskError):
            return batch
        if batch is None:
            return _consumed([batches], batches.rows, batches.batches, busy_s)
        if step_s_per_row:
            busy_s += step_s_per_row * batch.rows
            yield sleep(to_ns(step_s_per_row * batch.rows))


def drain(executor: StreamingExecutor, kept: list[Any] | None = None) -> Script:
    """Take every block as it comes and drop it, as a write does, or keep it: ``materialize``."""
    rows = blocks = 0
    while True:
        block = yield from next_block(executor)
        if isinstance(block, TaskError):
            return block
        if not isinstance(block, Block):
            return Consumed(rows, blocks, 0.0, 0.0, 0.0)
        rows += block.rows
        blocks += 1
        if kept is not None:
            kept.append(block)
        elif block.ref is not None and block.owned:
            yield drop(block.ref)
