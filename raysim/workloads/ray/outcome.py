"""What came of a workload, from the rows of the state log.

The makespan is from the first submission to the last end. Latencies are of finished tasks, of each
the last attempt's end: ``wait`` from submission to its first instant of running, ``run`` from there
to the end (retries and waiting in ``ray.get`` included), ``total`` both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from raysim.raycore.ids import TaskID
from raysim.raycore.state_log import Change
from raysim.units import NS_PER_S

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Of one phase, over tasks, in seconds."""

    mean_s: float
    p50_s: float
    p90_s: float
    p95_s: float
    p99_s: float
    max_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A workload's result."""

    tasks: int
    finished: int
    failed: int
    attempts: int
    """With retries."""
    makespan_s: float
    tasks_per_s: float
    """Finished, over the makespan."""
    latencies: Mapping[str, Latency]
    """``wait``, ``run``, ``total``; empty if nothing finished."""


def outcome(rows: Iterable[Change], tasks: Iterable[TaskID] | None = None) -> Outcome:
    """Of these tasks; None: of all in the log."""
    wanted = None if tasks is None else set(tasks)
    submitted: dict[TaskID, int] = {}
    begun: dict[TaskID, int] = {}
    ended: dict[TaskID, tuple[str, int]] = {}
    attempts = 0
    for row in rows:
        if row.kind != "task" or (wanted is not None and row.number not in wanted):
            continue
        if row.state == "PENDING_ARGS_AVAIL":
            attempts += 1
            first = submitted.get(row.number, row.t_ns)
            submitted[row.number] = min(first, row.t_ns)
            ended.pop(row.number, None)
        elif row.state == "RUNNING":
            begun.setdefault(row.number, row.t_ns)
        elif row.state in {"FINISHED", "FAILED"}:
            ended[row.number] = row.state, row.t_ns
    finished = [n for n, (state, _) in ended.items() if state == "FINISHED" and n in begun]
    last_ns = max((t for _, t in ended.values()), default=0)
    makespan_s = (last_ns - min(submitted.values(), default=last_ns)) / NS_PER_S
    phases = {
        "wait": [begun[n] - submitted[n] for n in finished],
        "run": [ended[n][1] - begun[n] for n in finished],
        "total": [ended[n][1] - submitted[n] for n in finished],
    }
    return Outcome(
        tasks=len(submitted),
        finished=len(finished),
        failed=sum(state == "FAILED" for state, _ in ended.values()),
        attempts=attempts,
        makespan_s=makespan_s,
        tasks_per_s=len(finished) / makespan_s if makespan_s > 0 else 0.0,
        latencies={name: _latency(values) for name, values in phases.items() if values},
    )


def _latency(taken_ns: list[int]) -> Latency:
    """Percentiles between the two nearest values, as the benchmarks of Ray have them."""
    p50, p90, p95, p99 = np.percentile(taken_ns, PERCENTILES).tolist()
    return Latency(
        mean_s=sum(taken_ns) / len(taken_ns) / NS_PER_S,
        p50_s=p50 / NS_PER_S,
        p90_s=p90 / NS_PER_S,
        p95_s=p95 / NS_PER_S,
        p99_s=p99 / NS_PER_S,
        max_s=max(taken_ns) / NS_PER_S,
    )
