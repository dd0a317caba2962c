"""Leases that end before their owner returns them: whose worker, owner, job or group is gone.

Real counterpart: ``node_manager.cc`` (``DisconnectClient``, ``HandleUnexpectedWorkerFailure``,
``NodeRemoved``, ``SetTaskFailureReason``). Workers leased to a dead owner are killed, waiting
requests are cancelled; what belongs to a detached actor stays.
"""

from __future__ import annotations

from collections.abc import Callable

from raysim.kernel.component import Reply
from raysim.raycore.ids import LeaseID, NodeID, WorkerAddress, WorkerID
from raysim.raycore.protocol import (
    OUT_OF_MEMORY_EXIT,
    LeaseCancelled,
    LeaseFailure,
    LeaseGranted,
    RequestWorkerLease,
)
from raysim.raycore.raylet.cluster_lease_manager import ClusterLeaseManager
from raysim.raycore.raylet.lease import Lease
from raysim.raycore.raylet.local_lease_manager import LocalLeaseManager
from raysim.raycore.raylet.memory_monitor import Victim
from raysim.raycore.raylet.worker_pool import Worker
from raysim.raycore.room import Surroundings
from raysim.raycore.tasks import TaskError

_CAUSES_KEPT = 10_000
"""Ray keeps each for 900 s (task_failure_entry_ttl_ms)."""

Cause = tuple[TaskError | None, bool]
"""Why a lease's worker died, and whether that counts against the task's retries."""


class Failures:
    """Ends leases, and remembers why."""

    __slots__ = (
        "_causes", "_cluster", "_env", "_leases", "_local", "dead_nodes", "dead_workers",
        "preempted",
    )  # fmt: skip

    def __init__(
        self,
        env: Surroundings,
        leases: dict[LeaseID, Lease],
        local: LocalLeaseManager,
        cluster: ClusterLeaseManager,
    ) -> None:
        self._env = env
        self._leases = leases
        self._local = local
        self._cluster = cluster
        self._causes: dict[LeaseID, Cause] = {}
        self.dead_nodes: dict[NodeID, None] = {}
        """As far as the GCS has told."""
        self.dead_workers: dict[WorkerID, None] = {}
        """Of this node, and as far as the GCS has told."""
        self.preempted = False
        """The node is being taken away: nothing counts."""

    def cause_of(self, lease_id: LeaseID) -> Cause:
        """Why a lease's worker died, as far as this raylet knows."""
        return self._causes.get(lease_id, (None, not self.preempted))

    def is_void(self, m: RequestWorkerLease, reply: Reply) -> bool:
        """Whether a request was here before, or its owner's node is dead: it is answered then."""
        there, owner = self._leases.get(m.lease_id), m.spec.owner
        if there is not None:  # its sender took this node for dead meanwhile
            if there.state == "GRANTED" and there.worker and there.allocation is not None:
                reply(LeaseGranted(m.lease_id, there.worker.address, there.allocation))
            else:
                there.reply(LeaseCancelled("INTENDED", "asked again"))
                there.reply = reply
            return True
        dead = owner.node_id in self.dead_nodes or owner.worker_id in self.dead_workers
        if dead and not (m.spec.root_detached_actor_id or m.spec.actor_id):
            reply(LeaseCancelled("INTENDED", "owner died"))
            return True
        return False

    def heard(self, dead: tuple[dict[WorkerID, None], dict[NodeID, None]] | None) -> None:
        """Workers and nodes that were dead before this raylet wanted to know."""
        if dead is None:
            return
        workers, nodes = dead
        self.dead_nodes |= nodes
        self.dead_workers |= workers
        self.owners_gone(lambda o: o.worker_id in workers or o.node_id in nodes, "owner died")

    def worker_failed(self, worker_id: WorkerID) -> None:
        """What it owned ends."""
        self.dead_workers[worker_id] = None
        self.owners_gone(lambda owner: owner.worker_id == worker_id, "owner died")

    def node_removed(self, node_id: NodeID) -> None:
        """What was owned there ends, and what is still on its way from there will."""
        self.dead_nodes[node_id] = None
        self.owners_gone(lambda owner: owner.node_id == node_id, "owner's node died")

    def cancel(self, lease: Lease, failure: LeaseFailure, message: str = "") -> None:
        """Cancel a request that waits, wherever it does."""
        if lease.state == "INFEASIBLE":
            self._cluster.forget(lease)
            self._local.fail(lease, failure, message)
        else:
            self._local.cancel(lease, failure, message)

    def end(self, lease: Lease, cause: TaskError, *, counts: bool = True) -> Worker:
        """A granted lease ends with its worker, for a cause that its owner will ask for."""
        self._causes[lease.lease_id] = (cause, counts and not self.preempted)
        if len(self._causes) > _CAUSES_KEPT:
            del self._causes[next(iter(self._causes))]
        worker = lease.worker
        assert worker is not None, f"lease {lease.lease_id} has no worker"
        worker.lease = None
        worker.exiting = True
        self._local.end(lease)
        return worker

    def died(self, worker: Worker, reason: str) -> None:
        """A process has ended: so have its lease, and what it owned."""
        if worker.lease is not None:
            lease = worker.lease
            self.end(lease, TaskError("WORKER_DIED", reason, task_id=lease.spec.task_id))
        self.worker_failed(worker.worker_id)

    def out_of_memory(self, victim: Victim, message: str) -> None:
        """The memory monitor ends a worker."""
        lease = victim.worker.lease
        if lease is not None:
            error = TaskError("OUT_OF_MEMORY", message, task_id=lease.spec.task_id)
            self.end(lease, error, counts=not victim.retry)
        self._env.launcher.kill(victim.worker.worker_id, reason=OUT_OF_MEMORY_EXIT + message)
        self._local.grant_all()

    def owners_gone(self, gone: Callable[[WorkerAddress], bool], reason: str) -> None:
        """Cancel what dead owners wait for, and end the workers they had leased."""
        self._abandon([x for x in self._leases.values() if gone(x.spec.owner)], reason)

    def job_finished(self, job_id: int) -> None:
        """The same for a job."""
        mine = [lease for lease in self._leases.values() if lease.spec.job_id == job_id]
        self._abandon(mine, "job finished")

    def unused_actors(self, used: tuple[int, ...]) -> None:
        """End the workers of actors that are not among these, and what the GCS that died asked."""
        reason = "the GCS does not know this actor"
        for lease in [x for x in self._leases.values() if x.spec.actor_id]:
            if lease.state != "GRANTED":
                self.cancel(lease, "INTENDED", reason)
            elif lease.worker is not None and lease.worker.worker_id not in used:
                worker = self.end(lease, TaskError("WORKER_DIED", reason))
                self._env.launcher.kill(worker.worker_id, reason=reason)

    def bundle_removed(self, group: str, index: int) -> list[Worker]:
        """End what runs in a bundle, cancel what waits for it; whom to kill afterwards."""
        message = "Placement group removed."
        killed = []
        for lease in [x for x in self._leases.values() if x.klass.group == group]:
            if lease.state == "GRANTED":
                if lease.bundle == index:
                    error = TaskError("WORKER_DIED", message)  # Ray keeps no other cause
                    killed.append(self.end(lease, error))
            elif lease.bundle == index or lease.klass.bundle_index in (-1, index):
                self.cancel(lease, "PLACEMENT_GROUP_REMOVED", message)
        return killed

    def _abandon(self, leases: list[Lease], reason: str) -> None:
        for lease in leases:
            if lease.spec.root_detached_actor_id or lease.state == "GONE":
                continue
            if lease.state == "GRANTED":
                error = TaskError("OWNER_DIED", reason, task_id=lease.spec.task_id)
                worker = self.end(lease, error)
                self._env.launcher.kill(worker.worker_id, reason=reason)
            else:
                self.cancel(lease, "INTENDED", reason)
        if leases:
            self._local.grant_all()
