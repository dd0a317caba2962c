"""Channels of compiled graphs, as programs use them: write a value, read a value.

Real counterpart: ``python/ray/experimental/channel/{shared_memory_channel,common,cached_channel,
intra_process_channel}.py``. One writer and several readers: readers in the writer's own process get
the object itself, those on its node share ``max_inflight_executions`` buffers, those on other nodes
have one buffer per node, filled by the raylets. A value that does not fit makes its buffer grow.

A process's end of a channel knows whose it is by a key: an actor's number, 0 for the driver.

Not modelled: reading one of several channels for 0.1 s at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

from raysim.rayapi.calls import this_core, this_fiber
from raysim.rayapi.exceptions import RayChannelError, RayChannelTimeoutError
from raysim.rayapi.serialization import Plain, Raised, deserialize, pickled_bytes, serialize
from raysim.rayapi.submission import put_payload
from raysim.raycore.mutable_objects import MutableObject, RemoteCopies
from raysim.raycore.tasks import Payload, TaskError

if TYPE_CHECKING:
    from raysim.rayapi.fibers import Fiber
    from raysim.rayapi.objects import ObjectRef
    from raysim.raycore.room import Surroundings

DRIVER = 0

known: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""Channels and plans by number, for functions that run in other processes."""


class Party(NamedTuple):
    """A process at one end."""

    key: int
    node_id: int
    handle: Any
    """Of its actor; the driver's is its proxy's."""


class Failed(NamedTuple):
    """What a method raised, on its way."""

    error: TaskError


class Channel:
    """From one process to others.

    Parameters
    ----------
    slots
        Buffers for readers on the writer's node.
    buffer_bytes
        How large each is at first.
    """

    def __init__(
        self,
        env: Surroundings,
        writer: Party,
        readers: Sequence[Party],
        *,
        slots: int,
        buffer_bytes: int,
    ) -> None:
        self.writer = writer
        self._costs = env.costs
        self.own: deque[Any] | None = None
        self.near: MutableObject | None = None
        self.far: MutableObject | None = None
        self.closed = False
        self._ends: dict[int, tuple[MutableObject, int]] = {}
        self._remote: dict[int, Party] = {}
        """One reader of each other node, which makes the buffer there."""
        near = [r for r in readers if r.node_id == writer.node_id and r.key != writer.key]
        if any(r.key == writer.key for r in readers):
            self.own = deque()
        if near:
            self.near = MutableObject(env, writer.node_id, len(near), slots)
            self._ends |= {r.key: (self.near, index) for index, r in enumerate(near)}
        elsewhere: dict[int, list[Party]] = {}
        for reader in readers:
            if reader.node_id != writer.node_id:
                elsewhere.setdefault(reader.node_id, []).append(reader)
        self._remotes = []
        for node_id, there in elsewhere.items():
            remote = MutableObject(env, node_id, len(there))
            self._remotes.append(remote)
            self._ends |= {r.key: (remote, index) for index, r in enumerate(there)}
            self._remote[node_id] = there[0]
        if self._remotes:
            self.far = MutableObject(env, writer.node_id, 1)
            RemoteCopies(env, self.far, 0, self._remotes)
        self._bytes = [buffer_bytes] * (slots * bool(near) + bool(self._remotes))
        self._buffers: dict[tuple[int, int], ObjectRef] = {}
        """In the stores, by node and slot."""

    # memory

    def allocate(self) -> None:
        """Make the buffers; called in the writer's process."""
        fiber = this_fiber()
        for slot, size in enumerate(self._bytes):
            self._put(fiber, slot, size)

    def _put(self, fiber: Fiber, slot: int, size: int) -> None:
        """The writer's buffer, and those on other nodes if it is the one for them."""
        from raysim.rayapi.api import get

        self.hold(fiber, slot, size)
        if self.far is not None and slot == len(self._bytes) - 1:
            number = id(self)
            known[number] = self
            get([
                reader.handle.__ray_call__.remote(_hold, number, slot, size)
                for reader in self._remote.values()
            ])  # fmt: skip

    def hold(self, fiber: Fiber, slot: int, size: int) -> None:
        """An object of this size in the store of the process that calls."""
        core = this_core(fiber)
        fiber.lead_ns += core.costs.put_ns
        self._bytes[slot] = size
        self._buffers[core.me.node_id, slot] = put_payload(fiber, Payload(size, Plain(None)))

    # both ends

    def write(self, fiber: Fiber, value: Any, timeout: float | None) -> None:
        """Into every buffer, when there is room.

        Raises
        ------
        RayChannelError
            It is closed.
        RayChannelTimeoutError
            There is no room within ``timeout`` seconds; None and -1: no limit.
        """
        if self.closed:
            raise RayChannelError("Channel closed.")
        if self.own is not None:
            self.own.append(value)
        if self.near is None and self.far is None:
            return
        payload = _packed(value)
        fiber.lead_ns += round(payload.size_bytes / self._costs.memcpy_bytes_per_s * 1e9)
        fiber.lead_ns += round(pickled_bytes(payload) / self._costs.serialize_bytes_per_s * 1e9)
        fiber.settle()
        until_ns = deadline(fiber, timeout)
        for shared in (self.near, self.far):
            if shared is not None:
                self._write(fiber, shared, payload, until_ns)

    def _write(
        self, fiber: Fiber, shared: MutableObject, payload: Payload, until_ns: int | None
    ) -> None:
        while not shared.can_write and not shared.closed:
            wait(fiber, [shared.when_writable], until_ns)
        slot = shared.written_no % shared.slots if shared is self.near else len(self._bytes) - 1
        if payload.size_bytes > self._bytes[slot]:
            self._put(fiber, slot, payload.size_bytes)
            fiber.settle()
        if shared.closed:
            raise RayChannelError("Channel closed.")
        shared.write(payload)

    def end(self, key: int) -> End:
        """The end of one reader."""
        return End(self, key)

    def can_read(self, key: int) -> bool:
        """Whether something is there for this reader."""
        if key == self.writer.key:
            return bool(self.own)
        shared, index = self._ends[key]
        return not shared.closed and shared.can_read(index)

    def take(self, key: int) -> Any:
        """The next value."""
        if key == self.writer.key:
            assert self.own is not None, "a reader that was not declared"
            return self.own.popleft()
        shared, index = self._ends[key]
        data = shared.read(index)
        if isinstance(data.data, Raised):
            return Failed(data.data.error)
        return deserialize(data)

    def when_readable(self, key: int, then: Callable[[Any], object]) -> None:
        """Call back once, when there may be something."""
        if key != self.writer.key:
            shared, index = self._ends[key]
            shared.when_readable(index, then)

    def close(self) -> None:
        """Nobody writes or reads it any more; its memory is free."""
        self.closed = True
        for shared in (self.near, self.far, *self._remotes):
            if shared is not None:
                shared.close()
        self._buffers.clear()


def _hold(_instance: Any, number: int, slot: int, size: int) -> None:
    channel: Channel = known[number]
    channel.hold(this_fiber(), slot, size)


def _packed(value: Any) -> Payload:
    if isinstance(value, Failed):
        return serialize(Raised(value.error))
    return serialize(value, hold_refs=True)


class End:
    """A reader's end; several tasks of one actor may share what it reads."""

    def __init__(self, channel: Channel, key: int) -> None:
        self.channel = channel
        self._key = key
        self.tasks = 1
        """How many read each value."""
        self._kept: Any = None
        self._left = 0

    @property
    def ready(self) -> bool:
        """Whether ``take`` has something."""
        return self._left > 0 or self.channel.can_read(self._key)

    def take(self) -> Any:
        """The next value for one of the tasks."""
        if not self._left:
            self._kept, self._left = self.channel.take(self._key), self.tasks
        self._left -= 1
        value = self._kept
        if not self._left:
            self._kept = None
        return value

    def when_ready(self, then: Callable[[Any], object]) -> None:
        """Call back once."""
        self.channel.when_readable(self._key, then)


class Reader:
    """Reads one value from each of several channels; the first error stands for all."""

    def __init__(self, ends: Sequence[End]) -> None:
        self._ends = list(ends)
        self._leftover: list[End] = []
        """Not read last time, because another had an error."""

    def read(self, fiber: Fiber, timeout: float | None) -> list[Any]:
        """One of each.

        Raises
        ------
        RayChannelError
            One is closed.
        RayChannelTimeoutError
            One has nothing within ``timeout`` seconds.
        """
        fiber.settle()
        until_ns = deadline(fiber, timeout)
        while self._leftover:
            self._wait(fiber, self._leftover[:1], until_ns)
            self._leftover.pop(0).take()
        found: dict[End, Any] = {}
        missing = list(dict.fromkeys(self._ends))
        while missing:
            self._wait(fiber, missing, until_ns)
            for end in [e for e in missing if e.ready]:
                value = found[end] = end.take()
                missing.remove(end)
                if isinstance(value, Failed):
                    self._leftover = missing
                    return [value] * len(self._ends)
        return [found[end] for end in self._ends]

    def close(self) -> None:
        """Close all its channels."""
        for end in self._ends:
            end.channel.close()

    def _wait(self, fiber: Fiber, ends: Sequence[End], until_ns: int | None) -> None:
        while not any(end.ready for end in ends):
            if any(end.channel.closed for end in ends):
                raise RayChannelError("Channel closed.")
            wait(fiber, [end.when_ready for end in ends], until_ns)


def deadline(fiber: Fiber, timeout: float | None) -> int | None:
    """When a wait of ``timeout`` seconds is over; None and -1: never."""
    if timeout is None or timeout < 0:
        return None
    return fiber.process.session.sim.now_ns + round(timeout * 1e9)


def wait(fiber: Fiber, changes: Sequence[Callable[[Any], object]], until_ns: int | None) -> None:
    """Until one of the changes, which take a callback, or the deadline; then it raises."""
    sim = fiber.process.session.sim
    if until_ns is not None and sim.now_ns >= until_ns:
        raise RayChannelTimeoutError("Timed out waiting for a channel.")
    timer: list[Any] = []

    def start(then: Any) -> None:
        for change in changes:
            change(then)
        if until_ns is not None:
            timer.append(sim.call_later(until_ns - sim.now_ns, then))

    fiber.block(start)
    if timer:
        sim.cancel(timer[0])
