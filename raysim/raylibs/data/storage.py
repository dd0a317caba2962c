"""A bucket that tasks read from and write to, over their node's network.

Real counterpart: S3, GCS or Azure Blob behind ``pyarrow.fs``; the service is ``hardware.storage``.
"""

from __future__ import annotations

from typing import Any

from raysim.hardware.specs import ObjectStorageSpec
from raysim.hardware.storage import CONNECTIONS, ObjectStorage
from raysim.raycore.scripts import WAITS, Ask, Driver


class Bucket:
    """One service, of one run; made where a job begins."""

    def __init__(
        self, process: Any, spec: ObjectStorageSpec, *, connections: int = CONNECTIONS
    ) -> None:
        env = process.env
        self.service = ObjectStorage(env.sim, spec, env.network, env.topology)
        self.connections = connections
        self.fetched_bytes = self.stored_bytes = 0.0

    def fetch(self, size_bytes: float) -> Ask:
        """Bring so many bytes to the process's node."""
        return Ask(lambda d: self._move(d, size_bytes, self.service.get))

    def store(self, size_bytes: float) -> Ask:
        """Write so many bytes from there."""
        return Ask(lambda d: self._move(d, size_bytes, self.service.put))

    def _move(self, d: Driver, size_bytes: float, move: Any) -> Any:
        if move == self.service.get:
            self.fetched_bytes += size_bytes
        else:
            self.stored_bytes += size_bytes

        def begin(_: object) -> None:
            move(
                ("host", d.process.me.node_id), size_bytes, self._arrived, d,
                connections=self.connections, failed=_lost,
            )  # fmt: skip

        d.process.after(d.take_lead(), begin)
        return WAITS

    @staticmethod
    def _arrived(d: Driver) -> None:
        d.process.after(0, d.slept)


def _lost(_driver: object, _cause: object) -> None:
    """The node has died, and the process with it."""
