"""What a request costs the threads it passes, per stack of options.

Real counterpart: the event loops of Serve's proxy (``_private/proxy.py``) and of its replicas
(``_private/replica.py``, ``_private/router.py``), each one thread. The numbers were fitted to some
rows of a published benchmark (anyscale/serve-performance-blog, ``features/results``: Ray 2.55
nightly, one m7a.4xlarge or m7a.8xlarge, 10 KB through two deployments); ``raysim validate`` names
those rows and reports the others. Half of a hop's cost comes before the next hop and half after.

Not modelled: bytes of a request on the links, TLS, what more than 100 users cost the host.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    haproxy: bool = False
    """HAProxy in place of the proxies: it goes to replicas of the ingress itself."""
    pause_s: float = 0.045
    """Of a loop's full garbage collection: p99 less median of most rows beyond 8 users."""
    pieces_per_pause: float = 2400.0
    """Pieces of work (a hop has two) between two of them."""
    probe_s: float = 50e-6
    """A replica's loop, to say how long its queue is; assumed."""
    cross_node_s: float = 100e-6
    """More per way between nodes: half a round trip in one zone; assumed."""
