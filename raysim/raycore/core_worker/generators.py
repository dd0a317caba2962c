"""Streaming generators: items go to the owner one by one, as they are made.

Real counterpart: ``ObjectRefStream`` in ``task_manager.cc``, ``generator_waiter.cc``,
``CoreWorker::ReportGeneratorItemReturns``; Ray's internals page on streaming generators. Each item
is one report; the owner withholds its answer while the consumer is more than
``generator_backpressure_num_objects`` behind, and the executor waits then. The end comes with the
reply to ``PushTask``.

Not modelled: items reported ahead of the executor's thread while it waits for plasma.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raysim.kernel.component import Failure, Reply
from raysim.raycore.core_worker.references import FREED, PENDING, Reference
from raysim.raycore.ids import NodeID, ObjectID, TaskID, index_of, object_id, task_of
from raysim.raycore.protocol import LocationUpdate, ReportGeneratorItemReturns, ReturnObject
from raysim.raycore.tasks import NONE, Payload, Ref, TaskError

if TYPE_CHECKING:
    from raysim.raycore.core_worker.execution import Running
    from raysim.raycore.core_worker.task_manager import PendingTask
    from raysim.raycore.core_worker.worker import CoreWorker

_FIRST_ITEM = 2
"""Items' index among the task's objects; 1 is the generator itself."""


class Stream:
    """One generator, at its owner."""

    __slots__ = (
        "backpressure", "early", "error", "held", "items", "length", "read", "task", "waiting",
    )  # fmt: skip

    def __init__(self, task: PendingTask) -> None:
        self.task = task
        self.backpressure = task.spec.options.generator_backpressure_num_objects
        self.items: dict[int, ObjectID] = {}
        """Arrived and not read yet, by number."""
        self.early: dict[ObjectID, list[tuple[LocationUpdate, NodeID]]] = {}
        """What is known of copies of items that have not been reported yet."""
        self.read = 0
        self.length = -1
        """Known at its end."""
        self.error: TaskError | None = None
        self.waiting: deque[Callable[[Any], object]] = deque()
        self.held: list[tuple[int, Reply]] = []
        """Reports whose answer is withheld."""


class Streams:
    """Every generator that one process owns."""

    def __init__(self, core: CoreWorker) -> None:
        self.core = core
        self.references = core.references
        self.streams: dict[TaskID, Stream] = {}
        self._lost: dict[TaskID, list[Reference]] = {}
        """Items read before and lost since, that a running attempt is to bring again."""

    def add(self, task: PendingTask) -> None:
        """It has been submitted."""
        self.streams[task.spec.task_id] = Stream(task)

    def on_report(self, m: ReportGeneratorItemReturns, reply: Reply) -> None:
        """One item more; of a second attempt, those that are known only count."""
        stream = self.streams.get(m.task_id)
        if stream is None:  # nobody reads on; an item that was read may be made again
            record = self.references.table.get(m.item.object_id)
            if record is not None and record.value is PENDING and record.task is not None:
                self._store(record.task, record, m)
            elif m.item.payload is None:
                self.core.directory.stray(m.item.object_id, m.node_id)
            reply(1 << 62)
            return
        item = m.item
        number = index_of(item.object_id) - _FIRST_ITEM
        record = self.references.table.get(item.object_id)
        if record is not None:
            if record.value is not FREED:
                self._store(stream.task, record, m)
        elif number >= stream.read and number not in stream.items:
            record = self.references.own(item.object_id, 1, stream.task)
            stream.items[number] = item.object_id
            self._store(stream.task, record, m)
            for update, node_id in stream.early.pop(item.object_id, ()):
                self.core.directory.updated(record, update, node_id)
        if 0 < stream.backpressure <= number + 1 - stream.read:
            stream.held.append((number, reply))
        else:
            reply(stream.read)
        self._serve(stream)

    def _store(self, task: PendingTask, record: Reference, m: ReportGeneratorItemReturns) -> None:
        item = m.item
        if item.payload is None:
            self.core.tasks.stored(record, task, item, m.node_id)
            return
        if item.payload.contained:
            self.references.contain(record, item.payload.contained)
        self.references.set_value(record, item.payload)

    def is_early(self, update: LocationUpdate, node_id: NodeID) -> bool:
        """Whether a copy of what is not known here is of an item whose report is on its way."""
        item = update.object_id
        stream = self.streams.get(task_of(item))
        if stream is None or index_of(item) - _FIRST_ITEM < stream.read:
            return False
        stream.early.setdefault(item, []).append((update, node_id))
        return True

    def next(self, call: tuple[Ref, Callable[[Any], object]]) -> None:
        """A generator's next item: ``then`` has its reference, an error, or None at the end."""
        generator, then = call
        stream = self.streams.get(task_of(generator.object_id))
        if stream is None:
            then(None)
            return
        stream.waiting.append(then)
        self._serve(stream)

    def _serve(self, stream: Stream) -> None:
        while stream.waiting:
            object_id_ = stream.items.pop(stream.read, None)
            if object_id_ is not None:
                stream.read += 1
                self._go_on(stream)
                stream.waiting.popleft()(Ref(object_id_, self.core.me))
            elif stream.length < 0:
                return
            elif stream.error is not None:
                error, stream.error = stream.error, None
                stream.waiting.popleft()(error)
            else:
                stream.waiting.popleft()(None)

    def _go_on(self, stream: Stream) -> None:
        """The consumer has taken one: let the executor make more."""
        held, stream.held = stream.held, []
        for number, reply in held:
            if number + 1 - stream.read < stream.backpressure:
                reply(stream.read)
            else:
                stream.held.append((number, reply))

    def ended(self, task: PendingTask, items: int, error: TaskError | None) -> None:
        """The generator has returned, or failed."""
        self._not_made_again(task, error)
        stream = self.streams.get(task.spec.task_id)
        if stream is None:
            return
        first = stream.length < 0
        stream.length = stream.read + len(stream.items) if items < 0 else items
        stream.error = error
        record = self.references.table.get(object_id(task.spec.task_id, 1))
        if first and error is None and record is not None and record.value is not FREED:
            self.references.set_value(record, NONE)
        self._serve(stream)

    def lost(self, record: Reference, task: PendingTask) -> None:
        """All copies of what this task made are gone, and it is running."""
        if task.spec.options.num_returns == "streaming" and index_of(record.object_id) > 1:
            self._lost.setdefault(task.spec.task_id, []).append(record)

    def _not_made_again(self, task: PendingTask, error: TaskError | None) -> None:
        """Items that were lost, and that the attempt has not brought.

        Made before the loss by the first attempt: that has now ended, and may be run again.
        """
        cause = error or TaskError("OBJECT_LOST", "its generator did not make it again")
        first = error is None and not task.spec.attempt
        for record in self._lost.pop(task.spec.task_id, ()):
            if record.value is not PENDING:
                continue
            if first:
                self.core.recovery.make_again(record)
            else:
                self.core.tasks.fail_object(record, cause)

    def dropped(self, object_id_: ObjectID) -> None:
        """An object has gone; if it was a generator, items not read go too."""
        task_id = task_of(object_id_)
        stream = self.streams.get(task_id)
        if stream is None or object_id_ != object_id(task_id, 1):
            return
        del self.streams[task_id]
        for _, reply in stream.held:
            reply(1 << 62)
        for item in stream.items.values():
            self.references.remove_local(item)
        for item, updates in stream.early.items():
            for node_id in dict.fromkeys(node_id for _, node_id in updates):
                self.core.directory.stray(item, node_id)


class Item:
    """One item on its way to the owner; the answer says how many were read."""

    __slots__ = ("contained", "item", "lead_ns", "reports", "running", "then")

    def __init__(
        self, reports: ItemReports, running: Running, item: Payload, then: Callable[[], object]
    ) -> None:
        self.reports = reports
        self.running = running
        self.item = item
        self.then = then

    def send(self, _: object) -> None:
        """The thread has serialised it: into plasma if it is large, then report it."""
        core, running = self.reports.core, self.running
        running.stream = number = (running.stream or 0) + 1
        item_id = object_id(running.spec.task_id, number - 1 + _FIRST_ITEM)
        if self.item.size_bytes > core.config.max_direct_call_object_size:
            stored = ReturnObject(item_id, self.item.size_bytes, None, self.item.contained)
            core.objects.store_item(stored, self.item, running.spec.caller, self)
        else:
            self.report(ReturnObject(item_id, self.item.size_bytes, self.item))

    def report(self, item: ReturnObject) -> None:
        """Tell the owner; without backpressure the generator goes on meanwhile."""
        core, running = self.reports.core, self.running
        caller = running.spec.caller
        message = ReportGeneratorItemReturns(
            running.spec.task_id, item, core.me.node_id, running.attempt
        )
        self.item = NONE._replace(contained=item.contained or self.item.contained)
        core.calls.call(caller.node_id, caller.address, message, _Answered(self, item.object_id))
        if running.spec.options.generator_backpressure_num_objects <= 0:
            self.then()

    def failed(self, error: TaskError) -> None:
        """It could not be stored."""
        references = self.reports.core.references
        for ref in self.item.contained:
            references.release_hold(references.of(ref))
        if not self.running.ended:
            self.running.fail(error)

    def answered(self, item_id: ObjectID, answer: Any) -> None:
        """The owner has it."""
        core, running = self.reports.core, self.running
        if isinstance(answer, Failure):
            return  # the owner is gone: its raylet will end this process
        if self.item.contained:
            core.borrowing.returned(item_id, self.item.contained, running.spec.caller)
            for ref in self.item.contained:
                core.references.release_hold(core.references.of(ref))
        if running.spec.options.generator_backpressure_num_objects > 0:
            core.after(0, self._go_on)

    def _go_on(self, _: object) -> None:
        self.then()


class _Answered:
    """Waits for the owner to have an item."""

    __slots__ = ("item", "item_id")

    def __init__(self, item: Item, item_id: ObjectID) -> None:
        self.item = item
        self.item_id = item_id

    def __call__(self, answer: Any) -> None:
        self.item.answered(self.item_id, answer)


class ItemReports:
    """The executor's side."""

    def __init__(self, core: CoreWorker) -> None:
        self.core = core

    def report(
        self, running: Running, item: Payload, then: Callable[[], object], lead_ns: int
    ) -> None:
        """Hand over one item; the execution thread serialises it first."""
        core, executor = self.core, self.core.executor
        for ref in item.contained:
            core.references.of(ref).share().holds += 1
        now_ns = core.now_ns
        start_ns = max(executor.free_ns, now_ns + lead_ns)
        work_ns = core.costs.generator_item_ns
        if item.size_bytes > core.config.max_direct_call_object_size:
            work_ns += core.costs.stored_return_ns
        executor.free_ns = start_ns + executor.thread_takes(start_ns, work_ns)
        core.after(executor.free_ns - now_ns, Item(self, running, item, then).send)

    def close(self, running: Running) -> None:
        """The generator has returned."""
        self.core.executor.answer(running, (), items=running.stream or 0)
