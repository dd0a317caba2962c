"""``import zmq`` in programs with engines: two processes hand each other objects.

Real counterpart: pyzmq, by which colocated trainers tell an engine's workers where weights lie. A
socket that binds an address and the one that connects to it are the two ends of a pipe.

Not modelled: several peers of one socket, topics, polling; the time of a message is assumed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from raysim.rayapi.calls import this_fiber
from raysim.rayapi.unsupported import NotEmulatedError

PAIR, REQ, REP, DEALER, PUSH, PULL = 0, 3, 4, 5, 8, 7
MESSAGE_NS = 50_000
"""Of a message between two processes of a node; assumed."""
SNDTIMEO = RCVTIMEO = LINGER = 0


class Error(Exception):
    """``zmq.ZMQError``."""


ZMQError = Error


class _Pipe:
    """Of one address: what waits at either end."""

    def __init__(self) -> None:
        self.waits: tuple[deque[Any], deque[Any]] = (deque(), deque())
        self.readers: dict[int, Callable[[Any], object]] = {}


class Socket:
    """``zmq.Socket``."""

    def __init__(self, kind: int) -> None:
        self._kind = kind
        self._pipe: _Pipe | None = None
        self._end = 0

    def bind(self, address: str) -> None:
        """The first end of an address."""
        self._join(address, 0)

    def connect(self, address: str) -> None:
        """The other."""
        self._join(address, 1)

    def _join(self, address: str, end: int) -> None:
        session = this_fiber().process.session
        pipes: dict[str, _Pipe] = session.libraries.setdefault("zmq", {})
        self._pipe, self._end = pipes.setdefault(address, _Pipe()), end

    def _joined(self) -> _Pipe:
        if self._pipe is None:
            raise Error("the socket neither binds nor connects")
        return self._pipe

    def send_pyobj(self, obj: Any, *_args: Any, **_kwargs: Any) -> None:
        """An object, which is not copied: tensors on GPUs stay where they are."""
        fiber, pipe = this_fiber(), self._joined()
        other = 1 - self._end
        fiber.sleep(fiber.take_lead() + MESSAGE_NS)
        pipe.waits[other].append(obj)
        reader = pipe.readers.pop(other, None)
        if reader is not None:
            fiber.process.session.sim.call_later(0, reader, None)

    send = send_string = send_json = send_pyobj

    def send_multipart(self, parts: Any, *_args: Any, **_kwargs: Any) -> None:
        """Parts as one message."""
        self.send_pyobj(list(parts))

    def recv_pyobj(self, *_args: Any, **_kwargs: Any) -> Any:
        """The next, once it is there."""
        fiber, pipe = this_fiber(), self._joined()
        fiber.settle()
        if not pipe.waits[self._end]:
            fiber.block(lambda then: pipe.readers.setdefault(self._end, then))
        return pipe.waits[self._end].popleft()

    recv = recv_string = recv_json = recv_multipart = recv_pyobj

    def setsockopt(self, *_args: Any) -> None:
        """Nothing is lost or late."""

    def close(self, *_args: Any) -> None:
        """What it has sent is still read."""

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Context:
    """``zmq.Context``."""

    def __init__(self, *_args: Any) -> None:
        self.closed = False

    @classmethod
    def instance(cls) -> Context:
        """Of the process."""
        return cls()

    def socket(self, kind: int) -> Socket:
        """A new one."""
        if kind not in (PAIR, REQ, REP, DEALER, PUSH, PULL):
            raise NotEmulatedError(f"zmq socket of kind {kind}", "REQ and REP, PUSH and PULL, PAIR")
        return Socket(kind)

    def term(self) -> None:
        """It ends."""

    destroy = term
