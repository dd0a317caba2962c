"""What a summary says of several jobs on one cluster, and of the machines that came.

A job's wait is from its submission to the first moment one of its tasks or actors ran: the time to
start its supervisor and its driver, and then for resources that others hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from raysim.raycore.cloud import PHASES, Launch
from raysim.raystate.moment import Moment
from raysim.units import NS_PER_S
from raysim.workloads.submissions import JobRecord


def jobs_table(records: Sequence[JobRecord], now: Moment) -> list[dict[str, Any]]:
    """One row per job, in the order of the scenario."""
    first: dict[int, int] = {}
    for attempt in now.attempts:
        begun = attempt.first_ns("RUNNING")
        if attempt.spec is not None and begun is not None:
            job_id = attempt.spec.job_id
            first[job_id] = min(begun, first.get(job_id, begun))
    return [_row(record, first) for record in records]


def _row(record: JobRecord, first: dict[int, int]) -> dict[str, Any]:
    begun = [first[job_id] / NS_PER_S for job_id in record.job_ids if job_id in first]
    work_s = min(begun, default=None)
    began_s = record.started_s if work_s is None else work_s
    done = None if record.ended_s is None else record.ended_s - record.submitted_s
    ran = None if record.ended_s is None or began_s is None else record.ended_s - began_s
    return {
        "name": record.name,
        "status": record.status,
        "message": record.message,
        "attempts": record.attempts,
        "job_ids": list(record.job_ids),
        "submitted_seconds": record.submitted_s,
        "driver_started_seconds": record.started_s,
        "ended_seconds": record.ended_s,
        "wait_seconds": None if began_s is None else began_s - record.submitted_s,
        "run_seconds": ran,
        "seconds": done,
    }


def machines(launches: Sequence[Launch]) -> list[dict[str, Any]]:
    """How many machines of each type were asked for and came, and how long each phase took."""
    types = dict.fromkeys(launch.node_type for launch in launches)
    return [_machines_of(t, [x for x in launches if x.node_type == t]) for t in types]


def _machines_of(node_type: str, launches: list[Launch]) -> dict[str, Any]:
    up = [launch for launch in launches if launch.up_ns >= 0]
    took = [(launch.up_ns - launch.began_ns) / NS_PER_S for launch in up]
    phases = {
        name: median(launch.phases_ns[name] for launch in up) / NS_PER_S if up else None
        for name in PHASES
    }
    return {
        "group": node_type,
        "asked": len(launches),
        "came": len(up),
        "p50_seconds": median(took) if took else None,
        "max_seconds": max(took, default=None),
        "p50_phase_seconds": phases,
    }
