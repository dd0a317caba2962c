"""What every network shares: the interface, routes made once, and messages between rooms.

Real counterpart of ``Messages``: gRPC over TCP. A control message is small beside bulk data, so it
waits for its route's latency and its own size at the route's narrowest link and takes no share from
flows; messages between two ends keep their order. What is larger than ``FLUID_BYTES`` is a flow
like any other. Over a cut link a message waits, or is lost with its node.

Not modelled: connection set-up, TLS, Nagle; small messages are not counted as carried bytes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from raysim.hardware.maxmin import Flow, Loads, Partition
from raysim.hardware.topology import Link, Topology, Vertex, latency_s
from raysim.kernel.simulation import Simulation
from raysim.units import KIB, NS_PER_S, to_ns

FLUID_BYTES = 64 * KIB
"""Messages above this share links with other flows: some 1 us of a 400 Gb/s port."""

LOCAL_LATENCY_S = 5e-6
"""Process to process on one host, through a socket: assumed (software costs are the rooms')."""

Then = Callable[[Any], object]
Failed = Callable[[Any, Any], object]


class LinkUse(NamedTuple):
    """What one link did up to now."""

    link: Link
    carried_bytes: float
    busy_ns: int


class Routes:
    """Loads and latency of routes, made once per pair of ends."""

    def __init__(self, topology: Topology | None) -> None:
        self._topology = topology
        self._known: dict[tuple[Vertex | Link, ...], tuple[Loads, int]] = {}

    def __call__(
        self, src: Vertex, dst: Vertex, through: tuple[Link, ...] = ()
    ) -> tuple[Loads, int]:
        """Loads of 1 along the topology's route and on more links, and its latency in ns."""
        key: tuple[Vertex | Link, ...] = (src, dst, *through)
        found = self._known.get(key)
        if found is None:
            assert self._topology is not None, "send() needs a network made with a topology"
            path = self._topology.route(src, dst)
            found = Loads.along(path + through), to_ns(latency_s(path))
            self._known[key] = found
        return found


def check_size(size_bytes: float, latency_ns: int, max_bytes_per_s: float) -> None:
    """Refuse what makes no sense with a ValueError."""
    if not (0 <= size_bytes < math.inf and latency_ns >= 0 and max_bytes_per_s > 0):
        raise ValueError(
            f"size {size_bytes} must be finite and not negative, latency {latency_ns} not negative,"
            f" limit {max_bytes_per_s} positive"
        )


class _Post:
    """One direction between two rooms."""

    __slots__ = ("last_ns", "latency_ns", "loads", "path", "s_per_byte")

    def __init__(self, path: tuple[Link, ...], loads: Loads, latency_ns: int) -> None:
        self.path = path
        self.loads = loads
        self.latency_ns = latency_ns
        self.s_per_byte = max((1 / link.bytes_per_s for link in path), default=0.0)
        self.last_ns = 0


class Messages:
    """The kernel's ``Transport`` over a network; an address belongs to the host it starts with.

    ``"node-3/raylet"`` is on ``("host", 3)`` unless ``place`` says otherwise.
    """

    def __init__(self, sim: Simulation, network: Network, topology: Topology | None) -> None:
        self.sim = sim
        self.cut: dict[Link, None] = {}
        """Links that are down, kept by the network."""
        self._network = network
        self._topology = topology
        self._places: dict[str, Vertex] = {}
        self._posts: dict[tuple[str, str], _Post] = {}

    def place(self, address: str, end: Vertex) -> None:
        """Say where an address is, such as ``("gcs", ("host", 0))``."""
        self._places[address] = end

    def end(self, address: str) -> Vertex:
        """Where an address is.

        Raises
        ------
        ValueError
            It was not placed, and does not start with ``node-<index>``.
        """
        end = self._places.get(address)
        if end is None:
            name, _, index = address.split("/", maxsplit=1)[0].rpartition("-")
            if name != "node" or not index.isdigit():
                raise ValueError(f"{address!r} is on no node: place() it")
            end = self._places[address] = ("host", int(index))
        return end

    def deliver(
        self,
        src: str,
        dst: str,
        message_bytes: float,
        fn: Callable[[Any], object],
        arg: Any,
        lead_ns: int = 0,
    ) -> None:
        """Call ``fn(arg)`` when ``message_bytes`` from ``src`` have arrived at ``dst``."""
        post = self._posts.get((src, dst)) or self._open(src, dst)
        if message_bytes > FLUID_BYTES or (self.cut and any(x in self.cut for x in post.path)):
            self._network.start(
                post.loads,
                message_bytes or 1,
                latency_ns=lead_ns + post.latency_ns,
                then=fn,
                arg=arg,
            )
            return
        wait_ns = lead_ns + post.latency_ns + math.ceil(message_bytes * post.s_per_byte * NS_PER_S)
        post.last_ns = max(post.last_ns, self.sim.clock.now + wait_ns)
        self.sim.call_at(post.last_ns, fn, arg)

    def _open(self, src: str, dst: str) -> _Post:
        a, b = self.end(src), self.end(dst)
        assert self._topology is not None, "messages need a network made with a topology"
        path = self._topology.path(a, b)
        delay_s = latency_s(path) + (LOCAL_LATENCY_S if a[1:2] == b[1:2] else 0.0)
        post = _Post(path, Loads.along(path), to_ns(delay_s))
        self._posts[src, dst] = post
        return post


class Network(ABC):
    """What moves bytes: the same calls at every fidelity, and what they share."""

    address = "network"

    def __init__(self, sim: Simulation, topology: Topology | None) -> None:
        self.sim = sim
        self.messages = Messages(sim, self, topology)
        self._links = Partition()
        self._routes = Routes(topology)
        self._count = 0
        """Flows so far."""

    @abstractmethod
    def start(
        self,
        loads: Loads | Iterable[tuple[Link, float]],
        size_bytes: float,
        *,
        latency_ns: int = 0,
        max_bytes_per_s: float = math.inf,
        then: Then,
        arg: Any = None,
        failed: Failed | None = None,
    ) -> Flow:
        """Move ``size_bytes``, each of which puts ``load`` bytes on each link; then ``then(arg)``.

        A flow that ends early calls ``failed(arg, cause)`` instead, if it was given, and says so in
        ``flow.failure``. Make a ``Loads`` of what is started often.
        """

    def send(
        self,
        src: Vertex,
        dst: Vertex,
        size_bytes: float,
        then: Then,
        arg: Any = None,
        *,
        through: tuple[Link, ...] = (),
        max_bytes_per_s: float = math.inf,
        failed: Failed | None = None,
    ) -> Flow:
        """Move bytes along the topology's route between two ends, its latency first.

        ``through``: links they load besides, such as threads that copy them.
        """
        loads, latency_ns = self._routes(src, dst, through)
        return self.start(
            loads, size_bytes, latency_ns=latency_ns, max_bytes_per_s=max_bytes_per_s,
            then=then, arg=arg, failed=failed,
        )  # fmt: skip

    @abstractmethod
    def cancel(self, flow: Flow) -> None:
        """End a flow without telling anyone; harmless when it has ended."""

    @abstractmethod
    def fail_link(self, link: Link, cause: Any = None) -> None:
        """Cut a link; with a cause, flows over it, present and future, end with it."""

    @abstractmethod
    def set_bytes_per_s(self, link: Link, bytes_per_s: float) -> None:
        """Make a link slower or faster from now on."""

    @abstractmethod
    def restore(self, link: Link) -> None:
        """Undo ``fail_link`` and ``set_bytes_per_s``."""

    def end(self, address: str) -> str:
        """As the kernel's ``Transport``."""
        return address

    def deliver(
        self,
        src: str,
        dst: str,
        message_bytes: float,
        fn: Callable[[Any], object],
        arg: Any,
        lead_ns: int = 0,
    ) -> None:
        """As the kernel's ``Transport``."""
        self.messages.deliver(src, dst, message_bytes, fn, arg, lead_ns)

    def uses(self) -> list[LinkUse]:
        """What each link touched so far has carried, in order of first use."""
        now_ns = self.sim.now_ns
        return [LinkUse(link, *self._links.use(link, now_ns)) for link in self._links.of]
