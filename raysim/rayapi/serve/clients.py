"""Clients of programs reach the emulated Serve: requests, httpx (so openai), urllib, aiohttp, grpc.

Real counterpart: sockets. Only what a program asks of this machine at Serve's port is answered
here; everything else goes where it always does. Threads that FastAPI takes for its routes are those
of the replica. Patched for as long as a program runs.
"""

from __future__ import annotations

import importlib.util
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from raysim.rayapi.serve.connections import of_aiohttp
from raysim.rayapi.serve.context import SERVING
from raysim.rayapi.serve.http import ask, ask_async, is_ours, message_of
from raysim.rayapi.serve.streams import Reply, client_response

_HTTPX = ("httpx", "httpx2")
"""Packages of one interface; openai's clients take the second where it is there."""
_undo: list[Callable[[], None]] = []


def install() -> None:
    """Patch what is there, once."""
    if _undo:
        return
    _patch(urllib.request.HTTPHandler, "http_open", _urllib)
    if importlib.util.find_spec("requests") is not None:
        from requests.adapters import HTTPAdapter

        _patch(HTTPAdapter, "send", _requests)
    for name in _HTTPX:
        if importlib.util.find_spec(name) is not None:
            httpx = importlib.import_module(name)
            _patch(httpx.HTTPTransport, "handle_request", partial(_httpx, httpx))
            _patch(httpx.AsyncHTTPTransport, "handle_async_request", partial(_httpx_async, httpx))
    if importlib.util.find_spec("aiohttp") is not None:
        import aiohttp

        _patch(aiohttp.TCPConnector, "_create_connection", of_aiohttp)
    if importlib.util.find_spec("grpc") is not None:
        import grpc

        from raysim.rayapi.serve import channels

        _patch(grpc, "insecure_channel", channels.of_grpc)
        _patch(grpc.aio, "insecure_channel", channels.of_aio)
    if importlib.util.find_spec("anyio") is not None:
        import anyio.to_thread

        _patch(anyio.to_thread, "run_sync", _threads)


def remove() -> None:
    """As it was."""
    while _undo:
        _undo.pop()()


def _patch(owner: Any, name: str, made: Callable[[Any], Any]) -> None:
    real = getattr(owner, name)
    setattr(owner, name, made(real))
    _undo.append(lambda: setattr(owner, name, real))


def _requests(real: Any) -> Any:
    def send(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_ours(request.url):
            return real(self, request, *args, **kwargs)
        from urllib3 import HTTPResponse

        body = request.body or b""
        data = body.encode() if isinstance(body, str) else bytes(body)
        limit = kwargs.get("timeout")
        limit_s = limit[1] if isinstance(limit, tuple) else getattr(limit, "read_timeout", limit)
        try:
            reply = ask(message_of(request.method, request.url, request.headers, data), limit_s)
        except TimeoutError:
            raise _late(request, limit_s) from None
        read = client_response(reply, request.method)
        raw = HTTPResponse(
            body=read, headers=dict(read.getheaders()), status=read.status, reason=read.reason,
            original_response=read, preload_content=False, decode_content=False,
            request_method=request.method,
        )  # fmt: skip
        return self.build_response(request, raw)

    return send


def _late(request: Any, limit_s: Any) -> Exception:
    """As requests says it."""
    from requests.exceptions import ReadTimeout

    host = urlsplit(request.url)
    return ReadTimeout(
        f"HTTPConnectionPool(host={host.hostname!r}, port={host.port}): Read timed out. "
        f"(read timeout={limit_s})",
        request=request,
    )


def _httpx_limit_s(request: Any) -> float | None:
    """Its timeout of reading, which is five seconds where nothing is said."""
    limit: float | None = request.extensions.get("timeout", {}).get("read")
    return limit


def _httpx_reply(httpx: Any, request: Any, reply: Reply) -> Any:
    def check() -> None:
        if reply.broken:
            raise httpx.RemoteProtocolError(
                "peer closed connection without sending complete message body "
                "(incomplete chunked read)"
            )

    class Body(httpx.SyncByteStream, httpx.AsyncByteStream):  # type: ignore[misc]
        """As it comes, to who iterates in either way."""

        def __iter__(self) -> Iterator[bytes]:
            yield from reply
            check()

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for chunk in reply:
                yield chunk
            check()

        def close(self) -> None:
            reply.leave()

        async def aclose(self) -> None:
            reply.leave()

    return httpx.Response(reply.head.status, headers=reply.headers, stream=Body(), request=request)


def _httpx(httpx: Any, real: Any) -> Any:
    def handle_request(self: Any, request: Any) -> Any:
        if not is_ours(str(request.url)):
            return real(self, request)
        message = message_of(request.method, str(request.url), request.headers, request.read())
        try:
            reply = ask(message, _httpx_limit_s(request))
        except TimeoutError:
            raise httpx.ReadTimeout("timed out", request=request) from None
        return _httpx_reply(httpx, request, reply)

    return handle_request


def _httpx_async(httpx: Any, real: Any) -> Any:
    async def handle_async_request(self: Any, request: Any) -> Any:
        if not is_ours(str(request.url)):
            return await real(self, request)
        body = await request.aread()
        message = message_of(request.method, str(request.url), request.headers, body)
        try:
            reply = await ask_async(message, _httpx_limit_s(request))
        except TimeoutError:
            raise httpx.ReadTimeout("", request=request) from None
        return _httpx_reply(httpx, request, reply)

    return handle_async_request


def _urllib(real: Any) -> Any:
    def http_open(self: Any, request: Any) -> Any:
        if not is_ours(request.full_url):
            return real(self, request)
        headers = dict(request.header_items())
        method = request.get_method()
        limit = getattr(request, "timeout", None)
        limit_s = limit if isinstance(limit, int | float) else None
        reply = ask(message_of(method, request.full_url, headers, request.data or b""), limit_s)
        found = client_response(reply, method)
        found.url, found.msg = request.full_url, found.reason  # type: ignore[assignment]  # as urllib
        return found

    return http_open


def _threads(real: Any) -> Any:
    async def run_sync(func: Any, *args: Any, **options: Any) -> Any:
        serving = SERVING.get()
        if serving is None:
            return await real(func, *args, **options)
        return await serving.replica.in_thread(partial(func, *args))

    return run_sync
