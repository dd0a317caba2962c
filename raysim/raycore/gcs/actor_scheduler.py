"""Placing an actor: lease a worker from a raylet, then push the creation task to it.

Real counterpart: ``src/ray/gcs/actor/gcs_actor_scheduler.cc``. The GCS does not choose the actor's
node itself: it forwards the lease request to one raylet, which decides as for any task and may
spill it to another. An actor that holds no resources while it lives goes to a random raylet (its
1 CPU to be placed does not count here), others to their owner's.

Every step of an attempt carries ``try_no``; an answer to an earlier attempt is stale, and a worker
that such an answer brings is returned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raysim.kernel.component import Failure
from raysim.raycore.gcs.tables import GcsActor
from raysim.raycore.ids import NodeID, hex_id
from raysim.raycore.protocol import (
    CancelWorkerLease,
    LeaseCancelled,
    LeaseGranted,
    LeaseRejected,
    LeaseSpec,
    LeaseSpillback,
    PushTaskReply,
    ReleaseUnusedActorWorkers,
    RequestWorkerLease,
    ReturnWorkerLease,
    push_task,
)
from raysim.raycore.tasks import NodeAffinity, Ref
from raysim.units import NS_PER_MS

if TYPE_CHECKING:
    from raysim.raycore.gcs.server import Gcs


class GcsActorScheduler:
    """One per GCS."""

    def __init__(self, gcs: Gcs) -> None:
        self._gcs = gcs
        config = gcs.env.config
        self._retry_lease_ns = config.gcs_lease_worker_retry_interval_ms * NS_PER_MS
        self._retry_push_ns = config.gcs_create_actor_retry_interval_ms * NS_PER_MS
        self._releasing: dict[NodeID, None] = {}
        """After a restart: raylets that have not yet released unused workers; not leased from."""

    def schedule(self, actor: GcsActor) -> None:
        """Begin an attempt; with no node alive the actor waits for one."""
        actor.try_no += 1
        actor.worker = None
        node_id = self._forwarding_node(actor)
        if node_id is None:
            actor.phase = "waiting"
            return
        self._lease(actor, node_id, grant_or_reject=False)

    def _forwarding_node(self, actor: GcsActor) -> NodeID | None:
        """Which raylet is asked first."""
        alive, options = self._gcs.nodes.alive, actor.spec.options
        for match in options.label_selector:
            if match.key == "ray.io/node-id" and match.operator == "in":
                for value in sorted(match.values):
                    for node_id in self._gcs.tables.nodes:
                        if hex_id("node", node_id) == value:
                            return node_id
        if isinstance(options.strategy, NodeAffinity) and alive(options.strategy.node_id):
            return options.strategy.node_id
        if options.resources and alive(actor.spec.caller.node_id):
            return actor.spec.caller.node_id
        nodes = list(self._gcs.tables.nodes)
        if not nodes:
            return None
        return nodes[int(self._gcs.sim.rng("gcs/actors").integers(len(nodes)))]

    # Leasing

    def _lease(self, actor: GcsActor, node_id: NodeID, *, grant_or_reject: bool) -> None:
        actor.phase = "leasing"
        actor.lease_node = node_id
        attempt = _Attempt(self, actor, node_id, grant_or_reject)
        node = self._gcs.nodes.alive(node_id)
        if node is None:
            self.schedule(actor)
            return
        if node_id in self._releasing:
            self._gcs.after(self._retry_lease_ns, attempt.lease_again)
            return
        actor.lease_id = attempt.lease_id = self._gcs.env.ids.lease()
        spec, options = actor.spec, actor.spec.options
        lease = LeaseSpec(
            options=options,
            resources=options.placement_resources or options.resources,
            dependencies=tuple(a for a in spec.args if isinstance(a, Ref)),
            owner=spec.caller,
            job_id=spec.job_id,
            task_id=spec.task_id,
            depth=spec.depth,
            actor_id=spec.actor_id,
            root_detached_actor_id=spec.root_detached_actor_id,
            retriable=actor.options.max_restarts != 0,
            attempt=actor.num_restarts,
        )
        request = RequestWorkerLease(
            actor.lease_id, lease, grant_or_reject=grant_or_reject,
            preferred_node=spec.caller.node_id,
        )  # fmt: skip
        self._gcs.nodes.call(node_id, node.address, request, attempt.leased)

    def leased(self, attempt: _Attempt, answer: Any) -> None:
        """A raylet has answered."""
        actor = attempt.actor
        if attempt.is_stale or actor.phase != "leasing":
            if isinstance(answer, LeaseGranted):
                self._return(attempt.lease_id, answer)
            return
        if isinstance(answer, LeaseGranted):
            actor.worker = answer.worker
            actor.resource_ids = answer.resource_ids
            self._gcs.actors.leased(actor)
            self.push(attempt)
        elif isinstance(answer, LeaseSpillback):
            self._lease(actor, answer.node_id, grant_or_reject=True)
        elif isinstance(answer, LeaseRejected):
            self.schedule(actor)
        elif isinstance(answer, LeaseCancelled):
            self._cancelled(attempt, answer)
        else:
            assert isinstance(answer, Failure), f"actor {actor.actor_id}: lease answered {answer}"
            self._gcs.after(self._retry_lease_ns, attempt.lease_again)

    def lease_again(self, attempt: _Attempt) -> None:
        """200 ms after a request failed, of the same raylet."""
        if not attempt.is_stale and attempt.actor.phase == "leasing":
            self._lease(attempt.actor, attempt.node_id, grant_or_reject=attempt.grant_or_reject)

    def _cancelled(self, attempt: _Attempt, answer: LeaseCancelled) -> None:
        if answer.failure == "INTENDED":
            return
        if answer.failure == "NODE_DRAINED":  # Ray's raylet does not say so; ours does, to be asked
            self._gcs.after(self._retry_lease_ns, attempt.start_over)  # again elsewhere
            return
        self._gcs.actors.unschedulable(attempt.actor, answer)

    def start_over(self, attempt: _Attempt) -> None:
        """From the choice of a raylet, unless something else has happened since."""
        if not attempt.is_stale and attempt.actor.phase == "leasing":
            self.schedule(attempt.actor)

    def _return(self, lease_id: int, granted: LeaseGranted) -> None:
        """Nobody wants this worker any more: end it."""
        worker = granted.worker
        node = self._gcs.nodes.alive(worker.node_id)
        if node is not None:
            self._gcs.send(
                node.address,
                ReturnWorkerLease(lease_id, worker.worker_id, disconnect_worker=True),
            )

    # Creating

    def push(self, attempt: _Attempt) -> None:
        """Send the creation task to the leased worker."""
        actor = attempt.actor
        worker = actor.worker
        assert worker is not None, f"actor {actor.actor_id} has no worker to be created on"
        actor.phase = "creating"
        actor.lease_node = worker.node_id
        self._gcs.nodes.call(
            worker.node_id,
            worker.address,
            push_task(actor.spec, actor.resource_ids),
            attempt.pushed,
        )

    def pushed(self, attempt: _Attempt, answer: Any) -> None:
        """It is created, its ``__init__`` raised, or nothing came back.

        Without an answer the push is repeated every 200 ms until the raylet reports the worker dead
        or the node is declared so; it is that report that restarts the actor.
        """
        if attempt.is_stale or attempt.actor.phase != "creating":
            return
        if isinstance(answer, PushTaskReply):
            self._gcs.actors.created(attempt.actor, answer)
        else:
            self._gcs.after(self._retry_push_ns, attempt.push_again)

    def push_again(self, attempt: _Attempt) -> None:
        """200 ms after a push failed."""
        if not attempt.is_stale and attempt.actor.phase == "creating":
            self.push(attempt)

    # Giving up, starting over

    def cancel(self, actor: GcsActor) -> None:
        """Drop whatever attempt is under way."""
        if actor.phase == "leasing" and actor.lease_id:
            node = self._gcs.nodes.alive(actor.lease_node)
            if node is not None:
                self._gcs.nodes.call(
                    actor.lease_node, node.address, CancelWorkerLease(actor.lease_id), _ignore
                )
        actor.try_no += 1
        actor.phase = ""
        actor.lease_id = 0

    def recover(self, workers_in_use: dict[NodeID, list[int]]) -> None:
        """After a restart: raylets shall end workers leased for actors that the tables lack."""
        for node_id, node in self._gcs.tables.nodes.items():
            self._releasing[node_id] = None
            message = ReleaseUnusedActorWorkers(tuple(workers_in_use.get(node_id, ())))
            self._gcs.nodes.call(node_id, node.address, message, _Released(self, node_id).answered)

    def released(self, node_id: NodeID) -> None:
        """One raylet has."""
        self._releasing.pop(node_id, None)


def _ignore(_answer: object) -> None:
    """The request's own answer will tell."""


class _Attempt:
    """One request of one attempt, and what comes of it."""

    __slots__ = ("_scheduler", "actor", "grant_or_reject", "lease_id", "node_id", "try_no")

    def __init__(
        self, scheduler: GcsActorScheduler, actor: GcsActor, node_id: NodeID, grant_or_reject: bool
    ) -> None:
        self._scheduler = scheduler
        self.actor = actor
        self.node_id = node_id
        self.grant_or_reject = grant_or_reject
        self.lease_id = 0
        self.try_no = actor.try_no

    @property
    def is_stale(self) -> bool:
        """Another attempt has begun, or the actor is dead."""
        return self.try_no != self.actor.try_no

    def leased(self, answer: Any) -> None:
        """The raylet's answer."""
        self._scheduler.leased(self, answer)

    def pushed(self, answer: Any) -> None:
        """The worker's answer."""
        self._scheduler.pushed(self, answer)

    def lease_again(self, _: object) -> None:
        """Timer."""
        self._scheduler.lease_again(self)

    def start_over(self, _: object) -> None:
        """Timer."""
        self._scheduler.start_over(self)

    def push_again(self, _: object) -> None:
        """Timer."""
        self._scheduler.push_again(self)


class _Released:
    """A raylet's answer to ``ReleaseUnusedActorWorkers``."""

    __slots__ = ("_node_id", "_scheduler")

    def __init__(self, scheduler: GcsActorScheduler, node_id: NodeID) -> None:
        self._scheduler, self._node_id = scheduler, node_id

    def answered(self, _answer: object) -> None:
        """Or dead, which will do as well."""
        self._scheduler.released(self._node_id)
