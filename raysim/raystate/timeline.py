"""``ray timeline`` of a run: who ran what when, per node and worker.

Real counterpart: ``chrome_tracing_dump`` in ``ray/_private/state.py`` and
``ray/_private/profiling.py``, with its categories: ``task::<name>`` for a task, ``submit_task``
for a call of ``.remote()``; ``ray.get`` and ``ray.wait`` for waiting within a task, which Ray draws
where ``RAY_PROFILING=1``. Process = node, thread = worker. A task is drawn from RUNNING to its end,
each attempt for itself.

Not there: ``task:deserialize_arguments``, ``task:execute`` and ``task:store_outputs``, which the
state log does not tell apart, and what a driver waits for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from raysim.perf.ray_core import RayCosts
from raysim.raycore.ids import hex_id, node_ip
from raysim.raycore.state_log import Change
from raysim.raycore.tasks import TaskSpec
from raysim.raystate.moment import Moment, TaskAttempt, moment
from raysim.raystate.names import task_name

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


def thread(now: Moment, worker_id: int) -> str:
    """``worker-7``, ``driver-1``."""
    entry = now.workers.get(worker_id)
    kind = "driver" if entry is not None and entry.worker_type == "DRIVER" else "worker"
    return f"{kind}-{worker_id}"


# ---- the file that ``ray timeline`` writes -------------------------------------------------------


def chrome_events(rows: Iterable[Change], *, costs: RayCosts | None = None) -> list[dict[str, Any]]:
    """What ``ray.timeline()`` answers; times in microseconds since the start of the run."""
    now = moment(rows)
    events = []
    for part in slices(now, costs or RayCosts()):
        kind, _, _ = thread(now, part.worker_id).partition("-")
        args: dict[str, Any] = {}
        if part.category.startswith("task::"):
            args = {"name": part.name, "task_id": hex_id("task", part.attempt.task_id)}
        events.append(
            {
                "cat": part.category,
                "name": part.name,
                "pid": node_ip(part.node_id),
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
