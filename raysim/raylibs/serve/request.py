"""A request, the calls it is made of, and how they end.

Real counterpart: ``RequestMetadata`` and ``PendingRequest`` (``_private/common.py``,
``request_router/common.py``). A request enters once; every deployment it reaches is one ``Call``
through one handle, with its own queue, limit and times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from raysim.raylibs.serve.replica import Replica
    from raysim.raylibs.serve.router import Router

Status = Literal["ok", "backpressure", "user_error", "replica_died", "proxy_died", "no_proxy"]


class Request:
    """What a client sent, until it has its answer."""

    __slots__ = (
        "arrived_ns", "asked", "call", "ended_ns", "first_chunk_ns", "model_id", "number",
        "on_chunk", "proxy_wait_ns", "status", "then",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        arrived_ns: int,
        then: Callable[[Request], object],
        *,
        model_id: str = "",
        asked: Any = None,
        on_chunk: Callable[[Request], object] | None = None,
    ) -> None:
        self.number = number
        self.arrived_ns = arrived_ns
        self.then = then
        self.model_id = model_id
        self.asked = asked
        """Of a program's own deployments: what the method is called with."""
        self.on_chunk = on_chunk
        """Told when the client has a chunk of a response that goes on."""
        self.status: Status | None = None
        self.ended_ns = -1
        self.first_chunk_ns = -1
        self.proxy_wait_ns = 0
        self.call: Call | None = None
        """Of the ingress."""

    @property
    def latency_ns(self) -> int:
        """From the client's send to its answer."""
        return self.ended_ns - self.arrived_ns

    def end(self, status: Status, now_ns: int) -> None:
        """The client has its answer."""
        assert self.status is None, f"request {self.number} ends twice: {self.status}, {status}"
        self.status, self.ended_ns = status, now_ns
        self.then(self)


class Call:
    """One request of one handle to one deployment."""

    __slots__ = (
        "accepted", "admitted_ns", "answer", "assigned_ns", "batched", "begun_ns", "created_ns",
        "ended_ns", "matching_since_ns", "model_id", "on_chunk", "order", "outcome", "replica",
        "request", "router", "status", "then", "tried_fewest", "tried_first", "tried_node",
    )  # fmt: skip

    def __init__(
        self,
        request: Request,
        router: Router,
        then: Callable[[Call], object],
        *,
        on_chunk: Callable[[Call], object] | None = None,
    ) -> None:
        self.request = request
        self.router = router
        self.then = then
        self.on_chunk = on_chunk
        self.model_id = request.model_id if router.config.multiplex is not None else ""
        self.created_ns = -1
        self.order = 0
        """Among all calls of its handle."""
        self.assigned_ns = -1
        """When a replica was found; the last time, if replicas refused it."""
        self.admitted_ns = -1
        """When it took one of its replica's ``max_ongoing_requests``."""
        self.begun_ns = -1
        """When the user's method was called."""
        self.ended_ns = -1
        self.replica: Replica | None = None
        self.accepted = False
        self.status: Status | None = None
        self.outcome: Status = "ok"
        """What the user's method has come to, on its way to the caller."""
        self.answer: Any = None
        """Of a program's own deployments: what it returned or raised."""
        self.batched: Any = None
        """Of a batched method: what goes on when its batch is done."""
        self.tried_node = False
        self.tried_first = self.tried_fewest = False
        self.matching_since_ns = -1

    def end(self, status: Status, now_ns: int) -> None:
        """The caller has its answer."""
        assert self.status is None, f"a call of request {self.request.number} ends twice"
        self.status, self.ended_ns = status, now_ns
        self.then(self)
