"""Channels of ``grpc`` and ``grpc.aio`` to the emulated Serve.

Real counterpart: ``grpc/_channel.py`` and ``grpc/aio/_channel.py`` (grpcio 1.85). A channel to this
machine's port of Serve's gRPC is one of these; generated stubs call it as they call grpc's own.

Not modelled: deadlines, requests that are streams, channels with credentials.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc

from raysim.rayapi import asyncio_loop
from raysim.rayapi.calls import program_call, this_fiber
from raysim.rayapi.fibers import HUB
from raysim.rayapi.serve.http import LOCAL
from raysim.rayapi.serve.rpc import DETAILS, start_call, unframed
from raysim.rayapi.serve.serving import LIBRARY, serve_of
from raysim.rayapi.serve.streams import Head, Reply
from raysim.rayapi.unsupported import NotEmulatedError

_CODES = {code.value[0]: code for code in grpc.StatusCode}


def is_ours(target: str) -> bool:
    """Whether a channel to this leads to the emulated Serve."""
    fiber = HUB.here()
    if fiber is None or LIBRARY not in fiber.process.session.libraries:
        return False
    host, _, port = target.removeprefix("dns:///").rpartition(":")
    serve = serve_of(fiber.process.session)
    return serve.services is not None and host in LOCAL and port == str(serve.grpc_port)


def of_grpc(real: Any) -> Any:
    """``grpc.insecure_channel``."""

    def insecure_channel(target: str, *args: Any, **kwargs: Any) -> Any:
        return Channel() if is_ours(target) else real(target, *args, **kwargs)

    return insecure_channel


def of_aio(real: Any) -> Any:
    """``grpc.aio.insecure_channel``."""

    def insecure_channel(target: str, *args: Any, **kwargs: Any) -> Any:
        return AioChannel() if is_ours(target) else real(target, *args, **kwargs)

    return insecure_channel


class Call:
    """What a call came to, beside its messages."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    def _head(self) -> Head:
        return self._reply.last

    def code(self) -> grpc.StatusCode:
        """Its status."""
        return _CODES[self._head().status]

    def details(self) -> str:
        """Text beside it."""
        return dict(self._head().headers)[DETAILS]

    def initial_metadata(self) -> tuple[Any, ...]:
        """None is sent."""
        return ()

    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        """What the method has set, and the request's id."""
        return tuple(pair for pair in self._head().headers if pair[0] != DETAILS)

    def is_active(self) -> bool:
        """Whether more may come."""
        return not self._reply.over

    def cancel(self) -> bool:
        """The client hears no more."""
        self._reply.leave()
        return True


class Failure(grpc.RpcError, Call):  # type: ignore[misc]
    """As grpc's ``_InactiveRpcError``."""

    def __init__(self, reply: Reply) -> None:
        Call.__init__(self, reply)

    def __str__(self) -> str:
        return (
            f"<_InactiveRpcError of RPC that terminated with:\n\tstatus = {self.code()}\n"
            f'\tdetails = "{self.details()}"\n>'
        )


class Responses(Call):
    """Of a call whose response is a stream."""

    def __init__(self, reply: Reply, load: Callable[[bytes], Any]) -> None:
        super().__init__(reply)
        self._load = load

    def __iter__(self) -> Iterator[Any]:
        for chunk in self._reply:
            yield self._load(unframed(chunk))
        if self.code() is not grpc.StatusCode.OK:
            raise Failure(self._reply)


class _Method:
    """One method of a service, as a stub has it."""

    def __init__(self, path: str, dump: Any, load: Any, *, stream: bool) -> None:
        self._path, self._stream = path, stream
        self._dump: Callable[[Any], bytes] = dump or bytes
        self._load: Callable[[bytes], Any] = load or bytes

    def _start(self, request: Any, metadata: Any, then: Callable[[Reply], object]) -> None:
        pairs = tuple((str(k), v) for k, v in metadata or ())
        start_call(self._path, self._dump(request), pairs, stream=self._stream, then=then)

    def _value(self, reply: Reply, chunk: bytes) -> Any:
        if reply.last.status:
            raise Failure(reply)
        return self._load(unframed(chunk))


class Unary(_Method):
    """Called from a thread."""

    def __call__(
        self, request: Any, timeout: float | None = None, metadata: Any = None, **_: Any
    ) -> Any:
        """The response; of a stream, an iterator of them."""
        del timeout
        if self._stream:
            return Responses(self._ask(request, metadata), self._load)
        return self.with_call(request, metadata=metadata)[0]

    def with_call(
        self, request: Any, timeout: float | None = None, metadata: Any = None, **_: Any
    ) -> tuple[Any, Call]:
        """The response, and what the call came to."""
        del timeout
        reply = self._ask(request, metadata)
        return self._value(reply, reply.next()), Call(reply)

    @program_call
    def _ask(self, request: Any, metadata: Any) -> Reply:
        fiber = this_fiber()
        fiber.settle()
        reply: Reply = fiber.block(lambda then: self._start(request, metadata, then))
        return reply


class AioCall:
    """A call of an event loop: awaited, or iterated over."""

    def __init__(self, method: AioMethod, request: Any, metadata: Any) -> None:
        self._method = method
        self._asked = asyncio_loop.future_with(
            lambda then: method._start(request, metadata, then)  # noqa: SLF001  (its own)
        )
        self._call: Call | None = None

    async def _reply(self) -> Reply:
        if self._call is None:
            self._call = Call(await self._asked)
        return self._call._reply  # noqa: SLF001  (its own)

    def __await__(self) -> Any:
        return self._unary().__await__()

    async def _unary(self) -> Any:
        reply = await self._reply()
        chunk = b"".join([part async for part in reply])
        return self._method._value(reply, chunk)  # noqa: SLF001  (its own)

    async def __aiter__(self) -> AsyncIterator[Any]:
        reply = await self._reply()
        async for chunk in reply:
            yield self._method._load(unframed(chunk))  # noqa: SLF001  (its own)
        if reply.last.status:
            raise Failure(reply)

    async def code(self) -> grpc.StatusCode:
        """Its status."""
        return Call(await self._reply()).code()

    async def details(self) -> str:
        """Text beside it."""
        return Call(await self._reply()).details()

    async def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        """What the method has set, and the request's id."""
        return Call(await self._reply()).trailing_metadata()


class AioMethod(_Method):
    """Called from an event loop."""

    def __call__(
        self, request: Any, timeout: float | None = None, metadata: Any = None, **_: Any
    ) -> AioCall:
        """It begins; the response comes."""
        del timeout
        return AioCall(self, request, metadata)


class _Channel:
    """What stubs ask of one."""

    _kind: type[_Method]

    def unary_unary(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None,
        *_args: Any, **_kwargs: Any,
    ) -> Any:  # fmt: skip
        """A method."""
        return self._kind(method, request_serializer, response_deserializer, stream=False)

    def unary_stream(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None,
        *_args: Any, **_kwargs: Any,
    ) -> Any:  # fmt: skip
        """A method whose response is a stream."""
        return self._kind(method, request_serializer, response_deserializer, stream=True)

    def stream_unary(self, method: str, *_args: Any, **_kwargs: Any) -> Any:
        """Refused when it is called: stubs have all methods of a service."""

        def refuse(*_: Any, **__: Any) -> None:
            raise NotEmulatedError(f"a stream of requests to {method}", "one request")

        return refuse

    stream_stream = stream_unary


class Channel(_Channel):
    """``grpc.Channel``."""

    _kind = Unary

    def subscribe(self, callback: Callable[[Any], object], try_to_connect: bool = False) -> None:
        """It is ready at once."""
        del try_to_connect
        callback(grpc.ChannelConnectivity.READY)

    def unsubscribe(self, callback: Any) -> None:
        """Of no effect."""

    def close(self) -> None:
        """Of no effect."""

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AioChannel(_Channel):
    """``grpc.aio.Channel``."""

    _kind = AioMethod

    async def channel_ready(self) -> None:
        """It is."""

    async def close(self, grace: float | None = None) -> None:
        """Of no effect."""

    async def __aenter__(self) -> AioChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
