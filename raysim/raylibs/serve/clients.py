"""Clients in front of the proxies: who sends what where, and what comes of it.

Real counterpart: a load balancer that goes round the nodes whose proxies are healthy (Serve's
``/-/healthz``), and what a load generator writes down. A request that finds no proxy fails.

Not modelled: time that a balancer takes to see that a proxy is gone; clients that retry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from raysim.kernel.rng import Streams
from raysim.raylibs.serve.event_loop import Timers, deliver
from raysim.raylibs.serve.load import Load, source_of
from raysim.raylibs.serve.records import RequestLog
from raysim.raylibs.serve.request import Request
from raysim.units import to_ns

if TYPE_CHECKING:
    from raysim.raylibs.serve.instance import Instance


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
    """

    def __init__(
        self,
        instance: Instance,
        process: Timers,
        rng: Streams,
        *,
        models: int = 0,
    ) -> None:
        self.log = RequestLog()
        self._instance = instance
        self._process = process
        self._rng = rng
        self._models = models
        self._sent = 0

    def start(self, load: Load, then: Callable[[], object]) -> None:
        """Play a load; ``then()`` when all of it is answered."""
        source_of(load, self._process, self.send, self._rng("serve/arrivals")).start(then)

    def send(self, then: Callable[[Request], object]) -> Request:
        """One request, to the next proxy."""
        number, self._sent = self._sent, self._sent + 1

        def ended(request: Request) -> None:
            self.log.add(request)
            then(request)

        model = ""
        if self._models:
            model = f"model-{int(self._rng('serve/models').integers(self._models))}"
        instance, process = self._instance, self._process
        request = Request(number, process.now_ns, ended, model_id=model)
        proxies = list(instance.proxies.values())
        if not proxies:
            process.after(0, lambda _: request.end("no_proxy", process.now_ns))
            return request
        proxy = proxies[number % len(proxies)]
        deliver(proxy.process, to_ns(instance.costs.transit_s), proxy.receive, request)
        return request
