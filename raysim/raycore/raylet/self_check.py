"""A raylet that asks the GCS whether it is still thought alive, and exits if it is not.

Real counterpart: ``raylet_liveness_self_check_interval_ms`` in ``src/ray/raylet/node_manager.cc``:
``CheckAlive`` to the GCS every 60 s. Only one that was cut off can have been given up without its
knowing, so the wiring says when it is (``ReachabilityChanged``). From then on the question is asked
on the instants the periodic one would have, until the first answer; one asked while the cable is
out arrives when it is back, as any message does, so a node that was given up meanwhile ends then.
"""

from __future__ import annotations

from collections.abc import Callable

from raysim.kernel.component import Component, Failure
from raysim.raycore.ids import NodeID
from raysim.raycore.protocol import GCS, CheckAlive
from raysim.raycore.room import Surroundings
from raysim.units import NS_PER_MS


class SelfCheck:
    """Of one raylet.

    Parameters
    ----------
    dead
        Called when the GCS says that this node is not among the living.
    """

    __slots__ = ("_asking", "_dead", "_node_id", "_period_ns", "_room", "_started_ns")

    def __init__(
        self, room: Component, env: Surroundings, node_id: NodeID, dead: Callable[[], object]
    ) -> None:
        self._room = room
        self._node_id = node_id
        self._dead = dead
        self._period_ns = env.config.raylet_liveness_self_check_interval_ms * NS_PER_MS
        self._started_ns = env.sim.now_ns
        self._asking = False

    def cut_off(self) -> None:
        """The GCS cannot be reached from now on: what it thinks may change."""
        if not self._asking and self._period_ns > 0:
            self._asking = True
            self._next()

    def _next(self) -> None:
        passed_ns = self._room.sim.now_ns - self._started_ns
        self._room.after(self._period_ns - passed_ns % self._period_ns, self._ask)

    def _ask(self, _: object) -> None:
        self._room.call(GCS, CheckAlive(self._node_id), self._answered)

    def _answered(self, answer: object) -> None:
        if isinstance(answer, Failure):  # the GCS itself is away
            self._next()
            return
        self._asking = False
        if not answer:
            self._dead()
