"""Clients in front of the proxies: who sends what where, and what comes of it.

Real counterpart: a load balancer that goes round the nodes whose proxies are healthy (Serve's
``/-/healthz``), and what a load generator writes down. A request that finds no proxy fails.

A client costs nothing unless it is said to be a Python program (``PythonClient``), whose threads
may be slower than what they measure.

Not modelled: time that a balancer takes to see that a proxy is gone; clients that retry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from raysim.kernel.rng import Streams
from raysim.raylibs.serve.event_loop import EventLoop, Timers, deliver
from raysim.raylibs.serve.load import Load, source_of
from raysim.raylibs.serve.records import RequestLog
from raysim.raylibs.serve.request import Request
from raysim.units import to_ns

if TYPE_CHECKING:
    from raysim.raylibs.serve.instance import Instance


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonClient:
    """A load generator of asyncio and httpx: what its processes, one thread each, take.

    Seconds are CPU time of such a client on an AMD EPYC of 2 cores (httpx 0.28, TLS, chunks of 200
    bytes from a server beside it, 2026-11).
    """

    processes: int
    """Requests are dealt out to them in turn."""
    connects: bool = False
    """A connection for every request."""
    request_s: float = 0.92e-3
    """Without its chunks."""
    chunk_s: float = 20e-6
    """Of many that are there."""
    turn_s: float = 96e-6
    """More for one that comes alone, a turn of the loop and a read: 0.12 ms in all with one stream
    of real Serve."""
    connect_s: float = 1.25e-3
    """A handshake."""


class Clients:
    """All clients of one application, in a process outside of the cluster.

    Parameters
    ----------
    instance
        Whom they ask.
    process
        Theirs.
    rng
        Named streams.
    models
        Requests ask for one of so many multiplexed models, each as often; 0: for none.
    python
        What the clients' own code takes; None: nothing.
    """

    def __init__(
        self,
        instance: Instance,
        process: Timers,
        rng: Streams,
        *,
        models: int = 0,
        python: PythonClient | None = None,
    ) -> None:
        self.log = RequestLog()
        self._instance = instance
        self._process = process
        self._rng = rng
        self._models = models
        self._sent = 0
        self._python = python
        self._loops: list[EventLoop] = []
        if python is not None:
            self._loops = [EventLoop(process) for _ in range(python.processes)]

    def start(self, load: Load, then: Callable[[], object]) -> None:
        """Play a load; ``then()`` when all of it is answered."""
        send = self.send if self._python is None else partial(self._send_by, self._python)
        source_of(load, self._process, send, self._rng("serve/arrivals")).start(then)

    def _send_by(self, python: PythonClient, then: Callable[[Request], object]) -> None:
        """One request of a Python program, by its next process: head, chunks and end."""
        loop = self._loops.pop(0)
        self._loops.append(loop)
        half_ns, turn_ns = to_ns(python.request_s / 2), to_ns(python.turn_s)
        chunk_ns = to_ns(python.chunk_s)

        def came(_: Request) -> None:
            loop.run(chunk_ns, lambda _: None, None, turn_ns)

        def ended(request: Request) -> None:
            loop.run(half_ns, then, request)

        connect_ns = to_ns(python.connect_s) if python.connects else 0
        loop.run(connect_ns + half_ns, lambda _: self.send(ended, came))

    def send(
        self,
        then: Callable[[Request], object],
        on_chunk: Callable[[Request], object] | None = None,
    ) -> Request:
        """One request, to the next proxy."""
        number, self._sent = self._sent, self._sent + 1

        def ended(request: Request) -> None:
            self.log.add(request)
            request.call = None  # they refer to each other: a look for garbage is half of a run
            then(request)

        model = ""
        if self._models:
            model = f"model-{int(self._rng('serve/models').integers(self._models))}"
        instance, process = self._instance, self._process
        request = Request(number, process.now_ns, ended, model_id=model, on_chunk=on_chunk)
        proxies = list(instance.proxies.values())
        if not proxies:
            process.after(0, lambda _: request.end("no_proxy", process.now_ns))
            return request
        proxy = proxies[number % len(proxies)]
        deliver(proxy.process, to_ns(instance.costs.transit_s), proxy.receive, request)
        return request
