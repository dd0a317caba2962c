"""Running a program's functions in emulated workers.

Real counterpart: ``execute_task`` of ``python/ray/_raylet.pyx`` and ``default_worker.py``.

A body is what a core worker calls with a ``RunningTask``: it makes a fiber in which the function
runs, and ends the task with what it returned or raised. Methods of asyncio actors run in their
process's event loop instead (``asyncio_loop``).
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from raysim.rayapi.asyncio_loop import CancelledError
from raysim.rayapi.calls import begin_call, end_call
from raysim.rayapi.compute import kind_of, pay_for_memory, release_memory
from raysim.rayapi.exceptions import AsyncioActorExit, TaskCancelledError
from raysim.rayapi.failures import exception_of, task_error
from raysim.rayapi.fibers import Fiber
from raysim.rayapi.identifiers import TaskID
from raysim.rayapi.imports import load_program
from raysim.rayapi.objects import DynamicObjectRefGenerator, ObjectRef
from raysim.rayapi.serialization import (
    Plain,
    Raised,
    array_bytes,
    deserialize,
    dump_code,
    pickled_bytes,
    serialize,
)
from raysim.rayapi.submission import put_payload
from raysim.rayapi.torch_programs import replaced
from raysim.raycore.ids import hex_id
from raysim.raycore.resources import base_name
from raysim.raycore.tasks import Payload, TaskError

if TYPE_CHECKING:
    from raysim.rayapi.actor_handle import ClassInfo
    from raysim.rayapi.process_state import ProcessState
    from raysim.rayapi.session import Session
    from raysim.raycore.resources import Allocation
    from raysim.raycore.running import RunningTask
    from raysim.raycore.tasks import TaskOptions


class Finished(NamedTuple):
    """It returned."""

    returns: list[Payload]


@dataclass
class StreamingGeneratorStats:
    """What a generator is sent after each item."""

    object_creation_dur_s: float


StreamingGeneratorStats.__module__ = "ray._raylet"


class Exited(NamedTuple):
    """Its process ends."""

    reason: str
    intended: bool


class ProcessExit(BaseException):
    """``os._exit``, or a signal to itself: no handler of the program may catch it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ActorExit(SystemExit):
    """``exit_actor()``."""


class ActorHere(NamedTuple):
    """The actor of a process."""

    info: ClassInfo
    creation_options: TaskOptions
    actor_id: int
    restarted: bool
    resource_ids: Allocation
    """What it holds while it lives."""


class Body:
    """Base of bodies: start a fiber, end the task."""

    __slots__ = ("module", "name", "session")

    def __init__(self, session: Session, name: str, module: str) -> None:
        self.session = session
        self.name = name
        self.module = module
        session.bodies.append(self)

    def forget(self) -> None:
        """No task runs it again: rows of the state log keep it, and nothing of the run with it."""
        for name in ("session", "code", "info"):
            if hasattr(self, name):
                delattr(self, name)

    def __call__(self, running: RunningTask) -> None:
        """Run it in a fiber."""
        state = self.session.process_of(running.worker, running.spec)
        fiber = Fiber(state, running, None, _ended, self.name)
        fiber.body = self._main
        _show_gpus(state, running)
        fiber.depth = 1  # what Ray does before and after the program's own code
        running.on_cancel = fiber.cancel
        fiber.start()

    def of_failed_argument(self, running: RunningTask, error: TaskError) -> TaskError:
        """An argument is an error: raised where the call would begin, so a ``RayTaskError``."""
        state = self.session.process_of(running.worker, running.spec)
        failed = exception_of(error, "")
        return task_error(failed, self.name, pid=state.pid, ip=state.ip)

    def _main(self, fiber: Fiber) -> Finished | TaskError | Exited:
        state, running = fiber.process, fiber.running
        assert running is not None, f"{self.name} runs without a task"
        try:
            args, kwargs = call_arguments(running)
            if self.session.compute.running:
                fiber.kind = kind_of(args, kwargs)
            fiber.depth = 0
            end_call(fiber)
            value = self.call(fiber, state, running, args, kwargs)
            begin_call(fiber)
            fiber.depth = 1
            spec = running.spec
            if spec.kind == "ACTOR_TASK" and spec.task_id in state.canceled:
                cancelled = TaskCancelledError(TaskID(spec.task_id))
                return TaskError("TASK_CANCELLED", str(cancelled), dump_code(cancelled))
            return Finished(pack(fiber, running, value))
        except BaseException as error:  # noqa: BLE001  (whatever a program raises)
            return outcome(fiber, running, error, self.name)

    def call(
        self,
        fiber: Fiber,
        state: ProcessState,
        running: RunningTask,
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run the program's own code."""
        raise NotImplementedError


class FunctionBody(Body):
    """A remote function."""

    __slots__ = ("code",)

    def __init__(self, session: Session, code: bytes, name: str, module: str) -> None:
        super().__init__(session, name, module)
        self.code = code

    def call(
        self,
        fiber: Fiber,
        state: ProcessState,
        running: RunningTask,
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        """Unpickled once per process, as Ray's function table has it."""
        computes_on(fiber, running.resource_ids, self.name)
        function = state.functions.get(self)
        if function is None:
            function = state.functions[self] = load_program(self.code)
        return function(*args, **kwargs)


class CreationBody(Body):
    """``__init__`` of an actor."""

    __slots__ = ("code", "info")

    def __init__(self, session: Session, info: ClassInfo, code: bytes) -> None:
        super().__init__(session, f"{info.name}.__init__", info.module)
        self.info = info
        self.code = code

    def call(
        self,
        fiber: Fiber,
        state: ProcessState,
        running: RunningTask,
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        """The instance stays with the process."""
        spec = running.spec
        state.actor = ActorHere(
            self.info, spec.options, spec.actor_id, spec.attempt > 0, running.resource_ids
        )
        computes_on(fiber, running.resource_ids, self.info.name)
        cls = load_program(self.code)
        instance = cls.__new__(cls)
        running.keep(instance)
        if not self.info.is_async:
            instance.__init__(*args, **kwargs)
            return
        from raysim.rayapi.asyncio_loop import initialise, start_loop

        start_loop(state, self.info.name)
        begin_call(fiber)
        error = initialise(fiber, state, running, partial(instance.__init__, *args, **kwargs))
        end_call(fiber)
        if error is not None:
            raise error


class MethodBody(Body):
    """A method of an actor."""

    __slots__ = ("info", "method")

    def __init__(self, session: Session, info: ClassInfo, method: str) -> None:
        super().__init__(session, f"{info.name}.{method}", info.module)
        self.info = info
        self.method = method

    def __call__(self, running: RunningTask) -> None:
        """Run it in a fiber, or in the event loop."""
        if not self.info.is_async or running.spec.options.concurrency_group == "_ray_system":
            super().__call__(running)
            return
        from raysim.rayapi.asyncio_loop import run_method

        run_method(self, self.session.process_of(running.worker, running.spec), running)

    def call(
        self,
        fiber: Fiber,  # noqa: ARG002  (of all bodies)
        state: ProcessState,  # noqa: ARG002  (of all bodies)
        running: RunningTask,
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        """On the instance of this process."""
        if self.method == "__ray_terminate__":
            raise ActorExit
        if self.method == "__ray_ready__":
            return True
        if self.method == "__ray_call__":
            return args[0](running.state, *args[1:], **kwargs)
        return _method_of(running.state, self.method)(*args, **kwargs)


def _method_of(instance: Any, name: str) -> Any:
    """Of its class: an attribute of the instance may have the same name, as in Ray."""
    for cls in type(instance).__mro__:
        found: Any = vars(cls).get(name)
        if hasattr(found, "__get__"):
            return found.__get__(instance, type(instance))
    return getattr(instance, name)


def computes_on(fiber: Fiber, held: Allocation, name: str, *, only_answers: bool = False) -> None:
    """In a fiber of a process that holds these: its torch has the GPUs among them."""
    if replaced():
        from raysim.rayapi.ranks.by_hand import begin_on  # it needs torch

        begin_on(fiber, gpu_indices(held), name, only_answers=only_answers)


def _show_gpus(state: ProcessState, running: RunningTask) -> None:
    """``CUDA_VISIBLE_DEVICES``: of the task, or for good of the actor."""
    if running.spec.kind != "ACTOR_TASK":
        show_gpus(state, gpu_indices(running.resource_ids))


def show_gpus(state: ProcessState, ids: Sequence[int]) -> None:
    """Of the process, from here on."""
    if ids:
        state.set_env("CUDA_VISIBLE_DEVICES", ",".join(map(str, ids)))
        state.shows_gpus = True
    elif state.shows_gpus:
        state.set_env("CUDA_VISIBLE_DEVICES", None)
        state.shows_gpus = False


def gpu_indices(held_resources: Allocation, resource: str = "GPU") -> list[int]:
    """Which instances are held."""
    found: dict[int, None] = {}
    for name, held in held_resources.items():
        if held.__class__ is not int and base_name(name) == resource:
            found |= dict.fromkeys(i for i, n in enumerate(held) if n)  # type: ignore[arg-type]
    return list(found)


def _ended(fiber: Fiber) -> None:
    """The fiber is over: end the task, in the hub."""
    running, result = fiber.running, fiber.result
    assert running is not None
    running.on_cancel = None
    fiber.result = None
    if fiber.collected:
        return
    if fiber.error is not None:
        raise fiber.error
    if fiber.process.held_bytes:
        release_memory(fiber.process, running.spec.task_id)
    end(running, result, fiber.lead_ns)


def end(running: RunningTask, result: Finished | TaskError | Exited, lead_ns: int) -> None:
    """Tell the core worker how the task ended."""
    if isinstance(result, Finished):
        running.finish(result.returns, lead_ns=lead_ns)
    elif isinstance(result, TaskError):
        running.fail(result, lead_ns=lead_ns)
    else:
        running.exit_process(reason=result.reason, intended=result.intended, lead_ns=lead_ns)


def call_arguments(running: RunningTask) -> tuple[Sequence[Any], dict[str, Any]]:
    """What the caller gave, as copies."""
    if not running.args:
        return (), {}
    values = iter(running.args)
    names: tuple[str, ...] = next(values).data
    found: list[Any] = []
    for value in values:
        data: Any = value.data
        plain = data.__class__ is Plain
        found.append(data.value if plain else deserialize(value))  # type: ignore[arg-type]
    if not names:
        return found, {}
    first = len(found) - len(names)
    return found[:first], dict(zip(names, found[first:], strict=True))


def outcome(
    fiber: Fiber, running: RunningTask, error: BaseException, name: str
) -> TaskError | Exited:
    """What a task that raised ends with."""
    state = fiber.process
    if isinstance(error, (ActorExit, AsyncioActorExit)):
        return Exited("exit_actor() is called.", intended=True)
    if isinstance(error, SystemExit):
        code = error.code if error.code is not None else 0
        return Exited(f"Worker exits with an exit code {code}.", intended=code == 0)
    if isinstance(error, ProcessExit):
        return Exited(error.reason, intended=False)
    spec = running.spec
    cancelled = spec.task_id in state.canceled and isinstance(error, _INTERRUPTS)
    if cancelled:
        error = TaskCancelledError(TaskID(spec.task_id))
    actor = None
    if state.actor is not None:
        actor = (_repr_of_actor(running), hex_id("actor", spec.actor_id))
    failed = task_error(error, name, pid=state.pid, ip=state.ip, actor=actor)
    return failed._replace(error_type="TASK_CANCELLED") if cancelled else failed


_INTERRUPTS = (KeyboardInterrupt, CancelledError)


def _repr_of_actor(running: RunningTask) -> str:
    try:
        return repr(running.state)
    except Exception:  # noqa: BLE001  (a program's own ``__repr__``)
        return "<unrepresentable object>"


def pack(fiber: Fiber, running: RunningTask, value: Any) -> list[Payload]:
    """Return values on their way."""
    wanted = running.spec.options.num_returns
    if value is None and wanted == 1:
        return _NONE
    if wanted == "streaming":
        if not isinstance(value, Iterator):
            raise ValueError(
                'Functions with @ray.remote(num_returns="streaming" must return a generator'
            )
        _stream(fiber, running, value)
        return []
    if inspect.isgenerator(value) and wanted == 1:
        value = _dynamic(fiber, value)
    if wanted == 0:
        return []
    if wanted != 1 and inspect.isgenerator(value):
        payloads = _of_generator(fiber, running, value, wanted)
    else:
        values = [value] if wanted == 1 else _several(value, wanted)
        payloads = [serialize(v, hold_refs=True) for v in values]
    if fiber.process.session.compute.running and not fiber.process.priced:
        pay_for_memory(fiber, sum(array_bytes(payload) for payload in payloads))
    size = sum(pickled_bytes(payload) for payload in payloads)
    fiber.lead_ns += round(size / fiber.process.session.env.costs.serialize_bytes_per_s * 1e9)
    return payloads


_NONE = [serialize(None)]


def _several(value: Any, wanted: int) -> list[Any]:
    if not isinstance(value, Iterable):
        raise ValueError(f"Task returned 1 objects, but num_returns={wanted}.")
    values = list(value)
    if len(values) != wanted:
        raise ValueError(f"Task returned {len(values)} objects, but num_returns={wanted}.")
    return values


def _of_generator(
    fiber: Fiber, running: RunningTask, items: Iterator[Any], wanted: int
) -> list[Payload]:
    """What it yields is there whatever comes after; an error is what is left.

    Of items that are too many nobody hears: Ray logs the error that they are.
    """
    made: list[Payload] = []
    error: Exception | None = None
    try:
        for item in itertools.islice(items, wanted):
            made.append(serialize(item, hold_refs=True))  # noqa: PERF401  (up to the error)
    except Exception as raised:  # noqa: BLE001  (whatever a program raises)
        error = raised
    missing = wanted - len(made)
    if error is None and missing:
        error = ValueError(f"Task returned {len(made)} objects, but num_returns={wanted}.")
    if error is not None:
        if not made or running.spec.options.retry_exceptions:
            raise error
        failed = outcome(fiber, running, error, fiber.name)
        if isinstance(failed, Exited):
            raise error
        made += [serialize(Raised(failed))] * missing
    return made


def _stream(fiber: Fiber, running: RunningTask, items: Any) -> None:
    """Hand over items one by one; the next is made when the owner lets it.

    Ray sends a generator how long its last item took; iterators it delegates to may not take it.
    """
    stats = None
    send = items.send if hasattr(items, "send") else lambda _stats: next(items)
    while True:
        fiber.depth = 0
        end_call(fiber)
        try:
            item = send(stats)
        except StopIteration:
            return
        finally:
            begin_call(fiber)
            fiber.depth = 1
        began_ns = fiber.lead_ns
        payload = serialize(item, hold_refs=True)
        stats = StreamingGeneratorStats((fiber.lead_ns - began_ns) / 1e9)
        lead_ns = fiber.take_lead()
        fiber.block(partial(_yield, running, payload, lead_ns))


def _yield(running: RunningTask, payload: Payload, lead_ns: int, then: Any) -> None:
    running.yield_item(payload, then, lead_ns=lead_ns)


def _dynamic(fiber: Fiber, items: Iterator[Any]) -> Any:
    """``num_returns="dynamic"``: put every item, return the references.

    The items are this process's own; in Ray they are the caller's.
    """
    refs: list[ObjectRef] = []
    while True:
        try:
            payload = serialize(next(items))
        except StopIteration:
            break
        except Exception as error:
            if not refs:
                raise
            payload = serialize(Raised(task_error(error, "dynamic", pid=0, ip="")))
            refs.append(put_payload(fiber, payload))
            break
        refs.append(put_payload(fiber, payload))
    return DynamicObjectRefGenerator(refs)
