"""A run as slices, arrows, counters and instants: node > worker > what it did, for Perfetto.

Real counterpart: the trace that ``ray timeline`` writes, which has the slices alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from raysim.kernel.record import ColumnRecorder, Track
from raysim.kernel.simulation import collector_at_ease
from raysim.perf.ray_core import RayCosts
from raysim.raycore.ids import NodeID, ObjectID, TaskID, hex_id
from raysim.raycore.resources import UNIT
from raysim.raycore.state_log import Change
from raysim.raystate.moment import ENDED, Moment, TaskAttempt, in_order, moment
from raysim.raystate.names import node_name, task_name
from raysim.raystate.timeline import slices, thread
from raysim.results.ray.activity import Activity, Series

CLUSTER: Track = ("cluster",)
OBJECTS = "objects"
"""Track of each node on which copies of objects begin and arrive."""


def records(
    rows: Iterable[Change],
    *,
    end_ns: int | None = None,
    lost: Iterable[tuple[int, NodeID]] = (),
    costs: RayCosts | None = None,
) -> ColumnRecorder:
    """The run for ``results.traces``: node > worker > slices.

    Arrows go from each call of ``.remote()`` to the task it began, and from where an object was
    made to where it was copied. Counters are those of `Activity` per node, and of the cluster how
    many tasks are in which state; instants are failures, retries, spills and dead nodes.

    Parameters
    ----------
    rows, end_ns
        Of the state log, and the end of the run; None: the last row's.
    lost
        Nodes that fall silent, and when.
    costs
        Service times, for how long a submission takes.
    """
    with collector_at_ease():
        ordered = in_order(rows)
        last_ns = ordered[-1].t_ns if ordered else 0
        return _recorded(ordered, last_ns if end_ns is None else end_ns, lost, costs or RayCosts())


def _recorded(
    ordered: list[Change], end_ns: int, lost: Iterable[tuple[int, NodeID]], costs: RayCosts
) -> ColumnRecorder:
    now = moment(ordered, end_ns)
    recorder = ColumnRecorder()
    flows = _task_slices(now, costs, recorder)
    _transfers(ordered, recorder, flows)
    _node_counters(Activity(ordered, end_ns, lost=lost, costs=costs), recorder)
    _task_counters(ordered, recorder)
    _instants(ordered, recorder)
    _task_instants(now, recorder)
    return recorder


def _task_slices(now: Moment, costs: RayCosts, recorder: ColumnRecorder) -> int:
    """What ``ray timeline`` draws; how many arrows there are."""
    flows: dict[TaskID, int] = {}
    for part in slices(now, costs):
        attempt = part.attempt
        args: dict[str, Any] = {"task_id": hex_id("task", attempt.task_id)}
        if part.category == "submit_task":
            if attempt.first_ns("RUNNING") is not None:
                args["flow"] = flows[attempt.task_id] = len(flows) + 1
        elif part.category.startswith("task::"):
            args |= _arguments(attempt)
            if not attempt.attempt and attempt.task_id in flows:
                args["flow"] = flows[attempt.task_id]
        track = (node_name(part.node_id), thread(now, part.worker_id))
        recorder.span(track, part.name, part.category, part.start_ns, part.end_ns, args)
    return len(flows)


def _arguments(attempt: TaskAttempt) -> dict[str, Any]:
    spec = attempt.spec
    args: dict[str, Any] = {"attempt_number": attempt.attempt, "state": attempt.state}
    if spec is not None:
        args["job_id"] = hex_id("job", spec.job_id)
        args["actor_id"] = hex_id("actor", spec.actor_id) if spec.actor_id else None
        args["waited_ns"] = attempt.first_ns("RUNNING") - attempt.events[0][1]  # type: ignore[operator]
    if attempt.error is not None:
        args["error_type"] = attempt.error.error_type
    return args


def _transfers(ordered: list[Change], recorder: ColumnRecorder, flows: int) -> None:
    """An arrow per copy: from the moment an object was made to its arrival on another node.

    The log has no beginning of a transfer.
    """
    made: dict[ObjectID, Change] = {}
    copies: dict[ObjectID, list[tuple[int, Change]]] = {}
    sizes: dict[ObjectID, int] = {}
    for row in ordered:
        if row.kind != "object" or row.node_id < 0:
            continue
        if isinstance(row.detail, tuple) and row.detail:
            sizes[row.number] = row.detail[0]
        if row.state == "CREATED":
            made.setdefault(row.number, row)
        elif row.state == "COPY" and made.get(row.number, row).node_id != row.node_id:
            flows += 1
            copies.setdefault(row.number, []).append((flows, row))
    for number, found in copies.items():
        said = {"object_id": hex_id("object", number), "bytes": sizes.get(number, 0)}
        numbers = tuple(flow for flow, _ in found)
        for row, flow in ((made[number], numbers), *((row, (flow,)) for flow, row in found)):
            track, name = (node_name(row.node_id), OBJECTS), f"object {row.state}"
            recorder.span(track, name, "object", row.t_ns, row.t_ns, {**said, "flow": flow})


def _node_counters(activity: Activity, recorder: ColumnRecorder) -> None:
    """What each node's store holds, what was spilled, what runs, what leases hold."""
    named: list[tuple[NodeID, str, Series, float]] = []
    named += [(node, "memory/object_store", s, 1.0) for node, s in activity.store.items()]
    named += [(node, "memory/spilled", s, 1.0) for node, s in activity.disk.items()]
    named += [(node, "tasks/RUNNING", s, 1.0) for node, s in activity.running.items()]
    named += [
        (node, f"held/{name}", s, UNIT)
        for (node, name), s in activity.held.items()
        if name != "memory" and not name.startswith("node:")
    ]
    for node, name, series, scale in sorted(named, key=lambda row: row[:2]):
        for t_ns, value in series.steps:
            recorder.counter((node_name(node),), name, t_ns, value / scale)


def _task_counters(ordered: list[Change], recorder: ColumnRecorder) -> None:
    """Tasks of the cluster by state, as ``ray summary tasks`` counts those that have not ended."""
    states: dict[int, str] = {}
    count: dict[str, int] = {}
    written: dict[str, int] = {}
    tasks = [row for row in ordered if row.kind == "task"]
    for place, row in enumerate(tasks, 1):
        before = states.pop(row.number, None)
        if before is not None:
            count[before] -= 1
        if row.state not in ENDED:
            states[row.number] = row.state
            count[row.state] = count.get(row.state, 0) + 1
        if place < len(tasks) and tasks[place].t_ns == row.t_ns:
            continue
        for state, value in count.items():
            if written.get(state, 0) != value:
                written[state] = value
                recorder.counter(CLUSTER, f"tasks/{state}", row.t_ns, value)


_MARKED = {
    "object": {"SPILLED", "RESTORED", "EVICTED", "LOST", "FALLBACK"},
    "node": {"DRAINING", "DEAD"},
    "worker": {"DEAD"},
    "actor": {"RESTARTING", "DEAD"},
}


def _instants(ordered: list[Change], recorder: ColumnRecorder) -> None:
    for row in ordered:
        if row.state not in _MARKED.get(row.kind, ()):
            continue
        node_id = row.number if row.kind == "node" else row.node_id
        track = (node_name(node_id),) if node_id >= 0 else CLUSTER
        args: dict[str, Any] = {f"{row.kind}_id": hex_id(row.kind, row.number)}
        if isinstance(row.detail, str) and row.detail:
            args["reason"] = row.detail
        recorder.instant(track, f"{row.kind} {row.state}", row.kind, row.t_ns, args)


def _task_instants(now: Moment, recorder: ColumnRecorder) -> None:
    """Attempts that failed, where they ran; and those that followed, where they were called."""
    for attempt in now.attempts:
        args: dict[str, Any] = {"task_id": hex_id("task", attempt.task_id)}
        args["attempt_number"] = attempt.attempt
        if attempt.spec is not None:
            args["name"] = task_name(attempt.spec)
        if attempt.attempt and attempt.spec is not None and attempt.events:
            caller = attempt.spec.caller
            where: Track = (node_name(caller.node_id), thread(now, caller.worker_id))
            recorder.instant(where, "task retry", "task", attempt.events[0][1], args)
        if attempt.state != "FAILED" or attempt.end_ns is None:
            continue
        if attempt.error is not None:
            args = args | {"error_type": attempt.error.error_type}
        ran = attempt.node_id >= 0 and attempt.worker_id
        where = (node_name(attempt.node_id), thread(now, attempt.worker_id)) if ran else CLUSTER
        recorder.instant(where, "task FAILED", "task", attempt.end_ns, args)
