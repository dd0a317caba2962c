"""``@ray.remote`` on a class: actor classes.

Real counterpart: ``ActorClass`` of ``python/ray/actor.py`` of ray 2.60. Handles and methods are in
``actor_handle``.
"""

from __future__ import annotations

import inspect
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from raysim.rayapi import options as ray_options
from raysim.rayapi.actor_handle import ActorHandle, ActorMethod, ClassInfo, MethodInfo, find_actor
from raysim.rayapi.calls import program_call, this_core, this_fiber
from raysim.rayapi.exceptions import ActorAlreadyExistsError, AsyncioActorExit
from raysim.rayapi.failures import exception_of, raise_error
from raysim.rayapi.fibers import HUB
from raysim.rayapi.remote_function import restore_travelled, travelled
from raysim.rayapi.signature import Signature, extract
from raysim.rayapi.submission import (
    arguments,
    dump_named,
    label_selector,
    placement,
    runtime_env,
)
from raysim.raycore.resources import NOTHING
from raysim.raycore.tasks import ActorOptions, TaskError, TaskOptions
from raysim.raycore.tasks import RemoteFunction as CoreFunction

if TYPE_CHECKING:
    from raysim.rayapi.fibers import Fiber
    from raysim.rayapi.process_state import ProcessState

_numbers = count(-1, -1)

DEFAULT_MAX_CONCURRENCY_ASYNC = 1_000


class ActorClassInheritanceException(TypeError):  # noqa: N818  (Ray's own name)
    """An actor class cannot be derived from."""


def validate_namespace(namespace: Any) -> None:
    """Raise if it cannot be one."""
    if not isinstance(namespace, str):
        raise TypeError("namespace must be None or a string.")
    if namespace == "":
        raise ValueError('"" is not a valid namespace. Pass None to not specify a namespace.')


class ActorClass:
    """A class whose instances live in processes of their own."""

    def __init__(self, name: str, bases: tuple[Any, ...], _attributes: dict[str, Any]) -> None:
        for base in bases:
            if isinstance(base, ActorClass):
                raise ActorClassInheritanceException(
                    f"Attempted to define subclass '{name}' of actor class "
                    f"'{base._info.class_name}'. Inheriting from actor classes is not currently "
                    "supported. You can instead inherit from a non-actor base class and make the "
                    "derived class an actor class (with @ray.remote)."
                )
        raise AssertionError(
            "ActorClass.__init__ should not be called. Please use the @ray.remote decorator "
            "instead."
        )

    _info: ClassInfo
    _default_options: dict[str, Any]
    _number: int

    @classmethod
    def made_from(cls, kind: type, options: dict[str, Any]) -> ActorClass:
        """``@ray.remote(**options)`` on ``kind``."""
        name = f"ActorClass({kind.__name__})"
        own: type[ActorClass] = type(name, (cls,), {"__module__": kind.__module__})
        self = own.__new__(own)
        self._info = class_info(kind)
        self._default_options = options
        self._number = next(_numbers)
        groups = options.get("concurrency_groups") or {}
        self._info.groups = tuple(dict(groups).items())
        self.__doc__ = kind.__doc__
        return self

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        """Not like this."""
        raise TypeError(
            "Actors cannot be instantiated directly. "
            f"Instead of '{self._info.class_name}()', "
            f"use '{self._info.class_name}.remote()'."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        travelled[self._number] = self
        return restore_travelled, (self._number,)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        ActorClass("subclass", bases, {})
        return ()

    def __repr__(self) -> str:
        return f"<{self._info.module}.ActorClass({self._info.name}) object at {id(self):#x}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._info.kind, name)

    def remote(self, *args: Any, **kwargs: Any) -> ActorHandle:
        """Create an actor."""
        return create(self, self._default_options, args, kwargs)

    def options(self, **actor_options: Any) -> ActorClassWithOptions:
        """The same class with other options."""
        kept = {k: v for k, v in self._default_options.items() if k != "concurrency_groups"}
        updated = {**kept, **actor_options}
        ray_options.validate_actor(updated, in_options=True)
        return ActorClassWithOptions(self, updated)

    def bind(self, *args: Any, **kwargs: Any) -> Any:
        """A node of a graph."""
        from raysim.rayapi.dag.nodes import ClassNode

        return ClassNode(self, args, kwargs, self._default_options)


class ActorClassWithOptions:
    """``A.options(...)``."""

    def __init__(self, actor_class: ActorClass, options: dict[str, Any]) -> None:
        self._class = actor_class
        self._options = options

    def remote(self, *args: Any, **kwargs: Any) -> ActorHandle:
        """Create an actor."""
        return create(self._class, self._options, args, kwargs)

    def bind(self, *args: Any, **kwargs: Any) -> Any:
        """A node of a graph."""
        from raysim.rayapi.dag.nodes import ClassNode

        return ClassNode(self._class, args, kwargs, self._options)


for _class in (ActorClass, ActorClassInheritanceException):
    _class.__module__ = "ray.actor"


# ---- what a class offers -------------------------------------------------------------------------


def class_info(kind: type) -> ClassInfo:
    """Its methods, and what ``@ray.method`` said of them."""
    methods: dict[str, MethodInfo] = {}
    is_async = False
    for name, member in inspect.getmembers(kind, _is_function):
        function = inspect.unwrap(member)
        bound = inspect.ismethod(function) or isinstance(
            inspect.getattr_static(kind, name), staticmethod
        )
        generator = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        is_async = is_async or inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(
            function
        )  # fmt: skip
        try:
            signature = Signature(extract(function, ignore_first=not bound))
        except ValueError:
            if name != "__init__":
                raise
            signature = Signature([])
        methods[name] = MethodInfo(
            signature, generator, dict(getattr(function, "__ray_method_options__", {}))
        )
    if "__init__" not in methods:
        methods["__init__"] = MethodInfo(Signature([]), False, {})
    any_call = inspect.signature(lambda *args, **kwargs: None).parameters.values()  # noqa: ARG005
    for name in ("__ray_ready__", "__ray_terminate__"):
        methods[name] = MethodInfo(Signature([]), False, {})
    methods["__ray_call__"] = MethodInfo(Signature(list(any_call)), False, {})
    return ClassInfo(kind, methods, is_async=is_async)


def _is_function(member: Any) -> bool:
    return inspect.isfunction(member) or inspect.ismethod(member)


_METHOD_OPTIONS = [
    "num_returns", "concurrency_group", "max_task_retries", "retry_exceptions",
    "_generator_backpressure_num_objects", "_num_objects_per_yield", "enable_task_events",
    "tensor_transport",
]  # fmt: skip


def method(*args: Any, **kwargs: Any) -> Any:
    """``@ray.method``: options of one method."""
    if len(args) == 1 and callable(args[0]) and not kwargs:
        return args[0]
    assert not args, (
        "The @ray.method decorator must be applied using no arguments or at least one of the "
        f"arguments in the list {_METHOD_OPTIONS}, for example '@ray.method(num_returns=2)'."
    )
    for key in kwargs:
        assert key in _METHOD_OPTIONS, (
            f"Unexpected keyword argument to @ray.method: '{key}'. The supported keyword "
            f"arguments are {_METHOD_OPTIONS}"
        )
    if kwargs.get("tensor_transport") is not None:
        from raysim.rayapi.unsupported import NotEmulatedError

        raise NotEmulatedError("ray.method(tensor_transport=)", "the object store")

    def annotate(function: Any) -> Any:
        generator = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        ray_options.validate_num_returns(kwargs.get("num_returns"), is_generator=generator)
        function.__ray_method_options__ = kwargs
        return function

    return annotate


# ---- creation ------------------------------------------------------------------------------------


@program_call
def create(
    actor_class: ActorClass,
    options: dict[str, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> ActorHandle:
    """Create an actor, or find the one of that name."""
    name, namespace = options.get("name"), options.get("namespace")
    if name is not None:
        if not isinstance(name, str):
            raise TypeError(f"name must be None or a string, got: '{type(name)}'.")
        if name == "":
            raise ValueError("Actor name cannot be an empty string.")
    if namespace is not None:
        validate_namespace(namespace)
    fiber = this_fiber()
    if not options.get("get_if_exists"):
        return _create(fiber, actor_class, options, args, kwargs)
    found = find_actor(fiber, name or "", namespace)
    if found is not None:
        return found
    try:
        return _create(fiber, actor_class, options, args, kwargs)
    except ActorAlreadyExistsError:  # somebody was faster
        found = find_actor(fiber, name or "", namespace)
        if found is None:
            raise
        return found


def _create(
    fiber: Fiber,
    actor_class: ActorClass,
    options: dict[str, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> ActorHandle:
    info = actor_class._info
    core = fiber.process.core
    assert core is not None
    name, namespace = options.get("name"), options.get("namespace")
    if name is not None and find_actor(fiber, name, namespace) is not None:
        raise _taken(name, namespace)
    info.methods["__init__"].signature.check(args, kwargs)
    concurrency, out_of_order = _order(info, options)
    creation = _creation_options(fiber, actor_class, options, concurrency, out_of_order)
    found, _held = arguments(fiber, args, kwargs, info.name)
    fiber.pay(core.costs.submit_task_ns + core.export_ns(creation.function))
    task = fiber.task
    parent = task.spec if task is not None else None
    actor_ids: list[int] = []
    submit = partial(core.create_actor, creation, found, parent=parent, lead_ns=fiber.lead_ns)
    if name is None:
        actor_ids.append(submit(_nobody))
    else:  # registration of a named actor is waited for
        fiber.take_lead()
        answer = fiber.block(lambda then: actor_ids.append(submit(then)))
        if isinstance(answer, TaskError):
            if "taken" in answer.message or "exist" in answer.message:
                raise _taken(name, namespace)
            raise_error(exception_of(answer, ""))
    made = creation.actor
    assert made is not None, "an actor's creation says what kind of actor"
    handle_options = (made.max_task_retries, made.max_pending_calls)
    return ActorHandle(fiber.process, actor_ids[0], core.me, info, handle_options, new=True)


def _nobody(_answer: Any) -> None:
    """Nobody waits for the registration of an actor without a name."""


def _taken(name: str, namespace: str | None) -> ActorAlreadyExistsError:
    return ActorAlreadyExistsError(
        f"The name {name} (namespace={namespace}) is already taken. Please use a different name "
        f"or get the existing actor using ray.get_actor('{name}', namespace='{namespace}')"
    )


def _order(info: ClassInfo, options: dict[str, Any]) -> tuple[int, bool]:
    """(max_concurrency, allow_out_of_order_execution)."""
    concurrency = options.get("max_concurrency")
    if concurrency is None:
        concurrency = DEFAULT_MAX_CONCURRENCY_ASYNC if info.is_async else 1
    out_of_order = options.get("allow_out_of_order_execution")
    if out_of_order is None:
        return concurrency, info.is_async or concurrency > 1
    if not out_of_order and (info.is_async or concurrency > 1):
        kind = "async" if info.is_async else "multi-threaded"
        raise ValueError(
            f"If you're using {kind} actors, Ray can't execute actor tasks in order. Set "
            "`allow_out_of_order_execution=True` to allow out-of-order execution."
        )
    return concurrency, out_of_order


def _creation_options(
    fiber: Fiber,
    actor_class: ActorClass,
    options: dict[str, Any],
    concurrency: int,
    out_of_order: bool,
) -> TaskOptions:
    info, state = actor_class._info, fiber.process
    held = ray_options.resources_of(options)
    to_be_placed: dict[str, float] | None = None
    if not set(held) - {"memory", "object_store_memory"}:
        # nothing said: one CPU to be placed, none while it lives
        held.setdefault("CPU", 0)
        to_be_placed = {**held, "CPU": held["CPU"] + 1}
    else:
        held.setdefault("CPU", 1)
    where = placement(fiber, options, info.name, resources=held, to_be_placed=to_be_placed)
    return TaskOptions(
        function=_exported(state.session, actor_class),
        resources=where.resources or NOTHING,
        placement_resources=where.placement_resources,
        strategy=where.strategy,
        label_selector=label_selector(options),
        num_returns=0,
        max_retries=options.get("max_restarts") or 0,
        runtime_env=runtime_env(fiber, options.get("runtime_env")),
        name=f"{options['name']}:{info.name}.__init__" if options.get("name") else "",
        actor=ActorOptions(
            name=options.get("name") or "",
            namespace=options.get("namespace") or state.namespace,
            detached=(options.get("lifetime") or _usual_lifetime(state)) == "detached",
            max_restarts=options.get("max_restarts") or 0,
            max_task_retries=options.get("max_task_retries") or 0,
            max_concurrency=concurrency,
            concurrency_groups=info.groups,
            is_async=info.is_async,
            max_pending_calls=_or(options.get("max_pending_calls"), -1),
            get_if_exists=bool(options.get("get_if_exists")),
            allow_out_of_order_execution=out_of_order,
        ),
    )


def _usual_lifetime(state: ProcessState) -> str | None:
    """What the job says of its actors."""
    found: str | None = state.session.jobs[this_core(this_fiber()).job_id].get("actor_lifetime")
    return found


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _exported(session: Any, actor_class: ActorClass) -> CoreFunction:
    """The class as the cluster knows it; pickled at its first actor in a session."""
    from raysim.rayapi.execution import CreationBody

    number, info = actor_class._number, actor_class._info
    found: CoreFunction | None = session.exports.get(number)
    if found is None:
        code = dump_named(info.kind, f"actor class {info.module}.{info.name}")
        body = CreationBody(session, info, code)
        name = f"{info.kind.__module__}.{info.name}.__init__"
        found = CoreFunction(name=name, body=body, pickled_bytes=len(code))
        session.exports[number] = found
    return found


def exit_actor() -> None:
    """``ray.actor.exit_actor``: end the actor this is called in."""
    from raysim.rayapi.execution import ActorExit

    fiber = HUB.current
    if fiber is None or fiber.process.actor is None:
        raise TypeError(
            "exit_actor API is called on a non-actor worker, "
            f"{0 if fiber is None or fiber.process.is_driver else 1}. Call this API inside an "
            "actor methodsif you'd like to exit the actor gracefully."
        )
    if fiber.process.actor.info.is_async:
        raise AsyncioActorExit
    raise ActorExit


__all__ = [
    "ActorClass", "ActorClassInheritanceException", "ActorHandle", "ActorMethod", "create",
    "exit_actor", "method",
]  # fmt: skip
