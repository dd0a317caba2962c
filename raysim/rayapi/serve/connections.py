"""What aiohttp, and whoever brings its own protocol, writes to Serve: connections without sockets.

Real counterpart: a socket transport of asyncio between a client and uvicorn. The client's own
protocol writes requests and reads responses, so that sessions, limits, cookies and timeouts are its
own; a connection serves one request after the other.

Not modelled: bytes on the network, connections that take time, requests that are answered early.
"""

from __future__ import annotations

from email.parser import BytesHeaderParser
from typing import Any

from raysim.rayapi.serve.http import Message, ask_async, is_ours, message_of
from raysim.rayapi.serve.streams import Reply, framed, head_bytes

_HEAD_END, _CHUNKS_END = b"\r\n\r\n", b"0\r\n\r\n"


class Connection:
    """Bytes of requests in, of responses out: as a transport of asyncio."""

    def __init__(self, loop: Any, protocol: Any, base: str) -> None:
        self._loop, self._protocol, self._base = loop, protocol, base
        self._written = b""
        self._closing = False
        self._reply: Reply | None = None
        self._answering: Any = None
        """The task that does, or has done."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send the request once it is whole."""
        self._written += bytes(data)
        message = self._whole()
        if message is not None:
            self._answering = self._loop.create_task(self._answer(message))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """There is no socket."""
        del name
        return default

    def is_closing(self) -> bool:
        """Whether it is closed."""
        return self._closing

    def close(self) -> None:
        """The client leaves."""
        if self._closing:
            return
        self._closing = True
        if self._reply is not None:
            self._reply.leave()
        if self._answering is not None:
            self._answering.cancel()
        self._protocol.connection_lost(None)

    abort = close

    def pause_reading(self) -> None:
        """Chunks wait with the client."""

    def resume_reading(self) -> None:
        """As above."""

    def _whole(self) -> Message | None:
        head, end, body = self._written.partition(_HEAD_END)
        if not end:
            return None
        line, _, rest = head.partition(b"\r\n")
        method, target, _ = line.decode("latin-1").split(" ", 2)
        headers = dict(BytesHeaderParser().parsebytes(rest).items())
        named = {name.lower(): value for name, value in headers.items()}
        if named.get("transfer-encoding") == "chunked":
            if not body.endswith(_CHUNKS_END):
                return None
            body = _unframed(body)
        elif len(body) < int(named.get("content-length", 0)):
            return None
        self._written = b""
        return message_of(method, self._base + target, headers, body)

    async def _answer(self, message: Message) -> None:
        self._reply = reply = await ask_async(message)
        self._protocol.data_received(head_bytes(reply))
        async for chunk in reply:
            self._protocol.data_received(framed(reply, chunk))
        if reply.broken:
            self.close()
        elif reply.chunked:
            self._protocol.data_received(_CHUNKS_END)


def _unframed(body: bytes) -> bytes:
    found: list[bytes] = []
    while True:
        size, _, rest = body.partition(b"\r\n")
        count = int(size, 16)
        if not count:
            return b"".join(found)
        found.append(rest[:count])
        body = rest[count + 2 :]


def of_aiohttp(real: Any) -> Any:
    """``TCPConnector._create_connection``: ours to Serve, sockets to everybody else."""

    async def _create_connection(self: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_ours(str(req.url)):
            return await real(self, req, *args, **kwargs)
        protocol = self._factory()
        protocol.connection_made(Connection(self._loop, protocol, str(req.url.origin())))
        return protocol

    return _create_connection
