"""Small stories of a cluster, written as the rows that rooms would note."""

from __future__ import annotations

from typing import Any

from raysim.raycore.ids import WorkerAddress, object_id
from raysim.raycore.protocol import (
    ActorTableData,
    Bundle,
    LeaseSpec,
    NodeTableData,
    PlacementGroupTableData,
)
from raysim.raycore.resources import UNIT, ResourceSet
from raysim.raycore.state_log import StateLog
from raysim.raycore.tasks import (
    ActorOptions,
    Ref,
    RemoteFunction,
    TaskError,
    TaskOptions,
    TaskSpec,
)

MS = 1_000_000
DRIVER = WorkerAddress(1, "node-0/driver-1", 0)


def nothing(_running: object) -> None:
    """A body nobody runs."""


def function(name: str) -> RemoteFunction:
    return RemoteFunction(name=name, body=nothing)


def options(name: str = "__main__.f", cpus: float = 1, **more: Any) -> TaskOptions:
    resources = ResourceSet.of({"CPU": cpus} | more.pop("resources", {}))
    return TaskOptions(function=function(name), resources=resources, **more)


class Story:
    """Writes a log, a millisecond at a time."""

    def __init__(self) -> None:
        self.log = StateLog()
        self.rows = self.log.rows

    def note(self, kind: Any, number: int, state: str, t_ms: float, **more: Any) -> None:
        self.log.note(kind, number, state, int(t_ms * MS), **more)

    def node(self, number: int, t_ms: float = 0, /, **quantities: float) -> None:
        total = {name: round(q * UNIT) for name, q in quantities.items()}
        data = NodeTableData(number, "ALIVE", number == 0, total, total, {}, "")
        self.note("node", number, "ALIVE", t_ms, detail=data, node_id=number)

    def published(self, number: int, t_ms: float, total: dict[str, float], free: dict[str, float]):
        both = tuple({k: round(q * UNIT) for k, q in side.items()} for side in (total, free))
        self.note("node", number, "RESOURCES", t_ms, detail=both, node_id=number)

    def submit(
        self,
        task_id: int,
        opts: TaskOptions,
        t_ms: float,
        args: tuple[int, ...] = (),
        **more: Any,
    ) -> TaskSpec:
        refs = tuple(Ref(number, DRIVER) for number in args)
        spec = TaskSpec(task_id, opts, refs, more.pop("caller", DRIVER), **more)
        self.note("task", task_id, "PENDING_ARGS_AVAIL", t_ms, detail=spec)
        return spec

    def resolved(self, task_id: int, t_ms: float) -> None:
        self.note("task", task_id, "PENDING_NODE_ASSIGNMENT", t_ms)

    def run(self, task_id: int, t_ms: float, worker_id: int, node_id: int = 0) -> None:
        where = {"node_id": node_id, "worker_id": worker_id}
        self.note("task", task_id, "SUBMITTED_TO_WORKER", t_ms, **where)
        self.note("task", task_id, "RUNNING", t_ms + 1, **where)

    def finish(self, task_id: int, t_ms: float, size_bytes: int | None = None) -> None:
        if size_bytes is not None:
            detail = (size_bytes, DRIVER)
            self.note("object", object_id(task_id, 1), "INLINE", t_ms, detail=detail)
        self.note("task", task_id, "FINISHED", t_ms)

    def fail(self, task_id: int, t_ms: float, error_type: Any = "WORKER_DIED") -> None:
        self.note("task", task_id, "FAILED", t_ms, detail=TaskError(error_type, "gone"))

    def lease(self, number: int, spec: TaskSpec, state: str, t_ms: float, **more: Any) -> LeaseSpec:
        detail = LeaseSpec(
            spec.options,
            spec.options.placement_resources or spec.options.resources,
            tuple(arg for arg in spec.args if isinstance(arg, Ref)),
            spec.caller,
            spec.job_id,
            spec.task_id,
            spec.depth,
            spec.actor_id if spec.kind == "ACTOR_CREATION_TASK" else 0,
        )
        more.setdefault("node_id", 0)
        self.note("lease", number, state, t_ms, detail=detail, **more)
        return detail

    def actor(self, number: int, state: Any, t_ms: float, opts: TaskOptions, **more: Any) -> None:
        data = ActorTableData(
            number, state, more.pop("address", None), more.pop("num_restarts", 0), opts, DRIVER, 1,
            **more,
        )  # fmt: skip
        self.note("actor", number, state, t_ms, detail=data)

    def group(
        self, number: int, state: Any, t_ms: float, nodes: tuple[int, ...], *bundles: dict[str, int]
    ) -> None:
        made = tuple(Bundle(number, i, ResourceSet.of(bundle)) for i, bundle in enumerate(bundles))
        data = PlacementGroupTableData(number, "pg", state, "PACK", made, nodes)
        self.note("placement_group", number, state, t_ms, detail=data)


def actor_options(name: str = "__main__.A", /, **more: Any) -> TaskOptions:
    return TaskOptions(
        function=function(name),
        placement_resources=ResourceSet.of({"CPU": 1}),
        actor=ActorOptions(**more),
    )


def as_seen_on_a_laptop() -> Story:
    """An actor call, a nested task, a failure and a task that no node can run, on 2 CPUs."""
    story = Story()
    story.node(0, 0, CPU=2)
    creation = actor_options("__main__.A", name="a1")
    story.submit(1, creation, 1, kind="ACTOR_CREATION_TASK", actor_id=7)
    story.actor(7, "PENDING_CREATION", 2, creation)
    method = TaskOptions(function=function("__main__.A.m"))
    story.submit(2, method, 3, kind="ACTOR_TASK", actor_id=7)
    story.submit(3, options("__main__.outer"), 4)
    story.resolved(3, 4)
    story.run(3, 5, 11)
    story.run(1, 6, 12)
    story.finish(1, 8)
    story.actor(7, "ALIVE", 9, creation, address=WorkerAddress(12, "node-0/worker-12", 0))
    story.run(2, 10, 12)
    story.finish(2, 12, 16)
    inner = WorkerAddress(11, "node-0/worker-11", 0)
    story.submit(4, options("__main__.f"), 20, caller=inner, parent=3, depth=2)
    story.note("task", 3, "RUNNING_IN_RAY_GET", 21, node_id=0, worker_id=11)
    story.resolved(4, 21)
    story.run(4, 30, 13)
    story.finish(4, 330, 8)
    story.note("task", 3, "RUNNING", 331, node_id=0, worker_id=11)
    story.finish(3, 332, 8)
    spec = story.submit(5, options("__main__.never", cpus=8), 340)
    story.resolved(5, 340)
    story.lease(1, spec, "INFEASIBLE", 341)
    story.submit(6, options("__main__.bad"), 345)
    story.resolved(6, 345)
    story.run(6, 346, 11)
    story.fail(6, 350, "TASK_EXECUTION_EXCEPTION")
    return story
