"""What the GCS knows and writes to its storage: the tables that outlive it when that is Redis.

Real counterpart: ``src/ray/gcs/gcs_table_storage.h`` over ``store_client/``. With ``gcs_storage``
"memory" the tables die with the server and the cluster with them; with "redis" a restarted GCS
reads them and goes on. Rows are mutable here and written in place: a table is what it was at the
last change, as if every write were through.

Not modelled: the latency of Redis (a write per change of an actor, a group or a node), a Redis that
fails, rows of jobs of earlier sessions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from raysim.raycore.ids import (
    ActorID,
    JobID,
    NodeID,
    PlacementGroupID,
    WorkerAddress,
    WorkerID,
)
from raysim.raycore.protocol import (
    ActorState,
    ActorTableData,
    AddJob,
    CreatePlacementGroup,
    DrainNode,
    KVValue,
    NodeTableData,
    PlacementGroupTableData,
    RegisterNode,
)
from raysim.raycore.resources import Allocation, ResourceSet
from raysim.raycore.tasks import ActorOptions, TaskError, TaskSpec


class GcsNode:
    """A row of the node table, and what its raylet last reported."""

    __slots__ = (
        "address", "available", "changes", "death_reason", "demand_waiting", "drain", "end_ns",
        "idle_since_ns", "incarnation", "is_head", "labels", "node_id", "node_type", "start_ns",
        "state", "total",
    )  # fmt: skip

    def __init__(self, m: RegisterNode, now_ns: int) -> None:
        self.node_id = m.node_id
        self.address = m.address
        """Of its raylet."""
        self.incarnation = m.incarnation
        self.is_head = m.is_head
        self.node_type = m.node_type
        self.labels = dict(m.labels)
        self.total = dict(m.resources)
        self.available = dict(m.resources)
        """As last reported, less what groups being placed hold back (``take``, ``give_back``)."""
        self.state: Literal["ALIVE", "DRAINING", "DEAD"] = "ALIVE"
        self.drain: DrainNode | None = None
        self.death_reason = ""
        self.start_ns = now_ns
        self.end_ns = -1
        self.idle_since_ns = now_ns
        self.demand_waiting = False
        self.changes = 0
        """How often any of this has changed."""

    def take(self, resources: ResourceSet) -> None:
        """Hold back what a bundle will need; the next report of the raylet overwrites this."""
        self.changes += 1
        for name, n in resources.units.items():
            self.available[name] = self.available.get(name, 0) - n

    def give_back(self, resources: ResourceSet) -> None:
        """Undo, but never beyond the total: a report may have come in between."""
        self.changes += 1
        for name, n in resources.units.items():
            free = self.available.get(name, 0) + n
            self.available[name] = min(free, self.total.get(name, 0))

    def row(self) -> NodeTableData:
        """As listed."""
        return NodeTableData(
            self.node_id, self.state, self.is_head, self.total, self.available, self.labels,
            self.node_type, self.death_reason, self.start_ns, self.end_ns,
            self.drain.deadline_ns if self.state == "DRAINING" and self.drain else -1,
        )  # fmt: skip


class GcsActor:
    """A row of the actor table, and how far its creation has got."""

    __slots__ = (
        "death_cause", "lease_id", "lease_node", "name_key", "num_preempted", "num_restarts",
        "out_of_scope", "phase", "preempted", "resource_ids", "restart_wanted", "spec", "state",
        "try_no", "worker",
    )  # fmt: skip

    def __init__(self, spec: TaskSpec, namespace: str) -> None:
        self.spec = spec
        name = self.options.name
        self.name_key = (namespace, name) if name else None
        self.state: ActorState = "DEPENDENCIES_UNREADY"
        self.worker: WorkerAddress | None = None
        """Leased for it; its address once it is ALIVE."""
        self.num_restarts = 0
        self.num_preempted = 0
        """Restarts that do not count, their node having been preempted."""
        self.preempted = False
        self.death_cause: TaskError | None = None
        self.out_of_scope = False
        """Died for want of references: may come back for lineage reconstruction."""
        self.phase: Literal["", "waiting", "leasing", "creating", "created"] = ""
        self.try_no = 0
        """Counts scheduling attempts: answers to earlier ones are stale."""
        self.lease_id = 0
        self.lease_node: NodeID = -1
        self.resource_ids: Allocation = {}
        self.restart_wanted = False
        """Killed by ``ray.kill(no_restart=False)``: its exit is not its end."""

    @property
    def actor_id(self) -> ActorID:
        """Of the actor this row is."""
        return self.spec.actor_id

    @property
    def options(self) -> ActorOptions:
        """What the program asked for; the defaults if it asked for nothing."""
        return self.spec.options.actor or _DEFAULT_OPTIONS

    @property
    def remaining_restarts(self) -> int:
        """-1: without limit."""
        limit = self.options.max_restarts
        if limit == -1:
            return -1
        return max(0, limit - (self.num_restarts - self.num_preempted))

    @property
    def restartable(self) -> bool:
        """Dead, but its owner may call it back to make its objects again."""
        preempted = self.options.max_restarts > 0 and self.preempted
        return self.out_of_scope and (self.remaining_restarts != 0 or preempted)

    def row(self) -> ActorTableData:
        """As listed and published."""
        return ActorTableData(
            self.actor_id, self.state, self.worker if self.state == "ALIVE" else None,
            self.num_restarts, self.spec.options, self.spec.caller, self.spec.job_id,
            self.death_cause, self.remaining_restarts, self.preempted,
        )  # fmt: skip


_DEFAULT_OPTIONS = ActorOptions()


class GcsPlacementGroup:
    """A row of the placement group table, and where it stands in the queue."""

    __slots__ = (
        "creator_actor_dead", "creator_job_dead", "delay_ns", "nodes", "preparing", "queued",
        "spec", "state",
    )  # fmt: skip

    def __init__(self, spec: CreatePlacementGroup, *, creator_is_detached: bool) -> None:
        self.spec = spec
        self.state: Literal["PENDING", "PREPARED", "CREATED", "REMOVED", "RESCHEDULING"] = "PENDING"
        self.nodes = [-1] * len(spec.bundles)
        """Of each bundle that is prepared or committed; -1: not placed."""
        self.preparing: dict[int, NodeID] = {}
        """Where bundles are being prepared or committed at present."""
        self.delay_ns = 0
        """Before the next retry; 0: none has failed yet."""
        self.queued = 0
        """Its valid entry in the queue; 0: none."""
        self.creator_job_dead = creator_is_detached
        self.creator_actor_dead = spec.creator_actor == 0

    @property
    def lifetime_done(self) -> bool:
        """Nobody is left to whom it could belong."""
        return not self.spec.detached and self.creator_job_dead and self.creator_actor_dead

    def unplaced(self) -> list[int]:
        """Indices of bundles without a node."""
        return [i for i, node_id in enumerate(self.nodes) if node_id < 0]

    def row(self) -> PlacementGroupTableData:
        """As listed."""
        spec = self.spec
        return PlacementGroupTableData(
            spec.group, spec.name, self.state, spec.strategy, spec.bundles, tuple(self.nodes)
        )


class GcsJob:
    """A row of the job table."""

    __slots__ = ("end_ns", "spec", "start_ns")

    def __init__(self, spec: AddJob, now_ns: int) -> None:
        self.spec = spec
        self.start_ns = now_ns
        self.end_ns = -1


Row = TypeVar("Row")


@dataclass(slots=True)
class Tables:
    """All of them."""

    nodes: dict[NodeID, GcsNode] = field(default_factory=dict)
    """Alive ones, in order of registration."""
    dead_nodes: dict[NodeID, GcsNode] = field(default_factory=dict)
    actors: dict[ActorID, GcsActor] = field(default_factory=dict)
    """Registered ones; dead ones too while their owner may still ask for them."""
    destroyed_actors: dict[ActorID, GcsActor] = field(default_factory=dict)
    actor_names: dict[tuple[str, str], ActorID] = field(default_factory=dict)
    """(namespace, name) of every actor that can be looked up."""
    groups: dict[PlacementGroupID, GcsPlacementGroup] = field(default_factory=dict)
    removed_groups: dict[PlacementGroupID, GcsPlacementGroup] = field(default_factory=dict)
    group_names: dict[tuple[str, str], PlacementGroupID] = field(default_factory=dict)
    jobs: dict[JobID, GcsJob] = field(default_factory=dict)
    kv: dict[tuple[str, str], KVValue] = field(default_factory=dict)
    constraints: tuple[ResourceSet, ...] = ()
    """``request_resources``."""
    dead_workers: dict[WorkerID, None] = field(default_factory=dict)
    subscribers: dict[str, bool] = field(default_factory=dict)
    """Of nodes; True: of worker failures too. Clients subscribe again after a restart: here they
    stay subscribed."""
    actor_subscribers: dict[ActorID, dict[str, None]] = field(default_factory=dict)


def forget_oldest(rows: dict[int, Row], keep: int) -> None:
    """Drop the oldest rows beyond ``keep``."""
    while len(rows) > keep:
        del rows[next(iter(rows))]


def fits(free: Mapping[str, int], request: ResourceSet) -> bool:
    """Whether all of it is there."""
    return all(free.get(name, 0) >= n for name, n in request.units.items())
