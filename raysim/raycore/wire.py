"""The transport between rooms: what lies between two addresses, and what cuts it.

Real counterpart: gRPC over TCP, Unix sockets between a process and its own raylet and store, and
plain calls within the raylet's process, which holds the store and the object manager too.

A message takes the latency of its hop; across nodes its bytes cross the network, as a flow with
others when it is large. A node that is cut off sends and gets nothing; what was sent meanwhile
arrives when it is joined again, as TCP sees to, unless its receiver has died in between.

A part of a hop, and copying the bytes, is work of gRPC's threads. Where nodes share few cores it
competes with all else there: one thread per receiving process, one message after the other. What
needs no answer here is answered in gRPC all the same, which is work at the sender.

Two processes connect when one first calls the other, which takes a millisecond or two; every
process is connected to the GCS when it begins.

Not modelled: head-of-line blocking between a pair, gRPC's own queues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from raysim.hardware.host import Host
from raysim.hardware.node import Node
from raysim.hardware.transfer import FLUID_BYTES, Network
from raysim.kernel.component import Reply
from raysim.kernel.simulation import Simulation
from raysim.perf.ray_core import RayCosts
from raysim.raycore.ids import NodeID
from raysim.raycore.protocol import (
    GCS,
    ActorCreationTaskDone,
    AsyncGetObjects,
    CancelGetRequest,
    DisconnectClient,
    NotifyWorkerBlocked,
    NotifyWorkerUnblocked,
    RegisterClient,
)

LOCAL_BYTES_PER_S = 2e9
"""A message through gRPC on one host: two copies and protobuf; order of magnitude of a core."""

_RAYLET_PROCESS = frozenset({"raylet", "plasma", "object_manager"})
_BY_SOCKET = frozenset({
    RegisterClient, DisconnectClient, NotifyWorkerBlocked, NotifyWorkerUnblocked, AsyncGetObjects,
    CancelGetRequest, ActorCreationTaskDone,
})  # fmt: skip
"""What a process tells its own raylet through their socket (``raylet_ipc_client.cc``); all else is
gRPC, but for the store's requests."""


@dataclass(frozen=True, slots=True)
class End:
    """Where an address is."""

    node_id: NodeID
    in_raylet: bool
    """Within the raylet's process."""
    in_store: bool
    """Reached through a Unix socket from its own node."""
    host: Host
    """What passes between nodes of one machine stays there."""
    process: str
    """Whose thread of gRPC takes what arrives."""
    peers: dict[str, int]
    """Processes that this one has a connection with, and since when."""


class Wire:
    """The kernel's ``Transport`` for Ray Core."""

    def __init__(
        self,
        sim: Simulation,
        network: Network,
        costs: RayCosts,
        nodes: Sequence[Node],
        head: NodeID = 0,
    ) -> None:
        self._network = network
        self._clock = sim.clock
        self._hosts = [node.host for node in nodes]
        self._peers: dict[str, dict[str, int]] = {}
        self._ends = {
            GCS: End(
                head,
                in_raylet=False,
                in_store=False,
                host=self._hosts[head],
                process=GCS,
                peers={},
            )
        }
        self._socket_ns = costs.unix_socket_ns
        self._local_ns = max(costs.grpc_same_host_ns, costs.grpc_work_ns)
        self._cross_ns = self._local_ns + costs.grpc_cross_host_extra_ns
        self._connect_ns = costs.connect_ns
        self._work_ns = costs.grpc_work_ns
        self._work_ns_per_byte = 1e9 / costs.grpc_bytes_per_s
        self._cut: dict[NodeID, None] = {}
        self._held: list[tuple[End, End, float, Callable[[Any], object], Any]] = []

    def deliver(
        self,
        src: End,
        dst: End,
        message_bytes: float,
        fn: Callable[[Any], object],
        arg: Any,
        lead_ns: int = 0,
    ) -> None:
        """Call ``fn(arg)`` when ``message_bytes`` from ``src`` have arrived at ``dst``."""
        if src.node_id == dst.node_id:
            if src.in_raylet and dst.in_raylet:
                latency_ns = 0
            elif (src.in_raylet or dst.in_raylet) and (
                src.in_store or dst.in_store or arg.message.__class__ in _BY_SOCKET
            ):
                latency_ns = self._socket_ns
            else:
                latency_ns = self._local_ns + self._work(src, dst, message_bytes, arg, lead_ns)
                if message_bytes > FLUID_BYTES:
                    latency_ns += int(message_bytes / LOCAL_BYTES_PER_S * 1e9)
        elif self._cut and (src.node_id in self._cut or dst.node_id in self._cut):
            self._held.append((src, dst, message_bytes, fn, arg))
            return
        else:
            latency_ns = self._local_ns if src.host is dst.host else self._cross_ns
            latency_ns += self._work(src, dst, message_bytes, arg, lead_ns)
            if message_bytes > FLUID_BYTES:
                arg = (src.node_id, dst.node_id, message_bytes, fn, arg)
                fn = self._flow
        self._clock.call_later(lead_ns + latency_ns, fn, arg)

    def cut(self, node_id: NodeID) -> None:
        """Nothing passes between this node and others any more."""
        self._cut[node_id] = None

    def join(self, node_id: NodeID) -> None:
        """It can be reached again; what was sent meanwhile arrives."""
        if self._cut.pop(node_id, node_id) is None:
            held, self._held = self._held, []
            for message in held:
                self.deliver(*message)

    def lose(self, node_id: NodeID) -> None:
        """It lost power: what it had sent and could not deliver is gone."""
        self._held = [m for m in self._held if m[0].node_id != node_id]

    def is_cut(self, node_id: NodeID) -> bool:
        """Whether it is cut off."""
        return node_id in self._cut

    def _work(self, a: End, b: End, message_bytes: float, call: Any, lead_ns: int) -> int:
        """How much longer the hop is: to connect, and because its work is done on few cores."""
        at_ns = self._clock.now + lead_ns
        load = b.host.load
        up_ns = a.peers.get(b.process)
        if up_ns is None:
            connect_ns = 0 if GCS in (a.process, b.process) else self._connect_ns
            if connect_ns and load is not None:
                connect_ns = load.takes(b.process, at_ns, connect_ns, warm=True)
            up_ns = a.peers[b.process] = b.peers[a.process] = at_ns + connect_ns
        begun_ns = max(at_ns, up_ns)  # what follows waits too
        if load is None:
            return begun_ns - at_ns
        work_ns = self._work_ns + int(message_bytes * self._work_ns_per_byte)
        done_ns = load.serve(b.process, begun_ns, work_ns)
        one_way = call.__class__ is Reply and call.caller is None
        if one_way and load is a.host.load:
            load.serve(a.process, done_ns, self._work_ns)
        return done_ns - at_ns - self._work_ns

    def _flow(self, message: tuple[NodeID, NodeID, float, Callable[[Any], object], Any]) -> None:
        a, b, message_bytes, fn, arg = message
        self._network.send(("host", a), ("host", b), message_bytes, fn, arg)

    def end(self, address: str) -> End:
        """Read off the address where it is, once: ``node-3/worker-17``."""
        there = self._ends.get(address)
        if there is not None:
            return there
        node, _, room = address.partition("/")
        assert node.startswith("node-"), f"{address!r} is on no node"
        kind = room.split("-", 1)[0]
        in_raylet = kind in _RAYLET_PROCESS
        node_id = int(node[5:])
        process = node if in_raylet else address
        peers = self._peers.setdefault(process, {})
        end = self._ends[address] = End(
            node_id, in_raylet=in_raylet, in_store=kind == "plasma", host=self._hosts[node_id],
            process=process, peers=peers,
        )  # fmt: skip
        return end
