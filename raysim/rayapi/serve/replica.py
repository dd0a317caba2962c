"""A replica's user code: the program's class or function, in an emulated process.

Real counterpart: ``UserCallableWrapper`` of ``python/ray/serve/_private/replica.py`` (ray 2.60).
Coroutines run in the user's event loop; other methods in a thread each
(``RAY_SERVE_RUN_SYNC_IN_THREADPOOL``), so that ``max_ongoing_requests`` of them go on at once.

Not modelled: ``__del__`` before the process ends.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from raysim.rayapi import asyncio_loop
from raysim.rayapi.asyncio_loop import CancelledError
from raysim.rayapi.calls import begin_call, end_call, this_fiber
from raysim.rayapi.exceptions import TaskCancelledError
from raysim.rayapi.execution import ProcessExit
from raysim.rayapi.failures import exception_of, task_error
from raysim.rayapi.imports import load_program
from raysim.rayapi.library_code import end_process, fiber_of, in_fiber, on_gpus, state_of
from raysim.rayapi.objects import ObjectRef
from raysim.rayapi.serialization import deserialize, serialize
from raysim.rayapi.serve.context import (
    SERVING,
    DeploymentID,
    ReplicaContext,
    ReplicaID,
    Serving,
)
from raysim.rayapi.serve.exceptions import RayServeException
from raysim.rayapi.serve.handle import CALL, Asked, Slot
from raysim.raycore.scripts import Script
from raysim.raycore.tasks import TaskError
from raysim.raylibs.serve.config import DeploymentConfig
from raysim.raylibs.serve.defaults import RAY_2_60
from raysim.raylibs.serve.replica import Replica
from raysim.raylibs.serve.request import Call, Status
from raysim.units import to_ns

if TYPE_CHECKING:
    from raysim.rayapi.session import Session

Done = Callable[[Call, Status], object]


class ProgramReplica:
    """``raylibs.serve.replica.UserCode`` of a program.

    Parameters
    ----------
    session
        Of the program.
    process
        The replica's.
    config, name, app_name
        Of its deployment, of the replica and of the application.
    code
        The class or function with its arguments, pickled.
    user_config
        What ``reconfigure`` is called with, unless it is None.
    """

    is_local = False
    """Whether it is an object of the process that asks, and no replica."""

    def __init__(
        self,
        session: Session,
        process: Any,
        config: DeploymentConfig,
        name: str,
        *,
        app_name: str,
        code: bytes,
        user_config: Any,
    ) -> None:
        self.process = process
        self.state = state_of(session, process)
        self.config = config
        self.replica: Replica | None = None
        """Its data path, from the first request on."""
        self.target: Any = None
        """The instance, or the function."""
        self._code = code
        self._user_config = user_config
        self._name = name
        self._app_name = app_name
        self._running: dict[Call, Any] = {}
        self._kept: dict[tuple[Any, ...], Any] = {}

    @property
    def context(self) -> ReplicaContext:
        """What ``serve.get_replica_context()`` says in it."""
        number = int(self._name.rpartition("#")[2])
        replica_id = ReplicaID(f"{number:08x}", DeploymentID(self.config.name, self._app_name))
        return ReplicaContext(replica_id, self.target, number, self.config.num_replicas)

    def kept(self, function: Any, owner: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """What a decorator keeps for a function or method of this replica, made at first use."""
        key = function, *map(id, owner)
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    # ---- its constructor

    def construct(self) -> Script:
        """In a fiber of its process."""
        return (yield in_fiber(self.state, self._construct, f"{self.config.name}.__init__"))

    def _construct(self) -> None:
        on_gpus(self.config.name)
        SERVING.set(Serving(self))
        asyncio_loop.start_loop(self.state, self.config.name)
        target, args, kwargs = load_program(self._code)
        if inspect.isclass(target):
            self.target = target.__new__(target)
            self._wait_for(target.__init__, self.target, *args, **kwargs)
        else:
            self.target = target
        self._reconfigure()
        fiber = this_fiber()
        begin_call(fiber)
        fiber.depth = 1

    def reconfigure(self, user_config: Any) -> Script:
        """Of an update that changes nothing else; nothing where this does not change either."""
        if user_config != self._user_config:
            self._user_config = user_config
            yield in_fiber(self.state, self._reconfigure, f"{self.config.name}.reconfigure")

    def _reconfigure(self) -> None:
        if self._user_config is None:
            return
        if inspect.isfunction(self.target):
            raise ValueError("deployment_def must be a class to use user_config or rank")
        if not hasattr(self.target, "reconfigure"):
            raise RayServeException(
                f"user_config or rank specified but deployment Deployment(name="
                f"'{self.config.name}', app='{self._app_name}') missing reconfigure method"
            )
        self._wait_for(self.target.reconfigure, self._user_config)

    # ---- its health

    @property
    def checks_health(self) -> bool:
        """The program's class says itself whether it is well."""
        return hasattr(self.target, "check_health")

    def check_health(self) -> Script:
        """A TaskError where it is not."""
        name = f"{self.config.name}.check_health"
        return (yield in_fiber(self.state, self._check_health, name))

    def _check_health(self) -> None:
        self._wait_for(self.target.check_health)

    def _wait_for(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Call it in the loop; it is over when what it took has passed."""
        loop = self.state.loop

        async def run() -> None:
            SERVING.set(Serving(self))
            value = function(*args, **kwargs)
            if inspect.isawaitable(value):
                await value
            begin_call(loop.fiber)
            loop.fiber.settle()
            end_call(loop.fiber)

        fiber = this_fiber()
        begin_call(fiber)
        error = fiber.block(partial(asyncio_loop.run_in_loop, loop, run()))
        end_call(fiber)
        if error is not None:
            raise error

    # ---- requests

    def python_ns(self) -> int:
        """What it takes, it takes when it runs."""
        return 0

    def start(self, replica: Replica, call: Call, done: Done) -> None:
        """Begin, in the loop."""
        self.replica = replica
        self.state.loop.call_soon_threadsafe(self._begin, call, done)

    def _begin(self, call: Call, done: Done) -> None:
        self._running[call] = self.state.loop.create_task(self._serve(call, done))

    def cancel(self, call: Call) -> None:
        """Interrupt a coroutine; a thread goes on, as in Ray."""
        task = self._running.get(call)
        if task is not None:
            self.state.loop.call_soon_threadsafe(task.cancel)

    async def _serve(self, call: Call, done: Done) -> None:
        asked: Asked = call.request.asked
        name = f"ServeReplica:{self._app_name}:{self.config.name}.handle_request_with_rejection"
        parts: list[Any] = []
        SERVING.set(Serving(self, call.request.model_id, (parts,)))
        status: Status = "ok"
        try:
            call.answer = await self._answer(call, asked)
        except CancelledError:
            for part in parts:
                part.cancel()
            status, call.answer = "user_error", self._error(TaskCancelledError(), name)
        except ProcessExit as exit_:
            self.process.after(0, lambda _, exit_=exit_: end_process(self.state, exit_))
            return
        except BaseException as error:  # noqa: BLE001  (whatever a program raises)
            status, call.answer = "user_error", self._error(error, name)
        del self._running[call]
        fiber = self.state.loop.fiber
        begin_call(fiber)
        end_call(fiber)
        self.process.after(fiber.lead_ns, lambda _: done(call, status))

    def _error(self, error: BaseException, name: str) -> TaskError:
        return task_error(error, name, pid=self.state.pid, ip=self.state.ip)

    async def _answer(self, call: Call, asked: Asked) -> Any:
        if asked.message is not None:
            return await asked.message.answer(self, lambda *part: self._yielded(call, asked, part))
        args, kwargs = await self._arguments(asked)
        method = self.method(asked.method)
        if asked.stream:
            await self._stream(call, asked, method, args, kwargs)
            return serialize(None)
        value = await self.call(method, *args, **kwargs)
        if inspect.isgenerator(value) or inspect.isasyncgen(value):
            raise TypeError(
                f"Method '{asked.method}' returned a generator. You must use "
                "`handle.options(stream=True)` to call generators on a deployment."
            )
        return serialize(value, hold_refs=True)

    async def _arguments(self, asked: Asked) -> tuple[list[Any], dict[str, Any]]:
        """References and responses among them are their values."""
        args, kwargs = deserialize(asked.arguments)

        async def value_of(given: Any) -> Any:
            if isinstance(given, Slot):
                return deserialize(asked.values[given.number])
            return await given if isinstance(given, ObjectRef) else given

        return (
            [await value_of(given) for given in args],
            {name: await value_of(given) for name, given in kwargs.items()},
        )

    def method(self, name: str) -> Any:
        """Of the instance; of a function only its call.

        Raises
        ------
        RayServeException
            There is none of this name.
        """
        if inspect.isfunction(self.target) and name == CALL:
            return self.target
        found = getattr(self.target, name, None)
        if found is None or inspect.isfunction(self.target):
            names = (m for m in dir(self.target) if not m.startswith("__"))
            there = [m for m in names if callable(getattr(self.target, m))]
            raise RayServeException(
                f"Tried to call a method '{name}' that does not exist. Available methods: {there}."
            )
        return found

    async def call(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        """In the loop, or in a thread."""
        if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
            value = method(*args, **kwargs)
        else:
            value = await self.in_thread(partial(method, *args, **kwargs))
        return await value if inspect.isawaitable(value) else value

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """Its value, from a thread of the replica's."""
        serving, name = SERVING.get(), f"{self.config.name}.thread"

        def run() -> Any:
            SERVING.set(serving)
            value = function()
            fiber = this_fiber()
            begin_call(fiber)
            fiber.depth = 1
            return value

        def begin(then: Callable[[Any], None]) -> None:
            fiber_of(self.state, run, then, name).start()

        value = await asyncio_loop.future_with(begin)
        if isinstance(value, TaskError):
            error: Any = exception_of(value, "")
            raise getattr(error, "cause", error)
        return value

    # ---- streams

    async def _stream(
        self, call: Call, asked: Asked, method: Any, args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        if inspect.isasyncgenfunction(method):
            async for item in method(*args, **kwargs):
                self._yielded(call, asked, serialize(item, hold_refs=True))
            return
        items = await self.call(method, *args, **kwargs)
        if not inspect.isgenerator(items):
            raise TypeError(
                f"Called method '{asked.method}' with `handle.options(stream=True)` but it did not "
                "return a generator."
            )
        over = object()
        while (item := await self.in_thread(lambda: next(items, over))) is not over:
            self._yielded(call, asked, serialize(item, hold_refs=True))

    def _yielded(self, call: Call, asked: Asked, item: Any) -> None:
        asked.items.append(item)
        fiber, replica = self.state.loop.fiber, self.replica
        assert replica is not None, "it serves a request"
        self.process.after(fiber.lead_ns, lambda _: replica.chunk(call))

    # ---- multiplexed models

    def has_models(self, models: list[str]) -> None:
        """Routers hear of it at the next push."""
        replica = self.replica
        assert replica is not None, "models are loaded by requests"
        loaded = dict.fromkeys(models)
        push_ns = to_ns(RAY_2_60.push_multiplexed_ids_interval_s)
        self.process.after(push_ns, lambda _: setattr(replica, "announced_models", loaded))
