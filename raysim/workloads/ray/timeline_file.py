"""A file that ``ray timeline`` wrote, read as tasks with times, places and parents.

Real counterpart: ``ray.timeline()`` (``ray/_private/state.py``): one ``task::<name>`` event per
execution, on its worker's row, and one ``submit_task`` event per call of ``.remote()``, on the row
of whoever called. Ray does not record which call began which task; here the calls, by time, are
given to the tasks in the order in which these began, each task taking the earliest call before it
that is left. A call within a task's own event makes that task the parent. Both are exact while
tasks begin in the order of their submission; else neighbours may be swapped.

Not in such a file, hence not here: arguments, sizes, resources.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raysim.errors import ScenarioError
from raysim.units import NS_PER_US


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTask:
    """One execution. Times are nanoseconds from the first event of the file."""

    name: str
    start_ns: int
    end_ns: int
    worker: str
    actor: bool = False
    """A method of an actor, or its creation."""
    creation: bool = False
    submit_ns: int = 0
    parent: int | None = None
    """Index of the task that submitted it; None: a driver, or not known."""
    nested: bool = False
    """It ended before its parent did: the parent may have waited for it."""


def read_timeline(path: Path) -> list[RecordedTask]:
    """Every task of the file, in the order in which they began.

    Raises
    ------
    ScenarioError
        It is not a timeline, or has no tasks.
    """
    try:
        events = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{path}: cannot be read as JSON: {error}") from error
    if isinstance(events, dict):
        events = events.get("traceEvents")
    if not isinstance(events, list):
        raise ScenarioError(f"{path}: is not a list of events, as ray timeline writes it")
    tasks, calls = _sorted_out(path, events)
    if not tasks:
        raise ScenarioError(f"{path}: has no task:: events among {len(events)} events")
    return _with_submissions(tasks, calls)


def _sorted_out(path: Path, events: list[Any]) -> tuple[list[RecordedTask], list[tuple[int, str]]]:
    """Tasks by start, and (time, row) of calls by time."""
    complete = [e for e in events if isinstance(e, dict) and e.get("ph", "X") == "X"]
    try:
        first_us = min((float(e["ts"]) for e in complete), default=0.0)
        tasks = [_task(e, first_us) for e in complete if str(e["cat"]).startswith("task::")]
        calls = [(_ns(e["ts"], first_us), _row(e)) for e in complete if e["cat"] == "submit_task"]
    except (KeyError, TypeError, ValueError) as error:
        raise ScenarioError(f"{path}: an event lacks cat, ts, dur, pid or tid: {error}") from error
    makers = {task.worker for task in tasks if task.creation}
    tasks = [replace(task, actor=task.actor or task.worker in makers) for task in tasks]
    tasks.sort(key=lambda task: (task.start_ns, task.end_ns))
    return tasks, sorted(calls)


def _ns(ts_us: float, first_us: float) -> int:
    return round((float(ts_us) - first_us) * NS_PER_US)


def _row(event: Mapping[str, Any]) -> str:
    return f"{event['pid']} {event['tid']}"


def _task(event: Mapping[str, Any], first_us: float) -> RecordedTask:
    name = str(event["cat"])[len("task::") :]
    start_ns = _ns(event["ts"], first_us)
    return RecordedTask(
        name=name,
        start_ns=start_ns,
        end_ns=start_ns + round(float(event["dur"]) * NS_PER_US),
        worker=_row(event),
        actor="." in name,
        creation=name.endswith(".__init__"),
        submit_ns=start_ns,
    )


def _with_submissions(
    tasks: list[RecordedTask], calls: list[tuple[int, str]]
) -> list[RecordedTask]:
    rows: dict[str, list[int]] = {}
    for index, task in enumerate(tasks):
        rows.setdefault(task.worker, []).append(index)
    left = 0
    found = []
    for index, task in enumerate(tasks):
        if left == len(calls) or calls[left][0] > task.start_ns:
            found.append(task)
            continue
        submit_ns, row = calls[left]
        left += 1
        parent = _within(tasks, rows.get(row, []), submit_ns, index)
        nested = parent is not None and task.end_ns <= tasks[parent].end_ns
        found.append(replace(task, submit_ns=submit_ns, parent=parent, nested=nested))
    return found


def _within(tasks: list[RecordedTask], row: list[int], t_ns: int, child: int) -> int | None:
    """The task of a row that was running at the time; the innermost, if several were."""
    running = [i for i in row if tasks[i].start_ns <= t_ns <= tasks[i].end_ns and i != child]
    return running[-1] if running else None
