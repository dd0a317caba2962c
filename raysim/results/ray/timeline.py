"""``ray timeline`` of a run: who ran what when, per node and worker.

Real counterpart: ``chrome_tracing_dump`` in ``ray/_private/state.py`` and
``ray/_private/profiling.py``, with its categories: ``task::<name>`` for a task, ``submit_task``
for a call of ``.remote()``, ``ray.get`` and ``ray.wait`` for waiting within a task. Process = node,
thread = worker. A task is drawn from RUNNING to its end, each attempt for itself.

Not there: ``task:deserialize_arguments``, ``task:execute`` and ``task:store_outputs``, which the
state log does not tell apart, and what a driver waits for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from raysim.kernel.record import ColumnRecorder
from raysim.kernel.simulation import collector_at_ease
from raysim.perf.ray_core import RayCosts
from raysim.raycore.ids import ObjectID, TaskID, hex_id
from raysim.raycore.state_log import Change
from raysim.raycore.tasks import Ref, TaskSpec
from raysim.results.ray.names import node_name, task_name
from raysim.results.ray.state import Moment, TaskAttempt, address_of, in_order, maker_of, moment

WAITS = {"RUNNING_IN_RAY_GET": "ray.get", "RUNNING_IN_RAY_WAIT": "ray.wait"}

COLORS = {
    "submit_task": "background_memory_dump",
    "ray.get": "good",
    "ray.wait": "vsync_highlight_color",
}
"""``_default_color_mapping``; everything else is ``generic_work``."""


class Slice(NamedTuple):
    """Something on a worker's row."""

    category: str
    name: str
    node_id: int
    worker_id: int
    start_ns: int
    end_ns: int
    attempt: TaskAttempt


def slices(now: Moment, costs: RayCosts | None = None) -> Iterator[Slice]:
    """Every slice, task by task in order of submission.

    A call of ``.remote()`` is drawn as long as it costs its thread by ``costs``, up to the moment
    at which the log has the task; None: it is left out. What still runs ends at ``now``.
    """
    for attempt in now.attempts:
        spec = attempt.spec
        if costs is not None and spec is not None and not attempt.attempt:
            yield _submission(attempt, spec, costs)
        start_ns = attempt.first_ns("RUNNING")
        if start_ns is None or attempt.node_id < 0:
            continue
        end_ns = attempt.end_ns if attempt.end_ns is not None else now.t_ns
        where = attempt.node_id, attempt.worker_id
        listed = task_name(spec) if spec else "unknown"
        category = f"task::{listed}"
        name = _traced_name(spec) if spec else listed
        yield Slice(category, name, *where, start_ns, end_ns, attempt)
        events = [*attempt.events, ("", end_ns)]
        for (state, begun_ns), (_, ended_ns) in pairwise(events):
            if state in WAITS:
                yield Slice(WAITS[state], WAITS[state], *where, begun_ns, ended_ns, attempt)


def _submission(attempt: TaskAttempt, spec: TaskSpec, costs: RayCosts) -> Slice:
    end_ns = attempt.events[0][1]
    taken = costs.submit_actor_task_ns if spec.kind == "ACTOR_TASK" else costs.submit_task_ns
    where = spec.caller.node_id, spec.caller.worker_id
    return Slice("submit_task", "submit_task", *where, max(0, end_ns - taken), end_ns, attempt)


def _traced_name(spec: TaskSpec) -> str:
    """What the slice says: a function with its module, a method by itself."""
    full = spec.options.function.name
    if spec.kind == "NORMAL_TASK":
        return full
    return "__init__" if spec.kind == "ACTOR_CREATION_TASK" else full.rpartition(".")[2]


# ---- Perfetto ------------------------------------------------------------------------------------


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
        track = (node_name(part.node_id), _thread(now, part.worker_id))
        recorder.span(track, part.name, part.category, part.start_ns, part.end_ns, args)
    _store_memory(ordered, recorder)
    _instants(ordered, recorder)
    return recorder


def _thread(now: Moment, worker_id: int) -> str:
    """``worker-7``, ``driver-1``."""
    entry = now.workers.get(worker_id)
    kind = "driver" if entry is not None and entry.worker_type == "DRIVER" else "worker"
    return f"{kind}-{worker_id}"


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


# ---- the file that ``ray timeline`` writes -------------------------------------------------------


def chrome_events(rows: Iterable[Change], *, costs: RayCosts | None = None) -> list[dict[str, Any]]:
    """The same events with the same fields, times in microseconds since the start of the run."""
    now = moment(rows)
    events = []
    for part in slices(now, costs or RayCosts()):
        kind, _, _ = _thread(now, part.worker_id).partition("-")
        args: dict[str, Any] = {}
        if part.category.startswith("task::"):
            args = {"name": part.name, "task_id": hex_id("task", part.attempt.task_id)}
        events.append(
            {
                "cat": part.category,
                "name": part.name,
                "pid": address_of(now, part.node_id),
                "tid": f"{kind}:{hex_id('worker', part.worker_id)}",
                "ts": part.start_ns / 1e3,
                "dur": (part.end_ns - part.start_ns) / 1e3,
                "ph": "X",
                "cname": COLORS.get(part.category, "generic_work"),
                "args": args,
            }
        )
    return events


def write_timeline(rows: Iterable[Change], path: Path, *, costs: RayCosts | None = None) -> Path:
    """Write what ``ray timeline`` would: a JSON list of events."""
    path.write_text(json.dumps(chrome_events(rows, costs=costs)))
    return path


# ---- data ----------------------------------------------------------------------------------------


class DataLink(NamedTuple):
    """An object that one task made and another took."""

    object_id: ObjectID
    producer: TaskID
    """0: put by a driver or within a task."""
    consumer: TaskID
    size_bytes: int
    from_node: int
    """Where it was made; -1: not known, or inline."""
    to_node: int
    """-1: the consumer has not run."""


def data_links(rows: Iterable[Change]) -> list[DataLink]:
    """Every argument by reference of every task, in order of submission."""
    ordered = in_order(rows)
    made: dict[ObjectID, tuple[int, int]] = {}
    for row in ordered:
        if row.kind == "object" and row.state in {"CREATED", "INLINE"}:
            made.setdefault(row.number, (row.detail[0], row.node_id))
    now = moment(ordered)
    links = []
    for attempt in now.tasks.values():
        for arg in attempt.spec.args if attempt.spec else ():
            if isinstance(arg, Ref):
                size_bytes, node_id = made.get(arg.object_id, (-1, -1))
                maker = maker_of(now, arg.object_id)
                produced = maker.task_id if maker else 0
                links.append(
                    DataLink(arg.object_id, produced, attempt.task_id, size_bytes, node_id,
                             attempt.node_id)
                )  # fmt: skip
    return links
