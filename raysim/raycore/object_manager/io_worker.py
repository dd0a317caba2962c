"""A process that writes objects to a node's disks, or reads them back.

Real counterpart: ``python/ray/_private/workers/default_worker.py`` as SPILL_WORKER or
RESTORE_WORKER, and ``FileSystemStorage`` of ``python/ray/_private/external_storage.py``: one file
per batch, directories taken in turn from a random start, Python's buffering.

A batch costs the disk its bytes and the worker's one core its copying, side by side.

Not modelled: the page cache, but for what it costs to fill pages that no file had before; cloud
storage, the worker's own get and create in plasma (the object manager holds the object for it, the
pages are the worker's to map).
"""

from __future__ import annotations

from typing import Any

from raysim.kernel.component import Component, Reply
from raysim.raycore.ids import NodeID, WorkerAddress, WorkerID, hex_id
from raysim.raycore.protocol import (
    DeleteSpilledObjects,
    RegisterClient,
    RestoreSpilledObjects,
    SpillObjects,
    WorkerType,
    object_manager,
)
from raysim.raycore.room import Surroundings

DELETE_NS = 50_000
"""To unlink a file through Python: assumed."""

HEADER_BYTES = 24
"""Before each object in a file (``external_storage.py``)."""


def disk_of(url: str) -> int:
    """Index of the disk a file is on, among those that are spilled to."""
    return int(url.split("/", maxsplit=1)[0].removeprefix("disk-"))


class IOWorker(Component):
    """One process, one batch at a time."""

    def __init__(
        self,
        env: Surroundings,
        node_id: NodeID,
        worker_id: WorkerID,
        worker_type: WorkerType,
        startup_token: int = 0,
    ) -> None:
        kind = "spill" if worker_type == "SPILL_WORKER" else "restore"
        super().__init__(
            env.sim,
            f"node-{node_id}/{kind}-{worker_id}",
            service_ns={DeleteSpilledObjects: lambda m: DELETE_NS * len(m.urls)},
        )
        self.env = env
        self.node_id = node_id
        self.worker_type: WorkerType = worker_type
        self.me = WorkerAddress(worker_id, self.address, node_id)
        self.memory_bytes = env.costs.worker_memory_bytes
        self._token = startup_token
        self._next_disk = 0

    def started(self) -> None:
        """Say that it is up."""
        disks = self.env.spill_disks(self.node_id)
        if self.worker_type == "SPILL_WORKER" and len(disks) > 1:
            self._next_disk = int(self.sim.rng(self.address).integers(len(disks)))
        self.send(
            object_manager(self.node_id),
            RegisterClient(self.me, self.worker_type, 0, startup_token=self._token),
        )

    def on_spill_objects(self, m: SpillObjects, reply: Reply) -> None:
        """Write one file."""
        disks = self.env.spill_disks(self.node_id)
        index = self._next_disk % len(disks)
        self._next_disk = index + 1
        url = f"disk-{index}/{hex_id('object', m.object_ids[0])}-multi-{len(m.object_ids)}"
        work = [2, self.epoch, reply, url]
        self._copy(self.env.costs.spill_s(m.total_bytes, m.fresh_bytes), work)
        disks[index].write(m.total_bytes, self._part, work)

    def on_restore_spilled_objects(self, m: RestoreSpilledObjects, reply: Reply) -> None:
        """Read one object."""
        work = [2, self.epoch, reply, None]
        cores = self.env.nodes[self.node_id].spec.vcpus
        self._copy(
            self.env.costs.restore_s(m.object_size, m.fresh_bytes, m.unmapped_bytes, cores), work
        )
        disk = self.env.spill_disks(self.node_id)[disk_of(m.url)]
        disk.read(m.object_size + HEADER_BYTES, self._part, work)

    def on_delete_spilled_objects(self, m: DeleteSpilledObjects, reply: Reply) -> None:  # noqa: ARG002
        """Files are gone."""
        reply()

    def _copy(self, core_s: float, work: list[Any]) -> None:
        self.env.nodes[self.node_id].cpu.job(core_s, self._part, work)

    def _part(self, work: list[Any]) -> None:
        work[0] -= 1
        if not work[0] and work[1] == self.epoch:
            work[2](work[3])
