"""``@ray.remote`` on a function.

Real counterpart: ``python/ray/remote_function.py`` of ray 2.60.

What all calls with one set of options share (``TaskOptions``) is made once per session, environment
and captured placement group. A ``RemoteFunction`` that travels inside a value stays the same object
in all processes, as its descriptor does in Ray; the function itself is unpickled in each.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from itertools import count
from typing import TYPE_CHECKING, Any

from raysim.rayapi import options as ray_options
from raysim.rayapi.calls import program_call, this_fiber
from raysim.rayapi.failures import class_names
from raysim.rayapi.objects import ObjectRef, ObjectRefGenerator
from raysim.rayapi.signature import Signature, extract
from raysim.rayapi.submission import (
    arguments,
    captured_group,
    default_max_retries,
    depends_on_caller,
    dump_named,
    label_selector,
    module_of,
    placement,
    runtime_env,
)
from raysim.raycore.tasks import RemoteFunction as CoreFunction
from raysim.raycore.tasks import TaskOptions

if TYPE_CHECKING:
    from raysim.rayapi.fibers import Fiber

_numbers = count(1)
travelled: dict[int, Any] = {}
"""Remote functions and actor classes that were pickled, by number."""


def restore_travelled(number: int) -> Any:
    """The remote function or actor class itself."""
    return travelled[number]


class RemoteFunction:
    """A function whose calls are tasks."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        if inspect.iscoroutinefunction(function):
            raise ValueError(
                "'async def' should not be used for remote tasks. You can wrap the async function "
                "with `asyncio.run(f())`. See more at:"
                "https://docs.ray.io/en/latest/ray-core/actors/async_api.html "
            )
        self._default_options = options
        if (options.get("num_gpus") or 0) > 0 and options.get("max_calls") is None:
            options["max_calls"] = 1  # a GPU process gives its memory back by exiting
        self._function = function
        self._function_name = f"{function.__module__}.{function.__name__}"
        self._is_generator = is_generator(function)
        self._signature: Signature | None = None
        self._number = next(_numbers)

        @wraps(function)
        def remote(*args: Any, **kwargs: Any) -> Any:
            return self._remote(self._default_options, args, kwargs)

        self.remote = remote

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        """Not like this."""
        raise TypeError(
            "Remote functions cannot be called directly. Instead "
            f"of running '{self._function_name}()', try '{self._function_name}.remote()'."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        travelled[self._number] = self
        return restore_travelled, (self._number,)

    def options(self, **task_options: Any) -> FunctionWithOptions:
        """The same function with other options."""
        if "_num_objects_per_yield" in task_options and task_options["_num_objects_per_yield"] != (
            self._default_options.get("_num_objects_per_yield") or 1
        ):
            raise ValueError(
                "_num_objects_per_yield cannot be overridden per task call. Use "
                "@ray.remote(_num_objects_per_yield=...) instead."
            )
        kept = {k: v for k, v in self._default_options.items() if k != "max_calls"}
        updated = {**kept, **task_options}
        ray_options.validate_task(
            updated,
            in_options=True,
            is_generator=self._is_generator if "num_returns" in task_options else None,
        )
        return FunctionWithOptions(self, updated)

    def bind(self, *args: Any, **kwargs: Any) -> Any:
        """A node of a graph."""
        from raysim.rayapi.dag.nodes import FunctionNode

        return FunctionNode(self, args, kwargs, self._default_options)

    def _remote(
        self, options: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return submit(self, options, args, kwargs)

    # what is submitted

    def exported(self, fiber: Fiber) -> CoreFunction:
        """Itself as the cluster knows it; pickled at its first call in a session."""
        from raysim.rayapi.execution import FunctionBody

        session = fiber.process.session
        found: CoreFunction | None = session.exports.get(self._number)
        if found is None:
            module = module_of(self._function)
            short = self._function.__qualname__.rpartition(".<locals>.")[2]
            code = dump_named(self._function, f"function {module}.{short}")
            body = FunctionBody(session, code, short, module)
            found = CoreFunction(
                name=self._function_name, body=body, pickled_bytes=len(code),
                of_failed_argument=body.of_failed_argument,
            )  # fmt: skip
            session.exports[self._number] = found
        return found

    def task_options(self, fiber: Fiber, options: dict[str, Any]) -> TaskOptions:
        """What calls with these options share."""
        said = options.get("num_returns")
        num_returns: Any = said if said is not None else "streaming" if self._is_generator else 1
        dynamic = num_returns == "dynamic"
        where = placement(fiber, {"num_cpus": 1, **_given(options)}, self._function.__name__)
        retry = options.get("retry_exceptions", False)
        backpressure = options.get("_generator_backpressure_num_objects")
        max_retries = options.get("max_retries")
        function = self.exported(fiber)
        return TaskOptions(
            function=function,
            resources=where.resources,
            strategy=where.strategy,
            label_selector=label_selector(options),
            num_returns=1 if dynamic else num_returns,
            max_retries=default_max_retries() if max_retries is None else max_retries,
            retry_exceptions=class_names(retry) if isinstance(retry, (list, tuple)) else retry,
            runtime_env=runtime_env(fiber, options.get("runtime_env")),
            max_calls=self._default_options.get("max_calls") or 0,
            generator_backpressure_num_objects=-1 if backpressure is None else backpressure,
            name=options.get("name") or "",
        )


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """Options that were said; None means the default."""
    return {k: v for k, v in options.items() if v is not None or k == "placement_group"}


class FunctionWithOptions:
    """``f.options(...)``."""

    def __init__(self, function: RemoteFunction, options: dict[str, Any]) -> None:
        self._function = function
        self._options = options

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        return submit(self._function, self._options, args, kwargs)

    def bind(self, *args: Any, **kwargs: Any) -> Any:
        """A node of a graph."""
        from raysim.rayapi.dag.nodes import FunctionNode

        return FunctionNode(self._function, args, kwargs, self._options)


def is_generator(function: Callable[..., Any]) -> bool:
    """Whether calls of it are streams."""
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


@program_call
def submit(
    function: RemoteFunction, options: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Submit a call: its reference, references, generator or None."""
    fiber = this_fiber()
    state = fiber.process
    core = state.core
    assert core is not None
    signature = function._signature
    if signature is None:
        signature = Signature(extract(function._function))
        function._signature = signature
    group = captured_group(fiber)
    if group is not None and not depends_on_caller(options):
        group = None
    key = (id(options), state.env_key, group)
    prepared = state.session.exports.get(key)
    if prepared is None:
        prepared = (function.task_options(fiber, options), options)  # options: keeps its id taken
        state.session.exports[key] = prepared
    task_options: TaskOptions = prepared[0]
    signature.check(args, kwargs)
    found, _held = arguments(fiber, args, kwargs, function._function_name)
    fiber.pay(core.costs.submit_task_ns + core.export_ns(task_options.function))
    task = fiber.task
    parent = task.spec if task is not None else None
    refs = core.submit_task(task_options, found, lead_ns=fiber.lead_ns, parent=parent)
    if task_options.num_returns == "streaming":
        return ObjectRefGenerator(ObjectRef(refs[0], core))
    if len(refs) == 1:
        return ObjectRef(refs[0], core)
    return [ObjectRef(ref, core) for ref in refs] or None
