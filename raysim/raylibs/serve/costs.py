"""What a request costs the threads it passes, per stack of options.

Real counterpart: the event loops of Serve's proxy (``_private/proxy.py``) and of its replicas
(``_private/replica.py``, ``_private/router.py``), each one thread. The numbers were fitted to some
rows of a published benchmark (anyscale/serve-performance-blog, ``features/results``: Ray 2.55
nightly, one m7a.4xlarge or m7a.8xlarge, 10 KB through two deployments): ``raysim validate
ray_serve`` names those rows and reports the others. Half of a hop's cost comes before the next hop
and half after.

Not modelled: bytes of a request on the links, TLS; cores that RPC threads take, and what many
connections cost the host; threads of one process that wait for the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from raysim.units import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeCosts:
    """Seconds of one thread per request and per chunk, and of no thread per hop."""

    proxy_s: float
    """The Python proxy's loop; 0 with HAProxy, whose threads are many and fast."""
    ingress_s: float
    """The loop of a replica that serves HTTP: ASGI in and out."""
    replica_s: float
    """The loop of a replica that serves a handle's call."""
    handle_s: float
    """The caller's loop, per call through a handle."""
    transit_s: float
    """Each way of each hop, on no thread of these: sockets, RPC threads, scheduling."""
    proxy_chunk_s: float
    replica_chunk_s: float
    """Producing one chunk of a streaming response."""
    handle_chunk_s: float
    """Taking one from a handle."""
    cv: float
    """Of a hop's cost, gamma distributed."""
    user_thread: bool = True
    """User code has a thread beside the loop (``RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD``)."""
    haproxy: bool = False
    """HAProxy in place of the proxies: it goes to replicas of the ingress itself."""
    pause_s: float = 0.045
    """Of a loop's full garbage collection: p99 less median of most rows beyond 8 users."""
    pause_every_s: float = 1.2
    """Work of a loop between two of them, in the mean."""
    turn_frac: float = 0.9
    """More for a chunk that is alone in its turn of the loop: all threads of proxy and replicas
    work 0.99 ms a chunk for one stream, 0.52 for 16 (2 cores, ray 2.60, default stack, 2026-11)."""
    probe_s: float = 50e-6
    """A replica's loop, to say how long its queue is, and a router's, to hear it; assumed."""
    waited_s: float = 200e-6
    """A router's loop, to send a call that has waited, and to hear that it was refused: 0.15 ms
    from one send to the next on 2 cores with ``serve_speed`` 1.3 (2026-11, ray 2.60)."""
    cross_node_s: float = 100e-6
    """More per way between nodes: half a round trip in one zone; assumed."""

    def turn_ns(self, chunk_s: float) -> int:
        """Of one chunk's turn."""
        return round(chunk_s * self.turn_frac * NS_PER_S)

    def at_speed(self, speed: float) -> ServeCosts:
        """The same code on cores of that speed, on which it takes so many times less long."""
        shorter = {name: getattr(self, name) / speed for name in _WORK}
        return replace(self, **shorter)


_WORK = (
    "proxy_s", "ingress_s", "replica_s", "handle_s", "transit_s", "proxy_chunk_s",
    "replica_chunk_s", "handle_chunk_s", "pause_s", "probe_s", "waited_s",
)  # fmt: skip

DEFAULT = ServeCosts(
    proxy_s=0.78e-3,
    ingress_s=1.30e-3,
    replica_s=1.10e-3,
    handle_s=0.80e-3,
    transit_s=0.39e-3,
    proxy_chunk_s=46e-6,
    replica_chunk_s=80e-6,
    handle_chunk_s=80e-6,
    cv=0.3,
)
GRPC = replace(
    DEFAULT, handle_s=0.11e-3, replica_s=0.8e-3, replica_chunk_s=28e-6, handle_chunk_s=28e-6
)
HAPROXY = replace(
    DEFAULT, proxy_s=0.0, proxy_chunk_s=0.0, ingress_s=0.21e-3, haproxy=True,
    replica_chunk_s=65e-6, handle_chunk_s=65e-6,
)  # fmt: skip
EVENT_LOOP = replace(DEFAULT, ingress_s=0.95e-3, user_thread=False)
OPTIMIZED = replace(
    HAPROXY, ingress_s=0.24e-3, handle_s=0.2e-3, replica_s=0.4e-3, transit_s=0.42e-3,
    replica_chunk_s=16.5e-6, handle_chunk_s=16.5e-6, user_thread=False,
)  # fmt: skip
STACKS: Mapping[str, ServeCosts] = {
    "default": DEFAULT, "grpc": GRPC, "haproxy": HAPROXY, "event_loop": EVENT_LOOP,
    "optimized": OPTIMIZED,
}  # fmt: skip
"""By name. ``grpc``: ``RAY_SERVE_USE_GRPC_BY_DEFAULT``; ``haproxy``: ``RAY_SERVE_ENABLE_HA_PROXY``;
``event_loop``: user code and router in the replica's own loop; ``optimized``: all of them, as
``RAY_SERVE_THROUGHPUT_OPTIMIZED``."""
