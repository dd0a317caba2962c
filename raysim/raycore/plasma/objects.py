"""What the store keeps of an object, and of a client that waits for some.

Real counterpart: ``LocalObject`` and ``ObjectTableEntry`` of ``plasma/common.h``, ``GetRequest`` of
``get_request_queue.h``.
"""

from __future__ import annotations

from raysim.kernel.clock import Handle
from raysim.kernel.component import Reply
from raysim.raycore.ids import WorkerAddress
from raysim.raycore.protocol import PlasmaCreate, PlasmaGet
from raysim.raycore.tasks import Payload


class StoredObject:
    """An object in the store, or in the making."""

    __slots__ = (
        "doomed", "fallback", "maker", "object_id", "owner", "payload", "primary", "reserved",
        "size", "start", "uses",
    )  # fmt: skip

    def __init__(self, m: PlasmaCreate, *, fallback: bool) -> None:
        self.object_id = m.object_id
        self.size = m.object_size
        self.start = -1
        """Where in the arena; -1 of what is not placed there."""
        self.owner: WorkerAddress = m.owner
        self.primary = m.primary
        self.fallback = fallback
        self.payload: Payload | None = None
        """None until sealed."""
        self.uses: dict[str, int] = {m.client: 1}
        self.maker = m.client if m.primary else ""
        """Whose use ends when the object manager pins it; empty after that."""
        self.reserved: dict[str, int] = {}
        self.doomed = False
        """Deleted as soon as nobody uses it."""


class WaitingGet:
    """A client that waits for objects."""

    __slots__ = ("found", "message", "missing", "reply", "timer")

    def __init__(self, message: PlasmaGet, reply: Reply) -> None:
        self.message = message
        self.reply = reply
        self.found: list[Payload | None] = [None] * len(message.object_ids)
        self.missing = 0
        self.timer: Handle | None = None


def one_less(counts: dict[str, int], client: str) -> None:
    """Take one away, and the entry with the last."""
    count = counts.get(client, 0)
    if count > 1:
        counts[client] = count - 1
    elif count:
        del counts[client]
