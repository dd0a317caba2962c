"""``ray.nodes`` and ``ray.cluster_resources``: the GCS's tables as Ray's Python shows them.

Real counterpart: ``python/ray/_private/state.py`` of ray 2.60.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from raysim.rayapi.calls import program_call, this_core, this_fiber
from raysim.raycore.ids import hex_id, node_ip
from raysim.raycore.protocol import GetAllNodeInfo, NodeTableData
from raysim.raycore.resources import UNIT
from raysim.raycore.state_log import Change

NODE_NAME_LABEL = "raysim/node-name"
"""Carries what ``ray start --node-name`` says; not shown as a label."""


def ask_gcs(message: Any) -> Any:
    """Call the GCS and wait for its answer."""
    fiber = this_fiber()
    core, lead_ns = this_core(fiber), fiber.take_lead()
    return fiber.block(lambda then: core.call_gcs(message, then, lead_ns=lead_ns))


def node_rows() -> tuple[NodeTableData, ...]:
    """The node table."""
    rows: tuple[NodeTableData, ...] = ask_gcs(GetAllNodeInfo())
    return rows


@program_call
def nodes() -> list[dict[str, Any]]:
    """Every node, dead ones too."""
    return [_node(row) for row in node_rows()]


def _node(row: NodeTableData) -> dict[str, Any]:
    alive = row.state != "DEAD"
    address = node_ip(row.node_id)
    return {
        "NodeID": hex_id("node", row.node_id),
        "Alive": alive,
        "NodeManagerAddress": address,
        "NodeManagerHostname": f"node-{row.node_id}",
        "NodeManagerPort": 0,
        "ObjectManagerPort": 0,
        "ObjectStoreSocketName": "",
        "RayletSocketName": "",
        "MetricsExportPort": 0,
        "NodeName": row.labels.get(NODE_NAME_LABEL, address),
        "MetricsAgentPort": 0,
        "DashboardAgentListenPort": 0,
        "RuntimeEnvAgentPort": 0,
        "DeathReason": 0,
        "DeathReasonMessage": row.death_reason,
        "alive": alive,
        "Resources": {k: v / UNIT for k, v in row.resources.items() if v} if alive else {},
        "Labels": {
            **{k: v for k, v in row.labels.items() if k != NODE_NAME_LABEL},
            "ray.io/node-id": hex_id("node", row.node_id),
        },
    }


def _summed(which: str) -> dict[str, float]:
    total: dict[str, int] = {}
    for row in node_rows():
        if row.state != "DEAD":
            units: dict[str, int] = getattr(row, which)
            for name, n in units.items():
                total[name] = total.get(name, 0) + n
    return {name: n / UNIT for name, n in total.items() if n}


@program_call
def cluster_resources() -> dict[str, float]:
    """All there is."""
    return _summed("resources")


@program_call
def available_resources() -> dict[str, float]:
    """What is free, as last reported."""
    return _summed("available")


@program_call
def timeline(filename: str | None = None) -> Any:
    """Tasks as Chrome tracing events, from the state log."""
    session = this_fiber().process.session
    events = _events(session.env.log.rows)
    if filename is None:
        return events
    Path(filename).write_text(json.dumps(events))
    return None


def _events(rows: list[Change]) -> list[dict[str, Any]]:
    """One complete event per execution of a task."""
    specs: dict[int, Any] = {}
    began: dict[int, Change] = {}
    events = []
    for row in rows:
        if row.kind != "task":
            continue
        if row.state == "PENDING_ARGS_AVAIL":
            specs[row.number] = row.detail
        elif row.state == "RUNNING":
            began[row.number] = row
        elif row.state in ("FINISHED", "FAILED") and row.number in began:
            start, spec = began.pop(row.number), specs[row.number]
            name = spec.options.function.name
            method = spec.kind == "ACTOR_TASK"
            events.append({
                "cat": f"task::{spec.name}", "cname": "generic_work", "ph": "X",
                "name": name.rpartition(".")[2] if method else f"__main__.{name}",
                "ts": start.t_ns / 1e3, "dur": (row.t_ns - start.t_ns) / 1e3,
                "pid": node_ip(start.node_id), "tid": f"worker:{start.worker_id}",
                "args": {
                    "task_id": hex_id("task", row.number), "job_id": hex_id("job", spec.job_id),
                    "attempt_number": spec.attempt, "func_or_class_name": name,
                    "actor_id": hex_id("actor", spec.actor_id) if method else None,
                },
            })  # fmt: skip
    return events
