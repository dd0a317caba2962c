"""``ray.util.state``: listings of what there is.

Real counterpart: ``python/ray/util/state/api.py`` and ``common.py`` of ray 2.60. Actors, nodes and
placement groups come from the GCS, as in Ray; tasks, objects, workers and jobs from the run's state
log, which must be on. Filters: ``=`` and ``!=``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any

from raysim.rayapi.calls import program_call, this_fiber
from raysim.rayapi.state import ask_gcs, node_rows
from raysim.rayapi.unsupported import NotEmulatedError, getattr_of
from raysim.raycore.ids import hex_id, node_ip
from raysim.raycore.protocol import GetAllActorInfo, GetPlacementGroups
from raysim.raycore.resources import UNIT
from raysim.raycore.tasks import InPlacementGroup

Filters = Iterable[tuple[str, str, Any]] | None


class Row:
    """One row: its columns as attributes and as keys."""

    def __init__(self, **columns: Any) -> None:
        self.__dict__.update(columns)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def __getitem__(self, name: str) -> Any:
        return self.__dict__[name]

    def __contains__(self, name: str) -> bool:
        return name in self.__dict__

    def get(self, name: str, default: Any = None) -> Any:
        """A column, or the default."""
        return self.__dict__.get(name, default)

    def update(self, **columns: Any) -> None:
        """Newer values."""
        self.__dict__.update(columns)

    def asdict(self) -> dict[str, Any]:
        """As a dict."""
        return dict(self.__dict__)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.__dict__})"


class JobStatus(StrEnum):
    """Of a job."""

    RUNNING = "RUNNING"


class JobType(StrEnum):
    """How a job came."""

    DRIVER = "DRIVER"


def _chosen(rows: Iterable[Row], filters: Filters, limit: int) -> list[Row]:
    found = []
    wanted = [(key, how, str(value).lower()) for key, how, value in filters or ()]
    for row in rows:
        for key, how, value in wanted:
            if key not in row:
                raise ValueError(f"The filter key {key!r} is not a column of this listing.")
            if how not in ("=", "!="):
                raise ValueError(
                    f"Unsupported filter predicate {how} is given. Available predicates: =, !=."
                )
            if (str(row[key]).lower() == value) != (how == "="):
                break
        else:
            found.append(row)
    return found[:limit]


def _listing(rows: Callable[[], Iterable[Row]]) -> Callable[..., list[Row]]:
    @program_call
    def listing(
        address: str | None = None,
        filters: Filters = None,
        limit: int = 100,
        timeout: int = 30,
        detail: bool = False,
        raise_on_missing_output: bool = True,
    ) -> list[Row]:
        del address, timeout, detail, raise_on_missing_output
        return _chosen(rows(), filters, limit)

    return listing


def _one(rows: Callable[[], Iterable[Row]], key: str) -> Callable[..., Row | None]:
    @program_call
    def get(id: str, *_args: Any, **_kwargs: Any) -> Row | None:  # noqa: A002  (Ray's own name)
        return next((row for row in rows() if row[key] == id), None)

    return get


def _hex_or_none(kind: str, number: int) -> str | None:
    return hex_id(kind, number) if number >= 0 else None


def _actors() -> Iterable[Row]:
    for row in ask_gcs(GetAllActorInfo()):
        options, at = row.options, row.address
        strategy = options.strategy
        group = strategy.placement_group_id if isinstance(strategy, InPlacementGroup) else -1
        yield Row(
            actor_id=hex_id("actor", row.actor_id),
            class_name=options.function.name.removesuffix(".__init__"),
            state=row.state,
            job_id=hex_id("job", row.job_id),
            name=options.actor.name,
            node_id=hex_id("node", at.node_id) if at is not None else None,
            pid=10_000 + at.worker_id if at is not None else 0,
            ray_namespace=options.actor.namespace,
            serialized_runtime_env=options.runtime_env.key if options.runtime_env else "{}",
            required_resources=options.resources.quantities(),
            death_cause={"error_message": row.death_cause.message} if row.death_cause else None,
            is_detached=options.actor.detached,
            placement_group_id=_hex_or_none("placement_group", group),
            num_restarts=row.num_restarts,
        )


def _nodes() -> Iterable[Row]:
    for row in node_rows():
        yield Row(
            node_id=hex_id("node", row.node_id),
            node_ip=node_ip(row.node_id),
            is_head_node=row.is_head,
            state="DEAD" if row.state == "DEAD" else "ALIVE",
            state_message=row.death_reason or None,
            node_name=node_ip(row.node_id),
            resources_total={k: v / UNIT for k, v in row.resources.items()},
            labels=dict(row.labels),
            start_time_ms=row.start_ns // 1_000_000,
            end_time_ms=max(0, row.end_ns // 1_000_000),
        )


def _groups() -> Iterable[Row]:
    for row in ask_gcs(GetPlacementGroups()):
        yield Row(
            placement_group_id=hex_id("placement_group", row.group),
            name=row.name,
            creator_job_id=hex_id("job", this_fiber().process.core.job_id),  # type: ignore[union-attr]
            state=row.state,
            bundles=[
                {
                    "bundle_id": {"placement_group_id": hex_id("placement_group", row.group),
                                  "bundle_index": b.bundle_index},
                    "unit_resources": b.resources.quantities(),
                    "node_id": _hex_or_none("node", node),
                }
                for b, node in zip(row.bundles, row.nodes, strict=True)
            ],
            is_detached=False,
            stats={},
        )  # fmt: skip


def _log(kind: str) -> Any:
    log = this_fiber().process.session.env.log
    if not log.enabled:
        raise NotEmulatedError(f"a listing of {kind}s without a state log", "StateLog()")
    return [row for row in log.rows if row.kind == kind]


def _tasks() -> Iterable[Row]:
    found: dict[int, Row] = {}
    for change in _log("task"):
        row = found.setdefault(change.number, Row(
            task_id=hex_id("task", change.number), attempt_number=0, name="", state="NIL",
            job_id="", actor_id=None, type="", func_or_class_name="", parent_task_id="",
            node_id=None, worker_id=None, worker_pid=None, error_type=None, error_message=None,
            start_time_ms=None, end_time_ms=None, creation_time_ms=change.t_ns // 1_000_000,
            language="PYTHON", call_site=None,
            events=[], fallback_strategy=None, is_debugger_paused=None, label_selector={},
            placement_group_id=None, profiling_data={}, runtime_env_info=None, task_log_info=None,
            required_resources={},
        ))  # fmt: skip
        row.update(state=change.state)
        spec = change.detail
        if change.state == "PENDING_ARGS_AVAIL" and spec is not None:
            row.update(
                attempt_number=spec.attempt, name=spec.name, type=spec.kind,
                job_id=hex_id("job", spec.job_id), func_or_class_name=spec.options.function.name,
                actor_id=hex_id("actor", spec.actor_id) if spec.actor_id else None,
                parent_task_id=hex_id("task", spec.parent),
                required_resources=spec.options.resources.quantities(),
            )  # fmt: skip
        elif change.state == "RUNNING":
            row.update(
                node_id=hex_id("node", change.node_id), start_time_ms=change.t_ns // 1_000_000,
                worker_id=hex_id("worker", change.worker_id), worker_pid=10_000 + change.worker_id,
            )  # fmt: skip
        elif change.state in ("FINISHED", "FAILED"):
            row.update(end_time_ms=change.t_ns // 1_000_000)
            if change.state == "FAILED" and change.detail is not None:
                row.update(error_type=change.detail.error_type, error_message=change.detail.message)
    return found.values()


def _objects() -> Iterable[Row]:
    found: dict[int, Row] = {}
    for change in _log("object"):
        if change.state in ("FREED", "LOST"):
            found.pop(change.number, None)
        elif change.state in ("CREATED", "INLINE"):
            found[change.number] = Row(
                object_id=hex_id("object", change.number), object_size=change.detail[0],
                task_status="FINISHED", attempt_number=0, reference_type="LOCAL_REFERENCE",
                call_site="disabled", type="DRIVER",
                pid=10_000 + change.detail[1].worker_id, ip=node_ip(change.detail[1].node_id),
            )  # fmt: skip
    return found.values()


def _workers() -> Iterable[Row]:
    found: dict[int, Row] = {}
    for change in _log("worker"):
        row = found.setdefault(change.number, Row(
            worker_id=hex_id("worker", change.number), is_alive=True, worker_type="WORKER",
            exit_type=None, exit_detail=None, node_id=hex_id("node", change.node_id),
            ip=node_ip(change.node_id), pid=10_000 + change.number,
            start_time_ms=change.t_ns // 1_000_000, end_time_ms=0,
        ))  # fmt: skip
        if change.state == "DEAD":
            row.update(is_alive=False, exit_type="SYSTEM_ERROR", exit_detail=change.detail,
                       end_time_ms=change.t_ns // 1_000_000)  # fmt: skip
    return found.values()


def _jobs() -> Iterable[Row]:
    for number in this_fiber().process.session.jobs:
        yield Row(
            job_id=hex_id("job", number), type=JobType.DRIVER, status=JobStatus.RUNNING,
            entrypoint="", submission_id=None, message=None, error_type=None,
        )  # fmt: skip


list_actors, get_actor = _listing(_actors), _one(_actors, "actor_id")
list_nodes, get_node = _listing(_nodes), _one(_nodes, "node_id")
list_placement_groups = _listing(_groups)
get_placement_group = _one(_groups, "placement_group_id")
list_tasks, get_task = _listing(_tasks), _one(_tasks, "task_id")
list_objects = _listing(_objects)
list_workers, get_worker = _listing(_workers), _one(_workers, "worker_id")
list_jobs, get_job = _listing(_jobs), _one(_jobs, "job_id")


@program_call
def get_objects(id: str, *_args: Any, **_kwargs: Any) -> list[Row]:  # noqa: A002  (Ray's own name)
    """Every reference to one object."""
    return [row for row in _objects() if row["object_id"] == id]


def _summary(rows: Iterable[Row], name: str, **totals: int) -> dict[str, Any]:
    counts: dict[str, Counter[str]] = {}
    kinds: dict[str, str] = {}
    for row in rows:
        counts.setdefault(row[name], Counter())[row.state] += 1
        kinds[row[name]] = row.get("type", "")
    summary = {
        key: {name: key, "type": kinds[key], "state_counts": dict(counts[key])} for key in counts
    }
    return {"cluster": {"summary": summary, "summary_by": name, **totals}}


@program_call
def summarize_tasks(*_args: Any, **_kwargs: Any) -> dict[str, Any]:
    """Tasks by function and state."""
    rows = list(_tasks())
    kinds = Counter(row.type for row in rows)
    return _summary(
        rows, "func_or_class_name", total_tasks=kinds["NORMAL_TASK"],
        total_actor_tasks=kinds["ACTOR_TASK"], total_actor_scheduled=kinds["ACTOR_CREATION_TASK"],
    )  # fmt: skip


@program_call
def summarize_actors(*_args: Any, **_kwargs: Any) -> dict[str, Any]:
    """Actors by class and state."""
    rows = list(_actors())
    return _summary(rows, "class_name", total_actors=len(rows))


@program_call
def summarize_objects(*_args: Any, **_kwargs: Any) -> dict[str, Any]:
    """How many objects, and their bytes."""
    rows = list(_objects())
    summary = {
        "total_objects": len(rows),
        "total_size_mb": sum(r["object_size"] for r in rows) / 2**20,
    }
    return {"cluster": {"summary": summary, "summary_by": "callsite"}}


__getattr__ = getattr_of("ray.util.state")
