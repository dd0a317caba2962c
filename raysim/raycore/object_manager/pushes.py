"""Sending objects to other nodes: whole objects as flows, some gigabytes of chunks at a time.

Real counterpart: ``src/ray/object_manager/push_manager.cc`` and ``ObjectManager::Push``,
``PushFromFilesystem``. Ray sends chunks of 5 MiB, one of each active push in turn; flows that share
links by max-min are that in the limit. The node's copying threads are a link at either end, and
the few cores of a machine that holds both ends another, for their work and gRPC's. There a chunk
is the work of one core at a time: copied whole into a message before gRPC has it, and out of it
after.

A request repeated while its push is under way has all chunks sent once more: those sent already
follow the rest. A request for an object that is not here is remembered for a while.

Not modelled: single chunks, so a receiver cannot get different chunks from two senders.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any

from raysim.hardware.maxmin import Flow
from raysim.hardware.topology import Link
from raysim.raycore.ids import NodeID, ObjectID, WorkerAddress
from raysim.raycore.protocol import Pull, PushBegun, PushDone, object_manager
from raysim.raycore.tasks import Payload
from raysim.units import NS_PER_MS

if TYPE_CHECKING:
    from raysim.raycore.object_manager.object_manager import ObjectManager

PUSH_TIMEOUT_NS = 10_000 * NS_PER_MS
"""``object_manager_push_timeout_ms``: how long a request for what is not here is remembered."""

CONNECTIONS = 2
"""``object_manager_client_connection_num``: threads at most that serve one pair of nodes."""

Key = tuple[ObjectID, NodeID]


def copy_threads(vcpus: int, configured: int) -> int:
    """``object_manager_rpc_threads_num``: a quarter of the cores, two to eight."""
    return configured or min(max(2, vcpus // 4), 8)


class Push:
    """One object on its way to one node."""

    __slots__ = (
        "again_bytes", "flow", "from_disk", "key", "owner", "parts", "payload", "size", "through",
    )  # fmt: skip

    def __init__(
        self,
        key: Key,
        size_bytes: int,
        owner: WorkerAddress,
        payload: Payload,
        through: Link | None,
    ) -> None:
        self.key = key
        self.size = size_bytes
        self.owner = owner
        self.payload = payload
        self.through = through
        self.from_disk = -1
        """Index of the disk it is read from; -1: from memory."""
        self.flow: Flow | None = None
        self.parts = 0
        """Of the transfer and the reading, how many are not through yet."""
        self.again_bytes = 0.0
        """To be sent once more."""


class PushManager:
    """What this node sends."""

    def __init__(self, room: ObjectManager) -> None:
        env, node = room.env, room.env.nodes[room.node_id]
        config, costs = env.config, env.costs
        self.room = room
        self.chunk = config.object_manager_default_chunk_size
        self.limit = config.object_manager_max_bytes_in_flight
        threads = copy_threads(node.spec.vcpus, config.object_manager_rpc_threads_num)
        each = self.chunk / (self.chunk / costs.copy_bytes_per_s + costs.chunk_ns * 1e-9)
        self.pair_bytes_per_s = CONNECTIONS * each
        self.send_threads = Link(f"{node.name}/chunk-senders", threads * each)
        self.receive_threads = Link(f"{node.name}/chunk-receivers", threads * each)
        self._core_s_per_byte = 2 / costs.copy_bytes_per_s + 1 / costs.grpc_bytes_per_s
        """Of both ends: into a message, through gRPC, out of it."""
        self.reset()

    def reset(self) -> None:
        """Nothing is under way."""
        self.pushes: dict[Key, Push] = {}
        self.waiting: deque[Push] = deque()
        self.in_flight = 0
        """Bytes of chunks out, at most one per push."""
        self.unfulfilled: dict[ObjectID, dict[NodeID, tuple[int, Pull]]] = {}

    def remember(self, m: Pull) -> None:
        """Asked for what is not here."""
        now_ns = self.room.now_ns
        for object_id, asked in list(self.unfulfilled.items()):
            for node, (until_ns, _) in list(asked.items()):
                if until_ns < now_ns:
                    del asked[node]
            if not asked:
                del self.unfulfilled[object_id]
        asked = self.unfulfilled.setdefault(m.object_id, {})
        asked[m.requester] = (now_ns + PUSH_TIMEOUT_NS, m)

    def remembered(self, object_id: ObjectID) -> list[Pull]:
        """Requests for an object that has just come, if they are not too old."""
        asked = self.unfulfilled.pop(object_id, None)
        if asked is None:
            return []
        now_ns = self.room.now_ns
        return [m for until_ns, m in asked.values() if until_ns >= now_ns]

    def resend(self, key: Key) -> bool:
        """Asked again: whether it is on its way already."""
        push = self.pushes.get(key)
        if push is None:
            return False
        if push.flow is not None:
            push.again_bytes = push.size - push.flow.left(self.room.now_ns)
        return True

    def start(self, push: Push) -> None:
        """Send, now or when others are through; the caller holds a pin if it is in memory."""
        assert push.key not in self.pushes, f"{self.room.address}: {push.key} is on its way"
        self.pushes[push.key] = push
        if self.in_flight and self.in_flight + self._chunk_of(push) > self.limit:
            self.waiting.append(push)
        else:
            self._begin(push)

    def _chunk_of(self, push: Push) -> int:
        return min(self.chunk, push.size)

    def _begin(self, push: Push) -> None:
        self.in_flight += self._chunk_of(push)
        if push.from_disk >= 0:
            push.parts += 1
            self.room.after(0, self._read_file, push)
        self._send(push, push.size)

    def _read_file(self, push: Push) -> None:
        disk = self.room.env.spill_disks(self.room.node_id)[push.from_disk]
        disk.read(push.size, self._read, (self.room.epoch, push))

    def _send(self, push: Push, size_bytes: float) -> None:
        room = self.room
        object_id, node = push.key
        push.parts += 1
        room.send(
            object_manager(node), PushBegun(object_id, push.size, push.owner, room.node_id)
        )  # fmt: skip
        room.after(0, self._move, (push, size_bytes))

    def _move(self, sending: tuple[Push, float]) -> None:
        """The first byte leaves."""
        push, size_bytes = sending
        if self.pushes.get(push.key) is not push:
            return
        room, node = self.room, push.key[1]
        threads = [self.send_threads]
        if push.through is not None:
            threads.append(push.through)
        most_bytes_per_s = self.pair_bytes_per_s
        here, there = (room.env.nodes[n].host for n in (room.node_id, node))
        if here is there and here.load is not None:
            threads.append(here.load.link("copying", self._core_s_per_byte))
            at_once = min(CONNECTIONS, math.ceil(size_bytes / self.chunk))
            most_bytes_per_s = min(most_bytes_per_s, at_once / self._core_s_per_byte)
        push.flow = room.env.network.send(
            ("host", room.node_id), ("host", node), size_bytes, self._sent, push,
            through=tuple(threads), max_bytes_per_s=most_bytes_per_s, failed=self._failed,
        )  # fmt: skip

    def _read(self, read: tuple[int, Push]) -> None:
        epoch, push = read
        if epoch == self.room.epoch and self.pushes.get(push.key) is push:
            self._part(push)

    def _sent(self, push: Push) -> None:
        push.flow = None
        self._part(push)

    def _part(self, push: Push) -> None:
        push.parts -= 1
        if push.parts:
            return
        object_id, node = push.key
        room = self.room
        room.send(object_manager(node), PushDone(object_id, push.payload, room.node_id))
        if push.again_bytes:
            size, push.again_bytes = push.again_bytes, 0.0
            self._send(push, size)
        else:
            self._end(push)

    def _failed(self, push: Push, _cause: Any) -> None:
        """A node at either end died."""
        push.flow = None
        if self.room.state == "up":
            self._end(push)

    def _end(self, push: Push) -> None:
        del self.pushes[push.key]
        self.in_flight -= self._chunk_of(push)
        if push.from_disk < 0:
            self.room.unpin(push.key[0])
        while self.waiting and (
            not self.in_flight or self.in_flight + self._chunk_of(self.waiting[0]) <= self.limit
        ):
            self._begin(self.waiting.popleft())

    def stop_all(self, node_id: NodeID | None = None) -> None:
        """End what goes to a node that is dead, or everything because this room is."""
        for push in list(self.pushes.values()):
            if node_id is not None and push.key[1] != node_id:
                continue
            if push.flow is not None:
                self.room.env.network.cancel(push.flow)
                push.flow = None
            if node_id is None:
                continue
            if push in self.waiting:
                self.waiting.remove(push)
                self.in_flight += self._chunk_of(push)
            self._end(push)
        if node_id is not None:
            for asked in self.unfulfilled.values():
                asked.pop(node_id, None)

    def wrong(self) -> str:
        """What breaks its laws now; empty when all is well."""
        under_way = [p for p in self.pushes.values() if p.parts]
        in_flight = sum(self._chunk_of(p) for p in under_way)
        if in_flight != self.in_flight or len(under_way) + len(self.waiting) != len(self.pushes):
            return f"{self.in_flight} bytes counted in flight, {in_flight} are"
        return ""
