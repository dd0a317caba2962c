"""Getting, waiting for and putting objects: memory store first, then the node's plasma.

Real counterpart: ``CoreWorker::Get``, ``Wait`` and ``Put``, ``future_resolver.cc``,
``store_provider/plasma_store_provider.cc``. Values of owned and borrowed small objects are in this
process; of one in plasma the object manager is asked to bring it here, then the store is read. A
normal task that has to wait lets its raylet know, and its CPU is free meanwhile.

Not modelled: views into plasma that outlive ``get``; use of the store ends when the value is here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from raysim.kernel.component import Failure
from raysim.raycore.core_worker.getting import Get, Wait
from raysim.raycore.core_worker.references import FREED, IN_PLASMA, PENDING, Reference, Waiter
from raysim.raycore.core_worker.writing import Put, Returns, StoredItem, Write
from raysim.raycore.ids import FIRST_PUT, WorkerAddress, object_id
from raysim.raycore.protocol import (
    GetObjectStatus,
    NotifyWorkerBlocked,
    NotifyWorkerUnblocked,
    ObjectStatus,
    PinObjectIDs,
    PullPriority,
    ReturnObject,
    object_manager,
    plasma,
    raylet,
)
from raysim.raycore.tasks import Payload, Ref, TaskError, Value

if TYPE_CHECKING:
    from raysim.raycore.core_worker.execution import Running
    from raysim.raycore.core_worker.generators import Item
    from raysim.raycore.core_worker.worker import CoreWorker


class Objects:
    """Values of one process."""

    def __init__(self, core: CoreWorker) -> None:
        self.core = core
        self.references = core.references
        node_id = core.me.node_id
        self.node_id = node_id
        self.plasma = plasma(node_id)
        self.manager = object_manager(node_id)
        self.blocked = 0
        """Gets and waits of the normal task here that wait."""
        self._blocking: dict[Get | Wait, None] = {}
        self._requests = 0
        self._puts = FIRST_PUT - 1
        self._task_id = 0

    # One object

    def want(self, record: Reference, waiter: Waiter) -> None:
        """Call ``waiter(record)`` once there is a value, or one in plasma, or an error."""
        record.wait(waiter)
        if record.owner is self.core.me:
            if record.value is FREED:
                self.core.recovery.recover(record)
            return
        sharing = record.share()
        if not sharing.asked:
            sharing.asked = True
            owner = record.owner
            self.core.calls.call(
                owner.node_id, owner.address, GetObjectStatus(record.object_id),
                _Status(self, record),
            )  # fmt: skip

    def reading_ns(self, records: list[Reference]) -> int:
        """What it takes to read so many, beyond what the call says: that of one."""
        costs, stored = self.core.costs, sum(r.value is IN_PLASMA for r in records)
        each = [costs.per_ref_get_ns] * stored
        each += [costs.per_value_get_ns] * (len(records) - stored)
        return sum(each[1:])

    def status(self, record: Reference, answer: Any) -> None:
        """The owner has said what it is."""
        record.share().asked = False
        if record.value is not PENDING:
            return
        if answer.__class__ is not ObjectStatus:
            assert isinstance(answer, Failure), f"{self.core.address}: {answer} as an object"
            self.references.set_value(record, TaskError("OWNER_DIED", "its owner died"))
        elif answer.value is not None:
            if answer.value.__class__ is Payload and answer.value.contained:
                self.references.contain(record, answer.value.contained)
            self.references.set_value(record, answer.value)
        else:
            copies = record.located()
            copies.size_bytes = answer.object_size
            copies.nodes = dict.fromkeys(answer.node_ids)
            self.references.set_value(record, IN_PLASMA)

    def released(self, record: Reference) -> None:
        """A borrowed object is out of scope."""
        record.value = FREED
        self.references.gone(record)

    def request_id(self) -> tuple[str, int]:
        """A new number for a request to the object manager."""
        self._requests += 1
        return (self.core.address, self._requests)

    # Get and wait

    def get(
        self,
        records: list[Reference],
        then: Callable[[list[Value] | TaskError], object],
        timeout_ns: int | None,
    ) -> None:
        """``ray.get``; nothing, if who asked was interrupted since and has let go of them."""
        if self.references.knows(records):
            Get(self, records, then, timeout_ns, "GET").start()

    def get_args(
        self, refs: Sequence[Ref], then: Callable[[Any], object], priority: PullPriority
    ) -> None:
        """Arguments of a task here: nobody is blocked but the task itself.

        The raylet has brought those of a task (``TASK_ARGS``); for those of an actor's call it is
        asked to (``WAIT``), also if they are here: ``WaitForActorCallArgs``.
        """
        records = [self.references.of(r) for r in refs]
        Get(self, records, then, None, priority).start()

    def wait(
        self,
        records: list[Reference],
        num_returns: int,
        then: Callable[[list[bool]], object],
        timeout_ns: int | None,
        *,
        fetch_local: bool,
    ) -> None:
        """``ray.wait``; nothing, as for ``get``."""
        if self.references.knows(records):
            Wait(self, records, num_returns, then, fetch_local=fetch_local).start(timeout_ns)

    def block(self, call: Get | Wait, what: str) -> int:
        """A program begins to wait; the task it is, if it is one that holds a CPU for itself."""
        executor = self.core.executor
        if self.core.kind != "WORKER" or executor.actor is not None or not executor.running:
            return 0
        self.blocked += 1
        self._blocking[call] = None
        if self.blocked == 1:
            me = self.core.me
            self.core.send(raylet(me.node_id), NotifyWorkerBlocked(me.worker_id))
        task_id = next(iter(executor.running))
        self._note(task_id, what)
        return task_id

    def unblock(self, call: Get | Wait, task_id: int) -> None:
        """It goes on."""
        self.blocked -= 1
        del self._blocking[call]
        if not self.blocked:
            me = self.core.me
            self.core.send(raylet(me.node_id), NotifyWorkerUnblocked(me.worker_id))
        if task_id in self.core.executor.running:
            self._note(task_id, "RUNNING")

    def task_over(self, task_id: int) -> None:
        """A task that was cancelled while it waited has ended: it waits no more."""
        for call in [c for c in self._blocking if c.task_id == task_id]:
            call.give_up()

    def _note(self, task_id: int, state: str) -> None:
        if self.core.log.enabled:
            me = self.core.me
            self.core.note("task", task_id, state, node_id=me.node_id, worker_id=me.worker_id)

    # Put and large returns

    def new_put_id(self) -> int:
        """Of the next put: the process's own task, and a number."""
        core = self.core
        if not self._task_id:  # a driver's own task has no count
            is_driver = core.kind == "DRIVER"
            self._task_id = core.job_id if is_driver else core.env.ids.task(core.job_id)
        self._puts += 1
        return object_id(self._task_id, self._puts)

    def put(
        self, record: Reference, payload: Payload, then: Callable[[TaskError | None], object]
    ) -> None:
        """``ray.put``: always into plasma."""
        Write(self, record.object_id, payload, Put(self, record, payload, then)).start()

    def store_returns(
        self, running: Running, returns: list[ReturnObject], large: list[tuple[int, Payload]]
    ) -> None:
        """Write large returns into plasma, then answer."""
        Returns(self, running, returns, iter(large))(None)

    def store_item(
        self, stored: ReturnObject, payload: Payload, owner: WorkerAddress, item: Item
    ) -> None:
        """Write one large item of a generator, then report it."""
        Write(self, stored.object_id, payload, StoredItem(item, stored), owner).start()

    def pin(self, object_id_: int, owner: Any) -> None:
        """Have the new primary copy kept."""
        self.core.call(self.manager, PinObjectIDs((object_id_,), owner), _ignore)


class _Status:
    """Waits for an owner's word on one object."""

    __slots__ = ("objects", "record")

    def __init__(self, objects: Objects, record: Reference) -> None:
        self.objects = objects
        self.record = record

    def __call__(self, answer: Any) -> None:
        self.objects.status(self.record, answer)


def _ignore(_answer: object) -> None:
    """Nothing depends on the answer."""
