"""``ray summary tasks``, ``actors`` and ``objects`` of a moment: the same nested dictionaries.

Real counterpart: ``TaskSummaries``, ``ActorSummaries``, ``ObjectSummaries`` in
``ray/util/state/common.py``; grouped as the command line does by default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raysim.raystate.listings import rows
from raysim.raystate.moment import Moment

Summary = dict[str, Any]


def summary(now: Moment, resource: str) -> Summary:
    """What ``ray.util.state.summarize_<resource>()`` answers under ``"cluster"``.

    Raises
    ------
    ValueError
        Only tasks, actors and objects have a summary.
    """
    if resource not in _MAKERS:
        raise ValueError(f"{resource!r} is not one of {', '.join(_MAKERS)}")
    return {"cluster": _MAKERS[resource](now)}


def _count(counts: dict[str, int], key: str) -> None:
    counts[key] = counts.get(key, 0) + 1


def _tasks(now: Moment) -> Summary:
    groups: dict[str, Summary] = {}
    kinds = {"NORMAL_TASK": 0, "ACTOR_TASK": 0, "ACTOR_CREATION_TASK": 0}
    for task in rows(now, "tasks"):
        name = task["name"] or task["func_or_class_name"]
        group = groups.setdefault(
            name, {"func_or_class_name": name, "type": task["type"], "state_counts": {}}
        )
        _count(group["state_counts"], task["state"])
        if task["type"] in kinds:
            kinds[task["type"]] += 1
    return {
        "summary": groups,
        "total_tasks": kinds["NORMAL_TASK"],
        "total_actor_tasks": kinds["ACTOR_TASK"],
        "total_actor_scheduled": kinds["ACTOR_CREATION_TASK"],
        "summary_by": "func_name",
    }


def _actors(now: Moment) -> Summary:
    groups: dict[str, Summary] = {}
    total = 0
    for actor in rows(now, "actors"):
        name = actor["class_name"]
        group = groups.setdefault(name, {"class_name": name, "state_counts": {}})
        _count(group["state_counts"], actor["state"])
        total += 1
    return {"summary": groups, "total_actors": total, "summary_by": "class"}


def _objects(now: Moment) -> Summary:
    groups: dict[str, Summary] = {}
    workers: dict[str, dict[int, None]] = {}
    nodes: dict[str, dict[str, None]] = {}
    total, total_mb = 0, 0.0
    for thing in rows(now, "objects"):
        site = thing["call_site"]
        group = groups.setdefault(
            site,
            {
                "total_objects": 0,
                "total_size_mb": 0,
                "total_num_workers": 0,
                "total_num_nodes": 0,
                "task_state_counts": {},
                "task_attempt_number_counts": {},
                "ref_type_counts": {},
            },
        )
        _count(group["task_state_counts"], thing["task_status"])
        _count(group["task_attempt_number_counts"], str(thing["attempt_number"]))
        _count(group["ref_type_counts"], thing["reference_type"])
        group["total_objects"] += 1
        total += 1
        if thing["object_size"] != -1:
            group["total_size_mb"] += thing["object_size"] / 1024**2
            total_mb += thing["object_size"] / 1024**2
        workers.setdefault(site, {})[thing["pid"]] = None
        nodes.setdefault(site, {})[thing["ip"]] = None
    for site, group in groups.items():
        group["total_num_workers"] = len(workers[site])
        group["total_num_nodes"] = len(nodes[site])
    return {
        "summary": groups,
        "total_objects": total,
        "total_size_mb": total_mb,
        "callsite_enabled": not groups,
        "summary_by": "callsite",
    }


_MAKERS: dict[str, Callable[[Moment], Summary]] = {
    "tasks": _tasks,
    "actors": _actors,
    "objects": _objects,
}
