"""What a cluster was doing all along: step functions over virtual time, and where the time went.

One pass over the rows of a state log. Each moment is given to what held the program up then, so
that the parts add up to the run: if something waits for resources, the time belongs to whatever
holds them (running tasks, processes that start, arguments on their way, tasks lost with a node that
nobody has missed yet), in proportion; if nothing waits for resources, to whoever keeps them idle.

Real counterpart: none; people read it off the dashboard's graphs.

Resources are those in use as ``ray status`` counts them: what leases hold, and all that placement
groups reserve, taken or not; a worker that waits in ``ray.get`` gives its CPUs back. Store bytes
count every sealed object in memory, those also spilled as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from raysim.perf.ray_core import RayCosts
from raysim.raycore.ids import NodeID
from raysim.raycore.protocol import LeaseSpec, NodeTableData, PlacementGroupTableData
from raysim.raycore.resources import CPU
from raysim.raycore.state_log import Change
from raysim.raycore.tasks import TaskSpec
from raysim.raystate.moment import ENDED

PARTS = {
    "full": "tasks run, others wait for resources",
    "actors": "calls wait for a busy actor",
    "tasks": "tasks run, nothing else waits",
    "dependencies": "tasks run, others wait for their results",
    "driver": "the driver submits, resources are free",
    "scheduling": "tasks wait for leases, resources are free",
    "cold": "worker processes start",
    "fetch": "arguments are fetched or restored",
    "failure": "tasks are lost, nobody knows it yet",
    "infeasible": "tasks wait for resources that no node has",
    "ray": "results, messages and other parts of Ray",
    "own": "the driver's own code",
    "to_come": "no driver runs: pods start, jobs come",
    "startup": "ray.init: the first processes start",
}
"""Parts of the run, by key."""

_LEASE = {
    "PENDING_RESOURCES": "full", "PENDING_CLASS_CAP": "full", "INFEASIBLE": "infeasible",
    "PENDING_WORKER": "cold", "PENDING_ARGS": "fetch", "PENDING_ARG_MEMORY": "fetch",
}  # fmt: skip
_TASK = {
    "PENDING_ARGS_AVAIL": "dependencies", "PENDING_NODE_ASSIGNMENT": "queued",
    "SUBMITTED_TO_WORKER": "pushed", "PENDING_ACTOR_TASK_ARGS_FETCH": "fetch",
    "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY": "actors", "RUNNING": "running",
    "GETTING_AND_PINNING_ARGS": "fetch", "RUNNING_IN_RAY_GET": "blocked",
    "RUNNING_IN_RAY_WAIT": "blocked",
}  # fmt: skip
_HOLDS = ("PENDING_WORKER", "GRANTED")
"""States of a lease that hold resources."""

_LOOKED_AT_NS = 50_000_000
_INIT_NS = 20_000_000  # who calls ``ray.init`` within it has begun with it

Steps = list[tuple[int, float]]
"""(when, value from then on)."""


class Series:
    """One quantity over time."""

    __slots__ = ("integral", "peak", "peak_ns", "since_ns", "steps", "value")

    def __init__(self) -> None:
        self.steps: Steps = []
        self.value = 0.0
        self.peak = 0.0
        self.peak_ns = 0
        self.integral = 0.0
        """Value times nanoseconds, up to ``since_ns``."""
        self.since_ns = 0

    def add(self, delta: float, t_ns: int) -> None:
        """It changes."""
        self.integral += self.value * (t_ns - self.since_ns)
        self.since_ns = t_ns
        self.value += delta
        if self.steps and self.steps[-1][0] == t_ns:
            self.steps[-1] = (t_ns, self.value)
        else:
            self.steps.append((t_ns, self.value))
        if self.value > self.peak:
            self.peak, self.peak_ns = self.value, t_ns

    def total(self, end_ns: int) -> float:
        """Value times nanoseconds of the whole run."""
        return self.integral + self.value * (end_ns - self.since_ns)


class Activity:
    """Everything of one run.

    Parameters
    ----------
    rows
        Of the state log, by time.
    end_ns
        The end of the run; later rows are left out.
    lost
        Nodes that fall silent, and when: what runs there is lost from then on.
    costs
        Service times, for how long a submission takes.
    submitted
        Drivers are those of submitted jobs: before and between them there is none.
    """

    def __init__(
        self,
        rows: Iterable[Change],
        end_ns: int,
        *,
        lost: Iterable[tuple[int, NodeID]] = (),
        costs: RayCosts | None = None,
        submitted: bool = False,
    ) -> None:
        self.end_ns = end_ns
        self.parts_ns: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self.held: dict[tuple[NodeID, str], Series] = {}
        """Units of a resource that leases and placement groups hold."""
        self.running: dict[NodeID, Series] = {}
        """Tasks that run."""
        self.store: dict[NodeID, Series] = {}
        """Bytes of objects in shared memory."""
        self.disk: dict[NodeID, Series] = {}
        """Bytes of spilled objects."""
        self.up: dict[NodeID, Series] = {}
        """1 while the node is alive."""
        self.total: dict[NodeID, Mapping[str, int]] = {}
        """Resources of each node, in steps."""
        self.spilled_bytes = 0
        self.restored_bytes = 0
        self.fallback_bytes = 0
        self.transfers: dict[tuple[NodeID, NodeID], list[float]] = {}
        """(from, to): objects and bytes."""
        self.submitting_ns = 0
        """Time the drivers' threads spent in ``.remote()``."""
        self._count = dict.fromkeys((*_TASK.values(), *_LEASE.values(), "running", "lost"), 0)
        self._tasks: dict[int, tuple[str, NodeID]] = {}
        self._calls: dict[int, None] = {}
        """Tasks of actors."""
        self._leases: dict[int, tuple[str, NodeID, LeaseSpec | None, int]] = {}
        self._groups: dict[int, PlacementGroupTableData] = {}
        self._of_worker: dict[int, int] = {}
        self._blocked: dict[int, None] = {}
        self._sizes: dict[int, int] = {}
        self._where: dict[int, dict[NodeID, str]] = {}
        self._fallback: dict[int, None] = {}
        self._restored: dict[tuple[int, NodeID], None] = {}
        self._silent: dict[NodeID, None] = {}
        self._now_ns = 0
        self._started = False
        self._submitted = submitted
        self._drivers: dict[int, None] = {}
        kept = [row for row in rows if row.t_ns <= end_ns]
        self._init_ns = _init_ns(kept, end_ns)
        self._waits = _wait_for_arguments(kept, end_ns)
        self._busy = _submissions(kept, costs or RayCosts())
        self._busy_at = 0
        self.submitting_ns = sum(b - a for a, b in self._busy)
        self._play(kept, sorted(lost))

    def _play(self, rows: Sequence[Change], lost: list[tuple[int, NodeID]]) -> None:
        fold = {"task": self._task, "lease": self._lease, "object": self._object,
                "node": self._node, "worker": self._worker, "job": self._job,
                "placement_group": self._placement_group}  # fmt: skip
        for row in rows:
            while lost and lost[0][0] <= row.t_ns:
                t_ns, node_id = lost.pop(0)
                self._advance(t_ns)
                self._lose(node_id)
            self._advance(row.t_ns)
            handler = fold.get(row.kind)
            if handler is not None:
                handler(row)
        self._advance(self.end_ns)

    # ---- where the time goes

    def _advance(self, t_ns: int) -> None:
        """Give the time since the last change to what held the program up."""
        if t_ns <= self._now_ns:
            return
        submitting = self._submitting(self._now_ns, t_ns)
        if submitting:
            self._spend(submitting, submitting=True)
        if t_ns - self._now_ns > submitting:
            self._spend(t_ns - self._now_ns - submitting, submitting=False)
        self._now_ns = t_ns

    def _submitting(self, a_ns: int, b_ns: int) -> int:
        """How much of an interval the drivers spend in ``.remote()``."""
        spent, busy = 0, self._busy
        while self._busy_at < len(busy) and busy[self._busy_at][0] < b_ns:
            first, last = busy[self._busy_at]
            spent += max(0, min(last, b_ns) - max(first, a_ns))
            if last > b_ns:
                break
            self._busy_at += 1
        return spent

    def _spend(self, ns: int, *, submitting: bool) -> None:
        count, parts = self._count, self.parts_ns
        active = count["running"] + count["cold"] + count["fetch"] + count["lost"]
        if active:
            parts["cold"] += ns * count["cold"] / active
            parts["fetch"] += ns * count["fetch"] / active
            parts["failure"] += ns * count["lost"] / active
            parts[self._while_running(submitting)] += ns * count["running"] / active
        elif submitting:
            parts["driver"] += ns
        elif count["full"]:
            parts["full"] += ns
        elif count["infeasible"]:
            parts["infeasible"] += ns
        elif self._tasks:
            parts["ray"] += ns
        else:
            starts = self._init_ns <= self._now_ns and not self._started
            idle = "to_come" if self._submitted and not self._drivers else "own"
            parts["startup" if starts else idle] += ns

    def _while_running(self, submitting: bool) -> str:
        """What keeps more from running."""
        count = self._count
        if count["full"]:
            return "full"
        if count["actors"] > count["running"]:
            return "actors"
        if count["queued"] > count["running"]:
            return "scheduling"
        if submitting:
            return "driver"
        return "dependencies" if count["dependencies"] else "tasks"

    # ---- one method per kind of row

    def _task(self, row: Change) -> None:
        self._drop_task(row.number, row.t_ns)
        if row.state in ENDED:
            return
        kind = self._kind(row)
        self._tasks[row.number] = (kind, row.node_id)
        self._count[kind] += 1
        if kind == "running":
            _of(self.running, row.node_id).add(1, row.t_ns)

    def _kind(self, row: Change) -> str:
        """What a task in this state does, or waits for."""
        number, spec = row.number, row.detail
        if isinstance(spec, TaskSpec) and spec.kind == "ACTOR_TASK":
            self._calls[number] = None
        kind = _TASK.get(row.state, "pushed")
        if kind == "running" and row.node_id in self._silent:
            return "lost"
        if kind == "pushed" and number in self._calls:
            return "actors"
        waits = kind != "dependencies" or number in self._waits
        return kind if waits else "pushed"

    def _job(self, row: Change) -> None:
        self._started = True
        if row.state == "FINISHED":
            self._drivers.pop(row.number, None)
        else:
            self._drivers[row.number] = None

    def _drop_task(self, number: int, t_ns: int) -> None:
        before = self._tasks.pop(number, None)
        if before is not None:
            self._count[before[0]] -= 1
            if before[0] == "running":
                _of(self.running, before[1]).add(-1, t_ns)

    def _lease(self, row: Change) -> None:
        spec = row.detail if isinstance(row.detail, LeaseSpec) else None
        before = self._leases.get(row.number)
        self._drop_lease(row.number, row.t_ns)
        if spec is None and before is not None:
            spec = before[2]
        if row.state not in _LEASE and row.state != "GRANTED":
            return
        self._leases[row.number] = (row.state, row.node_id, spec, row.worker_id)
        if row.state in _LEASE:
            self._count[_LEASE[row.state]] += 1
        if row.state in _HOLDS and spec is not None:
            self._hold(row.node_id, spec.options.resources.units, 1, row.t_ns)
        if row.state == "GRANTED" and row.worker_id:
            self._of_worker[row.worker_id] = row.number

    def _drop_lease(self, number: int, t_ns: int) -> None:
        before = self._leases.pop(number, None)
        if before is None:
            return
        state, node_id, spec, worker_id = before
        if state in _LEASE:
            self._count[_LEASE[state]] -= 1
        if worker_id in self._blocked:
            self._unblock(worker_id, spec, node_id, t_ns)
        self._of_worker.pop(worker_id, None)
        if state in _HOLDS and spec is not None:
            self._hold(node_id, spec.options.resources.units, -1, t_ns)

    def _hold(self, node_id: NodeID, units: Mapping[str, int], sign: int, t_ns: int) -> None:
        for name, n in units.items():
            if "_group_" not in name:  # a placement group holds those already
                _of(self.held, (node_id, name)).add(sign * n, t_ns)

    def _placement_group(self, row: Change) -> None:
        """Bundles hold their resources for as long as they have a node."""
        before = self._groups.pop(row.number, None)
        if before is not None:
            self._reserve(before, -1, row.t_ns)
        if row.state != "REMOVED" and isinstance(row.detail, PlacementGroupTableData):
            self._groups[row.number] = row.detail
            self._reserve(row.detail, 1, row.t_ns)

    def _reserve(self, group: PlacementGroupTableData, sign: int, t_ns: int) -> None:
        for bundle, node_id in zip(group.bundles, group.nodes, strict=True):
            if node_id >= 0:
                self._hold(node_id, bundle.resources.units, sign, t_ns)

    def _unblock(self, worker_id: int, spec: Any, node_id: NodeID, t_ns: int) -> None:
        del self._blocked[worker_id]
        cpus = spec.options.resources.units.get(CPU, 0) if spec is not None else 0
        if cpus:
            _of(self.held, (node_id, CPU)).add(cpus, t_ns)

    def _worker(self, row: Change) -> None:
        lease = self._of_worker.get(row.number)
        if lease is None:
            return
        _state, node_id, spec, _worker = self._leases[lease]
        if row.state == "DEAD":
            self._drop_lease(lease, row.t_ns)
        elif row.state == "BLOCKED" and row.number not in self._blocked:
            self._blocked[row.number] = None
            cpus = spec.options.resources.units.get(CPU, 0) if spec is not None else 0
            if cpus:
                _of(self.held, (node_id, CPU)).add(-cpus, row.t_ns)
        elif row.state != "BLOCKED" and row.number in self._blocked:
            self._unblock(row.number, spec, node_id, row.t_ns)

    def _node(self, row: Change) -> None:
        up = _of(self.up, row.number)
        if row.state == "DEAD":
            self._gone(row.number, row.t_ns)
            if up.value:
                up.add(-1, row.t_ns)
        elif row.state == "ALIVE":
            self._silent.pop(row.number, None)
            if not up.value:
                up.add(1, row.t_ns)
            if isinstance(row.detail, NodeTableData):
                self.total[row.number] = row.detail.resources

    def _gone(self, node_id: NodeID, t_ns: int) -> None:
        """What a dead node held."""
        for number, (_, where, _, _) in list(self._leases.items()):
            if where == node_id:
                self._drop_lease(number, t_ns)
        for number, nodes in self._where.items():
            for how in list(nodes.pop(node_id, "")):
                series = self.store if how == "m" else self.disk
                _of(series, node_id).add(-self._sizes.get(number, 0), t_ns)

    def _lose(self, node_id: NodeID) -> None:
        """A node falls silent."""
        t_ns = self._now_ns
        self._silent[node_id] = None
        for number, (kind, where) in list(self._tasks.items()):
            if where == node_id and kind in {"running", "fetch", "blocked"}:
                self._drop_task(number, t_ns)
                self._tasks[number] = ("lost", node_id)
                self._count["lost"] += 1
        for number, (state, where, _, _) in list(self._leases.items()):
            if where == node_id and state in _LEASE:
                self._drop_lease(number, t_ns)

    # ---- objects: "m" in memory, "d" on disk, of each node

    def _object(self, row: Change) -> None:
        number, node_id, state = row.number, row.node_id, row.state
        if node_id < 0:
            return
        if isinstance(row.detail, tuple) and row.detail:
            self._sizes[number] = row.detail[0]
        size = self._sizes.get(number, 0)
        if state == "FALLBACK":
            self._fallback[number] = None
        elif state in {"CREATED", "COPY"}:
            self._sealed(row, size)
        elif state == "RESTORED":
            self._restored[number, node_id] = None
            self.restored_bytes += size
        elif state == "SPILLED":
            self.spilled_bytes += size
            self._put(number, node_id, "d", size, row.t_ns)
        elif state == "EVICTED":
            self._take(number, node_id, "m", size, row.t_ns)
        elif state in {"FREED", "LOST"}:
            self._take(number, node_id, "m", size, row.t_ns)
            self._take(number, node_id, "d", size, row.t_ns)

    def _sealed(self, row: Change, size: int) -> None:
        number, node_id = row.number, row.node_id
        restored = self._restored.pop((number, node_id), 0) is None
        if row.state == "COPY" and not restored:
            others = [n for n, how in self._where.get(number, {}).items() if how and n != node_id]
            source = others[0] if others else -1
            moved = self.transfers.setdefault((source, node_id), [0, 0])
            moved[0] += 1
            moved[1] += size
        if self._fallback.pop(number, 0) is None:
            self.fallback_bytes += size
            return
        self._put(number, node_id, "m", size, row.t_ns)

    def _put(self, number: int, node_id: NodeID, how: str, size: int, t_ns: int) -> None:
        nodes = self._where.setdefault(number, {})
        if how not in nodes.get(node_id, ""):
            nodes[node_id] = nodes.get(node_id, "") + how
            _of(self.store if how == "m" else self.disk, node_id).add(size, t_ns)

    def _take(self, number: int, node_id: NodeID, how: str, size: int, t_ns: int) -> None:
        nodes = self._where.get(number, {})
        if how in nodes.get(node_id, ""):
            nodes[node_id] = nodes[node_id].replace(how, "")
            _of(self.store if how == "m" else self.disk, node_id).add(-size, t_ns)


def _init_ns(rows: Sequence[Change], end_ns: int) -> int:
    """When ``ray.init`` began: the node's first processes start; the end, if it never did."""
    first = next((row for row in rows if row.kind in ("worker", "job")), None)
    began_ns = end_ns if first is None else first.t_ns
    return 0 if began_ns <= _INIT_NS or (first and first.kind == "job") else began_ns


def _wait_for_arguments(rows: Sequence[Change], end_ns: int) -> dict[int, None]:
    """Tasks that are in PENDING_ARGS_AVAIL longer than Ray takes to look at arguments.

    Arguments cannot be asked: references to small values become the values.
    """
    since: dict[int, int] = {}
    found: dict[int, None] = {}
    for row in rows:
        if row.kind != "task":
            continue
        begun_ns = since.pop(row.number, row.t_ns)
        if row.t_ns - begun_ns > _LOOKED_AT_NS:
            found[row.number] = None
        if row.state == "PENDING_ARGS_AVAIL":
            since[row.number] = row.t_ns
    return found | {n: None for n, t_ns in since.items() if end_ns - t_ns > _LOOKED_AT_NS}


def _of(series: dict[Any, Series], key: Any) -> Series:
    found = series.get(key)
    if found is None:
        found = series[key] = Series()
    return found


def _submissions(rows: Sequence[Change], costs: RayCosts) -> list[tuple[int, int]]:
    """When the drivers' threads are in ``.remote()``: intervals that do not overlap, in order.

    A program ahead of the clock writes several rows at one instant: their calls follow each other.
    """
    drivers = {row.worker_id for row in rows if row.kind == "job"}
    spans: list[tuple[int, int]] = []
    seen: dict[int, None] = {}
    for row in rows:
        if row.kind != "task" or row.state != "PENDING_ARGS_AVAIL" or row.number in seen:
            continue
        seen[row.number] = None
        spec = row.detail
        if not isinstance(spec, TaskSpec) or spec.caller.worker_id not in drivers:
            continue
        taken = costs.submit_actor_task_ns if spec.kind == "ACTOR_TASK" else costs.submit_task_ns
        begun = max(0, row.t_ns - taken, spans[-1][1] if spans else 0)
        spans.append((begun, begun + taken))
    return spans
