"""Leases that run on this node: arguments, fair shares, caps, resources, workers.

Real counterpart: ``src/ray/raylet/local_lease_manager.cc``. The order of tests is Ray's: fair share
of the class, cap of the class, memory of arguments, resources, then a worker. A class that meets
the first test it fails waits; the next class is looked at.

Ray walks all queues after every event. Here a new request looks at its own class only, since it
cannot help another; whatever frees something walks them all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from raysim.raycore.protocol import (
    LeaseCancelled,
    LeaseFailure,
    LeaseGranted,
    LeaseRejected,
    LeaseSpillback,
)
from raysim.raycore.raylet.cluster_resource_scheduler import ClusterResourceScheduler
from raysim.raycore.raylet.dependencies import Dependencies
from raysim.raycore.raylet.lease import NEVER_NS, Lease, SchedulingClass
from raysim.raycore.raylet.worker_pool import NS_PER_MS, Worker, WorkerPool
from raysim.raycore.resources import CPU, OBJECT_STORE_MEMORY, UNIT, NodeResources
from raysim.raycore.room import Surroundings

if TYPE_CHECKING:
    from raysim.raycore.ids import NodeID


class LocalLeaseManager:
    """Queues and grants of one node.

    Parameters
    ----------
    gone
        ``gone(lease)``: it is not this raylet's any more.
    infeasible
        ``infeasible(lease)``: no node can take it any more, this one included.
    changed
        Resources of this node have changed: report them.
    wants_tick
        A class is at its cap: look again at the next second of the raylet's clock.
    """

    __slots__ = (
        "_arg_limit_bytes", "_cap", "_cap_max_ns", "_cap_ns", "_changed", "_clock", "_cpu_classes",
        "_cpu_demand", "_cpu_granted", "_env", "_gone", "_infeasible", "_local", "_log", "_node_id",
        "_total_cpu", "_wants_tick", "classes", "dependencies", "held", "idle_since_ns", "pool",
        "scheduler", "waiting",
    )  # fmt: skip

    pool: WorkerPool
    dependencies: Dependencies

    def __init__(
        self,
        env: Surroundings,
        node_id: NodeID,
        scheduler: ClusterResourceScheduler,
        *,
        gone: Callable[[Lease], object],
        infeasible: Callable[[Lease], object],
        changed: Callable[[], object],
        wants_tick: Callable[[], object],
    ) -> None:
        self._env = env
        self._log = env.log
        self._node_id = node_id
        self.scheduler = scheduler
        self._local: NodeResources = scheduler.local
        self._clock = env.sim.clock
        self._gone = gone
        self._infeasible = infeasible
        self._changed = changed
        self._wants_tick = wants_tick
        config = env.config
        self._cap = config.worker_cap_enabled
        self._cap_ns = config.worker_cap_initial_backoff_delay_ms * NS_PER_MS
        self._cap_max_ns = config.worker_cap_max_backoff_delay_ms * NS_PER_MS
        self._total_cpu = self._local.total.get(CPU, 0)
        store_bytes = self._local.total.get(OBJECT_STORE_MEMORY, 0) // UNIT
        self._arg_limit_bytes = int(store_bytes * config.max_task_args_memory_fraction)
        self.waiting: dict[int, Lease] = {}
        """For arguments."""
        self.classes: dict[SchedulingClass, None] = {}
        """With leases to grant or waiting for workers, first come first."""
        self.held = 0
        """Leases granted, or waiting only for their worker, of all classes."""
        self.idle_since_ns = env.sim.now_ns
        """When the last of them ended."""
        self._cpu_demand = 0
        """Of all leases to grant."""
        self._cpu_classes = 0
        self._cpu_granted = 0
        """Leases granted of classes that need CPU."""

    # Into the queues

    def queue(self, lease: Lease) -> None:
        """It will run here, if nothing better turns up."""
        if lease.spec.dependencies:
            lease.state = "PENDING_ARGS"
            self._note(lease, "PENDING_ARGS")
            self.waiting[lease.lease_id] = lease
            self.dependencies.request(lease)
            self.spill_waiting()
        elif not self._grant_at_once(lease):
            self._to_grant(lease)
            self._grant_class(lease.klass)

    def arguments_ready(self, lease: Lease) -> None:
        """All its arguments are here."""
        del self.waiting[lease.lease_id]
        self._to_grant(lease)
        self.grant_all()

    def _to_grant(self, lease: Lease) -> None:
        klass = lease.klass
        lease.state = "PENDING_RESOURCES"
        if klass.to_grant is None:
            klass.to_grant = deque()
        self._wants(klass)
        klass.to_grant.append(lease)

    def _wants(self, klass: SchedulingClass) -> None:
        """One lease more of those to grant or waiting for a worker."""
        if not klass.to_grant and not klass.starting:
            self.classes[klass] = None
            self._cpu_classes += klass.cpu > 0
        self._cpu_demand += klass.cpu

    def _left_queue(self, klass: SchedulingClass) -> None:
        """One lease less of those to grant or waiting for a worker."""
        self._cpu_demand -= klass.cpu
        if not klass.to_grant and not klass.starting:
            del self.classes[klass]
            self._cpu_classes -= klass.cpu > 0

    # Granting

    def grant_all(self) -> None:
        """Grant what can be granted, then spill what waits for arguments."""
        if self.classes:
            for klass in list(self.classes):
                if klass.to_grant:
                    self._grant_class(klass)
        if self.waiting:
            self.spill_waiting()

    def _grant_class(self, klass: SchedulingClass) -> None:
        queue = klass.to_grant
        if self.scheduler.draining:
            while queue and self._try_spill(queue[0]):
                pass
            return
        if (
            klass.cpu
            and self._cpu_demand > self._total_cpu
            and (klass.granted > self._cpu_granted // self._cpu_classes)
        ):
            return  # more than its fair share
        index = 0
        while queue and index < len(queue):
            lease = queue[index]
            if (
                klass.granted >= klass.capacity and self._cap
                and self._clock.now < klass.next_update_ns
            ):  # fmt: skip
                self._at_capacity(klass, lease)
                if self._try_spill(lease):
                    continue
                return
            if lease.arg_bytes and not self.dependencies.fits(lease, self._arg_limit_bytes):
                self._note(lease, "PENDING_ARG_MEMORY")
                index += 1
                continue
            if not self._allocate(lease):
                if self._try_spill(lease):
                    continue
                self._note(lease, "PENDING_RESOURCES")
                return
            del queue[index]
            self._hold(lease)

    def _grant_at_once(self, lease: Lease) -> bool:
        """Grant what has nothing before it, its share free and room: what ``_grant_class`` does."""
        klass = lease.klass
        if (
            klass.to_grant or klass.starting or klass.granted >= klass.capacity
            or self._cpu_demand + klass.cpu > self._total_cpu or self.scheduler.draining
            or not self._allocate(lease)
        ):  # fmt: skip
            return False
        self._wants(klass)
        self._hold(lease)
        return True

    def _at_capacity(self, klass: SchedulingClass, lease: Lease) -> None:
        over = min(klass.granted - klass.capacity, 40)
        wait_ns = min(self._cap_ns << over, self._cap_max_ns)
        klass.next_update_ns = min(klass.next_update_ns, self._clock.now + wait_ns)
        self._note(lease, "PENDING_CLASS_CAP")
        self._wants_tick()

    def _allocate(self, lease: Lease) -> bool:
        klass, held = lease.klass, lease.spec.options.resources
        if not klass.group:
            lease.allocation = self._local.allocate(held)
            return lease.allocation is not None
        taken = self._local.allocate_in_group(held, klass.group, klass.bundle_index)
        if taken is None:
            return False
        lease.allocation, lease.bundle = taken
        return True

    def _hold(self, lease: Lease) -> None:
        """Its resources are taken; find a worker."""
        klass = lease.klass
        klass.next_update_ns = NEVER_NS
        klass.granted += 1
        klass.starting += 1
        self.held += 1
        self._cpu_granted += klass.cpu > 0
        if lease.arg_bytes:
            self.dependencies.granted(lease)
        lease.state = "PENDING_WORKER"
        worker = self.pool.pop(lease)
        if worker is not None:
            self.worker_came(lease, worker)
        else:
            self._note(lease, "PENDING_WORKER")
        if klass.cpu != UNIT or worker is None:
            self.pool.look_at_idle()
        self._changed()

    def worker_came(self, lease: Lease, worker: Worker) -> None:
        """Grant."""
        klass = lease.klass
        klass.starting -= 1
        self._left_queue(klass)
        lease.worker = worker
        lease.state = "GRANTED"
        lease.granted_ns = self._clock.now
        if lease.spec.dependencies:
            self.dependencies.pulled_no_more(lease)
        allocation = lease.allocation
        assert allocation is not None, f"lease {lease.lease_id} granted without resources"
        if self._log.enabled:
            self._note(lease, "GRANTED")
            self._log.note("worker", worker.worker_id, "LEASED", self._clock.now,
                           node_id=self._node_id, worker_id=worker.worker_id)  # fmt: skip
        lease.reply(LeaseGranted(lease.lease_id, worker.address, allocation))

    def worker_failed(self, lease: Lease, failure: str) -> None:
        """No worker for it. ``failure``: its runtime env cannot be; else try again, a few times."""
        klass = lease.klass
        klass.starting -= 1
        self._let_go(lease)
        if failure:
            self._left_queue(klass)
            self._cancelled(lease, "RUNTIME_ENV_SETUP_FAILED", failure)
        elif lease.attempts >= self._env.config.pop_worker_max_retries:
            self._left_queue(klass)
            self._cancelled(lease, "WORKER_START_FAILED", "worker processes fail to start")
        else:
            lease.attempts += 1
            lease.state = "PENDING_RESOURCES"
            if klass.to_grant is None:
                klass.to_grant = deque()
            klass.to_grant.appendleft(lease)
        self.grant_all()

    # Ends

    def end(self, lease: Lease) -> None:
        """A granted lease has ended: its resources and arguments are free. Grants nothing yet."""
        assert lease.state == "GRANTED", f"lease {lease.lease_id} ends while {lease.state}"
        self._let_go(lease)
        if lease.arg_bytes:
            self.dependencies.release(lease)
        lease.state = "GONE"
        if self._log.enabled:
            self._note(lease, "RETURNED")
        self._gone(lease)

    def has_room_for_arguments(self, lease: Lease) -> bool:
        """Whether the memory of arguments would let it be granted."""
        return not lease.arg_bytes or self.dependencies.fits(lease, self._arg_limit_bytes)

    def arguments_read(self, lease: Lease) -> None:
        """An actor has been created: its lease goes on, what its constructor took is free."""
        if lease.arg_bytes:
            self.dependencies.not_granted(lease)
            self.dependencies.release(lease)
            self.grant_all()

    def _let_go(self, lease: Lease) -> None:
        """Give back what ``_hold`` took."""
        klass = lease.klass
        klass.granted -= 1
        self.held -= 1
        self.idle_since_ns = self._clock.now
        self._cpu_granted -= klass.cpu > 0
        if lease.arg_bytes:
            self.dependencies.not_granted(lease)
        allocation, lease.allocation = lease.allocation, None
        assert allocation is not None, f"lease {lease.lease_id} holds nothing"
        if lease.blocked and CPU in allocation:
            allocation = {name: n for name, n in allocation.items() if name != CPU}
            lease.blocked = False
        self._local.free(allocation)
        self._changed()

    def cancel(self, lease: Lease, failure: LeaseFailure, message: str = "") -> None:
        """Answer a waiting request of this manager's with a cancellation."""
        self._remove(lease)
        self._cancelled(lease, failure, message)

    def _remove(self, lease: Lease) -> None:
        """Take a waiting request out of wherever it is."""
        klass, state = lease.klass, lease.state
        if state == "PENDING_ARGS":
            del self.waiting[lease.lease_id]
        elif state == "PENDING_RESOURCES":
            assert klass.to_grant is not None
            klass.to_grant.remove(lease)
            self._left_queue(klass)
        else:
            assert state == "PENDING_WORKER", f"lease {lease.lease_id} removed while {state}"
            self.pool.forget(lease)
            klass.starting -= 1
            self._left_queue(klass)
            self._let_go(lease)

    def fail(self, lease: Lease, failure: LeaseFailure, message: str = "") -> None:
        """Answer a request that is in no queue with a cancellation."""
        self._cancelled(lease, failure, message)

    def _cancelled(self, lease: Lease, failure: LeaseFailure, message: str) -> None:
        self._leave(lease)
        self._note(lease, "CANCELLED")
        lease.reply(LeaseCancelled(failure, message))

    def _leave(self, lease: Lease) -> None:
        lease.state = "GONE"
        if lease.spec.dependencies:
            self.dependencies.pulled_no_more(lease)
            self.dependencies.release(lease)
        self._gone(lease)

    # Elsewhere

    def _try_spill(self, lease: Lease) -> bool:
        """Send it to a node that has room now, if there is one. True: it has left the queue."""
        klass, scheduler = lease.klass, self.scheduler
        if not scheduler.draining and scheduler.still_stuck(klass):
            return False
        node_id = scheduler.best_node(klass, prioritize_local=True)
        if node_id is None:
            self._remove(lease)
            self._infeasible(lease)
            return True
        if node_id == self._node_id:
            if not self._local.has(klass.placement):
                scheduler.stuck(klass)
            return False
        self._remove(lease)
        self.spill(lease, node_id)
        return True

    def spill(self, lease: Lease, node_id: NodeID) -> None:
        """Send a request that is in no queue to another node, or reject it."""
        if lease.request.grant_or_reject:
            self._leave(lease)
            self._note(lease, "REJECTED")
            lease.reply(LeaseRejected())
            return
        self.scheduler.promise(node_id, lease.klass.placement)
        self._leave(lease)
        if self._log.enabled:
            self._log.note("lease", lease.lease_id, "SPILLED_BACK", self._clock.now,
                           node_id=node_id, detail=lease.spec)  # fmt: skip
        lease.reply(LeaseSpillback(node_id))

    def spill_waiting(self) -> None:
        """Those that wait for arguments, from the back, while another node would take them now.

        What is being pulled here stays while this node could run it: some of it has arrived.
        """
        while self.waiting:
            lease = self.waiting[next(reversed(self.waiting))]
            if lease.klass.strategy == "SPREAD":
                return
            node_id = self.scheduler.best_node(
                lease.klass, prioritize_local=True, requires_object_store_memory=True,
                exclude_local=lease.lease_id in self.dependencies.blocked,
            )  # fmt: skip
            if node_id is None or node_id == self._node_id:
                return
            del self.waiting[lease.lease_id]
            self.spill(lease, node_id)

    # Blocked workers

    def blocked(self, lease: Lease) -> None:
        """Its task waits in get or wait: its CPU is free for others."""
        cpu = (lease.allocation or {}).get(CPU)
        if lease.blocked or not isinstance(cpu, int):
            return
        lease.blocked = True
        self._local.free({CPU: cpu})
        self._changed()
        self.grant_all()

    def unblocked(self, lease: Lease) -> None:
        """It goes on, and takes its CPU back even if that is one too many."""
        cpu = (lease.allocation or {}).get(CPU)
        if not lease.blocked or not isinstance(cpu, int):
            return
        lease.blocked = False
        self._local.take_back(CPU, cpu)
        self.pool.look_at_idle()
        self._changed()

    def _note(self, lease: Lease, state: str) -> None:
        if self._log.enabled and lease.noted != state:
            lease.noted = state
            worker_id = lease.worker.worker_id if lease.worker is not None else 0
            self._log.note(
                "lease", lease.lease_id, state, self._clock.now,
                node_id=self._node_id, worker_id=worker_id, detail=lease.spec,
            )  # fmt: skip
