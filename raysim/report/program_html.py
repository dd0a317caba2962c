"""One offline HTML page for a Ray program: what ``html`` is for training jobs, in the same clothes.

What it models: nothing; it shows a ``Result``. Same result, same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from raysim.report import charts, program_charts, words
from raysim.report.sections import Fact
from raysim.units import format_bytes

if TYPE_CHECKING:
    import jinja2

    from raysim.results.ray.recorded import Recorded

PART_COLORS = {
    "full": "backward", "actors": "recompute", "tasks": "forward", "dependencies": "data",
    "driver": "collective", "scheduling": "p2p", "cold": "optimizer", "fetch": "copy",
    "failure": "optimizer", "infeasible": "optimizer", "ray": "host", "own": "offload",
    "startup": "launch",
}  # fmt: skip
"""Part of the run to the category of ``charts.SLICE_COLORS`` whose colour it has."""


def render(
    summary: Mapping[str, Any],
    recorded: Recorded | None,
    scenario_yaml: str,
    environment: jinja2.Environment,
) -> str:
    """The page; without records it has no charts and says so."""
    return environment.get_template("program.html.j2").render(
        summary=summary,
        tiles=tiles(summary),
        charts={} if recorded is None else program_charts.charts(recorded, summary),
        shown_nodes=program_charts.MOST_NODES,
        output="" if recorded is None else recorded.output,
        part_colors=PART_COLORS,
        memory_colors=charts.MEMORY_COLORS,
        slice_colors=charts.SLICE_COLORS,
        neutral=charts.NEUTRAL,
        scenario_yaml=scenario_yaml,
    )


def tiles(summary: Mapping[str, Any]) -> list[Fact]:
    """The numbers under the verdict."""
    tasks, cost, store = summary["tasks"], summary["cost"], summary["object_store"]
    most = max(
        (
            (used["frac"], row["group"], name)
            for row in summary["utilisation"]
            for name, used in row["resources"].items()
        ),
        default=(0.0, "", "CPU"),
    )
    found = [
        Fact("virtual time", words.seconds(summary["run"]["virtual_seconds"]), "",
             "when the driver ended"),
        Fact("tasks", words.plain(tasks["total"]),
             f"{tasks['finished']:,} finished" + (
                 f", {tasks['retried']:,} retried" if tasks["retried"] else "")),
        Fact(f"{most[2]} held", words.percent(most[0]), f"mean of {most[1]}",
             "resource-seconds held by leases / resource-seconds of live nodes"),
        Fact("fullest store", words.size(store["peak_bytes"]),
             f"of {format_bytes(store['capacity_bytes'])}, {store['peak_node']}")
        if store["peak_bytes"] else Fact("fullest store", "empty"),
        Fact("cost", words.usd(cost["usd"]), f"{cost['node_hours']:.3g} node-hours",
             "node-hours x price per hour"),
    ]  # fmt: skip
    return [fact for fact in found if fact.value != words.DASH]
