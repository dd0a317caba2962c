"""A program in a Ray process: what its own thread pays for each call, and how far ahead it runs.

Real counterpart: a driver script, or a task that calls Ray. The thread's time goes by the service
times of ``RayCosts``; it runs ahead of the clock by ``lead_ns`` and says so with every call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from raysim.perf.ray_core import RayCosts
from raysim.raycore.ids import ActorID, TaskID, task_of
from raysim.raycore.process import CoreProcess
from raysim.raycore.tasks import Arg, Payload, Ref, TaskError, TaskOptions, TaskSpec, Value
from raysim.units import NS_PER_S

WORK_BYTES = 100
"""The argument that carries a task's own part."""


class Done(NamedTuple):
    """How a program ended."""

    tasks: list[TaskID]
    """All that it submitted, with those of the tasks it submitted through."""
    error: TaskError | None = None
    """The first that a ``get`` met."""


Then = Callable[[Done], object]


class Program:
    """One thread that calls Ray."""

    def __init__(
        self,
        process: CoreProcess,
        *,
        parent: TaskSpec | None = None,
        tasks: list[TaskID] | None = None,
    ) -> None:
        self.process = process
        self.costs: RayCosts = process.costs
        self.parent = parent
        self.lead_ns = 0
        self.tasks: list[TaskID] = [] if tasks is None else tasks
        self.error: TaskError | None = None

    def run_until(self, lead_ns: int) -> None:
        """Sleep, if it is not that late yet."""
        self.lead_ns = max(self.lead_ns, lead_ns)

    # submitting

    def args(self, todo: object, *arguments: Payload | Ref) -> tuple[list[Arg], list[Ref]]:
        """Arguments as they travel, and references made on the way: large values are put."""
        made: list[Ref] = []
        carried: list[Arg] = [Payload(WORK_BYTES, todo)]
        for argument in arguments:
            if isinstance(argument, Ref):
                carried.append(argument)
            elif argument.size_bytes <= self.process.config.max_direct_call_object_size:
                self.lead_ns += self.serialize_ns(argument)
                carried.append(argument)
            else:
                made.append(self.put(argument))
                carried.append(made[-1])
        return carried, made

    def serialize_ns(self, value: Payload) -> int:
        """Pickling a small value."""
        return round(value.size_bytes / self.costs.serialize_bytes_per_s * NS_PER_S)

    def submit(self, options: TaskOptions, todo: object, *arguments: Payload | Ref) -> list[Ref]:
        """``f.remote(...)``."""
        carried, made = self.args(todo, *arguments)
        self.lead_ns += self.costs.submit_task_ns + self.costs.per_arg_ns * len(arguments)
        refs = self.process.submit_task(options, carried, lead_ns=self.lead_ns, parent=self.parent)
        self.tasks.append(task_of(refs[0].object_id))
        self.drop(made)
        return refs

    def create_actor(self, options: TaskOptions, todo: object) -> ActorID:
        """``A.remote()``."""
        self.lead_ns += self.costs.submit_actor_task_ns
        carried: list[Arg] = [Payload(WORK_BYTES, todo)]
        return self.process.create_actor(
            options, carried, self.registered, lead_ns=self.lead_ns, parent=self.parent
        )

    def registered(self, answer: ActorID | TaskError) -> None:
        """The GCS has an actor, or could not."""
        if isinstance(answer, TaskError):
            self.failed(answer)

    def call(
        self, actor: ActorID, options: TaskOptions, todo: object, *arguments: Payload | Ref
    ) -> list[Ref]:
        """``actor.method.remote(...)``; nothing if too many calls are pending."""
        carried, made = self.args(todo, *arguments)
        self.lead_ns += self.costs.submit_actor_task_ns + self.costs.per_arg_ns * len(arguments)
        refs = self.process.submit_actor_task(
            actor, options, carried, lead_ns=self.lead_ns, parent=self.parent
        )
        self.drop(made)
        if isinstance(refs, TaskError):
            self.failed(refs)
            return []
        self.tasks.append(task_of(refs[0].object_id))
        return refs

    # objects

    def put(self, value: Payload, then: Callable[[], object] | None = None) -> Ref:
        """``ray.put``: go on with ``then`` when the object is sealed.

        Without ``then`` the program goes on at once, later by what the copy takes if nothing else
        uses the memory bus and the store has room.
        """
        self.lead_ns += self.costs.put_ns
        made_ns = self.lead_ns
        if then is None:
            self.lead_ns += round(value.size_bytes / self.costs.memcpy_bytes_per_s * NS_PER_S)

        def sealed(error: TaskError | None) -> None:
            if error is not None:
                self.failed(error)
            if then is not None:
                self.lead_ns = 0
                then()

        return self.process.put(value, sealed, lead_ns=made_ns)

    def get(self, refs: Sequence[Ref], then: Callable[[], object]) -> None:
        """``ray.get``: go on with ``then`` when all are here."""
        lead_ns = self.lead_ns + self.costs.get_ns
        after_ns = self.costs.per_ref_get_ns * len(refs)

        def got(values: list[Value] | TaskError) -> None:
            self.lead_ns = after_ns
            for value in [values] if isinstance(values, TaskError) else values:
                if isinstance(value, TaskError):
                    self.failed(value)
            then()

        self.process.get(refs, got, lead_ns=lead_ns)

    def wait(
        self, refs: Sequence[Ref], num_returns: int, then: Callable[[list[bool]], object]
    ) -> None:
        """``ray.wait(..., fetch_local=False)``."""
        lead_ns = self.lead_ns + self.costs.wait_ns + self.costs.per_ref_wait_ns * len(refs)

        def ready(flags: list[bool]) -> None:
            self.lead_ns = 0
            then(flags)

        self.process.wait(refs, num_returns, ready, fetch_local=False, lead_ns=lead_ns)

    def drop(self, refs: Sequence[Ref]) -> None:
        """``del``."""
        for ref in refs:
            self.process.remove_local_reference(ref.object_id, lead_ns=self.lead_ns)

    def failed(self, error: TaskError) -> None:
        """Remember the first."""
        self.error = self.error or error

    def done(self) -> Done:
        """How it ended."""
        return Done(self.tasks, self.error)
