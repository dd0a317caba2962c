"""Primary copies on this node: pinned, spilled to disk, restored, freed.

Real counterpart: ``src/ray/raylet/local_object_manager.cc`` (``SpillObjectUptoMaxThroughput``,
``TryToSpillObjects``, ``AsyncRestoreSpilledObject``, ``FlushFreeObjects``,
``ProcessSpilledObjectsDeleteQueue``).

Primaries are spilled when a create fails for lack of room, when one more becomes local, and every
``free_objects_period_milliseconds``, if they fill ``object_spilling_threshold`` of the store. Each
of at most ``max_io_workers`` batches takes all pinned objects nobody else uses, oldest pin first
(Ray: in no order), up to ``max_fused_object_count``. What was spilled stays in the store, unpinned,
until it is evicted. The periodic check runs only while it could do something.

Not modelled: cloud storage; that memory which files left is used by others, or goes back to the
hypervisor, before the next file comes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from raysim.kernel.clock import Handle
from raysim.kernel.component import Failure, Reply
from raysim.raycore.ids import ObjectID, WorkerAddress
from raysim.raycore.object_manager.io_worker import HEADER_BYTES
from raysim.raycore.object_manager.io_workers import IOWorkers
from raysim.raycore.protocol import (
    DeleteSpilledObjects,
    IsObjectSpillable,
    LocationUpdate,
    PlasmaAbort,
    PlasmaCreate,
    PlasmaCreated,
    PlasmaDelete,
    PlasmaSeal,
    RestoreSpilledObjects,
    SpillObjects,
    SpillStatus,
)
from raysim.raycore.tasks import Payload
from raysim.units import NS_PER_MS

if TYPE_CHECKING:
    from raysim.raycore.object_manager.object_manager import LocalObject, ObjectManager


class SpilledObject(NamedTuple):
    """An object in a file."""

    object_id: ObjectID
    size: int
    owner: WorkerAddress
    payload: Payload
    url: str
    file: str


class _Batch:
    """Objects on their way into one file."""

    __slots__ = ("fresh", "objects", "total", "worker")

    def __init__(self) -> None:
        self.objects: list[LocalObject] = []
        self.total = 0
        self.fresh = 0
        self.worker = ""


class LocalObjectManager:
    """Spills, restores and frees for one node."""

    def __init__(self, room: ObjectManager, disk_capacity_bytes: int) -> None:
        self.room = room
        self.config = room.env.config
        self.disk_capacity = disk_capacity_bytes
        self.disk_used_by_others = 0
        self.pinned: dict[ObjectID, LocalObject] = {}
        self.spilling: dict[ObjectID, LocalObject] = {}
        self.spilled: dict[ObjectID, SpilledObject] = {}
        self.primary_bytes = 0
        """Pinned and being spilled."""
        self.file_bytes = 0
        """Of spill files, those being written and deleted included."""
        self.most_file_bytes = 0
        """So far: what is above it goes to memory that no file had."""
        self.fallback_bytes = 0
        """Of objects in fallback allocations."""
        self.spill_workers = IOWorkers(room, "SPILL_WORKER")
        self.restore_workers = IOWorkers(room, "RESTORE_WORKER")
        self.restoring: dict[ObjectID, None] = {}
        self._active = 0
        self._asking = False
        self._full: list[Reply] = []
        """Store-full questions to answer when it is known whether something can be spilled."""
        self._files: dict[str, tuple[int, int]] = {}
        """Objects left in each file, and its bytes."""
        self._freed: dict[ObjectID, None] = {}
        self._deletes: dict[str, None] = {}
        self._tick: Handle | None = None
        self._worth_a_look = True
        """Whether a scan could find something that the last did not."""

    # ---- pins ------------------------------------------------------------------------------------

    def pin(self, local: LocalObject) -> None:
        """It is a primary copy now; the caller holds the pin for it."""
        self.pinned[local.object_id] = local
        self.primary_bytes += local.size
        self._worth_a_look = True
        self.object_local()
        self.room.status_changed()

    def _unpin(self, local: LocalObject) -> None:
        self.primary_bytes -= local.size
        self.room.unpin(local.object_id)
        self.room.status_changed()

    # ---- spilling --------------------------------------------------------------------------------

    @property
    def over_threshold(self) -> bool:
        """Whether primaries fill so much of the store that they are spilled."""
        return self.primary_bytes >= self.config.object_spilling_threshold * self.room.capacity > 0

    @property
    def disk_full(self) -> bool:
        """Above the share from where Ray gives up."""
        used = self.file_bytes + self.fallback_bytes + self.disk_used_by_others
        return used >= self.config.local_fs_capacity_threshold * self.disk_capacity

    @property
    def status(self) -> SpillStatus:
        """As plasma is told."""
        return SpillStatus(spilling=bool(self._active), disk_full=self.disk_full)

    def store_full(self, reply: Reply) -> None:
        """A create does not fit: spill what can be, then say whether a spill is under way."""
        self._full.append(reply)
        self.spill()

    def look_again(self) -> None:
        """Something may be spilled that could not be before; the periodic check finds it."""
        self._worth_a_look = True
        self.arm()

    def object_local(self) -> None:
        """One more object is here."""
        if self.over_threshold and self._worth_a_look:
            self.spill()
        self.arm()

    def spill(self) -> None:
        """Spill with all workers that are free, if anything can be."""
        if self._asking:
            return
        ids: tuple[ObjectID, ...] = ()
        if self._active < self.config.max_io_workers:
            ids = tuple(i for i, local in self.pinned.items() if local.pins == 1)
        if ids:
            self._asking = True
            room = self.room
            room.call(room.plasma, IsObjectSpillable(ids), then=partial(self._spillable, ids))
        else:
            self._worth_a_look = False
            self._answer_full()

    def _spillable(self, ids: tuple[ObjectID, ...], answer: Any) -> None:
        self._asking = False
        if isinstance(answer, Failure):
            return
        pinned = self.pinned
        found = [
            pinned[i] for i, spillable in zip(ids, answer, strict=True)
            if spillable and i in pinned and pinned[i].pins == 1
        ]  # fmt: skip
        self._worth_a_look = False
        at = 0
        while at < len(found) and self._active < self.config.max_io_workers:
            batch = _Batch()
            at = self._fill(batch, found, at)
            small = batch.total < self.config.min_spilling_size
            if (at == len(found) and small and self.spilling) or not self._spill(batch):
                break
        self._answer_full()
        self.arm()

    def _fill(self, batch: _Batch, found: list[LocalObject], at: int) -> int:
        """Put objects into the batch; where to go on."""
        most, file_size = (
            self.config.max_fused_object_count,
            self.config.max_spilling_file_size_bytes,
        )
        while at < len(found) and len(batch.objects) < most:
            total = batch.total + found[at].size
            if batch.objects and 0 < file_size < total:
                break
            batch.objects.append(found[at])
            batch.total = total
            at += 1
        return at

    def _spill(self, batch: _Batch) -> bool:
        """Give the batch to a worker; False if the disk has no room for it."""
        needed = batch.total + HEADER_BYTES * len(batch.objects)
        used = self.file_bytes + self.fallback_bytes + self.disk_used_by_others
        if used + needed > self.disk_capacity:
            return False
        self.file_bytes += needed
        batch.fresh = min(needed, max(0, self.file_bytes - self.most_file_bytes))
        self.most_file_bytes = max(self.most_file_bytes, self.file_bytes)
        self._active += 1
        for local in batch.objects:
            del self.pinned[local.object_id]
            self.spilling[local.object_id] = local
        batch.total = needed
        self.spill_workers.pop(partial(self._write, batch))
        return True

    def _write(self, batch: _Batch, worker: str) -> None:
        batch.worker = worker
        ids = tuple(local.object_id for local in batch.objects)
        order = SpillObjects(ids, batch.total, batch.fresh)
        self.room.call(worker, order, then=partial(self._written, batch))

    def _written(self, batch: _Batch, answer: Any) -> None:
        self._active -= 1
        self._worth_a_look = True
        if isinstance(answer, str):
            kept = [local for local in batch.objects if not local.freed]
            self._files[answer] = (len(kept), batch.total)
            offset = 0
            for local in batch.objects:
                self._spilled(local, answer, offset)
                offset += local.size + HEADER_BYTES
            if not kept:
                self._deletes[answer] = None
        else:  # the worker died
            self.file_bytes -= batch.total
            for local in batch.objects:
                del self.spilling[local.object_id]
                if local.freed:
                    self._unpin(local)
                else:
                    self.pinned[local.object_id] = local
        self.spill_workers.push(batch.worker)
        if not self._active:
            self.room.send(self.room.plasma, self.status)
        self.arm()

    def _spilled(self, local: LocalObject, file: str, offset: int) -> None:
        room, object_id = self.room, local.object_id
        del self.spilling[object_id]
        if not local.freed:
            assert local.payload is not None, f"{room.address}: {object_id} spilled, not pinned"
            url = f"{file}?offset={offset}&size={local.size}"
            self._forget_file(self.spilled.pop(object_id, None))  # of an earlier making
            self.spilled[object_id] = SpilledObject(
                object_id, local.size, local.owner, local.payload, url, file
            )
            room.directory.report(local.owner, LocationUpdate(object_id, None, url))
            room.note(object_id, "SPILLED")
        self._unpin(local)

    def _answer_full(self) -> None:
        for reply in self._full:
            reply(self.status)
        self._full.clear()

    # ---- restoring -------------------------------------------------------------------------------

    def restore(self, object_id: ObjectID) -> None:
        """Bring a spilled object back into the store; once, however many ask."""
        if object_id not in self.restoring:
            self.restoring[object_id] = None
            self.restore_workers.pop(partial(self._make_room, object_id))

    def _make_room(self, object_id: ObjectID, worker: str) -> None:
        spilled, room = self.spilled.get(object_id), self.room
        if spilled is None:  # freed meanwhile
            self._restored(object_id, worker)
            return
        room.call(
            room.plasma,
            PlasmaCreate(
                object_id, spilled.size, spilled.owner, room.address, primary=False, writer=worker
            ),
            then=partial(self._read, spilled, worker),
        )

    def _read(self, spilled: SpilledObject, worker: str, answer: Any) -> None:
        if not isinstance(answer, PlasmaCreated) or answer.existed:
            self._restored(spilled.object_id, worker)
            return
        self.room.call(
            worker,
            RestoreSpilledObjects(
                spilled.object_id,
                spilled.size,
                spilled.file,
                answer.fresh_bytes,
                answer.unmapped_bytes,
            ),
            then=partial(self._seal, spilled, worker),
        )

    def _seal(self, spilled: SpilledObject, worker: str, answer: Any) -> None:
        room, object_id = self.room, spilled.object_id
        if answer is not None:  # the worker died
            room.send(room.plasma, PlasmaAbort(object_id))
        else:
            room.made[object_id] = spilled.payload
            room.note(object_id, "RESTORED")
            room.send(room.plasma, PlasmaSeal(object_id, spilled.payload))
        self._restored(object_id, worker)

    def _restored(self, object_id: ObjectID, worker: str) -> None:
        del self.restoring[object_id]
        self.restore_workers.push(worker)

    # ---- freeing ---------------------------------------------------------------------------------

    def free(self, object_ids: tuple[ObjectID, ...]) -> None:
        """Their owner needs them no more, or is dead."""
        for object_id in object_ids:
            local = self.room.local.get(object_id)
            if local is not None:
                local.freed = True
            if self.pinned.pop(object_id, None) is not None:
                assert local is not None, f"{self.room.address}: {object_id} is pinned, not here"
                self._unpin(local)
            spilled = self.spilled.pop(object_id, None)
            self._forget_file(spilled)
            if spilled is not None and local is None:
                self.room.note(object_id, "FREED")
                self.room.disown(object_id, spilled.owner)
            self._freed[object_id] = None
            if len(self._freed) >= self.config.free_objects_batch_size:
                self.flush()
        self.arm()

    def _forget_file(self, spilled: SpilledObject | None) -> None:
        """One object of its file is needed no more."""
        if spilled is not None:
            left, total = self._files[spilled.file]
            self._files[spilled.file] = (left - 1, total)
            if left == 1:
                self._deletes[spilled.file] = None

    def flush(self) -> None:
        """Delete freed objects from the store, and files of which all objects were freed."""
        if self._freed:
            self.room.send(self.room.plasma, PlasmaDelete(tuple(self._freed)))
            self._freed = {}
        files = tuple(self._deletes)[: self.config.free_objects_batch_size]
        if files:
            for file in files:
                del self._deletes[file]
            spill, restore = self.spill_workers, self.restore_workers
            pool = spill if len(spill.idle) > len(restore.idle) else restore  # as Ray where equal
            pool.pop(partial(self._delete, files, pool))

    def _delete(self, files: tuple[str, ...], pool: IOWorkers, worker: str) -> None:
        self.room.call(
            worker, DeleteSpilledObjects(files), then=partial(self._deleted, files, pool, worker)
        )

    def _deleted(
        self, files: tuple[str, ...], pool: IOWorkers, worker: str, _answer: object
    ) -> None:
        """The files are gone; of a worker that died, so that nothing is deleted twice."""
        for file in files:
            self.file_bytes -= self._files.pop(file)[1]
        pool.push(worker)
        self.look_again()
        self.room.send(self.room.plasma, self.status)

    def arm(self) -> None:
        """Have the periodic work done if there is any, when Ray would do it."""
        if self._tick is None and (
            self._freed or self._deletes or (self.over_threshold and self._worth_a_look)
        ):
            period_ns = self.config.free_objects_period_milliseconds * NS_PER_MS
            since_ns = self.room.now_ns - self.room.start_ns
            self._tick = self.room.after(period_ns - since_ns % period_ns, self._ticked)

    def _ticked(self, _: None) -> None:
        self._tick = None
        self.flush()
        if self.over_threshold and self._worth_a_look:
            self.spill()
        self.arm()

    def wrong(self) -> str:
        """What breaks its laws now; empty when all is well."""
        primaries = [*self.pinned.values(), *self.spilling.values()]
        held = sum(local.size for local in primaries)
        if held != self.primary_bytes:
            return f"{self.primary_bytes} primary bytes counted, {held} are"
        if any(local.pins < 1 for local in primaries):
            return "a primary copy is not pinned"
        left: dict[str, int] = {}
        for spilled in self.spilled.values():
            left[spilled.file] = left.get(spilled.file, 0) + 1
        if any(left.get(file, 0) != count for file, (count, _) in self._files.items()):
            return f"objects left in files: {self._files}, found {left}"
        return ""
