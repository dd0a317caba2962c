"""The Gcs room: one event loop, every table of the cluster, and what each message does.

Real counterpart: ``src/ray/gcs/gcs_server.cc`` and the services of ``gcs_service.proto``. The
server itself only takes messages in and hands them to the manager they belong to:

    nodes health demand     who is there, for how long nobody has heard of it, what it lacks
    actors actor_scheduler  actors, and the leases by which they are placed
    groups bundle_scheduler placement groups, and the two-phase commit by which they are placed
    jobs kv publisher       drivers, the key-value store, who is told what

All of it shares one thread: a thousand actors to register keep placement groups waiting.

With ``gcs_storage`` "redis" the tables outlive a crash; everything else (timers, calls under way,
callers waiting) is made anew by ``started``, and callers ask again (``GcsClient``).

Not modelled: the threads that poll for RPCs and their admission limit, task events, the
dashboard's questions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raysim.kernel.component import Component, Cost, Reply
from raysim.raycore.gcs.actor_scheduler import GcsActorScheduler
from raysim.raycore.gcs.actors import GcsActorManager
from raysim.raycore.gcs.bundle_scheduler import GcsPlacementGroupScheduler
from raysim.raycore.gcs.demand import GcsAutoscalerStateManager
from raysim.raycore.gcs.health import GcsHealthCheckManager
from raysim.raycore.gcs.jobs import GcsJobManager
from raysim.raycore.gcs.kv import GcsKVManager
from raysim.raycore.gcs.nodes import GcsNodeManager
from raysim.raycore.gcs.placement_groups import GcsPlacementGroupManager
from raysim.raycore.gcs.pubsub import GcsPublisher
from raysim.raycore.gcs.tables import Tables
from raysim.raycore.protocol import (
    GCS,
    AddJob,
    CheckAlive,
    CreateActor,
    CreatePlacementGroup,
    DrainNode,
    GetAllActorInfo,
    GetAllNodeInfo,
    GetClusterResourceState,
    GetNamedActorInfo,
    GetPlacementGroups,
    InternalKVDel,
    InternalKVGet,
    InternalKVKeys,
    InternalKVPut,
    KillActorViaGcs,
    MarkJobFinished,
    ReachabilityChanged,
    RegisterActor,
    RegisterNode,
    RemovePlacementGroup,
    ReportActorOutOfScope,
    ReportResources,
    RequestClusterResourceConstraint,
    RestartActorForLineageReconstruction,
    SubscribeActor,
    SubscribeAll,
    UnregisterNode,
    WaitPlacementGroupUntilReady,
    WatchNodes,
    WorkerFailed,
)
from raysim.raycore.room import Surroundings


class Gcs(Component):
    """The Global Control Service of one cluster.

    Parameters
    ----------
    env
        The cluster's surroundings. ``env.config.gcs_storage`` says whether a restart finds its
        tables again ("redis") or an empty house ("memory").
    """

    def __init__(self, env: Surroundings) -> None:
        super().__init__(env.sim, GCS, service_ns=_service_ns(env))
        self.env = env
        self.tables = Tables()
        self._has_run = False
        self.lost = []  # of a head that vanished; callers hear of it when it is back
        self.started_ns = 0
        """Periodic work falls on whole periods since then."""
        if env.sim.check:
            env.sim.invariants.register("gcs", self._wrong)

    def started(self) -> None:
        """With its tables, or without."""
        restarted = self._has_run
        self._has_run = True
        self.started_ns = self.sim.now_ns
        if self.env.config.gcs_storage == "memory":
            self.tables = Tables()
        self.publisher = GcsPublisher(self)
        self.health = GcsHealthCheckManager(self)
        self.nodes = GcsNodeManager(self)
        self.demand = GcsAutoscalerStateManager(self)
        self.jobs = GcsJobManager(self)
        self.kv = GcsKVManager(self)
        self.actors = GcsActorManager(self)
        self.actor_scheduler = GcsActorScheduler(self)
        self.groups = GcsPlacementGroupManager(self)
        self.bundle_scheduler = GcsPlacementGroupScheduler(self)
        if restarted:
            self.nodes.recover()
            self.actors.recover()
            self.groups.recover()

    def work(self, cost_ns: int, fn: Callable[[Any], object], arg: Any = None) -> None:
        """Do ``fn(arg)`` when the loop is free and has spent ``cost_ns`` on it."""
        now_ns = self.sim.now_ns
        start_ns = max(self.busy_until, now_ns)
        if self.cores is not None:
            cost_ns = self.cores.takes(self, start_ns, cost_ns)
        self.busy_until = start_ns + cost_ns
        self.after(self.busy_until - now_ns, fn, arg)

    def _wrong(self) -> str:
        return self.bundle_scheduler.wrong() if self.state == "up" else ""

    # Nodes

    def on_register_node(self, m: RegisterNode, reply: Reply) -> None:
        """A raylet joins."""
        self.nodes.register(m)
        reply()

    def on_unregister_node(self, m: UnregisterNode, reply: Reply) -> None:
        """A raylet leaves in good order."""
        reply()
        self.nodes.unregister(m)

    def on_check_alive(self, m: CheckAlive, reply: Reply) -> None:
        """A raylet asks whether it is thought alive; anybody, whether the GCS is."""
        reply(m.node_id < 0 or self.nodes.alive(m.node_id) is not None)

    def on_reachability_changed(self, m: ReachabilityChanged, reply: Reply) -> None:  # noqa: ARG002
        """Health checks of a node will meet something else from now on."""
        self.health.changed(m.node_id, m.how)

    def on_report_resources(self, m: ReportResources, reply: Reply) -> None:  # noqa: ARG002
        """What a node has free now."""
        self.nodes.report(m)

    def on_drain_node(self, m: DrainNode, reply: Reply) -> None:
        """A node is to take no more work."""
        self.nodes.drain(m, reply)

    def on_get_all_node_info(self, m: GetAllNodeInfo, reply: Reply) -> None:  # noqa: ARG002
        """The node table, dead ones after the living."""
        tables = self.tables
        reply(tuple(n.row() for n in [*tables.nodes.values(), *tables.dead_nodes.values()]))

    def on_watch_nodes(self, m: WatchNodes, reply: Reply) -> None:
        """The living, once they are others than the caller knows."""
        self.nodes.watch(m, reply)

    def on_subscribe_all(self, m: SubscribeAll, reply: Reply) -> None:
        """Somebody wants to know of nodes and workers."""
        self.publisher.subscribe(m.subscriber, worker_failures=m.worker_failures)
        dead = self.tables.dead_workers, self.tables.dead_nodes
        reply(tuple(dict.fromkeys(rows) for rows in dead) if m.missed else None)

    def on_worker_failed(self, m: WorkerFailed, reply: Reply) -> None:
        """A worker or driver has died."""
        reply()
        if m.worker.worker_id in self.tables.dead_workers:
            return
        self.publisher.drop_worker(m.worker.address)
        self.publisher.publish_worker_failure(m)
        self.actors.on_worker_dead(m)
        self.jobs.on_worker_dead(m.worker.worker_id)

    # What is lacking

    def on_get_cluster_resource_state(self, m: GetClusterResourceState, reply: Reply) -> None:  # noqa: ARG002
        """What the autoscaler looks at."""
        reply(self.demand.state())

    def on_request_cluster_resource_constraint(
        self, m: RequestClusterResourceConstraint, reply: Reply
    ) -> None:
        """``request_resources``."""
        self.demand.constrain(m)
        reply()

    # Actors

    def on_register_actor(self, m: RegisterActor, reply: Reply) -> None:
        """An owner is going to create an actor."""
        reply(self.actors.register(m))

    def on_create_actor(self, m: CreateActor, reply: Reply) -> None:
        """It may be placed now."""
        self.actors.create(m, reply)

    def on_subscribe_actor(self, m: SubscribeActor, reply: Reply) -> None:
        """Somebody has, or has no more, a handle to it."""
        if m.unsubscribe:
            self.publisher.unsubscribe_actor(m.actor_id, m.subscriber)
        else:
            self.publisher.subscribe_actor(m.actor_id, m.subscriber)
        reply(self.actors.row(m.actor_id))

    def on_get_named_actor_info(self, m: GetNamedActorInfo, reply: Reply) -> None:
        """``ray.get_actor``."""
        reply(self.actors.named(m.name, m.ray_namespace))

    def on_get_all_actor_info(self, m: GetAllActorInfo, reply: Reply) -> None:  # noqa: ARG002
        """The actor table."""
        reply(self.actors.rows())

    def on_kill_actor_via_gcs(self, m: KillActorViaGcs, reply: Reply) -> None:
        """``ray.kill``."""
        reply(self.actors.kill(m))

    def on_report_actor_out_of_scope(self, m: ReportActorOutOfScope, reply: Reply) -> None:
        """No handle is left."""
        self.actors.out_of_scope(m.actor_id)
        reply()

    def on_restart_actor_for_lineage_reconstruction(
        self, m: RestartActorForLineageReconstruction, reply: Reply
    ) -> None:
        """Its owner needs it once more."""
        self.actors.restart_for_lineage(m.actor_id)
        reply()

    # Placement groups

    def on_create_placement_group(self, m: CreatePlacementGroup, reply: Reply) -> None:
        """Write it down; it is placed in its turn."""
        reply(self.groups.create(m))

    def on_wait_placement_group_until_ready(
        self, m: WaitPlacementGroupUntilReady, reply: Reply
    ) -> None:
        """``PlacementGroup.wait``."""
        self.groups.wait(m.group, reply)

    def on_remove_placement_group(self, m: RemovePlacementGroup, reply: Reply) -> None:
        """``remove_placement_group``."""
        self.groups.remove(m.group)
        reply()

    def on_get_placement_groups(self, m: GetPlacementGroups, reply: Reply) -> None:
        """Rows of the table."""
        reply(self.groups.rows(m))

    # Jobs and keys

    def on_add_job(self, m: AddJob, reply: Reply) -> None:
        """A driver has started."""
        self.jobs.add(m)
        reply()

    def on_mark_job_finished(self, m: MarkJobFinished, reply: Reply) -> None:
        """A driver has ended."""
        reply()
        self.jobs.finish(m.job_id)

    def on_internal_kv_put(self, m: InternalKVPut, reply: Reply) -> None:
        """Write a key."""
        reply(self.kv.put(m))

    def on_internal_kv_get(self, m: InternalKVGet, reply: Reply) -> None:
        """Read a key."""
        reply(self.kv.get(m))

    def on_internal_kv_keys(self, m: InternalKVKeys, reply: Reply) -> None:
        """Look through a namespace."""
        reply(self.kv.keys(m))

    def on_internal_kv_del(self, m: InternalKVDel, reply: Reply) -> None:
        """Delete a key."""
        reply(self.kv.delete(m))


def _service_ns(env: Surroundings) -> dict[type, Cost]:
    """What each message costs the loop, with the writes and publications it leads to."""
    costs = env.costs
    of_message: dict[type, Cost] = dict.fromkeys(
        (
            RegisterNode, UnregisterNode, ReportResources, DrainNode, GetAllNodeInfo, SubscribeAll,
            WorkerFailed, GetClusterResourceState, RequestClusterResourceConstraint,
            SubscribeActor, GetNamedActorInfo, GetAllActorInfo, KillActorViaGcs,
            ReportActorOutOfScope, RestartActorForLineageReconstruction,
            WaitPlacementGroupUntilReady, RemovePlacementGroup, GetPlacementGroups, AddJob,
            MarkJobFinished, CheckAlive, WatchNodes,
        ),
        costs.gcs_message_ns,
    )  # fmt: skip
    return of_message | {
        RegisterActor: costs.gcs_register_actor_ns,
        CreateActor: costs.gcs_create_actor_ns,
        CreatePlacementGroup: costs.gcs_placement_group_ns,
        InternalKVPut: costs.gcs_kv_ns,
        InternalKVGet: costs.gcs_kv_ns,
        InternalKVDel: costs.gcs_kv_ns,
        InternalKVKeys: costs.gcs_kv_ns,
    }
