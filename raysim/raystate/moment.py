"""The cluster at one virtual moment, folded from the rows of a state log.

Real counterpart: what the GCS task manager, the actor, node, worker and placement group tables and
the owners' reference tables would answer to ``ray list ...`` at that moment (without the second or
so that real task events need to get there). A row of ``ray list tasks`` is one attempt of a task.

A moment can also be made of the GCS's own tables (``of_tables``): what a program is answered.

Not modelled: Ray's limits on what it remembers (100,000 tasks, 1,000 dead nodes).
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from raysim.kernel.simulation import collector_at_ease
from raysim.raycore.ids import (
    NodeID,
    ObjectID,
    TaskID,
    WorkerAddress,
    WorkerID,
    index_of,
    task_of,
)
from raysim.raycore.protocol import (
    ActorTableData,
    LeaseSpec,
    NodeTableData,
    PlacementGroupTableData,
)
from raysim.raycore.state_log import Change
from raysim.raycore.tasks import TaskError, TaskSpec

ENDED = frozenset({"FINISHED", "FAILED"})
LEASE_ENDED = frozenset({"RETURNED", "CANCELLED", "REJECTED", "SPILLED_BACK"})
"""Nothing waits any more under this request; after the last two its owner sends another."""

IN_MEMORY = frozenset({"CREATED", "COPY", "RESTORED"})


class TaskAttempt:
    """One attempt of a task."""

    __slots__ = ("attempt", "error", "events", "node_id", "spec", "state", "task_id", "worker_id")

    def __init__(self, task_id: TaskID, attempt: int, spec: TaskSpec | None) -> None:
        self.task_id = task_id
        self.attempt = attempt
        """From 0. Counted here: ``spec.attempt`` is the last one's."""
        self.spec = spec
        self.state = "NIL"
        self.node_id: NodeID = -1
        self.worker_id: WorkerID = 0
        self.error: TaskError | None = None
        self.events: list[tuple[str, int]] = []
        """(state, when) in order."""

    @property
    def since_ns(self) -> int:
        """When it came into the state it is in."""
        return self.events[-1][1]

    def first_ns(self, state: str) -> int | None:
        """When it first came into a state."""
        return next((t for name, t in self.events if name == state), None)

    @property
    def end_ns(self) -> int | None:
        """When it finished or failed."""
        return self.since_ns if self.state in ENDED else None


class ObjectEntry:
    """An object: who owns it and where it is."""

    __slots__ = ("copies", "created_ns", "fallback", "inline", "lost", "owner", "size_bytes",
                 "spilled")  # fmt: skip

    def __init__(self) -> None:
        self.size_bytes = -1
        self.owner: WorkerAddress | None = None
        self.copies: dict[NodeID, bool] = {}
        """Nodes that hold it in memory; True: the primary copy."""
        self.spilled: dict[NodeID, None] = {}
        """Nodes on whose disks it lies."""
        self.fallback = False
        self.inline = False
        """In its owner's memory store."""
        self.lost = False
        self.created_ns = 0

    @property
    def there(self) -> bool:
        """Whether a value exists somewhere."""
        return self.inline or bool(self.copies) or bool(self.spilled)


class WorkerEntry:
    """A worker process, driver or IO worker."""

    __slots__ = ("end_ns", "exit_detail", "launch_ns", "node_id", "ready_ns", "state",
                 "worker_id", "worker_type")  # fmt: skip

    def __init__(self, worker_id: WorkerID, node_id: NodeID, worker_type: str) -> None:
        self.worker_id = worker_id
        self.node_id = node_id
        self.worker_type = worker_type
        self.state = "IDLE"
        self.launch_ns = -1
        """When its process was asked for; -1: not by a raylet (a driver)."""
        self.ready_ns = -1
        self.end_ns = -1
        self.exit_detail = ""


class NodeEntry:
    """A node of the cluster."""

    __slots__ = ("available", "data", "end_ns", "idle_since_ns", "node_id", "start_ns", "state",
                 "total")  # fmt: skip

    def __init__(self, node_id: NodeID, t_ns: int) -> None:
        self.node_id = node_id
        self.state = "ALIVE"
        self.data: NodeTableData | None = None
        self.total: Mapping[str, int] = {}
        self.available: Mapping[str, int] = {}
        """As last published: what others know."""
        self.start_ns = t_ns
        self.end_ns = -1
        self.idle_since_ns = t_ns
        """-1 while anything is in use."""

    @property
    def alive(self) -> bool:
        """Draining nodes are alive."""
        return self.state != "DEAD"


class LeaseEntry:
    """A request for a worker, where it is and how it stands."""

    __slots__ = ("lease_id", "node_id", "since_ns", "spec", "start_ns", "state", "worker_id")

    def __init__(self, lease_id: int, spec: LeaseSpec | None, t_ns: int) -> None:
        self.lease_id = lease_id
        self.spec = spec
        self.state = ""
        self.node_id: NodeID = -1
        self.worker_id: WorkerID = 0
        self.start_ns = t_ns
        self.since_ns = t_ns


class Timed(NamedTuple):
    """A table row of the GCS, since when it has its state, and its first time."""

    data: Any
    state: str
    since_ns: int
    start_ns: int


class Moment:
    """Everything the log says about time ``t_ns``."""

    def __init__(self, t_ns: int) -> None:
        self.t_ns = t_ns
        self.attempts: list[TaskAttempt] = []
        """In order of submission."""
        self.tasks: dict[TaskID, TaskAttempt] = {}
        """The latest attempt of each."""
        self.objects: dict[ObjectID, ObjectEntry] = {}
        """Those that exist, or are lost and still referred to."""
        self._let_go: set[ObjectID] = set()
        """What its owner needed no more before anybody had heard of it."""
        self.workers: dict[WorkerID, WorkerEntry] = {}
        self.nodes: dict[NodeID, NodeEntry] = {}
        self.leases: dict[int, LeaseEntry] = {}
        self.actors: dict[int, Timed] = {}
        self.placement_groups: dict[int, Timed] = {}
        self.jobs: dict[int, Timed] = {}

    # one method per kind of row

    def task(self, row: Change) -> None:
        """A new attempt, or a new state of the latest one."""
        entry = self.tasks.get(row.number)
        if entry is None or row.state == "PENDING_ARGS_AVAIL":
            if entry is not None and entry.state not in ENDED:
                # An owner that tries again has given the attempt up: TaskManager marks it FAILED.
                entry.state = "FAILED"
                entry.events.append(("FAILED", row.t_ns))
            spec = row.detail if isinstance(row.detail, TaskSpec) else entry and entry.spec
            entry = TaskAttempt(row.number, entry.attempt + 1 if entry else 0, spec or None)
            self.tasks[row.number] = entry
            self.attempts.append(entry)
        elif entry.state in ENDED:
            return  # an actor restarts: its creation stays what it was, as in Ray's task events
        entry.state = row.state
        entry.events.append((row.state, row.t_ns))
        if row.node_id >= 0:
            entry.node_id = row.node_id
        if row.worker_id:
            entry.worker_id = row.worker_id
        if row.state == "FAILED" and isinstance(row.detail, TaskError):
            entry.error = row.detail

    def object(self, row: Change) -> None:
        """A copy more or less."""
        if row.state == "FREED":
            self._freed(row)
            return
        if row.state == "INLINE" and row.number in self._let_go:
            return  # a reply is handled ahead of the clock, and the program lets go of it at once
        entry = self.objects.get(row.number)
        if entry is None:
            entry = self.objects[row.number] = ObjectEntry()
            entry.created_ns = row.t_ns
        if isinstance(row.detail, tuple) and row.state in {"CREATED", "INLINE", "COPY", "FALLBACK"}:
            entry.size_bytes, entry.owner = row.detail[0], row.detail[1]
        if row.state == "INLINE":
            entry.inline, entry.lost = True, False
        elif row.state in IN_MEMORY:
            primary = row.state != "COPY" and not (row.detail and row.detail[-1] is False)
            entry.copies[row.node_id] = primary or entry.copies.get(row.node_id, False)
            entry.lost = False
        elif row.state == "SPILLED":
            entry.copies.pop(row.node_id, None)
            entry.spilled[row.node_id] = None
        elif row.state == "EVICTED":
            entry.copies.pop(row.node_id, None)
        elif row.state == "FALLBACK":
            entry.fallback = True
        elif row.state == "LOST":
            entry.copies.clear()
            entry.spilled.clear()
            entry.lost = True

    def _freed(self, row: Change) -> None:
        """A node's copy is gone, or (of no node in particular, or the last one) the object."""
        entry = self.objects.get(row.number)
        if entry is None:
            if row.node_id < 0:
                self._let_go.add(row.number)
            return
        if row.node_id >= 0 and not entry.inline:
            entry.copies.pop(row.node_id, None)
            entry.spilled.pop(row.node_id, None)
            if entry.there:
                return
        del self.objects[row.number]

    def worker(self, row: Change) -> None:
        """A process starts, works or ends."""
        entry = self.workers.get(row.number)
        if entry is None:
            kind = getattr(row.detail, "worker_type", row.detail)
            known = kind in {"DRIVER", "SPILL_WORKER", "RESTORE_WORKER"}
            entry = WorkerEntry(row.number, row.node_id, kind if known else "WORKER")
            self.workers[row.number] = entry
        if row.state == "STARTING":
            entry.launch_ns = row.t_ns
        elif entry.ready_ns < 0 and row.state != "DEAD":
            entry.ready_ns = row.t_ns
        if row.state == "DEAD":
            entry.end_ns = row.t_ns
            entry.exit_detail = str(row.detail or "")
        entry.state = row.state

    def node(self, row: Change) -> None:
        """A node's state, or its resources as published."""
        entry = self.nodes.get(row.number)
        if entry is None:
            entry = self.nodes[row.number] = NodeEntry(row.number, row.t_ns)
        if row.state == "RESOURCES":
            entry.total, entry.available = row.detail
            busy = any(entry.available.get(name, 0) != n for name, n in entry.total.items())
            if busy:
                entry.idle_since_ns = -1
            elif entry.idle_since_ns < 0:
                entry.idle_since_ns = row.t_ns
            return
        if row.state == "ALIVE" and entry.state == "DEAD":
            entry.start_ns, entry.end_ns = row.t_ns, -1
        entry.state = row.state
        if isinstance(row.detail, NodeTableData):
            entry.data = row.detail
            if not entry.total:
                entry.total, entry.available = row.detail.resources, row.detail.available
        if row.state == "DEAD":
            entry.end_ns = row.t_ns
            for thing in self.objects.values():
                thing.copies.pop(row.number, None)
                thing.spilled.pop(row.number, None)
            for worker in self.workers.values():
                if worker.node_id == row.number and worker.state != "DEAD":
                    worker.state, worker.end_ns = "DEAD", row.t_ns
                    worker.exit_detail = "Its node is dead."

    def lease(self, row: Change) -> None:
        """A request moves on."""
        entry = self.leases.get(row.number)
        if entry is None:
            spec = row.detail if isinstance(row.detail, LeaseSpec) else None
            entry = self.leases[row.number] = LeaseEntry(row.number, spec, row.t_ns)
        elif entry.spec is None and isinstance(row.detail, LeaseSpec):
            entry.spec = row.detail
        if row.state != entry.state:
            entry.since_ns = row.t_ns
        entry.state = row.state
        if row.node_id >= 0:
            entry.node_id = row.node_id
        if row.worker_id:
            entry.worker_id = row.worker_id

    def actor(self, row: Change) -> None:
        """A row of the actor table."""
        self._table(self.actors, row, ActorTableData)

    def placement_group(self, row: Change) -> None:
        """A row of the placement group table."""
        self._table(self.placement_groups, row, PlacementGroupTableData)

    def job(self, row: Change) -> None:
        """A job starts or ends."""
        self._table(self.jobs, row, object)

    @staticmethod
    def _table(table: dict[int, Timed], row: Change, kind: type) -> None:
        before = table.get(row.number)
        usable = isinstance(row.detail, kind) and row.detail is not None
        data = row.detail if usable else before and before.data
        since = before.since_ns if before and before.state == row.state else row.t_ns
        start = before.start_ns if before else row.t_ns
        table[row.number] = Timed(data, row.state, since, start)


def in_order(rows: Iterable[Change]) -> list[Change]:
    """Rows by time; those of one instant as they were written.

    A program ahead of the clock writes rows ahead of the clock, so a log is not quite sorted.
    """
    return sorted(rows, key=lambda row: row.t_ns)


def moment(rows: Iterable[Change], t_ns: int | None = None) -> Moment:
    """The cluster just after everything of ``t_ns`` has happened; None: at the end of the log."""
    with collector_at_ease():
        return _folded(in_order(rows), t_ns)


def _folded(ordered: list[Change], t_ns: int | None) -> Moment:
    if t_ns is None:
        t_ns = ordered[-1].t_ns if ordered else 0
    else:
        del ordered[bisect.bisect_right(ordered, t_ns, key=lambda row: row.t_ns) :]
    now = Moment(t_ns)
    fold = {
        "task": now.task, "actor": now.actor, "object": now.object, "worker": now.worker,
        "node": now.node, "placement_group": now.placement_group, "lease": now.lease,
        "job": now.job,
    }  # fmt: skip
    for row in ordered:
        fold[row.kind](row)
    _add_processes(now)
    return now


def of_tables(
    t_ns: int,
    *,
    nodes: Iterable[NodeTableData] = (),
    actors: Iterable[ActorTableData] = (),
    placement_groups: Iterable[PlacementGroupTableData] = (),
) -> Moment:
    """What rows of the GCS's tables say; when actors and groups came to be so they do not."""
    now = Moment(t_ns)
    for row in nodes:
        entry = now.nodes[row.node_id] = NodeEntry(row.node_id, row.start_ns)
        entry.state, entry.data, entry.end_ns = row.state, row, row.end_ns
        entry.total, entry.available = row.resources, row.available
    now.actors = {row.actor_id: Timed(row, row.state, 0, 0) for row in actors}
    now.placement_groups = {row.group: Timed(row, row.state, 0, 0) for row in placement_groups}
    return now


def maker_of(now: Moment, number: ObjectID) -> TaskAttempt | None:
    """The task that returns the object; None if it was put."""
    attempt = now.tasks.get(task_of(number))
    if attempt is None or attempt.spec is None:
        return None
    returns = attempt.spec.options.num_returns
    return attempt if not isinstance(returns, int) or index_of(number) <= returns else None


def _add_processes(now: Moment) -> None:
    """Processes that no raylet has started: drivers; workers all the same if they run tasks."""
    for job in now.jobs.values():
        driver = getattr(job.data, "driver", None)
        if isinstance(driver, WorkerAddress):
            _add_driver(now, driver, job, job.start_ns)
    for attempt in now.attempts:
        number = attempt.worker_id
        if number and number not in now.workers:
            entry = now.workers[number] = WorkerEntry(number, attempt.node_id, "WORKER")
            entry.ready_ns = attempt.events[0][1]
    for attempt in now.attempts:
        spec = attempt.spec
        if spec is not None and spec.caller.worker_id not in now.workers:
            _add_driver(now, spec.caller, now.jobs.get(spec.job_id), attempt.events[0][1])


def _add_driver(now: Moment, driver: WorkerAddress, job: Timed | None, seen_ns: int) -> None:
    entry = now.workers.get(driver.worker_id)
    if entry is None:
        entry = WorkerEntry(driver.worker_id, driver.node_id, "DRIVER")
        entry.ready_ns = job.start_ns if job else seen_ns
        now.workers[driver.worker_id] = entry
    entry.worker_type = "DRIVER"
    if job is not None and job.state == "FINISHED" and entry.state != "DEAD":
        entry.state, entry.end_ns = "DEAD", job.since_ns
        entry.exit_detail = "The driver has finished."
