"""``ray.ObjectRef`` and generators of them.

Real counterpart: ``python/ray/includes/object_ref.pxi`` and ``ObjectRefGenerator`` of
``_raylet.pyx``. The number of Python objects for one object in one process is the local reference
count, as in Ray: made or unpickled, one more; deleted, one less.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from raysim.rayapi import serialization
from raysim.rayapi.calls import program_call, this_core, this_fiber
from raysim.rayapi.failures import exception_of, raise_error
from raysim.rayapi.fibers import HUB, Fiber
from raysim.rayapi.identifiers import BaseID, JobID, TaskID
from raysim.rayapi.serialization import Plain, Raised, deserialize
from raysim.raycore.ids import WorkerAddress, job_of, number_of, task_of
from raysim.raycore.tasks import Ref, TaskError, Value

if TYPE_CHECKING:
    from raysim.raycore.process import CoreProcess


class ObjectRef(BaseID):
    """A reference to an object, in one process."""

    __slots__ = ("__weakref__", "_core", "_ref", "of_actor")
    kind = "object"

    def __init__(
        self, ref: Ref | bytes | int, core: CoreProcess | None = None, *, of_actor: bool = False
    ) -> None:
        if ref.__class__ is bytes:  # by hand: a name, which keeps nothing alive
            number = -1 if ref == b"\xff" * len(ref) else number_of("object", ref)
            ref = Ref(number, WorkerAddress(0, "", 0))
        elif isinstance(ref, int):  # ``nil()``
            ref = Ref(-1, WorkerAddress(0, "", 0))
        self._ref: Ref = ref  # type: ignore[assignment]
        self._core: Any = core
        self.number = ref[0]
        self.of_actor = of_actor
        """Made by a call of an actor's method."""

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is not None:
            HUB.drop(core, core.remove_local_reference, self.number)

    def task_id(self) -> TaskID:
        """The task that makes it."""
        return TaskID(task_of(self.number))

    def job_id(self) -> JobID:
        """The job it belongs to."""
        return JobID(job_of(task_of(self.number)))

    def owner_address(self) -> str:
        """The owner's, in words."""
        return self._ref.owner.address

    def call_site(self) -> str:
        """Not recorded."""
        return ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectRef) and self.number == other.number

    def __hash__(self) -> int:
        return hash(self.number)

    def __reduce__(self) -> tuple[Any, ...]:
        ref = self._ref
        if serialization.inside:
            serialization.inside[-1].meet(self, ref)
        else:  # pickled by hand: nobody can tell when it is not needed any more
            self._core.add_local_reference(ref)
        owner = ref.owner
        return restore_ref, (ref.object_id, owner.worker_id, owner.address, owner.node_id)

    # asyncio and concurrent.futures

    def __await__(self) -> Generator[Any, None, Any]:
        return self.as_future().__await__()  # type: ignore[no-any-return]

    def as_future(self, _internal: bool = False) -> Any:
        """An asyncio future of the value."""
        from raysim.rayapi.asyncio_loop import future_of_ref

        return future_of_ref(self)

    def future(self) -> Any:
        """A ``concurrent.futures.Future`` of the value."""
        from raysim.rayapi.asyncio_loop import concurrent_future_of_ref

        return concurrent_future_of_ref(self)

    def __class_getitem__(cls, _item: Any) -> type[ObjectRef]:
        return cls


def restore_ref(object_id: int, worker_id: int, address: str, node_id: int) -> ObjectRef:
    """It has arrived in the running process."""
    core = this_core(this_fiber())
    ref = Ref(object_id, WorkerAddress(worker_id, address, node_id))
    core.add_local_reference(ref)
    return ObjectRef(ref, core)


def value_of(value: Value, ref: ObjectRef) -> Any:
    """What a reference stands for, in Python; an exception object if it is an error."""
    if isinstance(value, TaskError):
        return exception_of(value, ref.hex())
    return deserialize(value)


def get_values(fiber: Fiber, refs: list[ObjectRef], timeout: float | None) -> list[Any]:
    """Wait for values; raises the first error in the order of the list."""
    core = this_core(fiber)
    costs = core.costs
    fiber.lead_ns += costs.get_ns + core.first_value_ns()
    plain = [ref._ref for ref in refs]
    timeout_ns = None if timeout is None or timeout < 0 else round(timeout * 1e9)
    lead_ns = fiber.take_lead()
    answer: list[Value] | TaskError = fiber.block(
        lambda then: core.get(plain, then, timeout_ns=timeout_ns, lead_ns=lead_ns)
    )
    if isinstance(answer, TaskError):
        raise_error(exception_of(answer, refs[0].hex() if refs else ""))
    fiber.lead_ns += core.reading_ns(plain)
    values = []
    for value, ref in zip(answer, refs, strict=True):
        if value.__class__ is TaskError:
            raise_error(exception_of(value, ref.hex()))
        data: Any = value.data
        if data.__class__ is Plain:
            values.append(data.value)
        elif data.__class__ is Raised:
            raise_error(exception_of(data.error, ref.hex()))
        else:
            values.append(deserialize(value))  # type: ignore[arg-type]
    return values


class DynamicObjectRefGenerator:
    """What a task with ``num_returns="dynamic"`` returns: the references it made."""

    def __init__(self, refs: list[ObjectRef]) -> None:
        self._refs = refs

    def __iter__(self) -> Generator[ObjectRef, None, None]:
        while self._refs:
            yield self._refs.pop(0)

    def __len__(self) -> int:
        return len(self._refs)


class ObjectRefGenerator:
    """References to the items of a streaming generator, as they are made."""

    def __init__(self, generator_ref: ObjectRef) -> None:
        self._generator_ref = generator_ref
        self._peeked: list[ObjectRef] = []
        self._over = False
        self.waiting: Any = None
        """Who wants to know when the next item is there (``ray.wait``)."""

    def __iter__(self) -> ObjectRefGenerator:
        return self

    def __next__(self) -> ObjectRef:
        return self._next_sync()

    def __aiter__(self) -> ObjectRefGenerator:
        return self

    async def __anext__(self) -> ObjectRef:
        from raysim.rayapi.asyncio_loop import future_with

        if self._peeked:
            return self._peeked.pop(0)
        if self._over:
            raise StopAsyncIteration
        fiber = this_fiber()
        core, ref = this_core(fiber), self._generator_ref._ref
        lead_ns = fiber.take_lead()
        answer = await future_with(lambda then: core.next_item(ref, then, lead_ns=lead_ns))
        item = self._item(answer)
        if item is None:
            raise StopAsyncIteration
        return item

    @program_call
    def _next_sync(self, timeout_s: float | None = None) -> ObjectRef:
        del timeout_s
        if self._peeked:
            return self._peeked.pop(0)
        if self._over:
            raise StopIteration
        fiber = this_fiber()
        core, ref = this_core(fiber), self._generator_ref._ref
        lead_ns = fiber.take_lead()
        item = self._item(fiber.block(lambda then: core.next_item(ref, then, lead_ns=lead_ns)))
        if item is None:
            raise StopIteration
        return item

    def _item(self, answer: Ref | TaskError | None) -> ObjectRef | None:
        if isinstance(answer, Ref):
            return ObjectRef(answer, self._generator_ref._core)
        self._over = True
        return self._generator_ref if isinstance(answer, TaskError) else None

    def peek(self, then: Any) -> None:
        """Call ``then`` once the next item, or the end, is known (for ``ray.wait``)."""
        if self._peeked or self._over:
            then()
            return
        first = self.waiting is None
        self.waiting = then
        if first:
            core = self._generator_ref._core
            core.next_item(self._generator_ref._ref, self._arrived)

    def _arrived(self, answer: Ref | TaskError | None) -> None:
        item = self._item(answer)
        if item is not None:
            self._peeked.append(item)
        then, self.waiting = self.waiting, None
        if then is not None:
            then()

    def next_ready(self) -> bool:
        """Whether ``next`` would return at once, as far as this process knows."""
        return bool(self._peeked) or self._over

    def is_finished(self) -> bool:
        """Whether all items have been taken."""
        return self._over and not self._peeked

    def completed(self) -> ObjectRef:
        """A reference that is ready when the task has ended."""
        return self._generator_ref

    def __reduce__(self) -> Any:
        raise TypeError(
            "You cannot return or pass a generator to other task. Serializing a ObjectRefGenerator "
            "is not allowed."
        )

    def __repr__(self) -> str:
        return f"ObjectRefGenerator({self._generator_ref.hex()})"


ObjectRef.__module__ = ObjectRefGenerator.__module__ = "ray"
DynamicObjectRefGenerator.__module__ = "ray._private.object_ref_generator"
