"""A run as slices, arrows, counters and instants: node > worker > what it did, for Perfetto.

Real counterpart: the trace that ``ray timeline`` writes, which has the slices alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from raysim.kernel.record import ColumnRecorder
from raysim.kernel.simulation import collector_at_ease
from raysim.perf.ray_core import RayCosts
from raysim.raycore.ids import ObjectID, TaskID, hex_id
from raysim.raycore.state_log import Change
from raysim.raystate.moment import TaskAttempt, in_order, moment
from raysim.raystate.names import node_name
from raysim.raystate.timeline import slices, thread


def records(rows: Iterable[Change], *, costs: RayCosts | None = None) -> ColumnRecorder:
    """The run for ``perfetto.write_pftrace`` and ``write_chrome``: node > worker > slices.

    Arrows go from each call of ``.remote()`` to the task it began. Counters hold the memory that
    objects take in each node's store; instants are failures, retries, spills and dead nodes.
    """
    with collector_at_ease():
        return _recorded(in_order(rows), costs or RayCosts())


def _recorded(ordered: list[Change], costs: RayCosts) -> ColumnRecorder:
    now = moment(ordered)
    recorder = ColumnRecorder()
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
    _store_memory(ordered, recorder)
    _instants(ordered, recorder)
    return recorder


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


def _store_memory(ordered: list[Change], recorder: ColumnRecorder) -> None:
    """Bytes of sealed objects per node, primary and secondary."""
    held: dict[int, int] = {}
    copies: dict[tuple[int, int], int] = {}
    sizes: dict[ObjectID, int] = {}
    for row in ordered:
        if row.kind != "object" or row.node_id < 0:
            continue
        where = row.number, row.node_id
        if row.state in {"CREATED", "COPY", "RESTORED"}:
            if isinstance(row.detail, tuple):
                sizes[row.number] = row.detail[0]
            if where in copies:
                continue
            copies[where] = sizes.get(row.number, 0)
            held[row.node_id] = held.get(row.node_id, 0) + copies[where]
        elif row.state in {"SPILLED", "EVICTED", "FREED", "LOST"} and where in copies:
            held[row.node_id] -= copies.pop(where)
        else:
            continue
        track = (node_name(row.node_id),)
        recorder.counter(track, "memory/object_store", row.t_ns, float(held[row.node_id]))


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
        track = (node_name(node_id),) if node_id >= 0 else ("cluster",)
        args: dict[str, Any] = {f"{row.kind}_id": hex_id(row.kind, row.number)}
        if isinstance(row.detail, str) and row.detail:
            args["reason"] = row.detail
        recorder.instant(track, f"{row.kind} {row.state}", row.kind, row.t_ns, args)
