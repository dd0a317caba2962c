"""The raylet: grants worker leases on one node, sends on what is better served elsewhere.

Real counterpart: ``src/ray/raylet/node_manager.cc``: one event loop. This file is its front: every
message, and who lives and dies; the parts beside it decide.

A node's resources here are the ones that count; the shared view has what was last reported. The
raylet watches the view only while something waits, subscribes to the GCS's failure news once it has
leases of owners elsewhere, and arms a timer only while there is something to look at.

Not modelled: cgroups, the agents' processes; store and object manager are rooms of their own here.
"""

from __future__ import annotations

from typing import Any

from raysim.kernel.component import Component, Reply
from raysim.raycore.gcs_client import GcsClient
from raysim.raycore.ids import LeaseID, NodeID, WorkerID
from raysim.raycore.protocol import (
    ActorCreationTaskDone,
    CancelResourceReserve,
    CancelWorkerLease,
    CheckAlive,
    ClientDisconnected,
    CommitBundleResources,
    DisconnectClient,
    DrainRaylet,
    GetResourceLoad,
    GetWorkerFailureCause,
    JobFinished,
    KillLocalActor,
    MemoryChanged,
    NodeAdded,
    NodeRemoved,
    NotifyWorkerBlocked,
    NotifyWorkerUnblocked,
    PinObjectIDs,
    PrepareBundleResources,
    PullStatus,
    ReachabilityChanged,
    RegisterClient,
    RegisterNode,
    ReleaseUnusedActorWorkers,
    ReportResources,
    ReportWorkerBacklog,
    RequestWorkerLease,
    ReturnWorkerLease,
    SubscribeAll,
    UnregisterNode,
    WorkerExited,
    WorkerFailed,
    object_manager,
    plasma,
    raylet,
)
from raysim.raycore.raylet.bundles import Bundles, group_name
from raysim.raycore.raylet.checks import what_is_wrong
from raysim.raycore.raylet.cluster_lease_manager import ClusterLeaseManager
from raysim.raycore.raylet.cluster_resource_scheduler import ClusterResourceScheduler
from raysim.raycore.raylet.dependencies import Dependencies
from raysim.raycore.raylet.failures import Failures
from raysim.raycore.raylet.lease import Classes, Lease
from raysim.raycore.raylet.local_lease_manager import LocalLeaseManager
from raysim.raycore.raylet.memory_monitor import MemoryMonitor
from raysim.raycore.raylet.reporter import Reporter
from raysim.raycore.raylet.self_check import SelfCheck
from raysim.raycore.raylet.worker_pool import NS_PER_MS, Worker, WorkerPool
from raysim.raycore.resources import CPU, OBJECT_STORE_MEMORY, UNIT, NodeResources
from raysim.raycore.room import Surroundings


class Raylet(Component):
    """One node's scheduler.

    Parameters
    ----------
    resources
        What the node offers, in steps; with ``object_store_memory``.
    """

    runs_ahead = True

    def __init__(
        self,
        env: Surroundings,
        node_id: NodeID,
        *,
        resources: dict[str, int],
        labels: dict[str, str] | None = None,
        is_head: bool = False,
        node_type: str = "",
    ) -> None:
        costs = env.costs
        blocked_ns = costs.raylet_blocked_ns
        super().__init__(
            env.sim, raylet(node_id), service_ns={
                RequestWorkerLease: costs.raylet_lease_ns + costs.raylet_pop_worker_ns,
                ReturnWorkerLease: costs.raylet_return_ns,
                **dict.fromkeys((NotifyWorkerBlocked, NotifyWorkerUnblocked), blocked_ns),
                **dict.fromkeys(
                    (CancelWorkerLease, ReportWorkerBacklog, RegisterClient, DisconnectClient,
                     ActorCreationTaskDone, DrainRaylet, GetWorkerFailureCause,
                     PrepareBundleResources, CommitBundleResources, CancelResourceReserve,
                     GetResourceLoad, PinObjectIDs, KillLocalActor),
                    costs.raylet_message_ns,
                ),
            },
        )  # fmt: skip
        self.env = env
        self.node_id = node_id
        self._registration = RegisterNode(
            node_id, self.address, dict(resources), dict(labels or {}), is_head, node_type
        )
        if env.sim.check:
            env.sim.invariants.register(self.address, lambda: what_is_wrong(self))

    def started(self) -> None:
        """A new process: it knows nothing but what it was started with, and registers."""
        env, node_id, given = self.env, self.node_id, self._registration
        self.resources = NodeResources(given.resources, given.labels)
        self.leases: dict[LeaseID, Lease] = {}
        """Every request that is here, waiting or granted."""
        self.classes = Classes(self.resources.total.get(CPU, 0))
        self.gcs = GcsClient(self, env, self._gcs_lost)
        self.scheduler = ClusterResourceScheduler(env, node_id, self.resources)
        self.reporter = Reporter(self, env, node_id, self.gcs, self._report)
        self.local = LocalLeaseManager(
            env, node_id, self.scheduler, gone=self._gone, infeasible=self._infeasible,
            changed=self.reporter.changed, wants_tick=self._want_tick,
        )  # fmt: skip
        self.cluster = ClusterLeaseManager(env, node_id, self.local)
        self.pool = WorkerPool(
            self, env, node_id, self.resources,
            came=self.local.worker_came, failed=self.local.worker_failed,
        )  # fmt: skip
        self.local.pool = self.pool
        self.local.dependencies = Dependencies(self, node_id, ready=self.local.arguments_ready)
        self.bundles = Bundles(self.resources)
        self.failures = Failures(env, self.leases, self.local, self.cluster)
        self.memory = MemoryMonitor(self, env, node_id, self.pool, self.failures.out_of_memory)
        self.self_check = SelfCheck(self, env, node_id, self._given_up)
        self.primary_bytes = 0
        self._started_ns = self._idle_since_ns = env.sim.now_ns  # bundles and primary objects
        self._subscribed = self._watching = self._flushing = False
        self._ticking = self._leaving = False
        env.view.unwatch(self._view_changed)
        # requests meant for the raylet that was here before: nobody knows this one yet
        self._early: list[tuple[Any, Reply]] | None = [] if self.epoch else None
        self.gcs.call(given._replace(incarnation=self.epoch), self._registered)
        if env.config.enable_worker_prestart:
            self.pool.prestart(self.pool.cpus)

    def stopped(self, cause: Any) -> None:  # noqa: ARG002  (part of the hook)
        """Nobody is listening any more."""
        self.env.view.unwatch(self._view_changed)

    def _registered(self, _: object) -> None:
        early, self._early = self._early, None
        for m, reply in early or ():
            self.on_request_worker_lease(m, reply)

    # Leases

    def on_request_worker_lease(self, m: RequestWorkerLease, reply: Reply) -> None:
        """Grant it, send it on, or let it wait."""
        spec = m.spec
        if self._early is not None:
            self._early.append((m, reply))
            return
        if self.failures.is_void(m, reply):
            return
        if m.backlog:
            self._prestart(m)
        lease = Lease(m, reply, self.classes.of(spec))
        self.leases[m.lease_id] = lease
        if not self._subscribed and spec.owner.node_id != self.node_id:
            self._subscribe()
        self.cluster.submit(lease)
        if lease.state != "GRANTED" and not self._watching:
            self._watch()

    def on_return_worker_lease(self, m: ReturnWorkerLease, _reply: Reply) -> None:
        """Take the worker back."""
        lease = self.leases.get(m.lease_id)
        if lease is None or lease.state != "GRANTED":
            return  # it ended with its worker, or its owner
        worker = lease.worker
        assert worker is not None, f"lease {m.lease_id} has no worker"
        assert worker.worker_id == m.worker_id, (
            f"lease {m.lease_id} of worker {worker.worker_id} returned with {m.worker_id}"
        )
        self.local.end(lease)
        worker.lease = None
        if m.disconnect_worker:
            worker.exiting = True
            self.env.launcher.kill(worker.worker_id, reason="its owner disconnected it")
        elif m.worker_exiting:
            worker.exiting = True
        else:
            self.pool.push(worker)
        self.local.grant_all()

    def on_cancel_worker_lease(self, m: CancelWorkerLease, reply: Reply) -> None:
        """Cancel it if it waits."""
        lease = self.leases.get(m.lease_id)
        if lease is None or lease.state == "GRANTED":
            reply(False)
            return
        self.failures.cancel(lease, "INTENDED")
        reply(True)
        self.local.grant_all()

    def on_report_worker_backlog(self, m: ReportWorkerBacklog, _reply: Reply) -> None:
        """Remember, for the autoscaler."""
        if backlog := tuple((resources, tasks) for _, resources, tasks in m.backlogs if tasks):
            self.cluster.backlogs[m.worker_id] = backlog
        else:
            self.cluster.backlogs.pop(m.worker_id, None)
        self.reporter.changed()

    def _gone(self, lease: Lease) -> None:
        del self.leases[lease.lease_id]
        self.reporter.changed()

    def _infeasible(self, lease: Lease) -> None:
        """No node can take what was waiting here: a node that drains sends it back to the start."""
        if self.scheduler.draining:
            self.cluster.park(lease)
        else:
            message = "Lease granting failed due to the lease becoming infeasible."
            self.local.fail(lease, "UNSCHEDULABLE", message)

    def _prestart(self, m: RequestWorkerLease) -> None:
        """As many workers as could run now, before it is known where it will."""
        could_run = min(m.backlog, self.resources.available.get(CPU, 0) // UNIT)
        self.pool.prestart_up_to(could_run, m.spec.job_id, m.spec.options.runtime_env)

    # Processes

    def on_register_client(self, m: RegisterClient, reply: Reply) -> None:
        """A process of this node has come up."""
        if m.worker_type in ("SPILL_WORKER", "RESTORE_WORKER"):
            reply()
            return
        worker = self.pool.registered(m.worker, m.worker_type, m.job_id, m.runtime_env_key)
        if worker is None:
            self.env.launcher.kill(m.worker.worker_id, reason="nobody waits for it any more")
            return
        self.memory.changed()
        if m.worker_type == "DRIVER":
            self.pool.driver_came(m.job_id, reply)
        else:
            reply()

    def on_disconnect_client(self, m: DisconnectClient, _reply: Reply) -> None:
        """It is leaving: give it no more work."""
        worker = self.pool.workers.get(m.worker_id)
        if worker is not None:
            worker.exiting = True
            if worker in self.pool.idle:
                self.pool.idle.remove(worker)
        if m.owed is not None:
            self.gcs.tell(WorkerFailed(m.owed, m.reason, m.intended))

    def on_notify_worker_blocked(self, m: NotifyWorkerBlocked, _reply: Reply) -> None:
        """Its CPU is free for others."""
        lease = self.pool.lease_of(m.worker_id)
        if lease is not None:
            self._note_worker(m.worker_id, "BLOCKED")
            self.local.blocked(lease)

    def on_notify_worker_unblocked(self, m: NotifyWorkerUnblocked, _reply: Reply) -> None:
        """It takes its CPU back."""
        lease = self.pool.lease_of(m.worker_id)
        if lease is not None:
            self._note_worker(m.worker_id, "LEASED")
            self.local.unblocked(lease)

    def on_actor_creation_task_done(self, m: ActorCreationTaskDone, _reply: Reply) -> None:
        """The worker is an actor's from now on."""
        lease = self.pool.lease_of(m.worker_id)
        if lease is not None and lease.worker is not None:
            lease.worker.actor_id = m.actor_id
            self.local.arguments_read(lease)

    def on_worker_exited(self, m: WorkerExited, _reply: Reply) -> None:
        """A process has ended."""
        address = m.worker
        asked = self.pool.workers.get(address.worker_id)
        left_idle = asked is not None and asked.exiting and asked.lease is None and m.intended
        worker = self.pool.exited(address.worker_id)
        self._note_worker(address.worker_id, "DEAD", m.reason)
        gone = ClientDisconnected(address.address)
        self.send(plasma(self.node_id), gone)
        self.send(object_manager(self.node_id), gone)
        self.cluster.backlogs.pop(address.worker_id, None)
        if worker is None:
            return
        if not left_idle:  # it owned nothing, and nobody waits for it
            self.gcs.tell(WorkerFailed(address, m.reason, m.intended))
        self.failures.died(worker, m.reason)
        if worker.worker_type == "DRIVER":  # if it died early, the GCS does not know of its job
            self.pool.job_finished(worker.job_id)
        self.memory.changed()
        self.local.grant_all()

    def on_kill_local_actor(self, m: KillLocalActor, _reply: Reply) -> None:
        """Have it exit, if it is still here."""
        worker = self.pool.workers.get(m.worker_id)
        if worker is not None:
            self.send(worker.address.address, m.order)

    def on_get_worker_failure_cause(self, m: GetWorkerFailureCause, reply: Reply) -> None:
        """Why a lease's worker died."""
        reply(self.failures.cause_of(m.lease_id))

    def on_memory_changed(self, _m: MemoryChanged, _reply: Reply) -> None:
        """The memory monitor has something to look at."""
        self.memory.changed()

    # Failures elsewhere

    def _subscribe(self) -> None:
        self._subscribed = True
        self.gcs.call(SubscribeAll(self.address, missed=True), self.failures.heard)

    def on_node_added(self, m: NodeAdded, _reply: Reply) -> None:
        """The view has it already."""
        self.failures.dead_nodes.pop(m.node_id, None)

    def on_node_removed(self, m: NodeRemoved, _reply: Reply) -> None:
        """Owners on that node are dead."""
        if m.node_id == self.node_id:
            self._given_up()
        else:
            self.failures.node_removed(m.node_id)

    def on_reachability_changed(self, _m: ReachabilityChanged, _reply: Reply) -> None:
        """The cable is out."""
        self.self_check.cut_off()

    def _given_up(self) -> None:
        self._exit("the GCS has marked this node dead")

    def on_worker_failed(self, m: WorkerFailed, _reply: Reply) -> None:
        """It may have owned what is here."""
        self.failures.worker_failed(m.worker.worker_id)

    def on_job_finished(self, m: JobFinished, _reply: Reply) -> None:
        """Its workers end, but for what a detached actor needs."""
        self.pool.job_finished(m.job_id)
        self.failures.job_finished(m.job_id)

    def on_release_unused_actor_workers(self, m: ReleaseUnusedActorWorkers, reply: Reply) -> None:
        """The GCS has come back: actors it does not know end; tell it everything anew."""
        self.failures.unused_actors(m.worker_ids)
        self.reporter.start_over()
        if self._subscribed:
            self._subscribe()
        self.local.grant_all()
        reply()

    # Placement groups

    def on_prepare_bundle_resources(self, m: PrepareBundleResources, reply: Reply) -> None:
        """Hold back what the bundles need."""
        reply(not self.scheduler.draining and self.bundles.prepare(m.bundles))
        self.reporter.changed()

    def on_commit_bundle_resources(self, m: CommitBundleResources, reply: Reply) -> None:
        """Offer it under the group's names."""
        reply(self.bundles.commit(m.bundles))
        self.reporter.changed()
        if self.cluster.infeasible:
            self._flush()

    def on_cancel_resource_reserve(self, m: CancelResourceReserve, reply: Reply) -> None:
        """Undo either; what runs or waits within ends."""
        killed: list[Worker] = []
        self._idle_since_ns = self.sim.now_ns
        for bundle in m.bundles:
            killed += self.failures.bundle_removed(group_name(bundle.group), bundle.bundle_index)
            self.bundles.cancel((bundle.group, bundle.bundle_index))
        for worker in killed:
            self.env.launcher.kill(worker.worker_id, reason="placement group removed")
        self.reporter.changed()
        self.local.grant_all()
        reply()

    # The node

    def on_check_alive(self, _m: CheckAlive, reply: Reply) -> None:
        """It is."""
        reply(True)

    def on_get_resource_load(self, _m: GetResourceLoad, reply: Reply) -> None:
        """What waits here."""
        reply(self.cluster.load())

    def on_pull_status(self, m: PullStatus, _reply: Reply) -> None:
        """The object manager says how the store is."""
        changed_bytes = m.primary_bytes - self.primary_bytes
        if changed_bytes and OBJECT_STORE_MEMORY in self.resources.total:
            self.resources.take_back(OBJECT_STORE_MEMORY, changed_bytes * UNIT)
        if not m.primary_bytes and self.primary_bytes:
            self._idle_since_ns = self.sim.now_ns
        self.primary_bytes = m.primary_bytes
        turned = m.blocked != self.scheduler.pulls_blocked or bool(m.leases_blocked)
        self.scheduler.pulls_blocked = m.blocked
        self.local.dependencies.told(m)
        if m.used_bytes != self.memory.store_bytes:
            self.memory.store_bytes = m.used_bytes
            self.memory.changed()
        self.reporter.changed()
        if turned:
            self.local.grant_all()
        self._leave_if_drained()

    def on_drain_raylet(self, m: DrainRaylet, reply: Reply) -> None:
        """No more leases from now on; once idle, leave."""
        if m.reason == "IDLE_TERMINATION" and not self.is_idle:
            reply((False, "The node to be idle-terminated is no longer idle."))
            return
        self.failures.preempted = m.reason == "PREEMPTION"
        self.scheduler.draining = True
        self.reporter.changed()
        reply((True, ""))
        self.local.grant_all()
        self._leave_if_drained()

    @property
    def is_idle(self) -> bool:
        """No leased workers, no bundles, no primary objects."""
        return not (self.local.held or self.primary_bytes or self.bundles.held)

    def _report(self) -> ReportResources:
        self._leave_if_drained()
        return ReportResources(
            self.node_id, self.resources.version, dict(self.resources.available),
            dict(self.resources.total), self.scheduler.draining,
            self.scheduler.pulls_blocked,
            max(self.local.idle_since_ns, self._idle_since_ns) if self.is_idle else -1,
            self.cluster.something_waits,
        )  # fmt: skip

    def _leave_if_drained(self) -> None:
        if self.scheduler.draining and self.is_idle and not self.leases and not self._leaving:
            self._leaving = True
            self.gcs.call(UnregisterNode(self.node_id, "drained"), self._unregistered)

    def _unregistered(self, _: object) -> None:
        self._exit("drained")

    def _gcs_lost(self) -> None:
        self._exit("the GCS cannot be reached")

    def _exit(self, reason: str) -> None:
        """End the process, and the node with it."""
        self.env.launcher.end_processes(self.node_id, reason)

    # What others' resources have to do with what waits here

    def _watch(self) -> None:
        if self.cluster.something_waits:
            self._watching = True
            self.env.view.watch(self._view_changed)
            self.reporter.changed()

    def _view_changed(self) -> None:
        if not self._flushing and self.cluster.others_matter:
            self._flushing = True
            self.after(0, self._flush)

    def _flush(self, _: object = None) -> None:
        self._flushing = False
        if not self.cluster.something_waits:
            self._watching = False
            self.env.view.unwatch(self._view_changed)
            return
        if self.cluster.infeasible:
            self.cluster.nodes_changed(self.env.view)
        self.local.grant_all()

    def _want_tick(self) -> None:
        """A class is at its cap: look again on the next tick of Ray's periodic scheduling."""
        if not self._ticking:
            self._ticking = True
            period_ns = self.env.config.worker_cap_initial_backoff_delay_ms * NS_PER_MS
            passed_ns = self.sim.now_ns - self._started_ns
            self.after(period_ns - passed_ns % period_ns, self._tick)

    def _tick(self, _: object) -> None:
        self._ticking = False
        self.local.grant_all()

    def _note_worker(self, worker_id: WorkerID, state: str, detail: object = None) -> None:
        if self.env.log.enabled:
            self.env.log.note("worker", worker_id, state, self.sim.now_ns,
                              node_id=self.node_id, worker_id=worker_id, detail=detail)  # fmt: skip
