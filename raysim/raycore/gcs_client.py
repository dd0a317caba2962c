"""How every process talks to the GCS: calls that wait while it is away.

Real counterpart: ``src/ray/gcs_rpc_client/rpc_client.h``, ``src/ray/rpc/retryable_grpc_client.cc``
(ray 2.60). A call that finds the GCS unavailable is kept; the channel is looked at every second,
and when it is ready again all kept calls are sent once more, oldest first. After
``gcs_rpc_server_reconnect_timeout_s`` without the GCS the process gives up: workers and raylets
exit. The GCS must therefore bear the same call twice, and does.

Not modelled: keepalive of the channel. A head node that vanishes without a word keeps its clients
waiting for calls already sent until it is back; only calls it refuses count as unavailability.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raysim.kernel.component import Component, Failure, Message
from raysim.raycore.protocol import GCS, CheckAlive
from raysim.raycore.room import Surroundings
from raysim.units import NS_PER_S

_CHECK_INTERVAL_NS = NS_PER_S
"""``gcs_client_check_connection_status_interval_milliseconds`` = 1000."""

_Kept = tuple[Message, Callable[[Any], object]]


def _ignore(_answer: object) -> None:
    """The answer says no more than that the GCS has it."""


class GcsClient:
    """The GCS as seen from one room. Make a new one in ``started()``: calls die with their room.

    Parameters
    ----------
    room
        Whose calls these are; answers come to it.
    env
        For the settings.
    gave_up
        Called once, when the GCS has been away for too long: exit the process.
    """

    __slots__ = ("_away_since_ns", "_gave_up", "_kept", "_room", "_timeout_ns")

    def __init__(self, room: Component, env: Surroundings, gave_up: Callable[[], object]) -> None:
        self._room = room
        self._gave_up = gave_up
        self._timeout_ns = env.config.gcs_rpc_server_reconnect_timeout_s * NS_PER_S
        self._kept: list[_Kept] = []
        self._away_since_ns = -1

    @property
    def away(self) -> bool:
        """Whether the GCS was away when last tried."""
        return self._away_since_ns >= 0

    def call(self, message: Message, then: Callable[[Any], object]) -> None:
        """Have ``then(answer)`` called once, however long the GCS is away; never with a failure."""
        if self._away_since_ns >= 0:
            self._kept.append((message, then))
        else:
            self._room.call(GCS, message, _Attempt(self, message, then).answered)

    def ask(self, question: _Kept) -> None:
        """The same, of a pair."""
        self.call(*question)

    def tell(self, message: Message) -> None:
        """Send what needs no answer but must arrive (worker failures, finished jobs)."""
        self.call(message, _ignore)

    def send(self, message: Message) -> None:
        """Send what is stale soon, and lost if the GCS is away (resource reports)."""
        self._room.send(GCS, message)

    def refused(self, message: Message, then: Callable[[Any], object]) -> None:
        """A call of ours has failed: keep it, and look for the GCS every second."""
        self._kept.append((message, then))
        if self._away_since_ns < 0:
            self._away_since_ns = self._room.sim.now_ns
            self._room.after(_CHECK_INTERVAL_NS, self._check)

    def _check(self, _: object) -> None:
        if self._room.sim.now_ns - self._away_since_ns >= self._timeout_ns:
            self._kept.clear()
            self._gave_up()
            return
        self._room.call(GCS, CheckAlive(), self._checked, timeout_ns=_CHECK_INTERVAL_NS)

    def _checked(self, answer: object) -> None:
        if isinstance(answer, Failure):
            elapsed_ns = self._room.sim.now_ns - self._away_since_ns
            self._room.after(_CHECK_INTERVAL_NS - elapsed_ns % _CHECK_INTERVAL_NS, self._check)
            return
        self._away_since_ns = -1
        kept, self._kept = self._kept, []
        for message, then in kept:
            self.call(message, then)


class _Attempt:
    """One try of a call; remembers what to send again."""

    __slots__ = ("_client", "_message", "_then")

    def __init__(self, client: GcsClient, message: Message, then: Callable[[Any], object]) -> None:
        self._client = client
        self._message = message
        self._then = then

    def answered(self, answer: Any) -> None:
        """The answer, or that the GCS is away."""
        if isinstance(answer, Failure):
            self._client.refused(self._message, self._then)
        else:
            self._then(answer)
