"""Words for stories about a whole Ray cluster: options, runs of a script, when tasks ran where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from raysim.raycore import scripts
from raysim.raycore.cluster import Cluster
from raysim.raycore.core_worker.worker import CoreWorker
from raysim.raycore.ids import task_of
from raysim.raycore.resources import ResourceSet
from raysim.raycore.scripts import Script, drive, function
from raysim.raycore.tasks import ActorOptions, Body, Ref, TaskOptions
from raysim.units import NS_PER_S


def task(body: Body = scripts.no_op, *, cpus: float = 1, **options: Any) -> TaskOptions:
    """A remote function of this body; more resources by keyword ``resources``."""
    more = options.pop("resources", {})
    name = options.pop("function_name", "")
    return TaskOptions(
        function=function(body, name), resources=ResourceSet.of({"CPU": cpus, **more}), **options
    )


def actor(body: Body = scripts.no_op, *, cpus: float = 0, **options: Any) -> TaskOptions:
    """An actor class: 1 CPU to be placed, ``cpus`` while it lives."""
    return TaskOptions(
        function=function(body, "Actor"),
        resources=ResourceSet.of({"CPU": cpus}),
        placement_resources=ResourceSet.of({"CPU": max(cpus, 1)}),
        actor=ActorOptions(**options),
    )


def method(body: Body = scripts.no_op, **options: Any) -> TaskOptions:
    """A method of an actor."""
    return TaskOptions(function=function(body, "method"), max_retries=0, **options)


def run(
    cluster: Cluster,
    main: Callable[[CoreWorker], Script],
    *,
    until: str = "1h",
    node_id: int | None = None,
) -> Any:
    """What the driver's script returns; it must end by then."""
    ended: list[Any] = []
    cluster.driver(lambda d: drive(d, main, ended.append), node_id=node_id)
    cluster.sim.run(until)
    assert ended, f"the driver has not ended by {until}"
    return ended[0]


def starts(cluster: Cluster, refs: Sequence[Ref] | None = None) -> list[tuple[float, int]]:
    """(seconds, node) of the first RUNNING of each task that ran, in order of time."""
    wanted = None if refs is None else {task_of(r.object_id) for r in refs}
    seen: dict[int, tuple[float, int]] = {}
    for row in cluster.env.log.rows:
        began = row.kind == "task" and row.state == "RUNNING" and row.number not in seen
        if began and (wanted is None or row.number in wanted):
            seen[row.number] = (row.t_ns / NS_PER_S, row.node_id)
    return sorted(seen.values())


def seconds(cluster: Cluster) -> float:
    """Now."""
    return cluster.sim.now_ns / NS_PER_S
