"""``iter_batches``: blocks to batches, ahead of whoever trains on them.

Real counterpart: ``_internal/block_batching/iter_batches.py``, ``data/iterator.py``. Three stages
run beside the consumer: bring blocks to this node, cut them into batches, format and collate in
``min(4, prefetch_batches)`` threads; ``prefetch_batches`` of them wait ready.

Not modelled: pinned memory and the copy to the GPU as a stage of its own (part of the costs).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import (
    Ask,
    Queue,
    Script,
    compute,
    drop,
    get,
    now,
    sleep,
    spawn,
    spend,
    wait_for,
)
from raysim.raycore.tasks import TaskError
from raysim.raylibs.data.blocks import Block, Part
from raysim.raylibs.data.defaults import DataContext
from raysim.raylibs.data.row_buffer import RowBuffer
from raysim.units import to_ns


class BlockStream(Protocol):
    """Blocks for one consumer."""

    def next_block(self) -> Script:
        """The next block (with a reference of the consumer's own), None at the end, TaskError."""

    def holds(self, change_bytes: int) -> None:
        """The consumer holds so many more bytes of blocks, or fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """Arguments of ``iter_batches``, and what its stages cost."""

    batch_size: int | None = 256
    """None: a batch is a block."""
    prefetch_batches: int = 1
    drop_last: bool = False
    local_shuffle_buffer_size: int = 0
    """Rows that are held before the first batch comes out."""
    core_s_per_row: float = 0.0
    """Format, collate, and the way to the device."""
    rng: Any = None
    """Mixes the rows of the buffer, of a program that looks at them."""
    hook: Callable[[Batch], Ask] | None = None
    """Runs user code on a batch, beside the consumer; its answer is the batch's ``content``, or a
    TaskError."""


class Batch(NamedTuple):
    """What ``next_batch`` gives."""

    rows: int
    size_bytes: int
    parts: tuple[Part, ...] = ()
    """Its rows, where blocks have contents."""
    content: Any = None
    """What user code has made of them."""


class BatchIterator:
    """One pass over one consumer's blocks."""

    def __init__(
        self, process: CoreProcess, stream: BlockStream, batching: Batching, context: DataContext
    ) -> None:
        self.process = process
        self.stream = stream
        self.batching = batching
        self.threads = max(1, min(context.max_batch_threads, batching.prefetch_batches))
        ahead = max(1, batching.prefetch_batches)
        self._fetched = Queue(maxsize=ahead)
        self._todo = [Queue(maxsize=1) for _ in range(self.threads)]
        self._done = [Queue(maxsize=max(1, ahead // self.threads)) for _ in range(self.threads)]
        self._begun = False
        self._turn = 0
        self._ended: Any = False
        self._closed = False
        self.rows = self.size_bytes = self.batches = 0
        self.stall_ns = 0
        """What the consumer has waited in ``next_batch``."""
        self.first_ns = 0
        """The part of it before the first batch."""

    def next_batch(self) -> Script:
        """The next batch; None at the end of the epoch, or the TaskError that ended it."""
        if not self._begun:
            self._begun = True
            yield spawn(self._fetch())
            yield spawn(self._cut())
            for todo, done in zip(self._todo, self._done, strict=True):
                yield spawn(self._format(todo, done))
        if self._ended is not False:
            return self._ended
        began_ns = yield now()
        yield spend(self.process.costs.data_iterated_batch_ns)
        batch = yield self._done[self._turn].get()
        self._turn = (self._turn + 1) % self.threads
        waited_ns = (yield now()) - began_ns
        if batch is None or isinstance(batch, TaskError):
            self._ended = batch
            return batch
        self.stall_ns += waited_ns
        if not self.batches:
            self.first_ns = waited_ns
        self.batches += 1
        self.rows += batch.rows
        self.size_bytes += batch.size_bytes
        return batch

    def close(self) -> Script:
        """The consumer wants no more; what is under way is dropped as it comes."""
        self._closed = True
        if self._begun and self._ended is False:
            self._ended = None
            for done in self._done:
                yield spawn(_emptied(done))

    def _fetch(self) -> Script:
        """Bring blocks to this node, a few ahead."""
        while True:
            block = yield from self.stream.next_block()
            content = None
            if self._closed:
                if isinstance(block, Block) and block.ref is not None and block.owned:
                    yield drop(block.ref)
                block = None
            if isinstance(block, Block):
                assert block.ref is not None, "a consumer's block is an object"
                self.stream.holds(block.size_bytes)
                values = yield get([block.ref])
                value = values if isinstance(values, TaskError) else values[0]
                if isinstance(value, TaskError):
                    block = value
                else:
                    content = value.data
            yield self._fetched.put((block, content))
            if not isinstance(block, Block):
                return

    def _cut(self) -> Script:
        """Blocks into batches of rows; a block is dropped with its last row."""
        batching = self.batching
        size = batching.batch_size
        held = RowBuffer(batching.rng if batching.local_shuffle_buffer_size else None)
        turn = 0
        while True:
            block, content = yield self._fetched.get()
            if not isinstance(block, Block):
                while held.rows and not isinstance(block, TaskError):
                    take = held.rows if size is None else min(size, held.rows)
                    if batching.drop_last and size is not None and take < size:
                        break
                    yield self._todo[turn].put((yield from self._take(held, take)))
                    turn = (turn + 1) % self.threads
                for _ in range(self.threads):
                    yield self._todo[turn].put(block)
                    turn = (turn + 1) % self.threads
                return
            held.add(block, content)
            if not block.rows:
                yield from self._used(block)
            while held.rows - batching.local_shuffle_buffer_size >= (size or 1):
                take = held.rows if size is None else size
                yield self._todo[turn].put((yield from self._take(held, take)))
                turn = (turn + 1) % self.threads

    def _take(self, held: RowBuffer, rows: int) -> Script:
        """So many rows off the blocks that are here."""
        parts, size_bytes, used = held.take(rows)
        for block in used:
            yield from self._used(block)
        return Batch(rows, round(size_bytes), parts)

    def _used(self, block: Block) -> Script:
        self.stream.holds(-block.size_bytes)
        if block.ref is not None and block.owned:
            yield drop(block.ref)

    def _format(self, todo: Queue, done: Queue) -> Script:
        """One thread of ``format_batches`` and ``collate``."""
        while True:
            batch = yield todo.get()
            if isinstance(batch, Batch) and self.batching.core_s_per_row:
                yield compute(self.batching.core_s_per_row * batch.rows)
            if isinstance(batch, Batch) and self.batching.hook is not None and not self._closed:
                made = yield self.batching.hook(batch)
                batch = made if isinstance(made, TaskError) else batch._replace(content=made)
            yield done.put(batch)
            if not isinstance(batch, Batch):
                return


def _emptied(done: Queue) -> Script:
    """Take what nobody wants, up to the end."""
    while isinstance((yield done.get()), Batch):
        pass


class DriverStream:
    """Blocks of an execution in this same process: ``ds.iter_batches()`` of a driver."""

    def __init__(self, executor: Any) -> None:
        self.executor = executor

    def next_block(self) -> Script:
        """As ``BlockStream``."""
        return (yield from next_block(self.executor))

    def holds(self, change_bytes: int) -> None:
        """As ``BlockStream``."""
        self.executor.consumers_hold(change_bytes)


def next_block(executor: Any, split: int | None = None) -> Script:
    """The next block of an execution for a consumer; None at its end, TaskError if it failed.

    A consumer that finds none looks again every 10 ms.
    """
    poll_ns = to_ns(executor.context.consumer_poll_s)
    began_ns = yield now()
    while True:
        block = executor.take(split)
        if block is not None:
            return block
        if executor.ended.is_set:
            return executor.ended.value
        executor.waiting_consumers += 1
        has_output = executor.has_output  # waking may end the execution, and with it the last one
        executor.wake()
        yield wait_for(has_output)
        executor.waiting_consumers -= 1
        late_ns = -((yield now()) - began_ns) % poll_ns
        if late_ns and not executor.ended.is_set:
            yield sleep(late_ns)
