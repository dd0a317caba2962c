"""What a sort came to: its stages, what binds each, what would help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from raysim.raylibs.exoshuffle.spec import Place
from raysim.raylibs.report import Input, LibraryReport, Table, Unit

if TYPE_CHECKING:
    from raysim.raylibs.exoshuffle.job import Times

METRICS: Mapping[str, Unit] = {
    "sort_s": "seconds",
    "map_s": "seconds",
    "reduce_s": "seconds",
    "bytes_per_s": "bytes_per_s",
    "bytes_per_s_per_node": "bytes_per_s",
}
NEAR_FRAC = 0.8
"""Of what a limit allows: a stage that comes so near is bound by it."""


def report_of(place: Place, times: Times) -> LibraryReport:
    """A page's worth of it."""
    sort_s = sum(times)
    size_bytes = place.plan.total_bytes
    node_bytes = size_bytes / place.nodes
    stages = (("map and merge", times.map_s, _map_limits(place)),
              ("last merges", times.reduce_s, _reduce_limits(place)))  # fmt: skip
    rows = []
    for name, took_s, limits in stages:
        limit, most = min(limits.items(), key=lambda item: item[1])
        rows.append((name, took_s, node_bytes / took_s, limit, most))
    return LibraryReport(
        kind="exoshuffle",
        ok=True,
        text=f"{size_bytes / 1e12:g} TB sorted, {size_bytes / sort_s / 1e9:,.2f} GB/s.",
        metrics={
            "sort_s": sort_s, "map_s": times.map_s, "reduce_s": times.reduce_s,
            "bytes_per_s": size_bytes / sort_s, "bytes_per_s_per_node": node_bytes / sort_s,
        },
        tables=(
            Table(
                title="stages, per node",
                columns=(("stage", "text"), ("time", "seconds"), ("reached", "bytes_per_s"),
                         ("closest limit", "text"), ("it allows", "bytes_per_s")),
                rows=tuple(rows),
            ),
        ),
        bound_by=_bound_by(rows),
        inputs=(
            Input(name="map, per byte", value=f"{place.costs.map_core_s_per_byte * 1e9:g} core-ns",
                  basis="measured", source="fitted on CloudSort's published stages, i4i nodes"),
            Input(name="merge, per byte",
                  value=f"{place.costs.merge_core_s_per_byte * 1e9:g} core-ns",
                  basis="measured", source="fitted on CloudSort's published stages, i4i nodes"),
        ),
        simplifications=_simplifications(place),
    )  # fmt: skip


def _map_limits(place: Place) -> dict[str, float]:
    """Bytes per second of a node that each could do alone."""
    costs, of = place.costs, place.machine.of
    both = costs.map_core_s_per_byte + costs.merge_core_s_per_byte
    return {
        _cpus(place): of(place.cpus) / both,
        f"{place.map_slots} maps at once": of(place.map_slots) / costs.map_core_s_per_byte,
        f"{place.mergers} mergers": of(place.mergers) / costs.merge_core_s_per_byte,
    }


def _reduce_limits(place: Place) -> dict[str, float]:
    costs, of = place.costs, place.machine.of
    return {
        _cpus(place): of(place.cpus) / costs.merge_core_s_per_byte,
        f"{place.reduce_slots} last merges at once":
            of(place.reduce_slots) / costs.merge_core_s_per_byte,
    }  # fmt: skip


def _cpus(place: Place) -> str:
    """With what they are worth."""
    worth = place.machine.of(place.cpus)
    said = f" ({worth:g} cores' worth)" if worth < place.cpus else ""
    return f"{place.cpus} CPUs{said}"


def _bound_by(rows: list[tuple[str, float, float, str, float]]) -> str:
    """The longer stage's limit, if it came near it; else what the cluster's record says."""
    name, took_s, reached, limit, most = max(rows, key=lambda row: row[1])
    share = took_s / sum(row[1] for row in rows)
    if reached < NEAR_FRAC * most:
        return ""
    return f"{limit}: {name}, {share:.0%} of the time, can do {most / 1e6:,.0f} MB/s on a node."


def _simplifications(place: Place) -> tuple[str, ...]:
    found = [
        "Runs of merges are a few objects each; a last merge reads its part of them in bulk.",
    ]
    if place.played < place.nodes:
        found.append(
            f"{place.played} of {place.nodes} nodes are played; the others do the same at the "
            "same time, so shares of nodes, objects and bytes below are of those."
        )
    return tuple(found)
