"""Everything the page of a program draws, made of its records in one go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raysim.raycore.ids import task_of
from raysim.raystate.moment import in_order, moment
from raysim.report.program import links, over_time
from raysim.report.program.figures import Figure, figure, time_ticks
from raysim.report.program.jobs import Share, bars, shares
from raysim.report.program.timeline import Timeline, timeline
from raysim.report.words import script_json
from raysim.results.ray.activity import Activity
from raysim.results.ray.recorded import Recorded
from raysim.units import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """By section; what has nothing to show is None or empty."""

    timeline: Timeline | None = None
    waiting: Figure | None = None
    nodes: Figure | None = None
    held: Figure | None = None
    store: Figure | None = None
    moved: Figure | None = None
    stores: list[over_time.Store] = field(default_factory=list)
    makers: list[over_time.Maker] = field(default_factory=list)
    heat: links.Heat | None = None
    matrix: links.Matrix | None = None
    jobs: Figure | None = None
    shares: list[Share] = field(default_factory=list)
    libraries: list[list[Figure]] = field(default_factory=list)
    """Of each job of the summary's ``libraries``."""
    ticks: list[tuple[float, str]] = field(default_factory=list)
    """Of the run's time, as shares of it."""
    data: str = "{}"
    """For the script: JSON that may stand inside a script element."""


def pictures(recorded: Recorded, summary: Mapping[str, Any]) -> Pictures:
    """All of them."""
    rows, end_ns = in_order(recorded.rows), max(1, recorded.end_ns)
    end_s = end_ns / NS_PER_S
    activity = Activity(rows, end_ns, lost=recorded.lost, costs=recorded.costs)
    now = moment(rows, end_ns)
    cluster = timeline(recorded, now, summary)
    heat = links.heat(recorded.ports, end_ns)
    single: dict[str, Figure | None] = {
        "waiting": over_time.waiting(recorded, summary),
        "nodes": over_time.nodes(activity, recorded, summary),
        "held": over_time.held(activity, summary),
        "store": over_time.store(activity, summary),
        "moved": over_time.moved(rows, end_ns),
        "jobs": bars(summary, end_s),
    }
    libraries = [
        [found for chart in charts if (found := figure(chart, end_s, f"l{i}-")) is not None]
        for i, charts in enumerate(recorded.charts)
    ]
    drawn = [*(f for f in single.values() if f is not None), *(f for fs in libraries for f in fs)]
    data: dict[str, Any] = {
        "end": end_s,
        "figures": {f.key: f.data for f in drawn if f.data},
        "timeline": None if cluster is None else cluster.data,
        "heat": None if heat is None else [[r.name, r.levels, r.said, r.rate] for r in heat.rows],
    }
    return Pictures(
        timeline=cluster, heat=heat, libraries=libraries,
        matrix=links.matrix(activity.transfers), stores=over_time.stores(activity),
        makers=over_time.makers(rows, now.tasks, task_of), shares=shares(recorded, summary),
        ticks=time_ticks(end_s), data=script_json(data), **single,
    )  # fmt: skip
