"""What is submitted and what comes back: values, arguments, functions, options, specs, errors.

Real counterpart: ``src/ray/common/task/task_spec.h``, ``rpc::TaskSpec``, ``rpc::RayErrorInfo``.
What all calls of one function with one set of options share is one frozen ``TaskOptions``, so that
a task of its own is small.

A value is opaque here: ``Payload.data`` is whatever the program put in (bytes in ``rayapi``,
nothing at all in a workload generator); only its size and the references inside it matter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from raysim.raycore.ids import (
    ActorID,
    JobID,
    NodeID,
    ObjectID,
    PlacementGroupID,
    TaskID,
    WorkerAddress,
)
from raysim.raycore.resources import NOTHING, ResourceSet

if TYPE_CHECKING:
    from raysim.raycore.running import RunningTask


class Ref(NamedTuple):
    """A reference to an object, as it travels: the object, and the process that owns it."""

    object_id: ObjectID
    owner: WorkerAddress


class Payload(NamedTuple):
    """A serialised value."""

    size_bytes: int
    data: Any = None
    contained: tuple[Ref, ...] = ()
    """References inside the value."""


NONE = Payload(0)
"""A value nobody looks at."""

Arg = Ref | Payload
"""By reference, or inlined in the spec. A large value is put first and goes by reference."""


# ---- where a task may run ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAffinity:
    """``NodeAffinitySchedulingStrategy``."""

    node_id: NodeID
    soft: bool = False
    spill_on_unavailable: bool = False
    fail_on_unavailable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelMatch:
    """One expression: ``in``, ``!in``, ``exists``, ``!exists`` of a node label."""

    key: str
    operator: Literal["in", "!in", "exists", "!exists"]
    values: tuple[str, ...] = ()

    def matches(self, labels: dict[str, str]) -> bool:
        """Whether a node with these labels meets it."""
        there = self.key in labels
        if self.operator == "exists":
            return there
        if self.operator == "!exists":
            return not there
        within = there and labels[self.key] in self.values
        return within if self.operator == "in" else not within


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLabels:
    """``NodeLabelSchedulingStrategy``; ``label_selector`` is one with hard expressions only."""

    hard: tuple[LabelMatch, ...] = ()
    soft: tuple[LabelMatch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InPlacementGroup:
    """``PlacementGroupSchedulingStrategy``; the resources are renamed already."""

    placement_group_id: PlacementGroupID
    bundle_index: int = -1
    capture_child_tasks: bool = False


Strategy = Literal["DEFAULT", "SPREAD"] | NodeAffinity | NodeLabels | InPlacementGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeEnv:
    """What a worker needs before it can run a task; workers of another environment do not match."""

    key: str
    """Its hash: equal keys are equal environments."""
    setup_s: float = 0.0
    """First creation on a node (packages, working_dir); later ones find it cached."""
    error: str = ""
    """Not empty: creation fails with this message."""


# ---- what runs -----------------------------------------------------------------------------------

Body = Callable[["RunningTask"], None]
"""What the executor runs; it ends by ``running.finish``, ``fail`` or ``exit``, now or later."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RemoteFunction:
    """A function, class or method, by identity."""

    name: str
    """``module.qualname``, as state listings show it."""
    body: Body
    pickled_bytes: int = 1_000
    """Exported to the GCS key-value store at first use, and fetched by each process once."""
    instant: tuple[Payload, ...] | None = None
    """Of a body that runs nobody's code: what it returns, at once, ahead of the clock."""
    of_failed_argument: Callable[[RunningTask, TaskError], TaskError] | None = None
    """What a call fails with whose argument has failed; None: with the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorOptions:
    """What ``ActorClass.options`` says beyond resources."""

    name: str = ""
    namespace: str = ""
    detached: bool = False
    max_restarts: int = 0
    """-1: without limit."""
    max_task_retries: int = 0
    max_concurrency: int = 0
    """0: Ray's default, 1, or 1000 of an async actor."""
    concurrency_groups: tuple[tuple[str, int], ...] = ()
    is_async: bool = False
    max_pending_calls: int = -1
    get_if_exists: bool = False
    allow_out_of_order_execution: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskOptions:
    """One remote function under one set of options. Make once, submit many."""

    function: RemoteFunction
    resources: ResourceSet = NOTHING
    """Held while the task runs or the actor lives; renamed if in a placement group."""
    placement_resources: ResourceSet | None = None
    """Needed to be placed, if that is more: an actor's 1 CPU by default."""
    num_returns: int | Literal["streaming"] = 1
    max_retries: int = 3
    """-1: without limit. Of an actor's method: max_task_retries."""
    retry_exceptions: bool | tuple[str, ...] = False
    """All, none, or those that have one of these names among their classes."""
    strategy: Strategy = "DEFAULT"
    label_selector: tuple[LabelMatch, ...] = ()
    runtime_env: RuntimeEnv | None = None
    max_calls: int = 0
    """The worker exits after so many calls; 0: never."""
    generator_backpressure_num_objects: int = -1
    concurrency_group: str = ""
    actor: ActorOptions | None = None
    """Of an actor's creation task."""
    name: str = ""
    """``.options(name=...)``; the function's if empty."""
    scheduling_class: tuple[Any, ...] = field(init=False)
    """(resources to be placed, function, strategy, labels): equal for tasks that queue together; a
    spec's depth counts too."""
    instant: Payload | None = field(init=False)
    """What a normal task returns that runs nobody's code, if that is one value."""

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "scheduling_class",
            (self.placement_resources or self.resources, id(self.function), self.strategy,
             self.label_selector),
        )  # fmt: skip
        returns = self.function.instant
        payload = None
        if returns is not None and self.num_returns == 1 and not self.max_calls:
            payload = returns[0] if returns else NONE
            if payload.contained:
                payload = None
        object.__setattr__(self, "instant", payload)


TaskKind = Literal["NORMAL_TASK", "ACTOR_CREATION_TASK", "ACTOR_TASK"]


class TaskSpec:
    """One call. Mutable only in ``attempt``, by its owner."""

    __slots__ = (
        "actor_id", "args", "attempt", "caller", "depth", "job_id", "kind", "options", "parent",
        "root_detached_actor_id", "seq_no", "task_id",
    )  # fmt: skip

    def __init__(
        self,
        task_id: TaskID,
        options: TaskOptions,
        args: tuple[Arg, ...],
        caller: WorkerAddress,
        *,
        kind: TaskKind = "NORMAL_TASK",
        job_id: JobID = 1,
        parent: TaskID = 0,
        depth: int = 1,
        actor_id: ActorID = 0,
        seq_no: int = 0,
        root_detached_actor_id: ActorID = 0,
    ) -> None:
        self.task_id = task_id
        self.options = options
        self.args = args
        self.caller = caller
        """The owner of the task and of what it returns."""
        self.kind: TaskKind = kind
        self.job_id = job_id
        self.parent = parent
        self.depth = depth
        self.actor_id = actor_id
        self.seq_no = seq_no
        """Order among one caller's calls of one actor, from 0."""
        self.attempt = 0
        self.root_detached_actor_id = root_detached_actor_id

    @property
    def name(self) -> str:
        """As state listings show it."""
        return self.options.name or self.options.function.name

    @property
    def size_bytes(self) -> int:
        """On the wire: about a kilobyte, and the inlined arguments."""
        if not self.args:
            return SPEC_BYTES
        return SPEC_BYTES + sum(a.size_bytes if isinstance(a, Payload) else REF_BYTES
                                for a in self.args)  # fmt: skip

    def forget_values(self) -> None:
        """Nobody runs it again: of its arguments the sizes stay; values may know the whole run."""
        if self.args:
            self.args = tuple(a._replace(data=None) if isinstance(a, Payload) else a
                              for a in self.args)  # fmt: skip


SPEC_BYTES = 1_000
"""Task specs are 1-10 KB (serialised rpc::TaskSpec of a small call)."""

REF_BYTES = 150
"""An ObjectReference with its owner's address."""


# ---- what went wrong -----------------------------------------------------------------------------

ErrorType = Literal[
    "TASK_EXECUTION_EXCEPTION", "WORKER_DIED", "NODE_DIED", "ACTOR_DIED", "ACTOR_UNAVAILABLE",
    "ACTOR_CREATION_FAILED", "OBJECT_LOST", "OBJECT_FETCH_TIMED_OUT", "OWNER_DIED",
    "OBJECT_UNRECONSTRUCTABLE", "OBJECT_UNRECONSTRUCTABLE_MAX_ATTEMPTS_EXCEEDED",
    "OBJECT_FREED", "TASK_CANCELLED", "RUNTIME_ENV_SETUP_FAILED", "OUT_OF_MEMORY", "OUT_OF_DISK",
    "LOCAL_RAYLET_DIED", "TASK_PLACEMENT_GROUP_REMOVED", "ACTOR_PLACEMENT_GROUP_REMOVED",
    "TASK_UNSCHEDULABLE_ERROR", "ACTOR_UNSCHEDULABLE_ERROR", "DEPENDENCY_RESOLUTION_FAILED",
    "END_OF_STREAMING_GENERATOR", "GET_TIMEOUT", "PENDING_CALLS_LIMIT_EXCEEDED",
]  # fmt: skip
"""``rpc::ErrorType`` names, and two that are raised without an object."""


class TaskError(NamedTuple):
    """The error that takes a value's place."""

    error_type: ErrorType
    message: str = ""
    data: Any = None
    """Of TASK_EXECUTION_EXCEPTION: the program's own exception, serialised."""
    class_names: tuple[str, ...] = ()
    """Names of the exception's classes, for ``retry_exceptions``."""
    actor_id: ActorID = 0
    task_id: TaskID = 0

    @property
    def size_bytes(self) -> int:
        """On the wire."""
        return 500 + len(self.message)


Value = Payload | TaskError
"""What a reference stands for in the end."""
