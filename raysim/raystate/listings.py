"""Tables of a moment, with the columns and state names of ``ray list`` (ray 2.60).

Real counterpart: ``ray/util/state/common.py`` (the columns), ``ray/dashboard/state_aggregator.py``
(what is in them, and their order). Columns after ``DETAIL`` are those of ``--detail``.

What cannot be the same: ids, addresses and process ids are ours, in Ray's form. Times in ``*_ms``
count from the start of the run. A task that waits in ``ray.get`` is RUNNING_IN_RAY_GET, as in Ray's
metrics, where ``ray list tasks`` says RUNNING. The reference type of an object is inferred: used by
a task that has not ended, else held by its owner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raysim.kernel.simulation import collector_at_ease
from raysim.raycore.ids import (
    NodeID,
    ObjectID,
    PlacementGroupID,
    TaskID,
    hex_id,
    job_of,
    node_ip,
    object_id,
    process_id,
)
from raysim.raycore.protocol import ActorTableData, PlacementGroupTableData
from raysim.raycore.resources import quantities
from raysim.raycore.tasks import InPlacementGroup, LabelMatch, Ref, TaskOptions, TaskSpec
from raysim.raystate.moment import (
    ENDED,
    Moment,
    ObjectEntry,
    TaskAttempt,
    WorkerEntry,
    maker_of,
)
from raysim.raystate.names import (
    class_name,
    driver_task_id,
    exit_type,
    function_name,
    given_name,
    node_labels,
    task_name,
)

Row = dict[str, Any]

BASE: dict[str, tuple[str, ...]] = {
    "tasks": (
        "task_id", "attempt_number", "name", "state", "job_id", "actor_id", "type",
        "func_or_class_name", "parent_task_id", "node_id", "worker_id", "worker_pid", "error_type",
    ),
    "actors": (
        "actor_id", "class_name", "state", "job_id", "name", "node_id", "pid", "ray_namespace",
    ),
    "objects": (
        "object_id", "object_size", "task_status", "attempt_number", "reference_type", "call_site",
        "type", "pid", "ip",
    ),
    "nodes": (
        "node_id", "node_ip", "is_head_node", "state", "state_message", "node_name",
        "resources_total", "labels",
    ),
    "workers": ("worker_id", "is_alive", "worker_type", "exit_type", "node_id", "ip", "pid"),
    "placement_groups": ("placement_group_id", "name", "creator_job_id", "state"),
}  # fmt: skip
"""Columns of ``ray list X``, in order."""

DETAIL: dict[str, tuple[str, ...]] = {
    "tasks": (
        "language", "required_resources", "runtime_env_info", "placement_group_id", "events",
        "profiling_data", "creation_time_ms", "start_time_ms", "end_time_ms", "task_log_info",
        "error_message", "is_debugger_paused", "call_site", "label_selector", "fallback_strategy",
    ),
    "actors": (
        "serialized_runtime_env", "required_resources", "death_cause", "is_detached",
        "placement_group_id", "repr_name", "num_restarts",
        "num_restarts_due_to_lineage_reconstruction", "num_restarts_due_to_node_preemption",
        "call_site", "label_selector", "fallback_strategy",
    ),
    "objects": (),
    "nodes": ("start_time_ms", "end_time_ms"),
    "workers": (
        "exit_detail", "worker_launch_time_ms", "worker_launched_time_ms", "start_time_ms",
        "end_time_ms", "debugger_port", "num_paused_threads",
    ),
    "placement_groups": (
        "bundles", "is_detached", "stats", "topology_strategy", "topology_assignments",
    ),
}  # fmt: skip
"""What ``--detail`` adds."""

TASK_ORDER = (
    "NIL", "PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT", "PENDING_OBJ_STORE_MEM_AVAIL",
    "PENDING_ARGS_FETCH", "SUBMITTED_TO_WORKER", "PENDING_ACTOR_TASK_ARGS_FETCH",
    "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY", "RUNNING", "RUNNING_IN_RAY_GET",
    "RUNNING_IN_RAY_WAIT", "FINISHED", "FAILED", "GETTING_AND_PINNING_ARGS",
)  # fmt: skip
"""``rpc::TaskStatus`` in its own order: the order of ``events``."""


def rows(
    now: Moment,
    resource: str,
    *,
    detail: bool = False,
    filters: Sequence[tuple[str, str, Any]] = (),
) -> list[Row]:
    """What ``ray list <resource>`` would answer: one dictionary a row, sorted by id as Ray does.

    ``filters`` are (column, "=" or "!=", value), as ``--filter`` takes them.

    Raises
    ------
    ValueError
        There is no such resource, column or predicate.
    """
    if resource not in BASE:
        raise ValueError(f"{resource!r} is not one of {', '.join(BASE)}")
    columns = columns_of(resource, detail=detail)
    test = row_filter(resource, columns_of(resource, detail=True), filters)
    with collector_at_ease():
        made = MAKERS[resource](now)
        return [{column: row[column] for column in columns} for row in made if test(row)]


def columns_of(resource: str, *, detail: bool) -> tuple[str, ...]:
    """Columns in Ray's order."""
    return BASE[resource] + DETAIL[resource] if detail else BASE[resource]


def row_filter(
    resource: str, columns: Sequence[str], filters: Sequence[tuple[str, str, Any]]
) -> Callable[[Row], bool]:
    """Whether a row with these columns passes.

    Raises
    ------
    ValueError
        There is no such column or predicate.
    """
    for column, predicate, _ in filters:
        if column not in columns:
            raise ValueError(f"{resource} have no column {column!r}")
        if predicate not in {"=", "!="}:
            raise ValueError(f"Unsupported filter predicate {predicate}: = or !=")
    return lambda row: all(
        _same(row[column], value) == (predicate == "=") for column, predicate, value in filters
    )


def _same(value: Any, wanted: Any) -> bool:
    """Ray compares text without case, and numbers or truth values given as text by value."""
    return str(value).lower() == str(wanted).lower()


def _ms(t_ns: int | None) -> int | None:
    return None if t_ns is None else t_ns // 1_000_000


def _selector(label_selector: tuple[LabelMatch, ...]) -> dict[str, str]:
    """As Ray prints it: ``in(a,b)``, ``!a``, ``a``."""
    said = {}
    for match in label_selector:
        values = ",".join(match.values)
        one = len(match.values) == 1
        said[match.key] = {
            "in": values if one else f"in({values})",
            "!in": f"!{values}" if one else f"!in({values})",
        }.get(match.operator, match.operator)
    return said


def _group_of(options: TaskOptions) -> str | None:
    strategy = options.strategy
    if not isinstance(strategy, InPlacementGroup):
        return None
    return group_id(strategy.placement_group_id)


def group_id(group: PlacementGroupID) -> str:
    """A placement group's id in text."""
    return hex_id("placement_group", group)


def _node_or_none(node_id: NodeID) -> str | None:
    return None if node_id < 0 else hex_id("node", node_id)


# ---- tasks ---------------------------------------------------------------------------------------


def _tasks(now: Moment) -> list[Row]:
    made = [_task(attempt) for attempt in now.attempts]
    made.sort(key=lambda row: (row["task_id"], row["attempt_number"]))
    return made


def _task(attempt: TaskAttempt) -> Row:
    spec = attempt.spec
    error = attempt.error
    first = dict(reversed(attempt.events))
    row: Row = {
        "task_id": hex_id("task", attempt.task_id),
        "attempt_number": attempt.attempt,
        "state": attempt.state,
        "node_id": _node_or_none(attempt.node_id),
        "worker_id": hex_id("worker", attempt.worker_id) if attempt.worker_id else None,
        "worker_pid": process_id(attempt.worker_id) if attempt.worker_id else None,
        "error_type": error and error.error_type,
        "error_message": error and error.message,
        "events": [
            {"state": name, "created_ms": _ms(first[name])} for name in TASK_ORDER if name in first
        ],
        "creation_time_ms": _ms(first.get("PENDING_ARGS_AVAIL")),
        "start_time_ms": _ms(first.get("RUNNING")),
        "end_time_ms": _ms(attempt.end_ns),
        "language": "PYTHON",
        "profiling_data": {},
        "task_log_info": None,
        "is_debugger_paused": None,
        "call_site": None,
        "fallback_strategy": None,
    }
    row |= _task_spec(spec) if spec else dict.fromkeys(_OF_SPEC)
    return row


_OF_SPEC = (
    "name", "job_id", "actor_id", "type", "func_or_class_name", "parent_task_id",
    "required_resources", "runtime_env_info", "placement_group_id", "label_selector",
)  # fmt: skip


def _task_spec(spec: TaskSpec) -> Row:
    options = spec.options
    env = options.runtime_env
    return {
        "name": task_name(spec),
        "job_id": hex_id("job", spec.job_id),
        "actor_id": hex_id("actor", spec.actor_id) if spec.actor_id else None,
        "type": spec.kind,
        "func_or_class_name": function_name(spec),
        "parent_task_id": hex_id("task", spec.parent)
        if spec.parent
        else driver_task_id(spec.job_id),
        "required_resources": options.resources.quantities(),
        "runtime_env_info": {"serialized_runtime_env": env.key if env else "{}"},
        "placement_group_id": _group_of(options),
        "label_selector": _selector(options.label_selector),
    }


# ---- actors and placement groups -----------------------------------------------------------------


def _actors(now: Moment) -> list[Row]:
    made = []
    for actor_id, entry in sorted(now.actors.items()):
        data = entry.data
        if isinstance(data, ActorTableData):
            made.append(_actor(actor_id, entry.state, data))
    return made


def _actor(actor_id: int, state: str, data: ActorTableData) -> Row:
    options, actor, cause = data.options, data.options.actor, data.death_cause
    env = options.runtime_env
    return {
        "actor_id": hex_id("actor", actor_id),
        "class_name": class_name(options),
        "state": state,
        "job_id": hex_id("job", data.job_id),
        "name": actor.name if actor else "",
        "node_id": hex_id("node", data.address.node_id) if data.address else None,
        "pid": process_id(data.address.worker_id) if data.address else 0,
        "ray_namespace": actor.namespace if actor else "",
        "serialized_runtime_env": env.key if env else "{}",
        "required_resources": options.resources.quantities(),
        "death_cause": {"error_type": cause.error_type, "error_message": cause.message}
        if cause
        else None,
        "is_detached": bool(actor and actor.detached),
        "placement_group_id": _group_of(options),
        "repr_name": "",
        "num_restarts": data.num_restarts,
        "num_restarts_due_to_lineage_reconstruction": 0,
        "num_restarts_due_to_node_preemption": 0,
        "call_site": None,
        "label_selector": _selector(options.label_selector),
        "fallback_strategy": None,
    }


def _placement_groups(now: Moment) -> list[Row]:
    made = []
    for number, entry in sorted(now.placement_groups.items()):
        data = entry.data
        if not isinstance(data, PlacementGroupTableData):
            continue
        bundles = [
            {
                "bundle_id": {"placement_group_id": group_id(number), "bundle_index": index},
                "unit_resources": bundle.resources.quantities(),
                "node_id": _node_or_none(node),
                "label_selector": _selector(bundle.label_selector),
            }
            for index, (bundle, node) in enumerate(zip(data.bundles, data.nodes, strict=False))
        ]
        made.append(
            {
                "placement_group_id": group_id(number),
                "name": data.name,
                "creator_job_id": hex_id("job", job_of(number)),
                "state": entry.state,
                "bundles": bundles,
                "is_detached": False,
                "stats": {
                    "creation_request_received_ns": str(entry.start_ns),
                    "scheduling_state": "FINISHED" if entry.state == "CREATED" else entry.state,
                },
                "topology_strategy": {},
                "topology_assignments": {},
            }
        )
    return made


# ---- nodes and workers ---------------------------------------------------------------------------


def _nodes(now: Moment) -> list[Row]:
    made = []
    for node_id, entry in sorted(now.nodes.items()):
        data = entry.data
        message = None
        if entry.state == "DEAD":
            message = (data and data.death_reason) or None
        elif entry.state == "DRAINING":
            message = "Draining"
        made.append(
            {
                "node_id": hex_id("node", node_id),
                "node_ip": node_ip(node_id),
                "is_head_node": bool(data and data.is_head),
                "state": "ALIVE" if entry.alive else "DEAD",
                "state_message": message,
                "node_name": given_name(data) if data else node_ip(node_id),
                "resources_total": quantities(data.resources if data else entry.total),
                "labels": node_labels(data) if data else {},
                "start_time_ms": _ms(entry.start_ns),
                "end_time_ms": 0 if entry.alive else _ms(entry.end_ns),
            }
        )
    return made


def _workers(now: Moment) -> list[Row]:
    return [_worker(entry) for _, entry in sorted(now.workers.items())]


def _worker(entry: WorkerEntry) -> Row:
    dead = entry.state == "DEAD"
    return {
        "worker_id": hex_id("worker", entry.worker_id),
        "is_alive": not dead,
        "worker_type": entry.worker_type,
        "exit_type": exit_type(entry.exit_detail) if dead else None,
        "node_id": hex_id("node", entry.node_id),
        "ip": node_ip(entry.node_id),
        "pid": process_id(entry.worker_id),
        "exit_detail": entry.exit_detail if dead else None,
        "worker_launch_time_ms": -1 if entry.launch_ns < 0 else _ms(entry.launch_ns),
        "worker_launched_time_ms": -1 if entry.launch_ns < 0 else _ms(entry.launch_ns),
        "start_time_ms": 0 if entry.ready_ns < 0 else _ms(entry.ready_ns),
        "end_time_ms": _ms(entry.end_ns) if dead else 0,
        "debugger_port": None,
        "num_paused_threads": None,
    }


# ---- objects -------------------------------------------------------------------------------------


def _objects(now: Moment) -> list[Row]:
    used = _used_by_pending(now)
    made = [
        _object(now, number, entry, used)
        for number, entry in now.objects.items()
        if (entry.there or entry.lost) and entry.owner is not None
    ]
    for attempt in now.tasks.values():
        spec = attempt.spec
        if spec is None or attempt.state in ENDED or spec.kind == "ACTOR_CREATION_TASK":
            continue
        returns = spec.options.num_returns
        for index in range(1, (returns if isinstance(returns, int) else 0) + 1):
            number = object_id(attempt.task_id, index)
            known = now.objects.get(number)
            if known is None or not (known.there or known.lost):
                entry = ObjectEntry()
                entry.owner = spec.caller
                made.append(_object(now, number, entry, used))
    made.extend(_actor_handles(now))
    made.sort(key=lambda row: row["object_id"])
    return made


def _used_by_pending(now: Moment) -> dict[ObjectID, None]:
    """Objects that are arguments of tasks that have not ended."""
    used: dict[ObjectID, None] = {}
    for attempt in now.tasks.values():
        if attempt.spec is not None and attempt.state not in ENDED:
            for arg in attempt.spec.args:
                if isinstance(arg, Ref):
                    used[arg.object_id] = None
    return used


def _object(
    now: Moment, number: ObjectID, entry: ObjectEntry, used: Mapping[ObjectID, None]
) -> Row:
    attempt = maker_of(now, number)
    assert entry.owner is not None, f"object {number} without owner"
    owner = now.workers.get(entry.owner.worker_id)
    return {
        "object_id": hex_id("object", number),
        "object_size": entry.size_bytes,
        "task_status": attempt.state if attempt else "FINISHED",
        "attempt_number": attempt.attempt + 1 if attempt else 1,
        "reference_type": "USED_BY_PENDING_TASK" if number in used else "LOCAL_REFERENCE",
        "call_site": "disabled",
        "type": owner.worker_type if owner else "WORKER",
        "pid": process_id(entry.owner.worker_id),
        "ip": node_ip(entry.owner.node_id),
    }


def _actor_handles(now: Moment) -> list[Row]:
    """The reference that Ray keeps for a handle: the return of the creation task."""
    creations: dict[int, TaskID] = {
        a.spec.actor_id: a.task_id
        for a in now.tasks.values()
        if a.spec is not None and a.spec.kind == "ACTOR_CREATION_TASK"
    }
    made = []
    for actor_id, entry in now.actors.items():
        data = entry.data
        if entry.state == "DEAD" or not isinstance(data, ActorTableData):
            continue
        owner = now.workers.get(data.owner.worker_id)
        made.append(
            {
                "object_id": hex_id("object", object_id(creations.get(actor_id, actor_id), 1)),
                "object_size": -1,
                "task_status": "NIL",
                "attempt_number": 1,
                "reference_type": "ACTOR_HANDLE",
                "call_site": "disabled",
                "type": owner.worker_type if owner else "WORKER",
                "pid": process_id(data.owner.worker_id),
                "ip": node_ip(data.owner.node_id),
            }
        )
    return made


MAKERS: dict[str, Callable[[Moment], list[Row]]] = {
    "tasks": _tasks,
    "actors": _actors,
    "objects": _objects,
    "nodes": _nodes,
    "workers": _workers,
    "placement_groups": _placement_groups,
}
