"""Electricity of a run, and what making it emits.

The steps' breakdown says what a GPU does; of a program, what its leases hold (a leased GPU counts
as computing). The rest of a run, GPUs wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from raysim.hardware.cluster import NodeGroup
from raysim.hardware.power import Activity, node_w, usual_pue
from raysim.hardware.specs import NodeSpec

COMPUTING = ("compute", "recompute", "optimizer")
COMMUNICATING = ("exposed_collectives", "pipeline_transfers", "offload")
"""Parts of a step's breakdown."""
HOUR_S = 3600
W_PER_KW = 1000


class Place(NamedTuple):
    """Where a cluster stands."""

    pue: float | None = None
    """Power usage effectiveness; None: what is usual of the provider."""
    gco2e_per_kwh: float | None = None
    """Of the grid, in grams."""


class Share(NamedTuple):
    """Nodes of one kind, how long they were up in sum, and what they did."""

    node: NodeSpec
    node_seconds: float
    does: Activity


def energy(shares: Iterable[Share], seconds: float, place: Place) -> dict[str, Any]:
    """The ``energy`` part of the summary: kWh with cooling; carbon only of a grid that is known.

    Parameters
    ----------
    shares
        All nodes of the cluster.
    seconds
        Wall time of the run.
    """
    used, drawn, on_average = 0.0, 0.0, {}
    for node, node_seconds, does in shares:
        pue = place.pue or usual_pue(node)
        watts = node_w(node, does)
        on_average[node.name] = watts
        used += watts * node_seconds / HOUR_S / W_PER_KW
        drawn += pue * watts * node_seconds / HOUR_S / W_PER_KW
    grams = place.gco2e_per_kwh
    return {
        "kwh": drawn,
        "average_kw": drawn / seconds * HOUR_S if seconds else None,
        "pue": drawn / used if used else None,
        "node_watts": on_average,
        "gco2e_per_kwh": grams,
        "kg_co2e": None if grams is None else drawn * grams / 1000,
    }


def of_training(
    summary: Mapping[str, Any], groups: Iterable[NodeGroup], place: Place
) -> dict[str, Any] | None:
    """Of a training job; None of a run without an end."""
    run, step = summary["run"], summary["step"]
    if run["seconds"] is None:
        return None
    stepping = min(1.0, (run["steps"] or 0) * step["seconds"] / run["seconds"])
    parts = {row["key"]: row["frac"] * stepping for row in step["breakdown"]}
    does = Activity(
        sum(parts.get(key, 0.0) for key in COMPUTING),
        sum(parts.get(key, 0.0) for key in COMMUNICATING),
    )
    shares = [Share(g.node, g.count * run["seconds"], does) for g in groups if g.count]
    return energy(shares, run["seconds"], place)


def of_program(
    summary: Mapping[str, Any], groups: Iterable[NodeGroup], place: Place
) -> dict[str, Any]:
    """Of a Ray program, by what its groups' leases and cores did while they were up."""
    nodes = {g.name: g.node for g in groups}
    shares = []
    for row in summary["utilisation"]:
        leased = {name: held["frac"] for name, held in row["resources"].items()}
        cores = min(1.0, max(row["cores_frac"], leased.get("CPU", 0.0)))
        does = Activity(computing=min(1.0, leased.get("GPU", 0.0)), cores=cores)
        shares.append(Share(nodes[row["group"]], row["node_seconds"], does))
    return energy(shares, summary["run"]["virtual_seconds"], place)
