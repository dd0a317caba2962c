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

Status = Literal[
    "ok", "backpressure", "user_error", "replica_died", "proxy_died", "no_proxy", "not_found"
]
HTTP_CODES: dict[str, int] = {
    "ok": 200, "backpressure": 503, "user_error": 500, "replica_died": 500, "proxy_died": 502,
    "no_proxy": 503, "not_found": 404,
}  # fmt: skip


class Request:
    """What a client sent, until it has its answer."""

    __slots__ = (
        "application", "arrived_ns", "call", "ended_ns", "first_chunk_ns", "model_id", "number",
        "payload", "proxy_wait_ns", "status", "then", "value",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        application: str,
        arrived_ns: int,
        then: Callable[[Request], object],
        *,
        model_id: str = "",
        payload: Any = None,
    ) -> None:
        self.number = number
        self.application = application
        self.arrived_ns = arrived_ns
        self.then = then
        self.model_id = model_id
        self.payload = payload
        """What the user's method gets, of whoever runs it for its value; or an LLM's request."""
        self.status: Status | None = None
        self.value: Any = None
        self.ended_ns = -1
        self.first_chunk_ns = -1
        self.proxy_wait_ns = 0
        self.call: Call | None = None
        """Of the ingress."""

    @property
    def latency_ns(self) -> int:
        """From the client's send to its answer."""
        return self.ended_ns - self.arrived_ns

    def end(self, status: Status, now_ns: int, value: Any = None) -> None:
        """The client has its answer."""
        assert self.status is None, f"request {self.number} ends twice: {self.status}, {status}"
        self.status, self.ended_ns, self.value = status, now_ns, value
        self.then(self)


class Call:
    """One request of one handle to one deployment."""

    __slots__ = (
        "accepted", "admitted_ns", "assigned_ns", "begun_ns", "created_ns", "ended_ns",
        "matching_since_ns", "model_id", "on_chunk", "payload", "replica", "request", "router",
        "status", "then", "tried_az", "tried_fewest", "tried_first", "tried_node", "value",
    )  # fmt: skip

    def __init__(
        self,
        request: Request,
        router: Router,
        then: Callable[[Call], object],
        *,
        payload: Any = None,
        on_chunk: Callable[[Call], object] | None = None,
    ) -> None:
        self.request = request
        self.router = router
        self.then = then
        self.payload = payload
        self.on_chunk = on_chunk
        self.model_id = request.model_id
        self.created_ns = -1
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
        self.value: Any = None
        self.tried_node = self.tried_az = False
        self.tried_first = self.tried_fewest = False
        self.matching_since_ns = -1

    def end(self, status: Status, now_ns: int) -> None:
        """The caller has its answer."""
        assert self.status is None, f"a call of request {self.request.number} ends twice"
        self.status, self.ended_ns = status, now_ns
        self.then(self)
