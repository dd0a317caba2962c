"""Actors of Ray's libraries, written as Python classes.

Real counterpart: ``python/ray/actor.py`` as the libraries use it. An instance lives in one emulated
worker; ``__init__`` gets that process first, and ``construct`` is a script that the creation task
goes on with. A method is a plain function, or a generator function
that is a script (``raycore.scripts``); what it returns is the call's value, a ``TaskError`` its
failure. Arguments and values are handed over as they are, not copied: whoever sends one no longer
changes it. How many bytes they weigh on the wire is said apart (``Sized``); references among the
arguments travel as references, and the method gets what they stand for.

    Worker = ActorClass(cls=RayTrainWorker, resources={"GPU": 1})

    def main(process):
        worker = yield from Worker.remote(rank)
        status = yield from worker.ask("poll")        # call, get, drop
        refs = yield worker.call("run", dataset_ref)  # references, as in Ray

Not modelled: Python's cost of the methods' own statements, beyond what Ray Core's costs include.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from inspect import isgenerator
from typing import Any, Literal, NamedTuple

from raysim.raycore.ids import ActorID, PlacementGroupID, WorkerAddress, hex_id
from raysim.raycore.resources import ResourceSet, within_group
from raysim.raycore.running import RunningTask
from raysim.raycore.scripts import (
    WAITS,
    Ask,
    Driver,
    Script,
    call_actor,
    compute,
    create_actor,
    drop,
    get,
    here,
    kill,
    script,
)
from raysim.raycore.tasks import (
    NONE,
    ActorOptions,
    Arg,
    InPlacementGroup,
    Payload,
    Ref,
    RemoteFunction,
    RuntimeEnv,
    Strategy,
    TaskError,
    TaskOptions,
)

CALL_BYTES = 500
"""A pickled call of a library's method: a name and a few small arguments."""
VALUE_BYTES = 500
"""A pickled small status or dataclass, as the libraries' actors return."""


class Sized(NamedTuple):
    """A value or an argument that says its bytes, and which references it carries inside.

    Those are not fetched for the method, which gets ``value``: ``f.remote([ref])``.
    """

    value: Any
    size_bytes: int
    contained: tuple[Ref, ...] = ()


class Call(NamedTuple):
    """A method's name and arguments, on their way; references follow as arguments of their own."""

    method: str
    args: tuple[Any, ...]
    """``BY_REF`` where a reference's value goes."""


BY_REF = object()


@dataclass(frozen=True, kw_only=True)
class ActorClass:
    """A class whose instances are actors, under one set of options.

    ``resources`` are held while it lives, in a placement group those of its bundle; Ray's default
    is none of them and one CPU to be placed, so 0 CPU must be said.
    """

    cls: type
    resources: Mapping[str, float] = field(default_factory=dict)
    actor: ActorOptions = field(default_factory=ActorOptions)
    strategy: Strategy = "DEFAULT"
    runtime_env: RuntimeEnv | None = None
    pickled_bytes: int = 10_000
    """Of the class with the module it comes from: exported once, fetched by each worker."""

    def options(self, **changes: Any) -> ActorClass:
        """The same class under other options."""
        return replace(self, **changes)

    def in_group(self, group: PlacementGroupID, bundle_index: int = -1) -> ActorClass:
        """In a bundle of a placement group."""
        strategy = InPlacementGroup(placement_group_id=group, bundle_index=bundle_index)
        return replace(self, strategy=strategy)

    def remote(self, *args: Any, size_bytes: int = CALL_BYTES) -> Script:
        """``handle = yield from Class.remote(*args)``; of a named one, TaskError if it is taken.

        Under ``get_if_exists`` it is the one of that name, if there is one. The actor lives until
        it is killed or its job ends: handles are not counted.
        """
        if self.actor.get_if_exists:
            row = yield _named(self.actor)
            if row is not None and row.state != "DEAD":
                return ActorHandle(row.actor_id, self.cls.__name__, row.owner)
        options = TaskOptions(
            function=self._function(),
            resources=self._held(),
            placement_resources=self._held(),
            strategy=self.strategy,
            runtime_env=self.runtime_env,
            actor=self.actor,
        )
        actor_id = yield create_actor(options, _packed("__init__", args, size_bytes))
        if isinstance(actor_id, TaskError):
            return actor_id
        process = yield here()
        return ActorHandle(actor_id, self.cls.__name__, process.me)

    def _held(self) -> ResourceSet:
        held = ResourceSet.of(dict(self.resources))
        if isinstance(self.strategy, InPlacementGroup):
            group = hex_id("placement_group", self.strategy.placement_group_id)
            return within_group(held, group, self.strategy.bundle_index)
        return held

    def _function(self) -> RemoteFunction:
        return _creation_of(self.cls, self.pickled_bytes)


def _named(actor: ActorOptions) -> Ask:
    """``ray.get_actor``: the row of the GCS's table, or None."""

    def begin(d: Driver) -> Any:
        d.process.get_named_actor(actor.name, actor.namespace, d.resume, lead_ns=d.take_lead())
        return WAITS

    return Ask(begin)


@cache
def _creation_of(cls: type, pickled_bytes: int) -> RemoteFunction:
    """One per class: leases of actors of one class queue together."""

    def create(running: RunningTask) -> Script:
        args, _ = _unpacked(running)
        running.worker.resource_ids = running.resource_ids
        instance: Any = object.__new__(cls)
        running.keep(instance)
        instance.__init__(running.worker, *args)
        construct = getattr(instance, "construct", None)
        made = None if construct is None else (yield from construct())
        return made if isinstance(made, TaskError) else ()

    return RemoteFunction(
        name=f"{cls.__name__}.__init__", body=script(create), pickled_bytes=pickled_bytes
    )


class ActorHandle(NamedTuple):
    """What calls an actor, from any process."""

    actor_id: ActorID
    cls: str
    owner: WorkerAddress

    def call(
        self,
        method: str,
        *args: Any,
        size_bytes: int = CALL_BYTES,
        options: TaskOptions | None = None,
    ) -> Ask:
        """``handle.method.remote(*args)``: its references, or PENDING_CALLS_LIMIT_EXCEEDED."""
        send = call_actor(
            self.actor_id,
            options or method_of(self.cls, method),
            _packed(method, args, size_bytes),
        )

        def begin(d: Driver) -> Any:
            if d.process.me != self.owner:
                d.process.add_actor_handle(self.actor_id, None)
            return send.begin(d)

        return Ask(begin)

    def ask(
        self,
        method: str,
        *args: Any,
        size_bytes: int = CALL_BYTES,
        timeout_ns: int | None = None,
    ) -> Script:
        """``value = yield from handle.ask(...)``: ``ray.get`` of a call, or its TaskError."""
        refs = yield self.call(method, *args, size_bytes=size_bytes)
        if isinstance(refs, TaskError):
            return refs
        return (yield from fetch(refs[0], timeout_ns=timeout_ns))

    def kill(self, *, no_restart: bool = True) -> Ask:
        """``ray.kill(handle)``."""
        return kill(self.actor_id, no_restart=no_restart)


@cache
def method_of(
    cls: str,
    method: str,
    *,
    num_returns: int | Literal["streaming"] = 1,
    concurrency_group: str = "",
    max_retries: int = 0,
) -> TaskOptions:
    """Options of a method's calls; a streaming one is a script that yields ``yield_item``."""
    function = RemoteFunction(name=f"{cls}.{method}", body=script(_run_method), pickled_bytes=0)
    return TaskOptions(
        function=function,
        num_returns=num_returns,
        concurrency_group=concurrency_group,
        max_retries=max_retries,
    )


def fetch(ref: Ref, timeout_ns: int | None = None) -> Script:
    """``value = yield from fetch(ref)``: get and drop one reference: its value, or TaskError."""
    values = yield get([ref], timeout_ns)
    yield drop(ref)
    if isinstance(values, TaskError):
        return values
    (value,) = values
    return value if isinstance(value, TaskError) else value.data


def _run_method(running: RunningTask) -> Script:
    args, method = _unpacked(running)
    value = getattr(running.state, method)(*args)
    if isgenerator(value):
        value = yield from value
    if isinstance(value, TaskError):
        return value
    return [_payload(value)] if running.spec.options.num_returns == 1 else ()


def _payload(value: Any) -> Payload:
    if value is None:
        return NONE
    if isinstance(value, Payload):
        return value
    if isinstance(value, Sized):
        return Payload(value.size_bytes, value.value, value.contained)
    return Payload(VALUE_BYTES, value)


def imports(process: Any, library: str, core_s: float) -> Script:
    """What a process's first use of a library loads, once: seconds of a core."""
    if library not in process.imported:
        process.imported.add(library)
        if core_s:
            yield compute(core_s)


def _packed(method: str, args: Sequence[Any], size_bytes: int) -> list[Arg]:
    by_ref = [a for a in args if isinstance(a, Ref)]
    sized = [a for a in args if isinstance(a, Sized)]
    size_bytes += sum(a.size_bytes for a in sized)
    contained = tuple(ref for a in sized for ref in a.contained)
    values = tuple(map(_as_value, args))
    return [Payload(size_bytes, Call(method, values), contained), *by_ref]


def _as_value(arg: Any) -> Any:
    if isinstance(arg, Ref):
        return BY_REF
    return arg.value if isinstance(arg, Sized) else arg


def _unpacked(running: RunningTask) -> tuple[list[Any], str]:
    first, *others = running.args
    assert isinstance(first, Payload), "arguments of a library's method do not fail"
    call: Call = first.data
    fetched = iter(others)
    args = [a if a is not BY_REF else next(fetched).data for a in call.args]
    return args, call.method
