"""Bodies of HTTP responses as they come: what a client reads waits for the chunks.

Real counterpart: the connection between a client and uvicorn. A response without a length is sent
in HTTP's chunks, one of each that the application has sent. Python's own ``http.client`` reads it.

Not modelled: bytes on the network, packets, buffers that fill up.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from http.client import HTTPResponse
from http.client import responses as reasons
from typing import Any, NamedTuple

from raysim.rayapi import asyncio_loop
from raysim.rayapi.calls import program_call, this_fiber
from raysim.rayapi.fibers import HUB

LENGTH = "content-length"


class Head(NamedTuple):
    """What comes first of a response."""

    status: int
    headers: tuple[tuple[str, str], ...]


class Reply:
    """A response whose body may still be on its way.

    Parameters
    ----------
    head
        Of it.
    body
        All of it; None: it comes by ``came``, until ``end``.
    left
        Called if the client leaves before the end.
    """

    def __init__(
        self, head: Head, body: bytes | None = None, left: Callable[[], object] = lambda: None
    ) -> None:
        self.head = self.last = head
        self.over = body is not None
        self.broken = False
        """It ended before all was sent: clients of sockets see a chunk that never comes."""
        self._chunks: deque[bytes] = deque([body] if body else [])
        self._whole = body
        self._left = left
        self._waiting: list[Callable[[None], object]] = []

    @property
    def chunked(self) -> bool:
        """Whether it has no length, and goes out in chunks."""
        return ("transfer-encoding", "chunked") in self.headers

    @property
    def headers(self) -> list[tuple[str, str]]:
        """With how the body is sent."""
        headers = list(self.head.headers)
        if not any(name.lower() == LENGTH for name, _ in headers):
            chunked = ("transfer-encoding", "chunked")
            headers.append(chunked if self._whole is None else (LENGTH, str(len(self._whole))))
        return headers

    def under(self, header: str, value: str) -> Reply:
        """The same with one header more."""
        if header not in dict(self.head.headers):
            self.head = self.head._replace(headers=(*self.head.headers, (header, value)))
        return self

    def came(self, chunk: bytes) -> None:
        """More of the body is there."""
        self._chunks.append(chunk)
        self._wake()

    def end(self, *, broken: bool = False, with_head: Head | None = None) -> None:
        """That was all; of gRPC, what it came to is in the last head."""
        self.over, self.broken = True, broken
        self.last = with_head or self.head
        self._wake()

    def leave(self) -> None:
        """The client hears no more."""
        if not self.over and HUB.here() is not None:
            self.over = True
            self._left()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then(None)

    @program_call
    def next(self) -> bytes:
        """The next chunk, waited for in a thread; empty: the end."""
        fiber = this_fiber()
        while not self._chunks and not self.over:
            fiber.settle()
            fiber.block(self._waiting.append)
        return self._chunks.popleft() if self._chunks else b""

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.next, b"")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self._chunks or not self.over:
            while not self._chunks and not self.over:
                await asyncio_loop.future_with(self._waiting.append)
            if self._chunks:
                yield self._chunks.popleft()


class _Wire(io.RawIOBase):
    """What a client's socket reads of a response."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._parts = _sent(reply)
        self._rest = b""

    def makefile(self, *_: Any) -> io.BufferedReader:
        """As of a socket."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """What is there, or comes next; nothing: the end."""
        self._rest = self._rest or next(self._parts, b"")
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size

    def close(self) -> None:
        """Whoever reads leaves."""
        self._reply.leave()
        super().close()


def head_bytes(reply: Reply) -> bytes:
    """Status and headers, as they are sent."""
    status = reply.head.status
    lines = [f"HTTP/1.1 {status} {reasons.get(status, '')}"]
    lines += [f"{name}: {value}" for name, value in reply.headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def framed(reply: Reply, chunk: bytes) -> bytes:
    """A part of the body, as it is sent."""
    return b"%x\r\n%b\r\n" % (len(chunk), chunk) if reply.chunked else chunk


def _sent(reply: Reply) -> Iterator[bytes]:
    yield head_bytes(reply)
    for chunk in reply:
        yield framed(reply, chunk)
    if reply.chunked and not reply.broken:
        yield b"0\r\n\r\n"


def client_response(reply: Reply, method: str) -> HTTPResponse:
    """As ``http.client`` has it when the head is read."""
    wire: Any = _Wire(reply)
    response = HTTPResponse(wire, method=method)
    response.begin()
    return response
