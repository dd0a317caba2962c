"""Leases: which worker runs which task.

Real counterpart: ``src/ray/core_worker/task_submission/normal_task_submitter.cc`` and
``src/ray/core_worker/lease_policy.cc`` (02028fc6). Tasks queue by scheduling key (class, plasma
arguments, runtime environment). Per key at most max(10, nodes) requests wait at raylets, never more
than tasks; a leased worker has one task at a time and goes back when its queue is empty, its last
task failed at system level, or it was leased for 500 ms.

Not modelled: the raylets' warning of too few pending requests.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from raysim.kernel.component import Failure
from raysim.raycore.core_worker.calls import is_node_failure
from raysim.raycore.core_worker.references import IN_PLASMA
from raysim.raycore.core_worker.task_manager import PendingTask
from raysim.raycore.ids import LeaseID, NodeID
from raysim.raycore.protocol import (
    CancelWorkerLease,
    GetWorkerFailureCause,
    LeaseCancelled,
    LeaseGranted,
    LeaseRejected,
    LeaseSpec,
    LeaseSpillback,
    PushTaskReply,
    ReportWorkerBacklog,
    RequestWorkerLease,
    ReturnWorkerLease,
    push_task,
    raylet,
)
from raysim.raycore.tasks import ErrorType, NodeAffinity, Ref, TaskError, TaskOptions
from raysim.units import NS_PER_MS

if TYPE_CHECKING:
    from raysim.raycore.core_worker.worker import CoreWorker

_CANCELLED_AS: dict[str, ErrorType] = {
    "RUNTIME_ENV_SETUP_FAILED": "RUNTIME_ENV_SETUP_FAILED",
    "PLACEMENT_GROUP_REMOVED": "TASK_PLACEMENT_GROUP_REMOVED",
    "UNSCHEDULABLE": "TASK_UNSCHEDULABLE_ERROR",
}


class SchedulingKey:
    """Tasks that any worker leased for one of them can run, their leases and requests."""

    __slots__ = (
        "asking", "backlog", "key", "leases", "options", "queue", "requests", "spec", "submitter",
    )  # fmt: skip

    def __init__(self, submitter: TaskSubmitter, key: tuple[Any, ...], spec: LeaseSpec) -> None:
        self.submitter = submitter
        self.key = key
        self.spec = spec
        self.options = spec.options
        self.queue: deque[PendingTask] = deque()
        self.leases: dict[LeaseID, Lease] = {}
        self.requests: dict[LeaseID, Request] = {}
        self.asking = False
        """Whether any of them may be one that no raylet was told to cancel."""
        self.backlog = 0
        """As last reported."""


class Request:
    """One lease request, on its way through one or two raylets."""

    __slots__ = ("cancelled", "ended", "entry", "lease_id", "node_id")

    def __init__(self, entry: SchedulingKey, lease_id: LeaseID) -> None:
        self.entry = entry
        self.lease_id = lease_id
        self.node_id: NodeID = -1
        self.ended = False
        self.cancelled = False
        """That raylet has been told."""

    def answered(self, answer: Any) -> None:
        """The raylet's answer."""
        if not self.ended:
            self.entry.submitter.lease_answered(self, answer)


class Lease:
    """One worker, leased."""

    __slots__ = (
        "address", "entry", "expiry_ns", "lease_id", "resource_ids", "task", "then", "worker",
    )  # fmt: skip

    def __init__(self, entry: SchedulingKey, granted: LeaseGranted, expiry_ns: int) -> None:
        self.entry = entry
        self.lease_id = granted.lease_id
        self.worker = granted.worker
        self.address = granted.worker.address
        self.resource_ids = granted.resource_ids
        self.expiry_ns = expiry_ns
        self.task: PendingTask | None = None
        self.then = self.replied

    def replied(self, answer: Any) -> None:
        """The task's end, or why there is none."""
        task = self.task
        if task is None:  # its node was declared dead before
            return
        self.task = None
        submitter = self.entry.submitter
        if answer.__class__ is PushTaskReply:
            submitter.tasks.complete(task, answer)
            submitter.worker_idle(self, answer.worker_exiting)
        else:
            submitter.push_failed(self, task, answer)


class TaskSubmitter:
    """Every scheduling key of one process."""

    def __init__(self, core: CoreWorker) -> None:
        self.core = core
        self.tasks = core.tasks
        self.entries: dict[tuple[Any, ...], SchedulingKey] = {}
        self._by_options: dict[tuple[TaskOptions, int], SchedulingKey] = {}
        self._timeout_ns = core.config.worker_lease_timeout_milliseconds * NS_PER_MS
        self._local = core.me.node_id
        self._raylet = raylet(core.me.node_id)
        self._clock = core.sim.clock
        self._backlog_timer: Any = None

    # Tasks

    def submit(self, task: PendingTask) -> None:
        """Its arguments are resolved: queue it by its key, and see who can run it."""
        spec = task.spec
        if spec.args and any(arg.__class__ is Ref for arg in spec.args):
            entry = self._entry(task)
        else:
            quick = (spec.options, spec.depth)
            found = self._by_options.get(quick)
            if found is None:
                found = self._by_options[quick] = self._entry(task)
            entry = found
        task.state = "queued"
        task.via = entry
        if self.core.log.enabled:
            self.core.note("task", spec.task_id, "PENDING_NODE_ASSIGNMENT")
        queue = entry.queue
        queue.append(task)
        if len(queue) > len(entry.requests):
            self.request_if_needed(entry)

    def _entry(self, task: PendingTask) -> SchedulingKey:
        """The queue of its scheduling key."""
        spec = task.spec
        options = spec.options
        dependencies = tuple(a for a in spec.args if a.__class__ is Ref)
        environment = options.runtime_env.key if options.runtime_env else ""
        key = (
            options.scheduling_class, spec.depth, environment,
            tuple(ref.object_id for ref in dependencies),
        )  # fmt: skip
        entry = self.entries.get(key)
        if entry is None:
            lease_spec = LeaseSpec(
                options=options,
                resources=options.placement_resources or options.resources,
                dependencies=dependencies,
                owner=self.core.me,
                job_id=spec.job_id,
                task_id=spec.task_id,
                depth=spec.depth,
                root_detached_actor_id=spec.root_detached_actor_id,
                retriable=options.max_retries != 0,
                attempt=spec.attempt,
            )
            entry = self.entries[key] = SchedulingKey(self, key, lease_spec)
        return entry

    def remove(self, task: PendingTask) -> None:
        """It is cancelled while it queues here."""
        entry: SchedulingKey = task.via
        entry.queue.remove(task)
        self._look(entry)

    # Requests

    def request_if_needed(self, entry: SchedulingKey) -> None:
        """Ask for as many workers as there is use for, within the limit."""
        core = self.core
        requests = entry.requests
        while len(entry.queue) > len(requests) and len(requests) < core.calls.request_limit:
            request = Request(entry, core.env.ids.lease())
            requests[request.lease_id] = request
            node_id, by_locality = self._policy(entry)
            self._ask(request, node_id, grant_or_reject=False, by_locality=by_locality)
            if entry.backlog or len(entry.queue) > len(requests):
                self._report_backlog(entry)

    def _ask(
        self, request: Request, node_id: NodeID, *, grant_or_reject: bool, by_locality: bool = False
    ) -> None:
        entry = request.entry
        request.node_id = node_id
        request.cancelled = False
        entry.asking = True
        spec, queue = entry.spec, entry.queue
        if queue:
            first = queue[0].spec
            if first.task_id != spec.task_id or first.attempt != spec.attempt:
                spec = entry.spec = spec.of(first.task_id, first.attempt)
        backlog = max(0, len(queue) - len(entry.requests) + 1)  # as before this request
        message = RequestWorkerLease(
            request.lease_id, spec, grant_or_reject, backlog, by_locality, self._local
        )
        if node_id == self._local:
            self.core.call(self._raylet, message, request.answered)
        else:
            self.core.calls.call(node_id, raylet(node_id), message, request.answered)

    def _policy(self, entry: SchedulingKey) -> tuple[NodeID, bool]:
        """The raylet to ask first, and whether for its copies of the arguments."""
        strategy = entry.options.strategy
        if isinstance(strategy, str) and not entry.spec.dependencies:
            return self._local, False
        alive = self.core.env.view.nodes
        if strategy == "SPREAD":
            return self._local, False
        if isinstance(strategy, NodeAffinity):
            node_id = strategy.node_id
            return (node_id if node_id in alive else self._local), False
        if entry.spec.dependencies and self.core.config.locality_aware_leasing_enabled:
            held: dict[NodeID, int] = {}
            table = self.core.references.table
            for ref in entry.spec.dependencies:
                record = table.get(ref.object_id)
                if record is not None and record.value is IN_PLASMA and record.copies is not None:
                    for node_id in record.copies.nodes:
                        held[node_id] = held.get(node_id, 0) + record.copies.size_bytes
            best = max(held, key=lambda n: (held[n], n == self._local, -n), default=-1)
            if best in alive and held[best]:
                return best, True
        return self._local, False

    def lease_answered(self, request: Request, answer: Any) -> None:
        """Granted, sent on, rejected, cancelled, or the raylet is gone."""
        entry, kind = request.entry, answer.__class__
        if kind is LeaseGranted:
            self._end_request(request)
            now_ns = self._clock.now + self.core.lead_ns
            lease = Lease(entry, answer, now_ns + self._timeout_ns)
            entry.leases[lease.lease_id] = lease
            self.worker_idle(lease, exiting=False)
        elif kind is not LeaseCancelled and not entry.queue:
            self._end_request(request)
            self._forget(entry)  # what it was for has been cancelled meanwhile
        elif kind is LeaseSpillback:
            self._ask(request, answer.node_id, grant_or_reject=True)
        elif kind is LeaseRejected:
            node_id, by_locality = self._policy(entry)
            self._ask(request, node_id, grant_or_reject=False, by_locality=by_locality)
        elif kind is LeaseCancelled:
            self._end_request(request)
            error_type = _CANCELLED_AS.get(answer.failure)
            if error_type is not None:
                self._fail_all(entry, TaskError(error_type, answer.message))
            if entry.queue:
                self.request_if_needed(entry)
            else:
                self._forget(entry)
        else:
            assert isinstance(answer, Failure), f"{self.core.address}: {answer} for a lease"
            if request.node_id != self._local:
                self._ask(request, self._local, grant_or_reject=False)
                return
            self._end_request(request)
            if self.core.kind == "DRIVER":
                self._fail_all(entry, TaskError("LOCAL_RAYLET_DIED"))
            else:
                self.core.exit("its raylet died", intended=False)

    def _end_request(self, request: Request) -> None:
        request.ended = True
        del request.entry.requests[request.lease_id]

    def _fail_all(self, entry: SchedulingKey, error: TaskError) -> None:
        queue, entry.queue = entry.queue, deque()
        for task in queue:
            self.core.tasks.finish(task, error._replace(task_id=task.spec.task_id))

    def _look(self, entry: SchedulingKey) -> None:
        """After a queue got shorter otherwise than by a push."""
        if entry.queue:
            self.request_if_needed(entry)
        else:
            self._cancel_requests(entry)
            self._forget(entry)

    def _cancel_requests(self, entry: SchedulingKey) -> None:
        if not entry.asking:
            return
        entry.asking = False
        for request in entry.requests.values():
            if not request.cancelled:  # the raylet answers the request itself, not the cancel
                request.cancelled = True
                self.core.send(raylet(request.node_id), CancelWorkerLease(request.lease_id))

    def _forget(self, entry: SchedulingKey) -> None:
        """A key with plasma arguments is not met again: keep no empty entry of it."""
        if not (entry.queue or entry.requests or entry.leases) and entry.spec.dependencies:
            self.entries.pop(entry.key, None)

    # Workers

    def worker_idle(self, lease: Lease, exiting: bool) -> None:
        """A worker has been granted, or has answered: next task, or give it back."""
        entry, core = lease.entry, self.core
        queue = entry.queue
        if not queue or exiting or self._clock.now + core.lead_ns >= lease.expiry_ns:
            self.give_back(lease, exiting=exiting)
        else:
            task = queue.popleft()
            lease.task = task
            task.via = lease
            task.state = "pushed"
            if core.log.enabled:
                core.note(
                    "task", task.spec.task_id, "SUBMITTED_TO_WORKER",
                    node_id=lease.worker.node_id, worker_id=lease.worker.worker_id,
                )  # fmt: skip
            core.call(lease.address, push_task(task.spec, lease.resource_ids), lease.then)
            if not queue and entry.asking:
                self._cancel_requests(entry)
        if len(queue) > len(entry.requests):
            self.request_if_needed(entry)

    def give_back(self, lease: Lease, *, exiting: bool = False, failed: bool = False) -> None:
        """Return the worker to its raylet."""
        entry = lease.entry
        if entry.leases.pop(lease.lease_id, None) is None:
            return
        self.core.send(
            raylet(lease.worker.node_id),
            ReturnWorkerLease(lease.lease_id, lease.worker.worker_id, failed, exiting),
        )
        if entry.spec.dependencies:
            self._forget(entry)

    def push_failed(self, lease: Lease, task: PendingTask, cause: Failure) -> None:
        """The worker died with the task: ask its raylet why, and try again if that is allowed."""
        self.give_back(lease, failed=True)
        node_id = lease.worker.node_id
        answer = _FailureCause(self, task, cause, node_id).answered
        if node_id not in self.core.env.view.nodes:
            answer(None)
        else:
            timeout_ms = self.core.config.timeout_ms_task_wait_for_death_info
            self.core.call(
                raylet(node_id), GetWorkerFailureCause(lease.lease_id), answer,
                timeout_ns=timeout_ms * NS_PER_MS,
            )  # fmt: skip
        if lease.entry.queue:
            self.request_if_needed(lease.entry)

    def nodes(self) -> list[NodeID]:
        """Where workers leased by this process are."""
        return [x.worker.node_id for e in self.entries.values() for x in e.leases.values()]

    def node_removed(self, node_id: NodeID, cause: Failure) -> None:
        """Nothing on that node answers any more."""
        for entry in list(self.entries.values()):
            for lease in list(entry.leases.values()):
                if lease.worker.node_id == node_id:
                    lease.replied(cause)

    # Backlog

    def _report_backlog(self, entry: SchedulingKey) -> None:
        backlog = max(0, len(entry.queue) - len(entry.requests))
        if backlog != entry.backlog:
            self._send_backlogs()
        if backlog and self._backlog_timer is None:
            self._arm()

    def _arm(self) -> None:
        core = self.core
        period_ns = core.config.report_worker_backlog_interval_ms * NS_PER_MS
        elapsed_ns = (core.sim.now_ns - core.started_ns) % period_ns
        self._backlog_timer = core.after(period_ns - elapsed_ns, self._backlog_due)

    def _backlog_due(self, _: object) -> None:
        self._backlog_timer = None
        if self._send_backlogs():
            self._arm()

    def _send_backlogs(self) -> bool:
        """Tell the local raylet what waits here; whether anything does."""
        backlogs = []
        for entry in self.entries.values():
            entry.backlog = max(0, len(entry.queue) - len(entry.requests))
            if entry.backlog:
                spec = entry.spec
                backlogs.append((spec.scheduling_class, spec.resources, entry.backlog))
        self.core.send(
            raylet(self._local), ReportWorkerBacklog(self.core.me.worker_id, tuple(backlogs))
        )
        return bool(backlogs)


class _FailureCause:
    """Waits for what the raylet knows of a worker's death."""

    __slots__ = ("cause", "node_id", "submitter", "task")

    def __init__(
        self, submitter: TaskSubmitter, task: PendingTask, cause: Failure, node_id: NodeID
    ) -> None:
        self.submitter = submitter
        self.task = task
        self.cause = cause
        self.node_id = node_id
        task.via = None
        task.state = "retrying"

    def answered(self, answer: Any) -> None:
        core = self.submitter.core
        if self.task.state == "done":
            return
        error, counts = None, self.node_id not in core.calls.preempted
        if isinstance(answer, tuple) and len(answer) == 2 and not isinstance(answer, Failure):
            error, counts = answer
        if error is None:
            lost_node = is_node_failure(self.cause)
            error = TaskError(
                "NODE_DIED" if lost_node else "WORKER_DIED",
                getattr(self.cause, "reason", "no answer"),
                task_id=self.task.spec.task_id,
            )
        core.tasks.fail_or_retry(self.task, error, counts=counts)
