"""``ray.get`` and ``ray.wait``: one object of each class per call, until it has its answer.

Real counterpart: ``CoreWorker::Get`` and ``Wait``, ``plasma_store_provider.cc``. A ``get`` ends as
soon as one of its objects has failed; the others are then ``NONE`` in its list.

Not modelled: the one-second pauses in which signals are looked at; the warning after a minute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raysim.kernel.component import Failure
from raysim.raycore.core_worker.references import FREED, IN_PLASMA, PENDING, Reference
from raysim.raycore.protocol import (
    AsyncGetObjects,
    CancelGetRequest,
    PlasmaGet,
    PlasmaRelease,
    PullPriority,
)
from raysim.raycore.tasks import NONE, Payload, Ref, TaskError, Value

if TYPE_CHECKING:
    from raysim.raycore.core_worker.objects import Objects


class Get:
    """One ``ray.get``, or the arguments of one task."""

    __slots__ = (
        "done", "lost", "missing", "objects", "priority", "pulling", "records", "request_id",
        "task_id", "then", "timeout_ns", "timer", "values",
    )  # fmt: skip

    def __init__(
        self,
        objects: Objects,
        records: list[Reference],
        then: Callable[[Any], object],
        timeout_ns: int | None,
        priority: PullPriority,
    ) -> None:
        self.objects = objects
        self.records = records
        self.then = then
        self.timeout_ns = timeout_ns
        self.priority: PullPriority = priority
        self.missing = 0
        self.done = False
        self.lost = False
        """What a call's arguments waited for was here, and evicted before it was read."""
        self.pulling: list[Reference] = []
        self.request_id: tuple[str, int] | None = None
        self.values: dict[int, Value] = {}
        self.task_id = 0
        self.timer: Any = None

    def start(self) -> None:
        """See what is missing; wait for it."""
        for record in self.records:
            value = record.value
            if value is PENDING or value is FREED:
                self.missing += 1
                self.objects.want(record, self.arrived)
            elif value.__class__ is TaskError:
                self.finish()
                return
        if not self.missing:
            self._collect()
        if not self.done:
            self._wait()

    def _wait(self) -> None:
        core = self.objects.core
        if self.priority == "GET":
            self.task_id = self.objects.block(self, "RUNNING_IN_RAY_GET")
        if self.timeout_ns is not None:
            self.timer = core.after(self.timeout_ns, self._timed_out)

    def arrived(self, record: Reference) -> None:
        """One more has a value, or the error that ends it all."""
        if self.done:
            return
        if record.value is FREED:
            self.values[record.object_id] = TaskError("OBJECT_FREED", "it was let go of")
        if record.value is FREED or record.value.__class__ is TaskError:
            self.finish()
            return
        self.missing -= 1
        if not self.missing:
            self._collect()

    def _collect(self) -> None:
        """All exist; bring here what is in plasma."""
        self.pulling = [
            r for r in self.records
            if r.value is IN_PLASMA and r.object_id not in self.values
        ]  # fmt: skip
        if not self.pulling:
            self.finish()
            return
        here = self.objects.node_id
        if self.priority == "TASK_ARGS" or all(
            r.copies is not None and here in r.copies.nodes for r in self.pulling
        ):
            self._read(0)
        else:
            self._pull()

    def _pull(self) -> None:
        """Ask the object manager to bring them, in batches."""
        objects = self.objects
        refs = [Ref(r.object_id, r.owner) for r in dict.fromkeys(self.pulling)]
        batch = refs[: objects.core.config.worker_fetch_request_size]
        if len(batch) < len(refs):
            self.pulling = self.pulling[: len(batch)]
        self.request_id = objects.request_id()
        priority: PullPriority = "GET" if self.priority == "GET" or self.lost else "WAIT"
        objects.core.call(
            objects.manager, AsyncGetObjects(self.request_id, tuple(batch), priority), self._pulled
        )
        for record in self.pulling:
            record.wait(self.changed)

    def changed(self, record: Reference) -> None:
        """While it is pulled: its owner has given up on it."""
        if not self.done and record.value.__class__ is TaskError:
            self.finish()

    def _pulled(self, answer: Any) -> None:
        if self.done:
            return
        if answer.__class__ is TaskError:
            self._failed(answer)
        elif isinstance(answer, Failure):
            self.objects.core.exit("its raylet died", intended=False)
        else:  # only what a get asked for is kept in the store until it is read
            self._read(None if self.priority == "GET" else 0)

    def _failed(self, error: TaskError) -> None:
        """The object manager cannot get one of them: all that have no value failed so."""
        for record in self.pulling:
            self.values[record.object_id] = error
        self.finish()

    def _read(self, timeout_ns: int | None) -> None:
        core = self.objects.core
        object_ids = tuple(dict.fromkeys(r.object_id for r in self.pulling))
        message = PlasmaGet(object_ids, core.address, timeout_ns)
        core.call(self.objects.plasma, message, self._here)

    def _here(self, payloads: Any) -> None:
        """What the store has; pull what it has lost meanwhile."""
        objects = self.objects
        if isinstance(payloads, Failure):
            objects.core.exit("its raylet died", intended=False)
            return
        for record, payload in zip(dict.fromkeys(self.pulling), payloads, strict=True):
            if payload is not None:
                objects.core.send(
                    objects.plasma, PlasmaRelease(record.object_id, objects.core.address)
                )
                there = record.object_id in objects.references.table
                if payload.contained and there and record.value is not FREED:  # kept as lineage
                    objects.references.contain(record, payload.contained)
                self.values[record.object_id] = payload
        if self.request_id is not None:
            self.lost = True  # from now on a get, which keeps what it brings
            self._cancel_request()
        if self.done:
            return
        left = [r for r in dict.fromkeys(self.records) if r.object_id not in self.values]
        made_again = [r for r in left if r.value is PENDING]
        self.pulling = [r for r in left if r.value is IN_PLASMA]
        if made_again:  # lost meanwhile
            self.missing = len(made_again)
            for record in made_again:
                self.objects.want(record, self.arrived)
        elif self.pulling:
            self._pull()
        else:
            self.finish()

    def _cancel_request(self) -> None:
        assert self.request_id is not None, f"{self.objects.core.address}: no request to cancel"
        self.objects.core.send(self.objects.manager, CancelGetRequest(self.request_id))
        self.request_id = None

    def _timed_out(self, _: object) -> None:
        if not self.done:
            self.timer = None
            self.finish(TaskError("GET_TIMEOUT", "Get timed out: some object(s) not ready."))

    def give_up(self) -> None:
        """Wait no more, and answer nothing."""
        self.done = True
        objects = self.objects
        if self.timer is not None:
            objects.core.sim.cancel(self.timer)
        if self.request_id is not None:
            self._cancel_request()
        if self.task_id:
            objects.unblock(self, self.task_id)

    def finish(self, error: TaskError | None = None) -> None:
        """Give the program what it asked for."""
        self.give_up()
        if error is not None:
            self.then(error)
            return
        values: list[Any] = []
        for record in self.records:
            value = record.value
            if value.__class__ is Payload or value.__class__ is TaskError:
                values.append(value)
            else:
                values.append(self.values.get(record.object_id, NONE))
        self.then(values)


class Wait:
    """One ``ray.wait``."""

    __slots__ = (
        "done", "fetch_local", "local", "num_returns", "objects", "ready", "records", "requests",
        "task_id", "then", "timer",
    )  # fmt: skip

    def __init__(
        self,
        objects: Objects,
        records: list[Reference],
        num_returns: int,
        then: Callable[[list[bool]], object],
        *,
        fetch_local: bool,
    ) -> None:
        self.objects = objects
        self.records = records
        self.num_returns = num_returns
        self.then = then
        self.fetch_local = fetch_local
        self.local: dict[int, None] = {}
        self.requests: dict[tuple[str, int], None] = {}
        self.ready = 0
        self.done = False
        self.task_id = 0
        self.timer: Any = None

    def start(self, timeout_ns: int | None) -> None:
        """Count what is ready, wait for the rest."""
        for record in self.records:
            if record.value is PENDING or record.value is FREED:
                self.objects.want(record, self.arrived)
            else:
                self.arrived(record)
            if self.done:  # and perhaps the program has let go of the others by now
                return
        if timeout_ns == 0:
            self.objects.core.after(0, self._timed_out)
        elif timeout_ns is not None:
            self.timer = self.objects.core.after(timeout_ns, self._timed_out)
        if timeout_ns != 0:
            self.task_id = self.objects.block(self, "RUNNING_IN_RAY_WAIT")

    def arrived(self, record: Reference) -> None:
        """One has a value; if it is in plasma elsewhere, it must come here first."""
        if self.done:
            return
        if record.value is IN_PLASMA and self.fetch_local:
            objects = self.objects
            if record.copies is None or objects.node_id not in record.copies.nodes:
                request_id = objects.request_id()
                self.requests[request_id] = None
                objects.core.call(
                    objects.manager,
                    AsyncGetObjects(request_id, (Ref(record.object_id, record.owner),), "WAIT"),
                    _Pulled(self, record, request_id).answered,
                )
                return
        self._ready(record)

    def pulled(self, record: Reference, request_id: tuple[str, int]) -> None:
        """It is on this node now, or will never be."""
        if self.requests.pop(request_id, self) is None:
            self.objects.core.send(self.objects.manager, CancelGetRequest(request_id))
        if not self.done:
            self._ready(record)

    def _ready(self, record: Reference) -> None:
        self.local[record.object_id] = None
        self.ready += 1
        if self.ready >= self.num_returns:
            self._finish()

    def _timed_out(self, _: object) -> None:
        if not self.done:
            self.timer = None
            self._finish()

    def give_up(self) -> None:
        """As ``Get.give_up``."""
        self.done = True
        objects = self.objects
        if self.timer is not None:
            objects.core.sim.cancel(self.timer)
        for request_id in self.requests:
            objects.core.send(objects.manager, CancelGetRequest(request_id))
        self.requests = {}
        if self.task_id:
            objects.unblock(self, self.task_id)

    def _finish(self) -> None:
        self.give_up()
        left = self.num_returns
        answer = []
        for record in self.records:
            is_ready = left > 0 and record.object_id in self.local
            left -= is_ready
            answer.append(is_ready)
        self.then(answer)


class _Pulled:
    """Waits for one object of one ``ray.wait``."""

    __slots__ = ("record", "request_id", "wait")

    def __init__(self, wait: Wait, record: Reference, request_id: tuple[str, int]) -> None:
        self.wait = wait
        self.record = record
        self.request_id = request_id

    def answered(self, answer: Any) -> None:
        if isinstance(answer, Failure):
            self.wait.objects.core.exit("its raylet died", intended=False)
        else:
            self.wait.pulled(self.record, self.request_id)
