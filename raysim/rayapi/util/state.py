"""``ray.util.state``: listings of what there is.

Real counterpart: ``python/ray/util/state/api.py`` of ray 2.60. Actors, nodes and placement groups
come from the GCS, as in Ray; tasks, objects and workers from the run's state log, which must be on.
What is in a row: ``raysim.raystate``; without ``detail`` its further columns are None, as in Ray.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any

from raysim.rayapi.calls import program_call, this_fiber
from raysim.rayapi.state import ask_gcs, node_rows
from raysim.rayapi.unsupported import NotEmulatedError, getattr_of
from raysim.raycore.ids import JobID, hex_id
from raysim.raycore.protocol import GetAllActorInfo, GetPlacementGroups
from raysim.raystate.listings import columns_of, row_filter, rows
from raysim.raystate.moment import Moment, moment, of_tables
from raysim.raystate.summary import summary

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

    def asdict(self) -> dict[str, Any]:
        """As a dict."""
        return dict(self.__dict__)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({columns})"


class ActorState(Row):
    """Of an actor."""


class NodeState(Row):
    """Of a node."""


class PlacementGroupState(Row):
    """Of a placement group."""


class TaskState(Row):
    """Of a task's attempt."""


class ObjectState(Row):
    """Of a reference to an object."""


class WorkerState(Row):
    """Of a worker process."""


class JobState(Row):
    """Of a job."""


_KINDS: dict[str, type[Row]] = {
    "actors": ActorState, "nodes": NodeState, "placement_groups": PlacementGroupState,
    "tasks": TaskState, "objects": ObjectState, "workers": WorkerState, "jobs": JobState,
}  # fmt: skip


class JobStatus(StrEnum):
    """Of a job."""

    RUNNING = "RUNNING"


class JobType(StrEnum):
    """How a job came."""

    DRIVER = "DRIVER"


def _now(resource: str) -> Moment:
    """What the GCS, or the log, knows of these."""
    session = this_fiber().process.session
    t_ns = session.env.sim.now_ns
    if resource == "actors":
        return of_tables(t_ns, actors=ask_gcs(GetAllActorInfo()))
    if resource == "nodes":
        return of_tables(t_ns, nodes=node_rows())
    if resource == "placement_groups":
        return of_tables(t_ns, placement_groups=ask_gcs(GetPlacementGroups()))
    log = session.env.log
    if not log.enabled:
        raise NotEmulatedError(f"a listing of {resource} without a state log", "StateLog()")
    return moment(log.rows)


def _rows(resource: str, filters: Filters = None, *, detail: bool = True) -> list[Row]:
    wanted = tuple(filters or ())
    if resource != "jobs":
        more = {} if detail else dict.fromkeys(columns_of(resource, detail=True))
        found = [
            more | row for row in rows(_now(resource), resource, detail=detail, filters=wanted)
        ]
    else:
        test = row_filter(resource, JOB_COLUMNS, wanted)
        found = [row for row in map(_job, this_fiber().process.session.jobs) if test(row)]
    return [_KINDS[resource](**row) for row in found]


JOB_COLUMNS = (
    "type", "job_id", "submission_id", "driver_info", "status", "entrypoint", "message",
    "error_type", "start_time", "end_time", "metadata", "runtime_env", "driver_agent_http_address",
    "driver_node_id", "driver_exit_code",
)  # fmt: skip


def _job(number: JobID) -> dict[str, Any]:
    known = {
        "job_id": hex_id("job", number), "type": JobType.DRIVER, "status": JobStatus.RUNNING,
        "entrypoint": "",
    }  # fmt: skip
    return dict.fromkeys(JOB_COLUMNS) | known


def _listing(resource: str) -> Callable[..., list[Row]]:
    @program_call
    def listing(
        address: str | None = None,
        filters: Filters = None,
        limit: int = 100,
        timeout: int = 30,
        detail: bool = False,
        raise_on_missing_output: bool = True,
    ) -> list[Row]:
        del address, timeout, raise_on_missing_output
        return _rows(resource, filters, detail=detail)[:limit]

    return listing


def _with_id(resource: str, id: str) -> list[Row]:  # noqa: A002
    return [row for row in _rows(resource) if row[f"{resource[:-1]}_id"] == id]


def _getter(resource: str) -> Callable[..., Row | None]:
    @program_call
    def get(id: str, *_args: Any, **_kwargs: Any) -> Row | None:  # noqa: A002  (Ray's own name)
        return next(iter(_with_id(resource, id)), None)

    return get


def _summary(resource: str) -> Callable[..., dict[str, Any]]:
    @program_call
    def summarize(*_args: Any, **_kwargs: Any) -> dict[str, Any]:
        return summary(_now(resource), resource)

    return summarize


list_actors, get_actor = _listing("actors"), _getter("actors")
list_nodes, get_node = _listing("nodes"), _getter("nodes")
list_placement_groups = _listing("placement_groups")
get_placement_group = _getter("placement_groups")
list_tasks = _listing("tasks")
list_objects = _listing("objects")
list_workers, get_worker = _listing("workers"), _getter("workers")
list_jobs, get_job = _listing("jobs"), _getter("jobs")
summarize_tasks, summarize_actors = _summary("tasks"), _summary("actors")
summarize_objects = _summary("objects")


@program_call
def get_task(id: Any, *_args: Any, **_kwargs: Any) -> Row | list[Row] | None:  # noqa: A002  (Ray's own name)
    """A task by its id or a reference to its result; all its attempts if there are several."""
    found = _with_id("tasks", id if isinstance(id, str) else id.task_id().hex())
    return found if len(found) > 1 else next(iter(found), None)


@program_call
def get_objects(id: str, *_args: Any, **_kwargs: Any) -> list[Row]:  # noqa: A002  (Ray's own name)
    """Every reference to one object."""
    return _with_id("objects", id)


__getattr__ = getattr_of("ray.util.state")
