"""What carries a message from one room to another.

Rooms know only this interface. ``hardware.network`` implements it over links that collectives and
object transfers share; ``InstantTransport`` is for tests and for clusters whose network is not the
question.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from raysim.kernel.clock import Clock


class Transport(Protocol):
    """Carries messages; may take as long as it likes, and may lose them."""

    def end(self, address: str) -> Any:
        """Where an address is, as ``deliver`` is told: looked up once for each room."""

    def deliver(
        self,
        src: Any,
        dst: Any,
        message_bytes: float,
        fn: Callable[[Any], object],
        arg: Any,
        lead_ns: int = 0,
    ) -> None:
        """Call ``fn(arg)`` when ``message_bytes`` from ``src`` have arrived at ``dst``.

        They leave ``lead_ns`` from now: the sender is so far ahead of the clock.
        """


class InstantTransport:
    """Every message takes ``latency_ns``, whatever its size; none is lost or overtaken."""

    def __init__(self, clock: Clock, latency_ns: int = 0) -> None:
        self.latency_ns = latency_ns
        self._clock = clock

    def end(self, address: str) -> str:
        """All are equally far."""
        return address

    def deliver(
        self,
        src: str,  # noqa: ARG002
        dst: str,  # noqa: ARG002
        message_bytes: float,  # noqa: ARG002  (distance and size do not matter here)
        fn: Callable[[Any], object],
        arg: Any,
        lead_ns: int = 0,
    ) -> None:
        """Call ``fn(arg)`` after the latency."""
        self._clock.call_later(lead_ns + self.latency_ns, fn, arg)
