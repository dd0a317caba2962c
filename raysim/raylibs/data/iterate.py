"""``iter_batches``: blocks to batches, ahead of whoever trains on them.

Real counterpart: ``_internal/block_batching/iter_batches.py``, ``data/iterator.py`` (ray 2.60).
``min(4, prefetch_batches)`` threads run beside the consumer. Who has the turn cuts a batch, then
formats and collates it beside the others; ``prefetch_batches`` of them wait ready. A block is cut
only when the next ``prefetch_batches`` batches' rows have been taken from the stream, so that with
one block ahead the thread looks for a block, cuts all of the one before, and looks again.

Not modelled: pinned memory and the copy to the GPU as a stage of its own (part of the costs).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import (
    Ask,
    Event,
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

SWITCH_INTERVAL_S = 5e-3
"""After which a thread of CPython that works lets another have its lock (``sys``'s default)."""


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


class _Coming:
    """A block that a consumer has taken, on its way to this node."""

    __slots__ = ("block", "here")

    def __init__(self, block: Block) -> None:
        self.block = block
        self.here = Event()
        """Set with its content, or the TaskError in its place."""


class BatchIterator:
    """One pass over one consumer's blocks."""

    def __init__(
        self, process: CoreProcess, stream: BlockStream, batching: Batching, context: DataContext
    ) -> None:
        self.process = process
        self.stream = stream
        self.batching = batching
        ahead = batching.prefetch_batches
        self._at_work = max(1, min(context.max_batch_threads, ahead))
        """Threads that have not come to the end."""
        self._turn = Queue()
        """Whose thread has what is in it may cut the next batch."""
        self._done = Queue(maxsize=max(1, ahead))
        self._window: deque[_Coming] = deque()
        self._window_rows = 0
        self._begins = True
        """The window has not been full."""
        self._held = RowBuffer(batching.rng if batching.local_shuffle_buffer_size else None)
        self._last: Any = False
        """What came in place of a block: None at the end, or a TaskError."""
        self._begun = False
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
            self._turn.put_nowait(None)
            for _ in range(self._at_work):
                yield spawn(self._prepare())
        if self._ended is not False:
            return self._ended
        began_ns = yield now()
        batch = yield self._done.get()
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
            yield spawn(_emptied(self._done))

    def _prepare(self) -> Script:
        """One thread: cut a batch when it is its turn, format and collate it."""
        batching = self.batching
        while True:
            yield self._turn.get()
            batch = yield from self._next()
            self._turn.put_nowait(None)
            if not isinstance(batch, Batch):
                break
            if batching.core_s_per_row:
                yield compute(batching.core_s_per_row * batch.rows)
            if batching.hook is not None and not self._closed:
                made = yield batching.hook(batch)
                batch = made if isinstance(made, TaskError) else batch._replace(content=made)
            yield self._done.put(batch)
        self._at_work -= 1
        if not self._at_work:
            yield self._done.put(batch)

    def _next(self) -> Script:
        """Rows of the next batch; None at the end, or the TaskError that ended it."""
        size, held = self.batching.batch_size, self._held
        while held.rows - self.batching.local_shuffle_buffer_size < (size or 1):
            coming = yield from self._next_block()
            if coming is None:
                if isinstance(self._last, TaskError) or not held.rows:
                    return self._last
                if self.batching.drop_last and size is not None and held.rows < size:
                    return None
                break
            content = yield wait_for(coming.here)
            if isinstance(content, TaskError):
                self._last = content
                return content
            held.add(coming.block, content)
            if not coming.block.rows:
                yield from self._used(coming.block)
        yield spend(self.process.costs.data_iterated_batch_ns)
        rows = held.rows if size is None else min(size, held.rows)
        parts, size_bytes, used = held.take(rows)
        for block in used:
            yield from self._used(block)
        return Batch(rows, round(size_bytes), parts)

    def _next_block(self) -> Script:
        """The next of the window, once the window is filled up again behind it."""
        size, ahead = self.batching.batch_size, self.batching.prefetch_batches
        window = self._window
        while self._closed and window:
            coming = window.popleft()
            yield wait_for(coming.here)
            yield from self._used(coming.block)
        if self._closed:
            return None
        while not window or self._begins:
            if not (yield from self._take()):
                break
            rows_short = size is not None and self._window_rows < ahead * size
            self._begins &= rows_short or (size is None and len(window) < ahead)
        if not window:
            return None
        coming = window.popleft()
        self._window_rows -= coming.block.rows
        if ahead and (size is None or self._window_rows < ahead * size):
            yield from self._take()
        return coming

    def _take(self) -> Script:
        """One more block of the stream, into the window; False: there is none."""
        if self._last is not False:
            return False
        block = yield from self.stream.next_block()
        if not isinstance(block, Block):
            self._last = block
            return False
        if self._closed:
            if block.ref is not None and block.owned:
                yield drop(block.ref)
            return False
        self.stream.holds(block.size_bytes)
        coming = _Coming(block)
        self._window.append(coming)
        self._window_rows += block.rows
        yield spawn(_bring(coming))
        return True

    def _used(self, block: Block) -> Script:
        self.stream.holds(-block.size_bytes)
        if block.ref is not None and block.owned:
            yield drop(block.ref)


def _bring(coming: _Coming) -> Script:
    """A block to this node, beside whoever cuts."""
    assert coming.block.ref is not None, "a consumer's block is an object"
    values = yield get([coming.block.ref])
    value = values if isinstance(values, TaskError) else values[0]
    coming.here.set(value if isinstance(value, TaskError) else value.data)


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

    A consumer that finds none looks again every 10 ms: a thread of the loop's process. While the
    loop spins, because what it has made is not taken, that thread waits for Python's lock.
    """
    if (block := executor.take(split)) is not None or executor.ended.is_set:
        return executor.ended.value if block is None else block
    executor.waiting_consumers += 1  # until it has one
    block = yield from _awaited(executor, split)
    executor.waiting_consumers -= 1
    return block


def _awaited(executor: Any, split: int | None) -> Script:
    """As ``next_block``, which has found none."""
    poll_ns = to_ns(executor.context.consumer_poll_s)
    began_ns = yield now()
    while True:
        has_output = executor.has_output  # waking may end the execution, and with it the last one
        executor.wake()
        yield wait_for(has_output)
        late_ns = -((yield now()) - began_ns) % poll_ns
        if late_ns and not executor.ended.is_set:
            yield sleep(late_ns)
            if executor.spins:
                yield sleep(to_ns(SWITCH_INTERVAL_S))
        if (block := executor.take(split)) is not None or executor.ended.is_set:
            return executor.ended.value if block is None else block
