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
from raysim.raylibs.data.executor import StreamingExecutor, available_cpus
from raysim.raylibs.data.iterate import Batching, BatchIterator, next_block
from raysim.raylibs.data.plan import plan_of
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
        self.epoch = -1
        self.epochs: list[BatchIterator] = []
        self._current: BatchIterator | None = None
        self._asked: Ref | None = None
        self._held = 0

    @property
    def stall_ns(self) -> int:
        """What this consumer has waited for batches, over all epochs."""
        return sum(e.stall_ns for e in self.epochs)

    def next_batch(self) -> Script:
        """The next batch of the epoch; None at its end; TaskError if the data failed."""
        if self._current is None:
            self.epoch += 1
            begun = yield from self.coordinator.ask("start_epoch", self.index, self.epoch)
            if isinstance(begun, TaskError):
                return begun
            self._current = BatchIterator(self.process, self, self.batching, self.context)
            self.epochs.append(self._current)
        batch = yield from self._current.next_batch()
        if batch is None or isinstance(batch, TaskError):
            self._current = None
        return batch

    def next_block(self) -> Script:
        """As ``BlockStream``: the block asked for before, and ask for one more."""
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
        (self._asked,) = yield self.coordinator.call("get", self.index, self.epoch, self._held)

    def holds(self, change_bytes: int) -> None:
        """As ``BlockStream``; the coordinator hears of it with the next request."""
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
        self._begun = Event()
        self._held = [0] * split.n

    def hold(self) -> Script:
        """Borrow the blocks of materialised data, as one who has been sent their references."""
        for block in self.dataset.source.blocks:
            assert block.ref is not None, "materialised data is objects"
            yield keep(block.ref)

    def start_epoch(self, index: int, epoch: int) -> Script:
        """Wait for all consumers; the last one to come starts the execution."""
        del index
        self._waiting += 1
        if self._waiting < self.split.n:
            yield wait_for(self._begun)
            return None
        self._waiting = 0
        if self.executor is not None:
            self.stats.append(stats_of(self.executor))
        self.epoch = epoch
        cpus = self.excluded.cpu
        plan = plan_of(self.dataset, self.context, (yield from available_cpus()) - cpus)
        self.executor = StreamingExecutor(
            self.process, plan, self.context, self.streams, excluded=self.excluded,
            storage=self.storage, label=f"data/epoch{epoch}",
        )  # fmt: skip
        yield spawn(self.executor.run())
        begun, self._begun = self._begun, Event()
        begun.set()
        return None

    def get(self, index: int, epoch: int, held_bytes: int) -> Script:
        """The next block of one consumer, None at the end of the epoch."""
        executor = self.executor
        assert executor is not None, "a block of an epoch that nobody has begun"
        assert epoch == self.epoch, f"a block of epoch {epoch} in epoch {self.epoch}"
        executor.consumers_hold(held_bytes - self._held[index])
        self._held[index] = held_bytes
        block = yield from next_block(executor, index)
        if not isinstance(block, Block):
            return block
        assert block.ref is not None, "output is objects"
        if block.owned:
            yield spawn(_later(block.ref))
        return Sized(block, BLOCK_BYTES, (block.ref,))

    def finish(self) -> Script:
        """Statistics of all epochs; what runs is stopped."""
        if self.executor is not None:
            if not self.executor.ended.is_set:
                self.executor.stop()
                yield wait_for(self.executor.ended)
            self.stats.append(stats_of(self.executor))
            self.executor = None
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
