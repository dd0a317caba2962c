"""The summary of a Ray program: a plain dictionary made of what its cluster's rooms wrote down.

Same keys as a training job's where they mean the same (verdict, run, cost, targets, trust), and
``kind: program`` to tell them apart. Every number is counted or integrated from rows of the state
log, or from the counters of links, disks and cores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from raysim.raycore.ids import NodeID
from raysim.raycore.protocol import ActorTableData
from raysim.raycore.resources import UNIT
from raysim.raystate.moment import ENDED, Moment, TaskAttempt, in_order, moment
from raysim.raystate.names import class_name, node_name, task_name
from raysim.results import launched, libraries
from raysim.results.program_bound import bound_by, no_room, parts
from raysim.results.program_jobs import jobs_table, machines
from raysim.results.program_provenance import compute_basis, simplifications, trust
from raysim.results.ray.activity import Activity, Series
from raysim.results.ray.pending import RUNNING, pending_causes, why_pending
from raysim.results.ray.pending_groups import pending_groups
from raysim.units import NS_PER_S, format_bytes, format_seconds
from raysim.workloads.program import FaultEvent
from raysim.workloads.program_run import ProgramOutcome

MOST_FUNCTIONS = 50
"""Rows of the table of functions; the summary says how many there are."""
MOST_SENTENCES = 3
_SHOWN = ("CPU", "GPU", "memory")
_FALLS_SILENT = {"fail_node": 0.0, "partition": 0.0, "kill_raylet": 0.0, "preempt": 1.0}
"""Faults after which a node does nothing more; 1: only after its notice."""


def falls_silent(faults: Sequence[FaultEvent]) -> list[tuple[int, NodeID]]:
    """When which node stops doing anything."""
    return [
        (round((f.at_s + _FALLS_SILENT[f.kind] * f.notice_s) * NS_PER_S), f.node_id)
        for f in faults
        if f.kind in _FALLS_SILENT
    ]


def summarize_program(outcome: ProgramOutcome, *, digest: str) -> dict[str, Any]:
    """Everything but what names the run, the targets and the warnings."""
    now = moment(outcome.log.rows, outcome.end_ns)
    activity = Activity(
        in_order(outcome.log.rows), outcome.end_ns, lost=falls_silent(outcome.faults),
        costs=outcome.cluster.env.costs, submitted=bool(outcome.jobs),
    )  # fmt: skip
    seconds = outcome.end_ns / NS_PER_S
    finished = outcome.exit.how in {"ok", "exit", "exception", "killed"}
    tasks = _tasks(now)
    usage = _utilisation(outcome, activity)
    if outcome.job.launched is not None:
        usage = launched.utilisation(outcome, usage)
    network = _network(outcome, activity)
    cost = _cost(outcome, activity)
    cost |= libraries.token_cost(outcome.reports, cost["usd"], seconds)
    store = _object_store(outcome, activity)
    share = [] if outcome.job.launched else parts(activity, libraries.meanwhile(outcome.reports))
    pending = _pending(now, outcome)
    return {
        "kind": "program",
        "verdict": _verdict(outcome, tasks, pending, cost),
        "program": _program(outcome),
        "run": {
            "seconds": seconds if finished else None,
            "virtual_seconds": seconds,
            "text": format_seconds(seconds),
        },
        "cluster": _cluster(outcome),
        "time": share,
        "bound_by": libraries.bound_by(outcome.reports)
        or no_room(pending["groups"] if outcome.exit.how == "hang" else 0, pending["examples"])
        or bound_by(share, usage, network, store, tasks),
        "libraries": libraries.rows(outcome.reports),
        "jobs": jobs_table(outcome.jobs, now),
        "machines": machines(outcome.cluster.cloud.launches),
        "tasks": tasks,
        "actors": _actors(now),
        "failures": _failures(now),
        "faults": [_fault(f) for f in outcome.faults if f.at_s <= seconds],
        "utilisation": usage,
        "object_store": store,
        "network": network,
        "pending": pending,
        "cost": cost,
        "compute": compute_basis(outcome),
        "simplifications": simplifications(outcome),
        "trust": trust(outcome),
        "simulation": {
            "virtual_seconds": seconds,
            "state_rows": len(outcome.log.rows),
            "digest": digest,
        },
    }


# ---- verdict -------------------------------------------------------------------------------------


def _verdict(
    outcome: ProgramOutcome, tasks: Mapping[str, Any], pending: Mapping[str, Any], cost: Any
) -> dict[str, Any]:
    """In one sentence."""
    if outcome.job.launched:
        return launched.verdict(outcome, cost)
    took = format_seconds(outcome.end_ns / NS_PER_S)
    how, said = outcome.exit.how, outcome.exit.message
    done = f"{tasks['finished']:,} of {tasks['total']:,} tasks finished"
    if how == "ok":
        text = f"Finished in {took}: "
        text += f"{_counted(len(outcome.jobs), 'job')}, " if outcome.jobs else ""
        text += _counted(tasks["total"], "task")
        text += f", {tasks['retried']:,} retried" if tasks["retried"] else ""
        text += f" on {_counted(_nodes(outcome), 'node')}"
        text += "." if cost["usd"] is None else f", ${cost['usd']:.3g}."
    elif how == "until":
        text = f"Stopped at {took}, {outcome.exit.enough or 'as asked'}: "
        text += f"{done}, {pending['count']:,} wait."
    elif how == "killed" or (how == "exit" and outcome.jobs):
        text = f"Failed after {took}: {said}; {done}."
    elif how == "hang":
        left = [f"{pending['count']:,} wait"] if pending["count"] or not pending["groups"] else []
        if pending["groups"]:
            left.append(f"no room for {_counted(pending['groups'], 'placement group')}")
        text = f"Hangs: nothing happens after {took}; {done}, {', '.join(left)}."
    elif how == "exit":
        text = f"Failed after {took}: the driver ended with {said}; {done}."
    else:
        text = f"Failed after {took}: the driver raised {said}; {done}."
    if not _nodes(outcome) and how == "ok":
        text = "Finished without a call to Ray; no time was simulated."
    reports = outcome.reports
    said = " ".join([text, *(r.text for r in reports)])
    return {"ok": how in {"ok", "until"} and all(r.ok for r in reports), "text": said}


def _counted(n: int, word: str) -> str:
    return f"{n:,} {word}{'s' * (n != 1)}"


def _nodes(outcome: ProgramOutcome) -> int:
    return len({row.number for row in outcome.log.rows if row.kind == "node"})


def _program(outcome: ProgramOutcome) -> dict[str, Any]:
    return {
        "script": outcome.job.title,
        "args": list(outcome.job.args),
        "launcher": " ".join(outcome.job.launched.words) if outcome.job.launched else None,
        "exit": outcome.exit.how,
        "exit_code": outcome.exit.code,
        "message": outcome.exit.message,
        "traceback": outcome.exit.text,
        "output_lines": outcome.output.count("\n"),
    }


def _fault(fault: Any) -> dict[str, Any]:
    where = node_name(fault.node_id) if fault.node_id >= 0 else "GCS"
    return {"at_seconds": fault.at_s, "kind": fault.kind, "node": where}


def _cluster(outcome: ProgramOutcome) -> dict[str, Any]:
    spec = outcome.spec
    node = spec.nodes[0]
    grows = outcome.job.autoscaling is not None
    kinds = " + ".join(f"{g.count} x {g.node.name}" for g in spec.groups if g.count)
    return {
        "nodes": len(spec.nodes),
        "text": kinds,
        "gpus": spec.num_gpus,
        "vcpus": sum(n.vcpus for n in spec.nodes),
        "network": f"{node.nic_count} x {node.nic.bytes_per_s * 8 / 1e9:g} Gb/s {node.nic.kind}",
        "fabric": spec.fabric.kind,
        "autoscaled": grows,
        "groups": [
            {
                "name": g.name, "node": g.node.name, "count": g.count,
                "max_count": max(g.count, g.max_count or 0) if grows else g.count,
                "usd_per_hour": g.node_usd_per_hour,
            }
            for g in spec.groups
        ],
    }  # fmt: skip


# ---- tasks, actors, failures ---------------------------------------------------------------------


def _tasks(now: Moment) -> dict[str, Any]:
    """Counts by state, and the table of functions."""
    groups: dict[str, list[TaskAttempt]] = {}
    for attempt in now.attempts:
        name = task_name(attempt.spec) if attempt.spec else "unknown"
        groups.setdefault(name, []).append(attempt)
    latest = list(now.tasks.values())
    table = sorted((_function(n, g) for n, g in groups.items()), key=lambda r: -r["busy_seconds"])
    return {
        "total": len(latest),
        "finished": sum(a.state == "FINISHED" for a in latest),
        "failed": sum(a.state == "FAILED" for a in latest),
        "attempts": len(now.attempts),
        "retried": len(now.attempts) - len(latest),
        "by_state": dict(sorted(Counter(a.state for a in latest).items())),
        "by_kind": dict(sorted(Counter(a.spec.kind for a in latest if a.spec).items())),
        "functions": len(table),
        "by_function": table[:MOST_FUNCTIONS],
    }


def _function(name: str, attempts: Sequence[TaskAttempt]) -> dict[str, Any]:
    """Durations of the attempts that finished; waits of all that ran."""
    ran, waits = [], []
    for attempt in attempts:
        begun = attempt.first_ns("RUNNING")
        if begun is None:
            continue
        waits.append((begun - attempt.events[0][1]) / NS_PER_S)
        if attempt.end_ns is not None and attempt.state == "FINISHED":
            ran.append((attempt.end_ns - begun) / NS_PER_S)
    latest = {a.task_id: a for a in attempts}
    return {
        "name": name,
        "kind": attempts[0].spec.kind if attempts[0].spec else "",
        "count": len(latest),
        "finished": len(ran),
        "failed": sum(a.state == "FAILED" for a in latest.values()),
        "retried": len(attempts) - len(latest),
        "busy_seconds": sum(ran),
        "mean_seconds": sum(ran) / len(ran) if ran else None,
        "p50_seconds": _percentile(ran, 50),
        "p95_seconds": _percentile(ran, 95),
        "wait_mean_seconds": sum(waits) / len(waits) if waits else None,
        "wait_p95_seconds": _percentile(waits, 95),
    }


def _percentile(values: Sequence[float], percent: float) -> float | None:
    """As numpy has it: between the two nearest values."""
    return float(np.percentile(values, percent)) if values else None


def _actors(now: Moment) -> dict[str, Any]:
    rows = [e for e in now.actors.values() if isinstance(e.data, ActorTableData)]
    return {
        "total": len(rows),
        "restarts": sum(e.data.num_restarts for e in rows),
        "by_state": dict(sorted(Counter(e.state for e in rows).items())),
        "by_class": dict(Counter(class_name(e.data.options) for e in rows).most_common()),
    }


_KILLED = "killed by `ray.kill`."


def _failures(now: Moment) -> list[dict[str, Any]]:
    """Attempts that failed, by error and node, the most first.

    Not those of an actor that the program itself ended with ``ray.kill``, as Ray Train does,
    but for those whose node was being taken away.
    """
    counts: Counter[tuple[str, str]] = Counter()
    retried: Counter[tuple[str, str]] = Counter()
    for attempt in now.attempts:
        latest = now.tasks[attempt.task_id] is attempt
        if attempt.state != "FAILED" or (attempt.error and attempt.error.message.endswith(_KILLED)):
            continue
        where = node_name(attempt.node_id) if attempt.node_id >= 0 else "-"
        key = (error_type(now, attempt), where)
        counts[key] += 1
        retried[key] += not latest
    return [
        {"error_type": error, "node": node, "attempts": n, "retried": retried[error, node]}
        for (error, node), n in counts.most_common()
    ]


def error_type(now: Moment, attempt: TaskAttempt) -> str:
    """Of an attempt that was given up for another, what the fate of its process says."""
    if attempt.error is not None:
        return attempt.error.error_type
    end_ns = attempt.since_ns
    node, worker = now.nodes.get(attempt.node_id), now.workers.get(attempt.worker_id)
    if node is not None and 0 <= node.end_ns <= end_ns:
        return "NODE_DIED"
    if worker is not None and 0 <= worker.end_ns <= end_ns:
        return "WORKER_DIED"
    return "TASK_EXECUTION_EXCEPTION" if attempt.first_ns("RUNNING") is not None else "LOST"


def _pending(now: Moment, outcome: ProgramOutcome) -> dict[str, Any]:
    """Tasks that have not ended, placement groups without room, and what they wait for."""
    open_ = [a for a in now.tasks.values() if a.state not in ENDED]
    waiting = [a for a in open_ if a.state not in RUNNING]
    config = outcome.job.config
    groups, sentences = pending_groups(now)
    sentences += [why_pending(now, a.task_id, config=config) for a in waiting[:MOST_SENTENCES]]
    return {
        "groups": groups,
        "running": len(open_) - len(waiting),
        "count": len(waiting),
        "causes": dict(pending_causes(now, config=config).most_common()) if waiting else {},
        "examples": sentences[:MOST_SENTENCES],
        "driver_waits_at": outcome.exit.message if outcome.exit.how in {"hang", "until"} else "",
    }  # fmt: skip


# ---- what was used -------------------------------------------------------------------------------


def _utilisation(outcome: ProgramOutcome, activity: Activity) -> list[dict[str, Any]]:
    """Per node group: resource-seconds held over those there were."""
    rows = []
    cluster = outcome.cluster
    for group in cluster.spec.groups:
        nodes = [i for i, g in enumerate(cluster.groups) if g.name == group.name]
        nodes = [i for i in nodes if i in activity.total]
        if not nodes:
            continue
        resources = {}
        for name in _names(activity, nodes):
            held = _sum(activity.held.get((i, name)) for i in nodes)
            capacity = sum(
                activity.total[i].get(name, 0) * activity.up[i].total(activity.end_ns)
                for i in nodes
            )
            busy = sum(series.total(activity.end_ns) for series in held)
            resources[name] = {
                "per_node": activity.total[nodes[0]].get(name, 0) / UNIT,
                "busy_seconds": busy / UNIT / NS_PER_S,
                "capacity_seconds": capacity / UNIT / NS_PER_S,
                "frac": busy / capacity if capacity else 0.0,
                "peak": sum(s.peak for s in held) / UNIT,
            }
        cores = [cluster.env.nodes[i] for i in nodes]
        up_s = sum(activity.up[i].total(activity.end_ns) for i in nodes) / NS_PER_S
        core_s = sum(node.cpu.done_units for node in cores)
        rows.append(
            {
                "group": group.name,
                "nodes": len(nodes),
                "resources": resources,
                "node_seconds": up_s,
                "core_seconds": core_s,
                "cores_frac": core_s / (up_s * cores[0].host.capacity.most) if up_s else 0.0,
            }
        )
    return rows


def _names(activity: Activity, nodes: Iterable[NodeID]) -> list[str]:
    """CPU always; GPU and memory and custom resources where they are asked for."""
    used = {name for (i, name), s in activity.held.items() if i in set(nodes) and s.peak}
    there = {name for i in nodes for name in activity.total[i]}
    gpus = {"GPU"} & there
    return [n for n in _SHOWN if n == "CPU" or n in gpus or n in used] + sorted(
        n for n in used if n not in _SHOWN and not n.startswith(("node:", "accelerator_type:"))
    )


def disks_left_idle(outcome: ProgramOutcome, summary: Mapping[str, Any]) -> list[str]:
    """Said when objects were spilled to root volumes of nodes that have disks of their own."""
    env = outcome.cluster.env
    spilled = summary["object_store"]["spilled_bytes"]
    if not spilled or env.config.object_spilling_directory:
        return []
    idle = sum(len(n.disks) > len(env.spill_disks(n.index)) for n in env.nodes)
    if not idle:
        return []
    said = (
        f"{format_bytes(spilled)} went to root volumes, where Ray spills by default, while {idle} "
        "nodes have local NVMe: start Ray with --object-spilling-directory on it (`ray: {config: "
        "{object_spilling_directory: NVME}}` here)"
    )
    return [said]


def _sum(series: Iterable[Series | None]) -> list[Series]:
    return [s for s in series if s is not None]


def _object_store(outcome: ProgramOutcome, activity: Activity) -> dict[str, Any]:
    fullest = max(activity.store.items(), key=lambda item: item[1].peak, default=None)
    capacity = {i: int(r.get("object_store_memory", 0) / UNIT) for i, r in activity.total.items()}
    disks = [
        (busy, node.index)
        for node in outcome.cluster.env.nodes
        for busy in [max((d.server.busy_ns for d in node.disks), default=0)]
    ]
    busiest = max(disks, default=(0, 0))
    return {
        "peak_bytes": int(fullest[1].peak) if fullest else 0,
        "peak_node": node_name(fullest[0]) if fullest else None,
        "peak_t_seconds": fullest[1].peak_ns / NS_PER_S if fullest else None,
        "capacity_bytes": capacity.get(fullest[0] if fullest else 0, 0),
        "spilled_bytes": activity.spilled_bytes,
        "restored_bytes": activity.restored_bytes,
        "fallback_bytes": activity.fallback_bytes,
        "disk_busy_frac": busiest[0] / outcome.end_ns if outcome.end_ns else 0.0,
        "disk_node": node_name(busiest[1]),
        "per_node": [
            {
                "node": node_name(i), "capacity_bytes": capacity[i],
                "peak_bytes": int(activity.store[i].peak) if i in activity.store else 0,
                "spilled_peak_bytes": int(activity.disk[i].peak) if i in activity.disk else 0,
            }
            for i in sorted(capacity)
        ],
    }  # fmt: skip


def _network(outcome: ProgramOutcome, activity: Activity) -> dict[str, Any]:
    """Object transfers between nodes, and how busy the busiest port was."""
    busiest: tuple[float, str, str, float, float] = (0.0, "", "", 0.0, 0.0)
    for use in outcome.cluster.env.network.uses():
        node, *port, way = use.link.name.split("/")
        if way in {"in", "out"} and port and "nic" in port[0] and outcome.end_ns:
            could = use.link.bytes_per_s * outcome.end_ns / NS_PER_S
            share = use.carried_bytes / could
            row = (share, node, way, use.carried_bytes, use.busy_ns / outcome.end_ns)
            busiest = max(busiest, row)
    moved = sorted(activity.transfers.items(), key=lambda item: (-item[1][1], item[0]))
    return {
        "transfers": int(sum(n for n, _ in activity.transfers.values())),
        "bytes": int(sum(b for _, b in activity.transfers.values())),
        "pairs": [
            {
                "from": node_name(a) if a >= 0 else "disk", "to": node_name(b),
                "objects": int(n), "bytes": int(size),
            }
            for (a, b), (n, size) in moved[:MOST_FUNCTIONS]
        ],
        "busiest_port": {
            "node": busiest[1], "direction": busiest[2], "bytes": int(busiest[3]),
            "frac": busiest[0], "busy_frac": busiest[4],
        },
    }  # fmt: skip


def _cost(outcome: ProgramOutcome, activity: Activity) -> dict[str, Any]:
    """Nodes are paid from registration to death, or as long as the cluster stays after the run."""
    hours, gpu_hours, usd = 0.0, 0.0, 0.0
    stays_s = max((its.paid_after_s or 0.0 for its in outcome.job.submissions), default=0.0)
    known = True
    for node_id, up in sorted(activity.up.items()):
        group = outcome.cluster.groups[node_id]
        took = (up.total(outcome.end_ns) / NS_PER_S + stays_s * up.value) / 3600
        price = group.node_usd_per_hour
        known = known and price is not None
        hours += took
        gpu_hours += took * group.node.gpu_count
        usd += took * (price or 0.0)
    return {
        "node_hours": hours,
        "gpu_hours": gpu_hours,
        "usd": usd if known else None,
        "usd_per_hour": outcome.spec.usd_per_hour,
    }
