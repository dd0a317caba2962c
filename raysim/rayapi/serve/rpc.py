"""gRPC requests of programs: services, a call's way to a replica, its context there.

Real counterpart: ``python/ray/serve/_private/{grpc_util,proxy}.py`` and ``serve/grpc_util.py`` (ray
2.60). Messages go framed, as on the wire; the last segment of a call's path is the method of the
ingress. The client has its answer with the status, trailing metadata and details of the context.

Not modelled: calls whose requests are streams, Serve's own service, reflection, compression.
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from raysim.rayapi.calls import this_fiber
from raysim.rayapi.failures import exception_of
from raysim.rayapi.serve.streams import Head, Reply
from raysim.raycore.tasks import TaskError
from raysim.raylibs.serve.request import Request

if TYPE_CHECKING:
    from raysim.rayapi.serve.replica import ProgramReplica
    from raysim.rayapi.serve.serving import Served

REQUEST_ID, APPLICATION, MODEL = "request_id", "application", "multiplexed_model_id"
DETAILS = "grpc-message"
"""Of a head: what the status means. Its status is gRPC's number."""
OK, NOT_FOUND, EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 0, 5, 8, 12, 13, 14
"""Of ``grpc.StatusCode``."""
_PREFIX = struct.Struct(">BI")
"""Of a message on the wire: not compressed, so many bytes."""
Metadata = tuple[tuple[str, str], ...]


class Services:
    """Stands for the server that servicer functions add to."""

    def __init__(self) -> None:
        self._handlers: list[Any] = []

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """``grpc.Server``'s."""
        self._handlers += handlers

    def add_registered_method_handlers(self, _service: str, _handlers: Any) -> None:
        """``grpc.Server``'s: they are among the generic ones too."""

    def of(self, path: str, metadata: Metadata) -> Any:
        """The handler of a call; None: there is none."""
        about = _Called(path, metadata)
        return next((found for h in self._handlers if (found := h.service(about))), None)


class _Called(NamedTuple):
    """``grpc.HandlerCallDetails``."""

    method: str
    invocation_metadata: Metadata


class _Servicer:
    """Has every method: which there are, the generated function knows."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


def services_of(functions: Sequence[Any]) -> Services:
    """What ``add_..Servicer_to_server`` functions add, named by paths as Ray has them, or given."""
    services = Services()
    for said in functions:
        function = said
        if isinstance(said, str):
            module, _, name = said.replace(":", ".").rpartition(".")
            function = getattr(import_module(module), name)
        function(_Servicer(), services)
    return services


def framed(message: bytes) -> bytes:
    """A message on the wire."""
    return _PREFIX.pack(0, len(message)) + message


def unframed(chunk: bytes) -> bytes:
    """It, out of its frame."""
    return chunk[_PREFIX.size :]


class RayServegRPCContext:
    """``ray.serve.grpc_util.RayServegRPCContext``: what a method hears and says beside messages."""

    def __init__(self, metadata: Metadata, request_id: str) -> None:
        self._metadata = metadata
        self._code: Any = None
        self._details: str | None = None
        self._request_id = request_id
        self._trailing: list[tuple[str, str]] = [(REQUEST_ID, request_id)]

    def invocation_metadata(self) -> list[tuple[str, str]]:
        """The client's."""
        return list(self._metadata)

    def request_id(self) -> str | None:
        """That the client has given."""
        return dict(self._metadata).get(REQUEST_ID)

    def application(self) -> str | None:
        """That the client has asked for."""
        return dict(self._metadata).get(APPLICATION)

    def multiplexed_model_id(self) -> str | None:
        """That the client has asked for."""
        return dict(self._metadata).get(MODEL)

    def peer(self) -> str:
        """Who asks."""
        return "ipv4:127.0.0.1:0"

    def code(self) -> Any:
        """That has been set."""
        return self._code

    def set_code(self, code: Any) -> None:
        """A ``grpc.StatusCode``."""
        self._code = code

    def details(self) -> str | None:
        """That have been set."""
        return self._details

    def set_details(self, details: str) -> None:
        """Text beside the status."""
        self._details = details

    def trailing_metadata(self) -> list[tuple[str, str]]:
        """What the client will have at the end."""
        return list(self._trailing)

    def set_trailing_metadata(self, trailing_metadata: list[tuple[str, str]]) -> None:
        """Beside the request's id."""
        self._trailing = [(REQUEST_ID, self._request_id), *trailing_metadata]

    def head(self, failed: BaseException | None = None) -> Head:
        """What the call has come to."""
        code = OK if self._code is None else self._code.value[0]
        details = self._details or ("" if failed is None else str(failed))
        return Head(code, (*self._trailing, (DETAILS, details)))


class Rpc(NamedTuple):
    """A call on its way."""

    method: str
    message: bytes
    load: Callable[[bytes], Any]
    """The service's: of the request."""
    stream: bool
    metadata: Metadata
    request_id: str

    async def answer(
        self, replica: ProgramReplica, chunk: Callable[[Head, bytes], object]
    ) -> Reply:
        """What the ingress's method makes of it."""
        context = RayServegRPCContext(self.metadata, self.request_id)
        method = replica.method(self.method)
        asks = "grpc_context" in inspect.signature(method).parameters
        given = {"grpc_context": context} if asks else {}
        try:
            value = await replica.call(method, self.load(self.message), **given)
            if not self.stream:
                return Reply(context.head(), framed(value.SerializeToString()))
            async for item in _items(replica, value):
                chunk(context.head(), framed(item.SerializeToString()))
        except Exception as error:
            if context.code() is None:
                raise
            return Reply(context.head(error), b"")
        return Reply(context.head(), b"")


async def _items(replica: ProgramReplica, items: Any) -> Any:
    if not isinstance(items, Iterator):
        async for item in items:
            yield item
        return
    over = object()
    while (item := await replica.in_thread(lambda: next(items, over))) is not over:
        yield item


def _said(code: int, details: str, request_id: str) -> Reply:
    return Reply(Head(code, ((REQUEST_ID, request_id), (DETAILS, details))), b"")


def start_call(
    path: str, message: bytes, metadata: Metadata, *, stream: bool,
    then: Callable[[Reply], object],
) -> None:  # fmt: skip
    """Send it; ``then(reply)`` in the simulation, when all of it is there or its first message."""
    from raysim.rayapi.serve.http import new_id, send
    from raysim.rayapi.serve.serving import serve_of

    session = this_fiber().process.session
    core: Any = this_fiber().process.core
    serve, said = serve_of(session), dict(metadata)
    request_id = said.get(REQUEST_ID) or new_id(session)
    handler = serve.services.of(path, metadata) if serve.services is not None else None
    served = _application(serve.apps, said.get(APPLICATION, ""))
    if handler is None:
        core.after(0, lambda _: then(_said(UNIMPLEMENTED, "Method not found!", request_id)))
        return
    if served is None:
        app = said.get(APPLICATION)
        missing = f"Application '{app}' not found." if app else "Application metadata not set."
        text = f"{missing} Ping /ray.serve.RayServeAPIService/ListApplications for available"
        core.after(0, lambda _: then(_said(NOT_FOUND, f"{text} applications.", request_id)))
        return
    load = handler.request_deserializer or bytes
    rpc = Rpc(path.rpartition("/")[2], message, load, stream, metadata, request_id)
    send(served, rpc, said.get(MODEL, ""), lambda r: _reply_of(r, request_id), then)


def _application(apps: dict[str, Served], name: str) -> Served | None:
    """Of this name; if there is only one, that."""
    if len(apps) == 1:
        return next(iter(apps.values()))
    return apps.get(name)


def _reply_of(request: Request, request_id: str) -> Reply:
    answer = None if request.call is None else request.call.answer
    if request.status == "ok":
        assert isinstance(answer, Reply), "a replica answers a call with a reply"
        return answer
    if request.status == "backpressure":
        return _said(EXHAUSTED, "Request dropped due to backpressure.", request_id)
    if isinstance(answer, TaskError):
        return _said(INTERNAL, str(exception_of(answer, "")), request_id)
    return _said(UNAVAILABLE, "The replica died before it answered.", request_id)
