"""Objects that are written over and over: the buffers of compiled graphs' channels.

Real counterpart: ``src/ray/core_worker/experimental_mutable_object_manager.cc`` and its provider.
Processes of one node share the memory, so nothing is sent: a writer waits until every reader has
read the version before, a reader until there is a new one; whoever waits is woken after
``channel_wake_ns``. To another node the raylets push each version into a buffer there
(``PushMutableObject``), and free the writer's once all have it. No GCS, no leases, no messages of
workers.

This is memory, not a room. The store's room knows the bytes: whoever makes a channel puts an object
of the buffer's size and holds it.

Not modelled: one reader of a node closing a channel while others go on: it is closed for all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from raysim.raycore.ids import NodeID
from raysim.raycore.protocol import raylet
from raysim.raycore.room import Surroundings
from raysim.raycore.tasks import Payload

_Then = Callable[[Any], object]


class MutableObject:
    """The buffers of one channel on one node.

    Parameters
    ----------
    node_id
        Whose memory it is.
    readers
        How many read each version.
    slots
        How many versions may be there before the first has been read by all.
    """

    __slots__ = ("_env", "_readers_wait", "_versions", "_wake_ns", "_writer_waits", "closed",
                 "node_id", "read_no", "slots", "written_no")  # fmt: skip

    def __init__(self, env: Surroundings, node_id: NodeID, readers: int, slots: int = 1) -> None:
        assert min(readers, slots) > 0, f"{readers} readers, {slots} slots"
        self._env = env
        self._wake_ns = env.costs.channel_wake_ns
        self.node_id = node_id
        self.slots = slots
        self.closed = False
        self._versions: deque[Payload] = deque()
        """Those that some reader has still to read; the last is number ``written_no - 1``."""
        self.written_no = 0
        self.read_no = [0] * readers
        """How many versions each reader has read."""
        self._readers_wait: list[list[_Then]] = [[] for _ in range(readers)]
        self._writer_waits: list[_Then] = []

    @property
    def can_write(self) -> bool:
        """Whether a slot is free."""
        return len(self._versions) < self.slots

    def write(self, payload: Payload) -> None:
        """A new version."""
        assert self.can_write, f"version {self.written_no} written into a full channel"
        assert not self.closed, f"version {self.written_no} written into a closed channel"
        self._versions.append(payload)
        self.written_no += 1
        for waiting in self._readers_wait:
            self._wake(waiting)

    def can_read(self, reader: int) -> bool:
        """Whether there is a version that this reader has not read."""
        return self.read_no[reader] < self.written_no

    def peek(self, reader: int) -> Payload:
        """Its next version, which stays."""
        assert self.can_read(reader), f"reader {reader} has read all {self.written_no}"
        return self._versions[self.read_no[reader] - self.written_no]

    def read(self, reader: int) -> Payload:
        """Its next version; the slot is free once all have read it."""
        payload = self.peek(reader)
        self.read_no[reader] += 1
        left = self.written_no - min(self.read_no)
        while len(self._versions) > left:
            self._versions.popleft()
            self._wake(self._writer_waits)
        return payload

    def when_readable(self, reader: int, then: _Then) -> None:
        """Call back when there is a new version for this reader, or the channel is closed."""
        if self.closed or self.can_read(reader):
            self._env.sim.call_later(0, then)
        else:
            self._readers_wait[reader].append(then)

    def when_writable(self, then: _Then) -> None:
        """Call back when there is a slot, or the channel is closed."""
        if self.closed or self.can_write:
            self._env.sim.call_later(0, then)
        else:
            self._writer_waits.append(then)

    def close(self) -> None:
        """Nobody writes or reads any more; whoever waits is told."""
        if not self.closed:
            self.closed = True
            self._versions.clear()
            for waiting in (*self._readers_wait, self._writer_waits):
                self._wake(waiting)

    def _wake(self, waiting: list[_Then]) -> None:
        for then in waiting:
            self._env.sim.call_later(self._wake_ns, then)
        waiting.clear()


class RemoteCopies:
    """What the writer's raylet does: push every version to the buffers on other nodes.

    Parameters
    ----------
    local
        The writer's buffer; its reader ``reader`` is the raylet.
    remotes
        A buffer of one slot on each of the other nodes.
    """

    __slots__ = ("_env", "_left", "_local", "_reader", "_remotes")

    def __init__(
        self,
        env: Surroundings,
        local: MutableObject,
        reader: int,
        remotes: Sequence[MutableObject],
    ) -> None:
        self._env = env
        self._local = local
        self._reader = reader
        self._remotes = tuple(remotes)
        self._left = 0
        local.when_readable(reader, self._push)

    def _push(self, _: object) -> None:
        if self._local.closed:
            return
        payload = self._local.peek(self._reader)
        self._left = len(self._remotes)
        for remote in self._remotes:
            self._send(self._local, remote, payload.size_bytes, self._arrived, (remote, payload))

    def _arrived(self, push: tuple[MutableObject, Payload]) -> None:
        remote, payload = push
        if self._env.sim.components[raylet(remote.node_id)].state != "up" or remote.closed:
            return
        if not remote.can_write:
            remote.when_writable(lambda _: self._arrived(push))
            return
        remote.write(payload)
        self._send(remote, self._local, 0, self._acknowledged, None)

    def _send(
        self,
        src: MutableObject,
        dst: MutableObject,
        size_bytes: int,
        fn: Callable[[Any], object],
        arg: Any,
    ) -> None:
        """From one raylet to another."""
        transport = self._env.sim.transport
        a, b = transport.end(raylet(src.node_id)), transport.end(raylet(dst.node_id))
        transport.deliver(a, b, size_bytes, fn, arg)

    def _acknowledged(self, _: object) -> None:
        self._left -= 1
        if not self._left and not self._local.closed:
            self._local.read(self._reader)
            self._local.when_readable(self._reader, self._push)
