"""Nodes with room for one kind of request that count as unused, kept as nodes change.

The hybrid policy takes one of the ``k`` least used nodes, and all nodes below its threshold are
equal. While there are ``k`` of these, it is enough to know which they are: a decision then costs
what has changed since the last one, not a look at every node. The choice is ``policies.hybrid``'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from raysim.raycore.ids import NodeID
from raysim.raycore.raylet.policies import Draw

if TYPE_CHECKING:
    from raysim.raycore.raylet.policies import Bools, Floats

_BLOCK = 64


class Kind(NamedTuple):
    """What the books are kept for."""

    request: tuple[tuple[str, int], ...]
    selector: Any
    avoid_gpu: bool
    threshold: float


class IdleNodes:
    """One raylet's books for one kind of request."""

    __slots__ = ("_free", "_idle", "_idle_in", "free", "idle", "kind", "version")

    def __init__(self, kind: Kind, version: int, available: Bools, scores: Floats) -> None:
        self.kind = kind
        self.version = version
        """Of the view, up to which changes are in the books."""
        idle = available & (scores < kind.threshold)
        room = b"\0" * (-len(available) % _BLOCK)
        self._free = bytearray(available.tobytes() + room)
        self._idle = bytearray(idle.tobytes() + room)
        self._idle_in = [
            self._idle.count(1, at, at + _BLOCK) for at in range(0, len(self._idle), _BLOCK)
        ]
        self.free = self._free.count(1)
        """Nodes with room."""
        self.idle = sum(self._idle_in)
        """Those of them below the threshold."""

    def note(self, node_id: NodeID, *, free: bool, idle: bool) -> None:
        """A node has room or not, and is below the threshold or not."""
        while node_id >= len(self._free):
            self._free += bytes(_BLOCK)
            self._idle += bytes(_BLOCK)
            self._idle_in.append(0)
        idle = free and idle
        if self._free[node_id] != free:
            self._free[node_id] = free
            self.free += 1 if free else -1
        if self._idle[node_id] != idle:
            self._idle[node_id] = idle
            more = 1 if idle else -1
            self.idle += more
            self._idle_in[node_id // _BLOCK] += more

    def choose(self, preferred: NodeID, k: int, draw: Draw) -> NodeID | None:
        """As ``policies.least_used``; None: these books do not tell."""
        k = min(k, self.free)
        if not 0 < k <= self.idle:
            return None
        if 0 <= preferred < len(self._idle) and self._idle[preferred]:
            return preferred
        place = draw(k) if k > 1 else 0
        block = 0
        for count in self._idle_in:
            if place < count:
                break
            place -= count
            block += 1
        at = block * _BLOCK - 1
        for _ in range(place + 1):
            at = self._idle.find(1, at + 1)
        return at
