"""What a program can ask of the Ray process it lives in: the calls behind ``ray.get`` and the rest.

Real counterpart: the public methods of ``src/ray/core_worker/core_worker.h``, which Python calls
through ``_raylet.pyx``. ``core_worker`` implements it; ``rayapi``, ``raylibs`` and ``workloads``
use it. All answers come through ``then``, in virtual time.

A program may run ahead of the clock: it is called at some instant, computes, submits a thousand
tasks and only then needs an answer. What each call costs its thread it keeps in its own account,
and says with ``lead_ns`` how far ahead of the clock the call is made; the process acts on it at
``now + lead_ns``. ``then`` is called when the clock is there, never ahead of it. Calls of one
program come in order of their time. (Known as temporal decoupling in SystemC TLM-2.0.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from raysim.raycore.ids import ActorID, JobID, NodeID, ObjectID, PlacementGroupID, WorkerAddress
from raysim.raycore.resources import Allocation, ResourceSet
from raysim.raycore.tasks import (
    Arg,
    LabelMatch,
    Payload,
    Ref,
    RemoteFunction,
    TaskError,
    TaskOptions,
    TaskSpec,
    Value,
)

if TYPE_CHECKING:
    from raysim.perf.ray_core import RayCosts
    from raysim.raycore.config import RayConfig
    from raysim.raycore.protocol import Located
    from raysim.raycore.room import Surroundings

BundleStrategy = Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]


class PlacementGroups(Protocol):
    """Placement groups, as one process asks for them."""

    def create(
        self,
        bundles: Sequence[ResourceSet],
        strategy: BundleStrategy,
        then: Callable[[PlacementGroupID | TaskError], object],
        *,
        name: str = "",
        detached: bool = False,
        soft_target_node: NodeID | None = None,
        label_selectors: Sequence[tuple[LabelMatch, ...]] = (),
        lead_ns: int = 0,
    ) -> PlacementGroupID:
        """Create a group; ``then`` once the GCS has persisted it."""

    def wait(
        self,
        group: PlacementGroupID,
        then: Callable[[bool], object],
        *,
        timeout_ns: int | None = None,
        lead_ns: int = 0,
    ) -> None:
        """``PlacementGroup.wait``."""

    def ready(self, group: PlacementGroupID, value: Payload, *, lead_ns: int = 0) -> Ref:
        """``PlacementGroup.ready``: an object that is ``value`` once it is placed."""

    def remove(
        self, group: PlacementGroupID, then: Callable[[object], object], *, lead_ns: int = 0
    ) -> None:
        """Remove it, and fail what runs in it."""


class CoreProcess(Protocol):
    """A driver or worker process, from inside."""

    me: WorkerAddress
    job_id: JobID
    imported: set[str]
    """Which of Ray's libraries its code has loaded, and what else takes long to import."""
    resource_ids: Allocation
    """Of a library's worker: which instances (GPUs) its actor or its task holds."""
    costs: RayCosts
    config: RayConfig
    env: Surroundings
    """What its operating system reaches: machines, network, stores."""

    @property
    def groups(self) -> PlacementGroups:
        """What it asks of placement groups."""

    @property
    def now_ns(self) -> int:
        """The clock's time, or the instant in whose name the process acts ahead of it."""

    def after(self, delay_ns: int, fn: Callable[[Any], object], arg: Any = None) -> Any:
        """Call ``fn(arg)`` later, unless the process dies first."""

    def at_exit(self, fn: Callable[[str], object]) -> None:
        """Call ``fn(reason)`` when the process ends, however: its peers and runner are told."""

    def compute(self, core_s: float, then: Callable[[], object], *, width: float = 1.0) -> None:
        """Use the node's cores: ``width`` threads of ``core_s`` seconds each."""

    def use_memory(self, change_bytes: int) -> None:
        """The process holds so much more or less from now on; the memory monitor looks at it."""

    # tasks

    def submit_task(
        self,
        options: TaskOptions,
        args: Sequence[Arg],
        *,
        lead_ns: int = 0,
        parent: TaskSpec | None = None,
    ) -> list[Ref]:
        """Submit a normal task; its returns. Each comes with one local reference.

        Of a streaming generator: one reference, the generator's own.
        """  # fmt: skip

    def cancel(self, ref: Ref, *, force: bool, recursive: bool, lead_ns: int = 0) -> None:
        """Cancel the task that makes the object."""

    def is_pending(self, ref: Ref) -> bool:
        """Whether this process waits for the task that makes the object."""

    def first_value_ns(self) -> int:
        """What it takes, once, before the process reads or writes its first value."""

    def export_ns(self, function: RemoteFunction) -> int:
        """What it takes, once, to make a function ready for the GCS."""

    def reading_ns(self, refs: Sequence[Ref]) -> int:
        """What it takes to read these values, beyond the call, once all are here."""

    # actors

    def create_actor(
        self,
        options: TaskOptions,
        args: Sequence[Arg],
        then: Callable[[ActorID | TaskError], object],
        *,
        lead_ns: int = 0,
        parent: TaskSpec | None = None,
    ) -> ActorID:
        """Create an actor; its id at once. ``then`` when it is registered (named actors wait)."""

    def submit_actor_task(
        self,
        actor_id: ActorID,
        options: TaskOptions,
        args: Sequence[Arg],
        *,
        lead_ns: int = 0,
        parent: TaskSpec | None = None,
    ) -> list[Ref] | TaskError:
        """Call a method; an error if too many calls are pending."""

    def add_actor_handle(self, actor_id: ActorID, owner: WorkerAddress | None) -> None:
        """A handle has arrived in this process; ``owner`` None: by name, which keeps nothing alive.

        In a value that travels, a handle is ``Ref(ids.actor_handle(actor_id), owner)`` among
        ``Payload.contained``.
        """

    def remove_actor_handle(self, actor_id: ActorID, *, lead_ns: int = 0) -> None:
        """The last handle of this process has gone."""

    def kill_actor(self, actor_id: ActorID, *, no_restart: bool, lead_ns: int = 0) -> None:
        """``ray.kill``."""

    def get_named_actor(
        self, name: str, namespace: str, then: Callable[[Any], object], *, lead_ns: int = 0
    ) -> None:
        """``then(ActorTableData | None)``."""

    # objects

    def put(
        self,
        payload: Payload,
        then: Callable[[TaskError | None], object],
        *,
        lead_ns: int = 0,
        owner: WorkerAddress | None = None,
    ) -> Ref:
        """``ray.put``; the reference at once, ``then`` when the object is sealed and pinned."""

    def get(
        self,
        refs: Sequence[Ref],
        then: Callable[[list[Value] | TaskError], object],
        *,
        timeout_ns: int | None = None,
        lead_ns: int = 0,
    ) -> None:
        """``ray.get``: values in order once all are here, or GET_TIMEOUT.

        As soon as one has failed the answer comes with its error, and ``NONE`` for those not here.
        """

    def wait(
        self,
        refs: Sequence[Ref],
        num_returns: int,
        then: Callable[[list[bool]], object],
        *,
        timeout_ns: int | None = None,
        fetch_local: bool = True,
        lead_ns: int = 0,
    ) -> None:
        """``ray.wait``: which are ready, at most ``num_returns``, first in the list first."""

    def add_local_reference(self, ref: Ref) -> None:
        """A handle to the object exists in this process (deserialised, copied)."""

    def remove_local_reference(self, object_id: ObjectID, *, lead_ns: int = 0) -> None:
        """A handle has gone."""

    def next_item(
        self, generator: Ref, then: Callable[[Ref | TaskError | None], object], *, lead_ns: int = 0
    ) -> None:
        """Next item of a streaming generator; None at its end."""

    def peek_locations(self, ref: Ref) -> Located | None:
        """Size of an object this process owns and the nodes that have it, in memory or on disk."""

    def ask_locations(
        self,
        refs: Sequence[Ref],
        then: Callable[[dict[ObjectID, Located]], object],
        *,
        lead_ns: int = 0,
    ) -> None:
        """``ray.experimental.get_object_locations``; without those whose owner does not know."""

    def is_spilled(self, ref: Ref) -> bool:
        """Whether an object this process owns is on disk alone, as far as it knows."""

    # names and the cluster

    def call_gcs(self, message: Any, then: Callable[[Any], object], *, lead_ns: int = 0) -> None:
        """Any other question to the GCS (KV, node table, cluster resources)."""
