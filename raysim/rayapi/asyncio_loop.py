"""asyncio on virtual time: the event loop of a driver's ``asyncio.run`` and of asyncio actors.

Real counterpart: ``asyncio``'s selector loop in a driver, and the event loop thread of an asyncio
actor (``python/ray/_private/async_compat.py``, ``fiber.h``).

The loop is asyncio's own, with a clock and a "selector" that let the fiber wait in the simulation.
All coroutines of one loop share one fiber, as they share one thread: a blocking ``ray.get`` in one
of them holds up all. ``run_in_executor`` runs in a fiber of its own.

Not modelled: sockets, pipes, subprocesses and signals of a loop; one loop per concurrency group.

This is the only file of the package that may import ``asyncio`` and ``concurrent.futures``.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from raysim.rayapi import serialization
from raysim.rayapi.calls import begin_call, end_call, this_core, this_fiber
from raysim.rayapi.compute import release_memory
from raysim.rayapi.failures import exception_of
from raysim.rayapi.fibers import COROUTINE_TASK, HUB, Fiber, Waiter
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.raycore.tasks import TaskError

if TYPE_CHECKING:
    from raysim.rayapi.execution import MethodBody
    from raysim.rayapi.objects import ObjectRef
    from raysim.rayapi.process_state import ProcessState
    from raysim.raycore.running import RunningTask

sleep = asyncio.sleep
_TURN_NS = 5_000
"""One turn of a loop that is never idle; asyncio takes 3-10 us for it."""


class _Selector:
    """What the loop waits with."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.waiter: Waiter | None = None

    def select(self, timeout: float | None = None) -> list[Any]:
        """Let virtual time pass until a timer or a call from outside."""
        fiber = self._loop.fiber
        if timeout is not None and timeout <= 0:
            fiber.pay(_TURN_NS)
            return []
        until_ns = None
        if timeout is not None:
            until_ns = self._loop.now_ns() + round(timeout * 1e9)
        fiber.settle()
        if not self._loop.is_idle():
            return []
        if until_ns is None:
            fiber.block(self._wait)
            return []
        left_ns = until_ns - self._loop.now_ns()
        if left_ns > 0:
            sim = fiber.process.session.sim
            timer: list[Any] = []

            def start(then: Waiter) -> None:
                self._wait(then)
                timer.append(sim.call_later(left_ns, then))

            fiber.block(start)
            sim.cancel(timer[0])
        return []

    def _wait(self, then: Waiter) -> None:
        self.waiter = then

    def wake(self) -> None:
        """Something is there for the loop."""
        waiter, self.waiter = self.waiter, None
        if waiter is not None:
            waiter()


class VirtualLoop(asyncio.BaseEventLoop):
    """asyncio's event loop on the simulation's clock."""

    def __init__(self) -> None:
        super().__init__()
        fiber = HUB.current
        assert fiber is not None, "event loops are made by programs"
        self.fiber = fiber
        self._selector = _Selector(self)
        self._clock_resolution = 1e-9

    def __del__(self) -> None:
        """A process that is gone has closed nothing, and nobody is to be warned of it."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """See ``__del__``."""
        if HUB.current is not None:
            super().call_exception_handler(context)

    async def create_server(self, *_: Any, **__: Any) -> Any:
        """No sockets.

        Raises
        ------
        NotEmulatedError
            Always.
        """
        raise NotEmulatedError("A server of an event loop", "methods of actors, or ray.serve")

    def now_ns(self) -> int:
        """Where the fiber is."""
        return self.fiber.process.session.now_ns + self.fiber.lead_ns

    def time(self) -> float:
        """Seconds of virtual time."""
        return self.now_ns() / 1e9

    def is_idle(self) -> bool:
        """Whether nothing is ready."""
        return not self._ready  # type: ignore[attr-defined]

    def run_forever(self) -> None:
        """In the fiber that calls."""
        fiber = HUB.current
        assert fiber is not None
        self.fiber, before = fiber, fiber.loop
        fiber.loop = self
        try:
            super().run_forever()
        finally:
            fiber.loop = before

    def enter(self) -> None:
        """The fiber goes on: asyncio's idea of the running loop is per thread, ours per fiber."""
        asyncio._set_running_loop(self)  # noqa: SLF001  (its documented hook for loops)
        sys.set_asyncgen_hooks(
            firstiter=self._asyncgen_firstiter_hook,  # type: ignore[attr-defined]
            finalizer=self._asyncgen_finalizer_hook,  # type: ignore[attr-defined]
        )

    def leave(self) -> None:
        """The fiber waits."""
        asyncio._set_running_loop(None)  # noqa: SLF001  (its documented hook for loops)
        sys.set_asyncgen_hooks(firstiter=None, finalizer=None)

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none: nothing is read from files."""

    def _write_to_self(self) -> None:
        self._selector.wake()

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        """Another fiber of the process."""
        del executor
        future = self.create_future()
        thread = Fiber(self.fiber.process, None, partial(func, *args), None, "executor")

        def done(fiber: Fiber) -> None:
            self.call_soon_threadsafe(_settle, future, fiber.error, fiber.result)

        thread.done = done
        thread.start()
        return future


def _settle(future: Any, error: BaseException | None, result: Any) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


class VirtualPolicy(asyncio.DefaultEventLoopPolicy):
    """Gives programs virtual loops, one current loop per process, and others their own."""

    def new_event_loop(self) -> Any:
        """For ``asyncio.run``."""
        return super().new_event_loop() if HUB.current is None else VirtualLoop()

    def get_event_loop(self) -> Any:
        """Outside of a running loop."""
        fiber = HUB.current
        if fiber is None:
            return super().get_event_loop()
        state = fiber.process
        if state.policy_loop is None or state.policy_loop.is_closed():
            state.policy_loop = state.loop or VirtualLoop()
        return state.policy_loop

    def set_event_loop(self, loop: Any) -> None:
        """Of the process that calls."""
        if HUB.current is None:
            super().set_event_loop(loop)
        else:
            HUB.current.process.policy_loop = loop


def install() -> Any:
    """Programs get virtual loops; what to give back to ``remove``."""
    before = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(VirtualPolicy())
    return before


def remove(before: Any) -> None:
    """As it was."""
    asyncio.set_event_loop_policy(before)


# ---- references ----------------------------------------------------------------------------------


def _current_loop() -> Any:
    return asyncio.get_event_loop()


async def future_with(start: Callable[[Callable[[Any], None]], object]) -> Any:
    """Start something that calls back, and await its answer."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    start(partial(_answered, loop, future))
    return await future


def _answered(loop: Any, future: Any, answer: Any = None) -> None:
    if not loop.is_closed():  # else nobody waits for it any more
        loop.call_soon_threadsafe(_settle, future, None, answer)


def future_of_ref(ref: ObjectRef) -> Any:
    """A future of the value; it is unpickled in the loop's fiber."""
    loop = _current_loop()
    future = loop.create_future()
    fiber = this_fiber()
    core = this_core(fiber)
    fiber.lead_ns += core.costs.get_ns
    core.get([ref._ref], partial(_fetched, loop, future, ref), lead_ns=fiber.lead_ns)  # noqa: SLF001
    return future


def _fetched(loop: Any, future: Any, ref: ObjectRef, answer: Any) -> None:
    if not loop.is_closed():  # else nobody waits for it any more
        loop.call_soon_threadsafe(_resolve, future, ref, answer)


def _value(ref: ObjectRef, answer: Any) -> tuple[BaseException | None, Any]:
    value = answer if isinstance(answer, TaskError) else answer[0]
    if not isinstance(value, TaskError):
        return None, serialization.deserialize(value)
    error = exception_of(value, ref.hex())
    as_cause = getattr(error, "as_instanceof_cause", None)
    return (as_cause() if as_cause is not None else error), None


def _resolve(future: Any, ref: ObjectRef, answer: Any) -> None:
    if not future.done():
        _settle(future, *_value(ref, answer))


class _RefFuture(concurrent.futures.Future[Any]):
    """``ObjectRef.future()``: waiting for it is ``ray.get``."""

    def __init__(self, ref: ObjectRef) -> None:
        super().__init__()
        self._of = ref
        fiber = this_fiber()
        core = this_core(fiber)
        core.get([ref._ref], partial(self._fetched, fiber.process), lead_ns=fiber.lead_ns)  # noqa: SLF001

    def _fetched(self, state: ProcessState, answer: Any) -> None:
        Fiber(state, None, partial(self._finish, answer), None, "callback").start()

    def _finish(self, answer: Any) -> None:
        if not self.done():
            _settle(self, *_value(self._of, answer))

    def result(self, timeout: float | None = None) -> Any:
        """Wait for it."""
        if not self.done():
            from raysim.rayapi.api import get
            from raysim.rayapi.exceptions import GetTimeoutError

            try:
                return get(self._of, timeout=timeout)
            except GetTimeoutError:
                raise concurrent.futures.TimeoutError from None
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for it, and what it raised."""
        if not self.done():
            try:
                self.result(timeout)
            except concurrent.futures.TimeoutError:
                raise
            except Exception as error:  # noqa: BLE001  (whatever the task raised)
                return error
            return None
        return super().exception(0)


def concurrent_future_of_ref(ref: ObjectRef) -> Any:
    """``ObjectRef.future()``."""
    return _RefFuture(ref)


def running_loop() -> Any:
    """Of the coroutine that calls."""
    return asyncio.get_running_loop()


async def gather_few(starts: Sequence[Callable[[], Any]], at_once: int) -> list[Any]:
    """What the coroutines return, in order, of which so many run side by side."""
    places = asyncio.Semaphore(at_once)

    async def one(start: Callable[[], Any]) -> Any:
        async with places:
            return await start()

    return list(await asyncio.gather(*map(one, starts)))


def new_future() -> Any:
    """Of the running loop."""
    return asyncio.get_running_loop().create_future()


def set_result(future: Any, value: Any) -> None:
    """From another thread of the process."""
    future.get_loop().call_soon_threadsafe(_settle, future, None, value)


def in_thread(function: Callable[[], Any]) -> Any:
    """Run it in a thread of its own; to be awaited."""
    return asyncio.get_running_loop().run_in_executor(None, function)


# ---- asyncio actors ------------------------------------------------------------------------------


def start_loop(state: ProcessState, name: str) -> None:
    """The event loop thread of an asyncio actor, or of a library's worker."""
    loop = VirtualLoop()
    state.loop = loop
    loop.fiber = Fiber(state, None, loop.run_forever, _loop_ended, name)
    loop.fiber.start()


def _loop_ended(fiber: Fiber) -> None:
    if fiber.error is not None:
        raise fiber.error


def run_in_loop(loop: Any, coroutine: Any, then: Callable[[Any], object]) -> None:
    """Run a coroutine in a loop; ``then`` gets what it raised, or None."""

    def begin() -> None:
        loop.create_task(coroutine).add_done_callback(lambda task: then(task.exception()))

    loop.call_soon_threadsafe(begin)


def initialise(
    fiber: Fiber, state: ProcessState, running: RunningTask, init: Callable[[], Any]
) -> BaseException | None:
    """Run ``__init__``, which may be a coroutine, in the loop; what it raised."""

    async def run(then: Waiter) -> None:
        COROUTINE_TASK.set(running)
        error = None
        try:
            value = init()
            if inspect.isawaitable(value):
                await value
        except BaseException as raised:  # noqa: BLE001  (whatever a program raises)
            error = raised
        begin_call(state.loop.fiber)  # it is over when what it took has passed
        state.loop.fiber.settle()
        end_call(state.loop.fiber)
        then(error)

    def start(then: Waiter) -> None:
        state.loop.call_soon_threadsafe(lambda: state.loop.create_task(run(then)))

    answer: BaseException | None = fiber.block(start)
    return answer


def run_method(body: MethodBody, state: ProcessState, running: RunningTask) -> None:
    """Run a method of an asyncio actor in its loop."""
    state.loop.call_soon_threadsafe(_start_method, body, state, running)


def _start_method(body: MethodBody, state: ProcessState, running: RunningTask) -> None:
    loop = state.loop
    task = loop.create_task(_method(body, state, running))

    def cancel() -> None:
        state.canceled[running.spec.task_id] = None
        loop.call_soon_threadsafe(task.cancel)

    running.on_cancel = cancel


async def _method(body: MethodBody, state: ProcessState, running: RunningTask) -> None:
    from raysim.rayapi import execution

    fiber = state.loop.fiber
    COROUTINE_TASK.set(running)
    result: Any
    try:
        args, kwargs = execution.call_arguments(running)
        value = body.call(fiber, state, running, args, kwargs)
        if inspect.isasyncgen(value):
            await _stream(fiber, running, value)
            result = execution.Finished([])
        elif inspect.isgenerator(value):
            await _stream(fiber, running, _as_async(value))
            result = execution.Finished([])
        else:
            if inspect.isawaitable(value):
                value = await value
            result = execution.Finished(execution.pack(fiber, running, value))
    except BaseException as error:  # noqa: BLE001  (whatever a program raises)
        result = execution.outcome(fiber, running, error, body.name)
    if running.spec.task_id in state.canceled and isinstance(result, execution.Finished):
        result = execution.outcome(fiber, running, CancelledError(), body.name)
    if state.held_bytes:
        release_memory(state, running.spec.task_id)
    execution.end(running, result, fiber.lead_ns)


async def _as_async(items: Any) -> Any:
    for item in items:
        yield item


async def _stream(fiber: Fiber, running: RunningTask, items: Any) -> None:
    async for item in items:
        payload = serialization.serialize(item, hold_refs=True)
        await future_with(partial(_yield, running, payload, fiber.lead_ns))


def _yield(running: RunningTask, payload: Any, lead_ns: int, then: Callable[[Any], None]) -> None:
    running.yield_item(payload, partial(then, None), lead_ns=lead_ns)


# Re-exported for the package's own actors, which wait in loops.
Queue, QueueEmpty, QueueFull = asyncio.Queue, asyncio.QueueEmpty, asyncio.QueueFull
Semaphore, wait_for, TimeoutError_ = asyncio.Semaphore, asyncio.wait_for, asyncio.TimeoutError
gather, CancelledError, shielded = asyncio.gather, asyncio.CancelledError, asyncio.shield
