"""The ``goodput`` part of the summary: what a run makes of its time when machines are not ideal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from raysim.hardware.specs import Provenance
from raysim.units import to_seconds
from raysim.workloads import failures, machines
from raysim.workloads.goodput import SPREAD, Goodput, Interval
from raysim.workloads.train_run import JobOutcome

MOST_STOPS = 1000
PART_NAMES = {
    "kept": "kept steps, at full speed",
    "slow": "slow and varying machines",
    "startup": "first launch",
    "evaluation": "evaluation",
    "checkpoints": "saving checkpoints",
    "lost": "work lost to failures",
    "detection": "failures not yet noticed",
    "waiting": "waiting for nodes",
    "restart": "launching and loading again",
    "link_down": "link down",
}


def goodput_part(outcome: JobOutcome, tokens: float | None) -> dict[str, Any] | None:
    """None where all machines are alike and none fails.

    goodput = kept steps x a healthy machine's step / wall time; the parts add up to the wall time.
    """
    if outcome.job.machines.alike and outcome.job.failures is None:
        return None
    healthy_s = outcome.healthy_step_s
    found: dict[str, Any] = {
        "healthy_step_seconds": healthy_s,
        "step_seconds": outcome.step_s,
        "step_inflation_frac": outcome.step_s / healthy_s - 1,
        "spare_nodes": spare_nodes(outcome),
    }
    return found if outcome.goodput is None else found | _of_run(outcome.goodput, tokens)


def _of_run(run: Goodput, tokens: float | None) -> dict[str, Any]:
    finished, wall_s = run.finished, run.wall_s
    rate = tokens / wall_s if tokens is not None and finished and wall_s else None
    return {
        "finished": finished,
        "frac": run.goodput,
        "wall_seconds": wall_s,
        "wall_seconds_p5_p95": [run.wall_quantile_s(share) for share in SPREAD]
        if len(run.lives) > 1
        else None,
        "ideal_seconds": run.course.steps * to_seconds(run.course.healthy_step_ns),
        "effective_tokens_per_s": rate,
        "runs": len(run.lives),
        "mtbf_seconds": run.course.mtbf_s if math.isfinite(run.course.mtbf_s) else None,
        "failures": run.failures,
        "one_more_spare_delta_frac": run.one_more_spare,
        "checkpoints": run.saves,
        "stops": _stops(run),
        "parts": _parts(run),
        "expected_wall_seconds": _finite(run.expected_s),
        "interval": _interval(run, run.interval),
        "best_interval": _interval(run, run.best),
        "young_seconds": run.young_s,
        "daly_seconds": run.daly_s,
    }


def _stops(run: Goodput) -> list[dict[str, Any]]:
    """The failures of the first life, the first ``MOST_STOPS`` of them."""
    return [
        {
            "at_seconds": to_seconds(stop.at_ns),
            "why": stop.why,
            "lost_seconds": to_seconds(stop.lost_ns),
            "down_seconds": to_seconds(stop.down_ns),
        }
        for stop in run.lives[0].stops[:MOST_STOPS]
    ]


def _parts(run: Goodput) -> list[dict[str, Any]]:
    """Mean seconds, the longest first after the kept steps; parts of no length are left out."""
    wall_s = run.wall_s
    rows = [
        {"key": key, "name": PART_NAMES[key], "seconds": s, "frac": s / wall_s if wall_s else 0.0}
        for key, s in run.parts_s.items()
        if s
    ]
    return sorted(rows, key=lambda row: (row["key"] != "kept", -float(row["seconds"])))


def _interval(run: Goodput, interval: Interval | None) -> dict[str, Any] | None:
    """An interval, and how much of the wall time as configured it saves in expectation."""
    if interval is None:
        return None
    then_s = interval.wall_s
    now_s = math.inf if run.interval is None else run.interval.wall_s
    known = math.isfinite(now_s) and math.isfinite(then_s)
    return {
        "steps": interval.steps,
        "seconds": interval.seconds,
        "expected_wall_seconds": _finite(then_s),
        "wall_delta_frac": then_s / now_s - 1 if known else None,
    }


def _finite(seconds: float | None) -> float | None:
    return None if seconds is None or math.isinf(seconds) else seconds


def spare_nodes(outcome: JobOutcome) -> int:
    """Nodes to be paid for beside the cluster's."""
    return 0 if outcome.job.failures is None else outcome.job.failures.spare_nodes


def provenance(outcome: JobOutcome) -> Mapping[str, Provenance]:
    """Of raysim's own values that the user left standing."""
    found: dict[str, Provenance] = {}
    how = outcome.job.failures
    if how is not None and how.detect_s == failures.DETECT_S:
        found["failure detection"] = failures.PROVENANCE["failure detection"]
    if how is not None and how.replacement_s == failures.REPLACEMENT_S and how.takes_node:
        found["node replacement"] = failures.PROVENANCE["node replacement"]
    if outcome.job.machines.timeout_s is None:
        patience = (
            {o.patience_ns for o in outcome.goodput.course.outages} if outcome.goodput else ()
        )
        for name, origin in machines.PROVENANCE.items():
            rdma = name.startswith("RDMA")
            limit = machines.TRANSPORT_TIMEOUT_S if rdma else machines.PROCESS_GROUP_TIMEOUT_S
            if any(abs(ns / 1e9 - limit) < 1e-3 for ns in patience):
                found[name] = origin
    return found
