"""``streaming_split``: one execution feeds several consumers, epoch after epoch.

Real counterpart: ``operators/output_splitter.py``, ``_internal/iterator/stream_split_iterator.py``.
The execution runs in the ``SplitCoordinator``, an actor without CPUs. Consumers ask it for blocks,
each one ahead of need. An epoch begins when all have asked for it, and runs the whole plan again.

Not modelled: consumers that are collected, clients that hold several epochs.
"""

from __future__ import annotations

from typing import Any

from raysim.kernel.rng import Streams
from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Event, Script, drop, get, here, keep, sleep, spawn, wait_for
from raysim.raycore.tasks import ActorOptions, NodeAffinity, Ref, TaskError
from raysim.raylibs.actors import ActorClass, ActorHandle, Sized
from raysim.raylibs.data.blocks import Block
from raysim.raylibs.data.defaults import DataContext
from raysim.raylibs.data.executor import StreamingExecutor, execution_of
from raysim.raylibs.data.iterate import Batching, BatchIterator, next_block
from raysim.raylibs.data.resources import NONE, Resources
from raysim.raylibs.data.specs import Dataset, Split
from raysim.raylibs.data.stats import ExecutionStats, stats_of

BLOCK_BYTES = 1_000
"""A block's reference and metadata, as the coordinator answers them."""


class SplitShard:
    """One consumer's iterator: what a trainer's worker holds.

    ``batch = yield from shard.next_batch()``; None at the end of an epoch, and the next call begins
    the next one, together with all other consumers.
    """

    def __init__(
        self, process: CoreProcess, coordinator: ActorHandle, index: int, batching: Batching,
        context: DataContext,
    ) -> None:  # fmt: skip
        self.process = process
        self.coordinator = coordinator
        self.index = index
        self.batching = batching
        self.context = context
        self.epochs: list[BatchIterator] = []
        self._current: BatchIterator | None = None
        self._blocks: _Epoch | None = None

    @property
    def stall_ns(self) -> int:
        """What this consumer has waited for batches, over all epochs."""
        return sum(e.stall_ns for e in self.epochs)

    def next_batch(self) -> Script:
        """The next batch of the epoch; None at its end; TaskError if the data failed."""
        if self._current is None:
            epoch = yield from self.coordinator.ask("start_epoch", self.index)
            if isinstance(epoch, TaskError):
                return epoch
            self._blocks = _Epoch(self.coordinator, self.index, epoch)
            self._current = BatchIterator(self.process, self._blocks, self.batching, self.context)
            self.epochs.append(self._current)
        batch = yield from self._current.next_batch()
        if batch is None or isinstance(batch, TaskError):
            self._current = None
        return batch

    def leave(self) -> Script:
        """Break out of the epoch: when all consumers have, its execution is stopped."""
        current, self._current = self._current, None
        if current is not None:
            assert self._blocks is not None, "made with it"
            yield from current.close()
            yield from self.coordinator.ask("leave", self.index, self._blocks.epoch)


class _Epoch:
    """The blocks of one consumer in one epoch: a ``BlockStream``."""

    def __init__(self, coordinator: ActorHandle, index: int, epoch: int) -> None:
        self.epoch = epoch
        self._coordinator = coordinator
        self._index = index
        self._asked: Ref | None = None
        self._held = 0

    def next_block(self) -> Script:
        """The block asked for before, and ask for one more."""
        if self._asked is None:
            yield from self._ask()
        assert self._asked is not None, "has just been asked"
        values = yield get([self._asked])
        value = values if isinstance(values, TaskError) else values[0]
        block = value if isinstance(value, TaskError) else value.data
        if isinstance(block, Block):
            assert block.ref is not None, "a consumer's block is an object"
            yield keep(block.ref)
        yield drop(self._asked)
        self._asked = None
        if isinstance(block, Block):
            yield from self._ask()
            return block._replace(owned=True)
        return block

    def _ask(self) -> Script:
        (self._asked,) = yield self._coordinator.call("get", self._index, self.epoch, self._held)

    def holds(self, change_bytes: int) -> None:
        """The coordinator hears of it with the next request."""
        self._held += change_bytes


class SplitCoordinator:
    """Runs the execution of each epoch, and answers its consumers."""

    def __init__(
        self, process: CoreProcess, dataset: Dataset, split: Split, context: DataContext,
        streams: Streams, excluded: Resources, storage: Any,
    ) -> None:  # fmt: skip
        self.process = process
        self.dataset = dataset.then(split)
        self.split = split
        self.context = context
        self.streams = streams
        self.excluded = excluded
        self.storage = storage
        self.epoch = -1
        self.executor: StreamingExecutor | None = None
        self.stats: list[ExecutionStats] = []
        self._waiting = 0
        self._left: dict[int, None] = {}
        """Who has left the epoch before its end."""
        self._begun = Event()
        self._held = [0] * split.n

    def hold(self) -> Script:
        """Borrow the blocks of materialised data, as one who has been sent their references."""
        for block in self.dataset.source.blocks:
            assert block.ref is not None, "materialised data is objects"
            yield keep(block.ref)

    def start_epoch(self, index: int) -> Script:
        """Wait for all consumers; the last one to come starts the execution. The epoch's number."""
        del index
        self._waiting += 1
        if self._waiting < self.split.n:
            return (yield wait_for(self._begun))
        self._waiting = 0
        yield from self._end_epoch()
        self.epoch += 1
        self._left.clear()
        self._held = [0] * self.split.n
        self.executor = yield from execution_of(
            self.process, self.dataset, self.context, self.streams, excluded=self.excluded,
            storage=self.storage, label=f"data/epoch{self.epoch}",
        )  # fmt: skip
        begun, self._begun = self._begun, Event()
        begun.set(self.epoch)
        return self.epoch

    def get(self, index: int, epoch: int, held_bytes: int) -> Script:
        """The next block of one consumer, None at the end of the epoch."""
        executor = self.executor
        if executor is None or epoch != self.epoch:
            return None  # of one who has left that epoch, and had asked ahead
        executor.consumers_hold(held_bytes - self._held[index])
        self._held[index] = held_bytes
        block = yield from next_block(executor, index)
        if not isinstance(block, Block):
            return block
        assert block.ref is not None, "output is objects"
        if block.owned:
            yield spawn(_later(block.ref))
        return Sized(block, BLOCK_BYTES, (block.ref,))

    def leave(self, index: int, epoch: int) -> None:
        """A consumer takes no more of this epoch."""
        if epoch == self.epoch and self.executor is not None:
            self._left[index] = None
            if len(self._left) == self.split.n:
                self.executor.stop()

    def _end_epoch(self) -> Script:
        executor, self.executor = self.executor, None
        if executor is not None:
            if not executor.ended.is_set:
                executor.stop()
                yield wait_for(executor.ended)
            self.stats.append(stats_of(executor))

    def finish(self) -> Script:
        """Statistics of all epochs; what runs is stopped."""
        yield from self._end_epoch()
        return self.stats


def _later(ref: Ref) -> Script:
    """The answer holds it from now on."""
    yield sleep(HAND_OVER_NS)
    yield drop(ref)


HAND_OVER_NS = 1_000_000
"""Until the coordinator forgets a block that it has answered with; no time of Ray's."""

COORDINATOR = ActorClass(cls=SplitCoordinator, actor=ActorOptions(max_concurrency=1000))


def streaming_split(
    dataset: Dataset,
    split: Split,
    context: DataContext,
    streams: Streams,
    *,
    excluded: Resources = NONE,
    storage: Any = None,
) -> Script:
    """``ds.streaming_split(n)``: the coordinator, on the caller's node; ``shard_of`` makes shards.

    Parameters
    ----------
    dataset, split
        What is read, and between whom.
    excluded
        CPUs and GPUs that the consumers hold.
    storage
        The bucket that rows are fetched from, if any.
    """
    process = yield here()
    strategy = NodeAffinity(node_id=process.me.node_id)
    coordinator = yield from COORDINATOR.options(strategy=strategy).remote(
        dataset, split, context, streams, excluded, storage
    )
    yield from coordinator.ask("hold")
    return coordinator


def shard_of(
    process: CoreProcess, coordinator: ActorHandle, index: int, batching: Batching,
    context: DataContext,
) -> SplitShard:  # fmt: skip
    """The iterator of one consumer, in its own process."""
    return SplitShard(process, coordinator, index, batching, context)
