"""``ray.nodes`` and ``ray.cluster_resources``: the GCS's tables as Ray's Python shows them.

Real counterpart: ``python/ray/_private/state.py`` of ray 2.60.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raysim.rayapi.calls import program_call, this_core, this_fiber
from raysim.raycore.ids import hex_id, node_ip
from raysim.raycore.protocol import GetAllNodeInfo, NodeTableData
from raysim.raycore.resources import UNIT
from raysim.raystate.names import given_name, node_labels, node_name
from raysim.raystate.timeline import chrome_events, write_timeline


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
    return {
        "NodeID": hex_id("node", row.node_id),
        "Alive": alive,
        "NodeManagerAddress": node_ip(row.node_id),
        "NodeManagerHostname": node_name(row.node_id),
        "NodeManagerPort": 0,
        "ObjectManagerPort": 0,
        "ObjectStoreSocketName": "",
        "RayletSocketName": "",
        "MetricsExportPort": 0,
        "NodeName": given_name(row),
        "MetricsAgentPort": 0,
        "DashboardAgentListenPort": 0,
        "RuntimeEnvAgentPort": 0,
        "DeathReason": 0,
        "DeathReasonMessage": row.death_reason,
        "alive": alive,
        "Resources": {k: v / UNIT for k, v in row.resources.items() if v} if alive else {},
        "Labels": node_labels(row),
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
    env = this_fiber().process.session.env
    if filename is None:
        return chrome_events(env.log.rows, costs=env.costs)
    write_timeline(env.log.rows, Path(filename), costs=env.costs)
    return None
