"""Proxies: where HTTP requests enter, one per node that has replicas.

Real counterpart: ``_private/proxy.py``, ``_private/proxy_state.py`` and, with
``RAY_SERVE_ENABLE_HA_PROXY``, ``_private/haproxy.py`` (ray 2.60). A Python proxy is one thread
with a router per application in it. HAProxy is a process in C with many threads: it costs nothing
here, and goes to the replica of the ingress with the fewest of its connections.

Not modelled: keep-alive, request timeouts (``request_timeout_s``, off by default), gRPC ingress.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raysim.raylibs.serve.costs import ServeCosts
from raysim.raylibs.serve.event_loop import EventLoop, Jitter, ServeProcess, Turns
from raysim.raylibs.serve.request import Call, Request
from raysim.units import to_ns

if TYPE_CHECKING:
    from raysim.raylibs.serve.router import Router


class Proxy:
    """The data path of one proxy."""

    def __init__(self, process: ServeProcess, costs: ServeCosts, jitter: Jitter) -> None:
        self.process = process
        self.costs = costs
        self.jitter = jitter
        self.loop = EventLoop(process)
        self.router: Router | None = None
        """To the ingress; it is made after the proxy."""
        self.open: dict[Request, Turns] = {}
        self.dead = False

    def receive(self, request: Request) -> None:
        """A client's request has come."""
        self.open[request] = turns = Turns(self.loop)
        waits_ns = self.loop.busy_until - self.process.now_ns
        request.proxy_wait_ns = max(waits_ns, 0)
        turns.run(self.jitter.ns(self.costs.proxy_s / 2), self._route, request)

    def _route(self, request: Request) -> None:
        router = self.router
        assert router is not None, "a proxy takes requests before it has a router"
        call = Call(request, router, self._answered, on_chunk=self._chunk)
        request.call = call
        router.assign(call)

    def _answered(self, call: Call) -> None:
        cost_ns = self.jitter.ns(self.costs.proxy_s / 2)
        self.open[call.request].run(cost_ns, self._respond, call)

    def _chunk(self, call: Call) -> None:
        costs = self.costs
        cost_ns, turn_ns = self.jitter.ns(costs.proxy_chunk_s), costs.turn_ns(costs.proxy_chunk_s)
        self.open[call.request].run(cost_ns, self._chunk_out, call, turn_ns)

    def _chunk_out(self, call: Call) -> None:
        request = call.request
        if request.first_chunk_ns < 0:
            request.first_chunk_ns = self.process.now_ns
        if request.on_chunk is not None:
            self.process.after(to_ns(self.costs.transit_s), request.on_chunk, request)

    def _respond(self, call: Call) -> None:
        self.process.after(to_ns(self.costs.transit_s), self._end, call)

    def _end(self, call: Call) -> None:
        assert call.status is not None, "answered without a status"
        del self.open[call.request]
        call.request.end(call.status, self.process.now_ns)

    def died(self, now_ns: int) -> None:
        """Clients' connections break."""
        self.dead = True
        requests, self.open = self.open, {}
        for request in requests:
            request.end("proxy_died", now_ns)
