"""Writing into plasma: create, copy, seal, pin; for puts, large returns and items of generators.

Real counterpart: ``plasma_store_provider.cc`` (``Create``, ``Seal``), ``CoreWorker::SealOwned``.
Large objects are copied by several threads, which take the memory bus of the node, shared with all
else that copies there; others by the thread that writes them. Large returns of one task are written
one after the other (``store_task_outputs`` of ``_raylet.pyx``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from raysim.kernel.component import Failure
from raysim.raycore.core_worker.references import FREED, Reference
from raysim.raycore.ids import ObjectID, WorkerAddress
from raysim.raycore.protocol import (
    PinObjectIDs,
    PlasmaCreate,
    PlasmaCreated,
    PlasmaSeal,
    ReturnObject,
)
from raysim.raycore.tasks import Payload, TaskError
from raysim.units import KIB, NS_PER_S

if TYPE_CHECKING:
    from raysim.raycore.core_worker.execution import Running
    from raysim.raycore.core_worker.generators import Item
    from raysim.raycore.core_worker.objects import Objects

_LEAST_SHARED_BYTES = 64 * KIB
"""A copy of less does not notice others on the cores."""


class Write:
    """One object on its way into plasma: create, write, seal, pin.

    What is there already, as a copy that was brought here, is pinned instead; if it has gone before
    that, it is made after all (``store_task_outputs`` of ``_raylet.pyx``: once).
    """

    __slots__ = ("object_id", "objects", "owner", "payload", "then", "tries")

    def __init__(
        self,
        objects: Objects,
        object_id: ObjectID,
        payload: Payload,
        then: Callable[[TaskError | None], object],
        owner: WorkerAddress | None = None,
    ) -> None:
        self.objects = objects
        self.object_id = object_id
        self.payload = payload
        self.then = then
        self.owner = owner or objects.core.me
        self.tries = 0

    def start(self) -> None:
        """Ask for room."""
        self.tries += 1
        core = self.objects.core
        core.call(
            self.objects.plasma,
            PlasmaCreate(self.object_id, self.payload.size_bytes, self.owner, core.address),
            self._created,
        )

    def _created(self, answer: Any) -> None:
        if answer.__class__ is PlasmaCreated:
            core = self.objects.core
            if answer.existed:
                pin = PinObjectIDs((self.object_id,), self.owner)
                core.call(self.objects.manager, pin, self._existed)
                return
            size_bytes, cores = self.payload.size_bytes, core.cores
            threads = core.node.cpu.capacity_per_s if cores is None else cores.alone
            copy_s, width = core.costs.write_s(
                size_bytes, answer.fresh_bytes, answer.unmapped_bytes, threads
            )
            if cores is not None and size_bytes >= _LEAST_SHARED_BYTES:
                core.node.cpu.job(copy_s * width, self._copied, core.epoch, width=width)
            elif width == 1:
                core.after(int(copy_s * NS_PER_S), self._written)
            else:
                rate = size_bytes / copy_s if copy_s else math.inf
                core.node.memory.job(
                    2 * size_bytes, self._copied, core.epoch, max_bytes_per_s=2 * rate
                )
        elif answer.__class__ is TaskError:
            self.then(answer)
        else:
            self.objects.core.exit("its raylet died", intended=False)

    def _existed(self, answer: Any) -> None:
        if isinstance(answer, Failure):
            self.objects.core.exit("its raylet died", intended=False)
        elif answer[0] is True or self.tries > 1:
            self.then(None)
        else:
            self.start()

    def _copied(self, epoch: int) -> None:
        if epoch == self.objects.core.epoch:
            self._written(None)

    def _written(self, _: object) -> None:
        core = self.objects.core
        core.call(self.objects.plasma, PlasmaSeal(self.object_id, self.payload), self._sealed)

    def _sealed(self, answer: Any) -> None:
        if isinstance(answer, Failure):
            self.objects.core.exit("its raylet died", intended=False)
            return
        self.objects.pin(self.object_id, self.owner)
        self.then(None)


class Put:
    """The end of one ``ray.put``."""

    __slots__ = ("objects", "payload", "record", "then")

    def __init__(
        self, objects: Objects, record: Reference, payload: Payload, then: Callable[..., object]
    ) -> None:
        self.objects = objects
        self.record = record
        self.payload = payload
        self.then = then

    def __call__(self, error: TaskError | None) -> None:
        """It is sealed, or could not be stored."""
        record, objects = self.record, self.objects
        if error is not None:
            if record.value is not FREED:
                objects.references.set_value(record, error)
        else:
            objects.core.directory.put_here(record, self.payload.size_bytes)
        self.then(error)


class Returns:
    """Large returns of a task: stored one by one; then it answers."""

    __slots__ = ("large", "objects", "returns", "running")

    def __init__(
        self,
        objects: Objects,
        running: Running,
        returns: list[ReturnObject],
        large: Iterator[tuple[int, Payload]],
    ) -> None:
        self.objects = objects
        self.running = running
        self.returns = returns
        self.large = large

    def __call__(self, error: TaskError | None) -> None:
        """The one before is sealed, or could not be stored."""
        running = self.running
        if error is not None:
            running.error = error
            running.core.executor.answer(running, ())
            return
        following = next(self.large, None)
        if following is None:
            running.core.executor.answer(running, tuple(self.returns))
            return
        index, payload = following
        owner = running.spec.caller
        Write(self.objects, self.returns[index].object_id, payload, self, owner).start()


class StoredItem:
    """The end of storing one item."""

    __slots__ = ("item", "stored")

    def __init__(self, item: Item, stored: ReturnObject) -> None:
        self.item = item
        self.stored = stored

    def __call__(self, error: TaskError | None) -> None:
        """It is sealed, or could not be stored."""
        if error is None:
            self.item.report(self.stored)
        else:
            self.item.failed(error)
