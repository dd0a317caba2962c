"""Handles of actors, and calls of their methods.

Real counterpart: ``ActorHandle`` and ``ActorMethod`` of ``python/ray/actor.py`` of ray 2.60. A
process counts the Python objects that stand for one actor, as it does for objects; the last one
that goes says so to the core worker. A handle inside a value lives as long as the value.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

from raysim.rayapi import options as ray_options
from raysim.rayapi import serialization
from raysim.rayapi.calls import program_call, this_core, this_fiber
from raysim.rayapi.exceptions import PendingCallsLimitExceeded
from raysim.rayapi.failures import class_names
from raysim.rayapi.fibers import HUB
from raysim.rayapi.identifiers import ActorID
from raysim.rayapi.objects import ObjectRef, ObjectRefGenerator
from raysim.rayapi.submission import arguments, module_of
from raysim.rayapi.unsupported import check_names
from raysim.raycore.ids import WorkerAddress, actor_handle
from raysim.raycore.tasks import ActorOptions, Ref, TaskError, TaskOptions
from raysim.raycore.tasks import RemoteFunction as CoreFunction

if TYPE_CHECKING:
    from raysim.rayapi.fibers import Fiber
    from raysim.rayapi.process_state import ProcessState
    from raysim.rayapi.signature import Signature


class MethodInfo:
    """A method, as its class declares it."""

    __slots__ = ("is_generator", "options", "signature")

    def __init__(self, signature: Signature, is_generator: bool, options: dict[str, Any]) -> None:
        self.signature = signature
        self.is_generator = is_generator
        self.options = options


class ClassInfo:
    """An actor class, as handles know it: one object in all processes."""

    __slots__ = ("__weakref__", "groups", "is_async", "kind", "methods", "module", "name", "number")

    known: ClassVar[WeakValueDictionary[int, ClassInfo]] = WeakValueDictionary()
    """All that exist, by number; a class knows its program, and with it the whole run."""
    _numbers = itertools.count(1)

    def __init__(self, kind: type, methods: dict[str, MethodInfo], *, is_async: bool) -> None:
        self.kind = kind
        self.name = kind.__name__
        self.module = module_of(kind)
        self.methods = methods
        self.is_async = is_async
        self.groups: tuple[tuple[str, int], ...] = ()
        self.number = next(ClassInfo._numbers)
        ClassInfo.known[self.number] = self

    @property
    def class_name(self) -> str:
        """As Ray's descriptors have it: with what it is defined in."""
        return self.kind.__qualname__


_NUMBER_BYTES = 4
HandleOptions = tuple[int, int]
"""(max_task_retries, max_pending_calls)."""


class ActorHandle:
    """A handle of an actor, in one process."""

    __slots__ = ("__weakref__", "_bind_index", "_info", "_options", "_owner", "_ray_actor_id",
                 "_state")  # fmt: skip

    def __init__(
        self,
        state: ProcessState,
        actor_id: int,
        owner: WorkerAddress | None,
        info: ClassInfo,
        options: HandleOptions,
        *,
        new: bool = False,
    ) -> None:
        self._state = state
        self._ray_actor_id = ActorID(actor_id)
        self._owner = owner
        self._info = info
        self._options = options
        self._bind_index = 0
        """How many calls this handle has bound."""
        held = state.handles.get(actor_id, 0)
        if not new and (owner is None or not held):
            assert state.core is not None
            state.core.add_actor_handle(actor_id, owner)
        if owner is not None:  # by name: keeps nothing alive
            state.handles[actor_id] = held + 1

    def __del__(self) -> None:
        if getattr(self, "_owner", None) is not None:
            state = self._state
            HUB.drop(state.core, state.drop_handle, self._ray_actor_id.number)

    def __getattr__(self, name: str) -> ActorMethod:
        method = self._info.methods.get(name)
        if method is None:
            raise AttributeError(f"'ActorHandle' object has no attribute '{name}'")
        return ActorMethod(self, name, method)

    def __dir__(self) -> list[str]:
        return list(self._info.methods)

    @property
    def _actor_id(self) -> ActorID:
        return self._ray_actor_id

    def __repr__(self) -> str:
        return f"Actor({self._info.class_name}, {self._ray_actor_id.hex()})"

    def __hash__(self) -> int:
        return hash(self._ray_actor_id)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ActorHandle):
            return NotImplemented
        return self._ray_actor_id == other._ray_actor_id

    def __reduce__(self) -> tuple[Any, ...]:
        number, owner = self._ray_actor_id.number, self._owner
        self._state.session.actor_classes.add(self._info)
        # of one length, however many classes the process has seen before
        info = self._info.number.to_bytes(_NUMBER_BYTES, "big")
        if owner is None:
            return restore_handle, (number, None, info, self._options)
        if serialization.inside:
            serialization.inside[-1].meet(self, Ref(actor_handle(number), owner))
        else:  # pickled by hand: nobody can tell when it is not needed any more
            self._state.functions[object()] = ActorHandle(
                self._state, number, owner, self._info, self._options
            )
        return restore_handle, (number, tuple(owner), info, self._options)


ActorHandle.__module__ = "ray.actor"


def restore_handle(
    number: int,
    owner: tuple[Any, ...] | None,
    info: bytes,
    options: HandleOptions,
) -> ActorHandle:
    """It has arrived in the running process."""
    state = this_fiber().process
    address = WorkerAddress(*owner) if owner is not None else None
    known = ClassInfo.known[int.from_bytes(info, "big")]
    return ActorHandle(state, number, address, known, options)


class ActorMethod:
    """``handle.method``."""

    __slots__ = ("_handle", "_info", "_name")

    def __init__(self, handle: ActorHandle, name: str, info: MethodInfo) -> None:
        self._handle = handle
        self._name = name
        self._info = info

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        """Not like this."""
        raise TypeError(
            "Actor methods cannot be called directly. Instead "
            f"of running 'object.{self._name}()', try 'object.{self._name}.remote()'."
        )

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        return call_method(self._handle, self._name, self._info, _NO_OPTIONS, args, kwargs)

    def options(self, **options: Any) -> MethodWithOptions:
        """The same method with other options."""
        if "_num_objects_per_yield" in options:
            raise ValueError(
                "_num_objects_per_yield cannot be overridden per actor method call. Use "
                "@ray.method(_num_objects_per_yield=...) instead."
            )
        ray_options.validate_num_returns(
            options.get("num_returns"), is_generator=self._info.is_generator
        )
        check_names("ActorMethod._remote", options, _CALL_OPTIONS)
        return MethodWithOptions(self, options)

    def bind(self, *args: Any, **kwargs: Any) -> Any:
        """A node of a graph."""
        from raysim.rayapi.dag.nodes import bind_method

        return bind_method(self._handle, self._name, self._info, _NO_OPTIONS, args, kwargs)


_NO_OPTIONS: dict[str, Any] = {}
_CALL_OPTIONS = (
    "name", "num_returns", "max_task_retries", "retry_exceptions", "concurrency_group",
    "_generator_backpressure_num_objects", "enable_task_events", "tensor_transport", "_labels",
)  # fmt: skip


class MethodWithOptions:
    """``handle.method.options(...)``."""

    def __init__(self, method: ActorMethod, options: dict[str, Any]) -> None:
        self._method = method
        self._options = options

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        method = self._method
        return call_method(
            method._handle,
            method._name,
            method._info,
            self._options,
            args,
            kwargs,
        )

    def bind(self, *args: Any, **kwargs: Any) -> Any:
        """A node of a graph."""
        from raysim.rayapi.dag.nodes import bind_method

        method = self._method
        return bind_method(method._handle, method._name, method._info, self._options, args, kwargs)


@program_call
def call_method(
    handle: ActorHandle,
    name: str,
    method: MethodInfo,
    options: dict[str, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Submit a call: its reference, references, generator or None."""
    fiber = this_fiber()
    core = this_core(fiber)
    method.signature.check(args, kwargs)
    task_options = _task_options(fiber, handle, name, method, options)
    found, _held = arguments(fiber, args, kwargs, name)
    fiber.pay(core.costs.submit_actor_task_ns)
    task = fiber.task
    parent = task.spec if task is not None else None
    number = handle._ray_actor_id.number
    refs = core.submit_actor_task(number, task_options, found, lead_ns=fiber.lead_ns, parent=parent)
    if isinstance(refs, TaskError):
        most = task_options.actor.max_pending_calls if task_options.actor else 0
        raise PendingCallsLimitExceeded(
            f"The task {name} could not be submitted to {handle!r} because more than {most} tasks "
            "are queued on the actor. This limit can be adjusted with the `max_pending_calls` "
            "actor option."
        )
    if task_options.num_returns == "streaming":
        return ObjectRefGenerator(ObjectRef(refs[0], core))
    if len(refs) == 1:
        return ObjectRef(refs[0], core, of_actor=True)
    return [ObjectRef(ref, core, of_actor=True) for ref in refs] or None


def _task_options(
    fiber: Fiber, handle: ActorHandle, name: str, method: MethodInfo, options: dict[str, Any]
) -> TaskOptions:
    """What calls of the method with these options share."""
    info, (max_task_retries, max_pending) = handle._info, handle._options
    exports = fiber.process.session.exports
    said = repr(sorted(options.items())) if options else ""
    key = (info.number, name, max_task_retries, max_pending, said)
    prepared: TaskOptions | None = exports.get(key)
    if prepared is not None:
        return prepared
    function = exports.get((info.number, name))
    if function is None:
        from raysim.rayapi.execution import MethodBody

        body = MethodBody(fiber.process.session, info, name)
        function = CoreFunction(
            name=f"{info.kind.__module__}.{info.name}.{name}", body=body, pickled_bytes=0,
            of_failed_argument=body.of_failed_argument,
        )  # fmt: skip
        exports[info.number, name] = function
    merged = {**method.options, **{k: v for k, v in options.items() if v is not None}}
    num_returns: Any = merged.get("num_returns")
    if num_returns is None:
        num_returns = "streaming" if method.is_generator else 1
    retry = merged.get("retry_exceptions") or False
    group = merged.get("concurrency_group") or ""
    backpressure = merged.get("_generator_backpressure_num_objects")
    prepared = TaskOptions(
        function=function,
        num_returns=1 if num_returns == "dynamic" else num_returns,
        max_retries=merged.get("max_task_retries", max_task_retries),
        retry_exceptions=class_names(retry) if isinstance(retry, (list, tuple)) else retry,
        generator_backpressure_num_objects=-1 if backpressure is None else backpressure,
        concurrency_group=group,
        actor=ActorOptions(max_pending_calls=max_pending) if max_pending >= 0 else None,
        name=merged.get("name") or "",
    )
    exports[key] = prepared
    return prepared


# ---- finding and ending --------------------------------------------------------------------------


def find_actor(fiber: Fiber, name: str, namespace: str | None) -> ActorHandle | None:
    """The live actor of that name."""
    from raysim.rayapi.execution import CreationBody

    core, lead_ns = this_core(fiber), fiber.take_lead()
    row = fiber.block(partial(_look_up, core, name, namespace or fiber.process.namespace, lead_ns))
    if row is None or row.state == "DEAD":
        return None
    fiber.lead_ns += core.costs.get_ns  # the handle comes serialised, known already or not
    body = row.options.function.body
    if not isinstance(body, CreationBody):
        raise ValueError(f"actor {name!r} was not created by a program")
    actor = row.options.actor
    options = (actor.max_task_retries, actor.max_pending_calls)
    return ActorHandle(fiber.process, row.actor_id, None, body.info, options)


def _look_up(core: Any, name: str, namespace: str, lead_ns: int, then: Any) -> None:
    core.get_named_actor(name, namespace, then, lead_ns=lead_ns)


def not_found(name: str) -> ValueError:
    """What ``ray.get_actor`` raises."""
    return ValueError(
        f"Failed to look up actor with name '{name}'. This could because 1. You are trying to look "
        "up a named actor you didn't create. 2. The named actor died. 3. You did not use a "
        "namespace matching the namespace of the actor."
    )
