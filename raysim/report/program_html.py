"""One offline HTML page for a Ray program: what ``html`` is for training jobs, in the same clothes.

What it models: nothing; it shows a ``Result``. Same result, same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from raysim.report import charts, words
from raysim.report.program.page import Pictures, pictures
from raysim.report.sections import Fact
from raysim.units import format_bytes

if TYPE_CHECKING:
    import jinja2

    from raysim.results.ray.recorded import Recorded

PART_COLORS = {
    "full": "backward", "actors": "recompute", "tasks": "forward", "dependencies": "data",
    "driver": "collective", "scheduling": "p2p", "cold": "optimizer", "fetch": "copy",
    "failure": "optimizer", "infeasible": "optimizer", "ray": "host", "own": "offload",
    "to_come": "sync",
    "startup": "launch",
}  # fmt: skip
"""Part of the run to the category of ``charts.SLICE_COLORS`` whose colour it has."""
LIBRARIES = {
    "data": "Ray Data", "train": "Ray Train", "serve": "Ray Serve", "llm": "Ray Serve LLM",
    "tune": "Ray Tune", "rl": "RLlib", "exoshuffle": "Exoshuffle",
}  # fmt: skip
SECTIONS = (
    ("verdict", "Verdict"), ("time", "Where the time goes"), ("timeline", "Cluster timeline"),
    ("libraries", "Libraries"), ("jobs", "Jobs"), ("held", "Utilisation"),
    ("store", "Object store"), ("network", "Network"), ("functions", "Functions"),
    ("failures", "Failures"), ("cost", "Cost and energy"), ("cluster", "Cluster and program"),
    ("trust", "Trust"), ("warnings", "Left out"), ("scenario", "Scenario"),
)  # fmt: skip
CAUSES = {
    "NODE_DIED": "its node died, or fell silent",
    "WORKER_DIED": "its worker process ended",
    "ACTOR_DIED": "its actor, or the actor's node, was gone",
    "ACTOR_UNAVAILABLE": "its actor could not be reached, and may come back",
    "ACTOR_CREATION_FAILED": "the actor's __init__ raised",
    "OWNER_DIED": "who submitted it, or owned an argument, was gone",
    "OBJECT_LOST": "an argument was lost, and could not be made again",
    "OBJECT_FETCH_TIMED_OUT": "an argument did not come",
    "OBJECT_FREED": "an argument had been freed",
    "OUT_OF_MEMORY": "Ray's memory monitor killed its worker: the node was nearly full",
    "TASK_EXECUTION_EXCEPTION": "the program raised",
    "TASK_CANCELLED": "ray.cancel, or its job ended",
    "TASK_PLACEMENT_GROUP_REMOVED": "its placement group was removed",
    "LOCAL_RAYLET_DIED": "its node's raylet ended",
    "PENDING_CALLS_LIMIT_EXCEEDED": "max_pending_calls of the actor was reached",
    "LOST": "given up before it ran",
}  # fmt: skip
"""Why attempts fail, in a person's words (``ErrorType`` of ray 2.60)."""


class Action(NamedTuple):
    """A line of what binds, what would help, what to beware of."""

    kind: str
    mark: str
    css: str
    text: str
    fix: str = ""


def render(
    summary: Mapping[str, Any],
    recorded: Recorded | None,
    scenario_yaml: str,
    environment: jinja2.Environment,
) -> str:
    """The page; without records it has no pictures and says so."""
    shown = Pictures() if recorded is None else pictures(recorded, summary)
    return environment.get_template("program.html.j2").render(
        summary=summary,
        tiles=tiles(summary),
        actions=list(actions(summary)),
        pictures=shown,
        sections=_sections(summary),
        names=LIBRARIES,
        causes=CAUSES,
        idle=list(_idle(summary)),
        energy=list(_energy(summary)),
        output="" if recorded is None else recorded.output,
        part_colors=PART_COLORS,
        memory_colors=charts.MEMORY_COLORS,
        slice_colors=charts.SLICE_COLORS,
        neutral=charts.NEUTRAL,
        scenario_yaml=scenario_yaml,
    )


def _sections(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """As they stand on the page: a library's own view comes before the cluster's."""
    there = {"libraries": summary.get("libraries"), "jobs": summary.get("jobs")}
    found = [(key, label) for key, label in SECTIONS if there.get(key, True)]
    if not there["libraries"]:
        return found
    order = ["verdict", "libraries", "timeline", "time"]
    return sorted(found, key=lambda s: order.index(s[0]) if s[0] in order else len(order))


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
        *_library_tiles(summary),
        Fact(f"{most[2]} held", words.percent(most[0]), f"mean of {most[1]}",
             "resource-seconds held by leases / resource-seconds of live nodes"),
        *([Fact("fullest store", words.size(store["peak_bytes"]),
                f"of {format_bytes(store['capacity_bytes'])}, {store['peak_node']}")]
          if store["peak_bytes"] else []),
        Fact("cost", words.usd(cost["usd"]), f"{cost['node_hours']:.3g} node-hours",
             "node-hours x price per hour"),
    ]  # fmt: skip
    return [fact for fact in found if fact.value != words.DASH]


_HEADLINES: tuple[tuple[str, str, str, str], ...] = (
    ("rows_per_s", "rows", "per_s", ""), ("stall_frac", "trainers wait", "share", "for data"),
    ("requests_per_s", "requests", "per_s", ""), ("latency_p99", "latency p99", "seconds", ""),
    ("ttft_p99", "TTFT p99", "seconds", "to the first token"),
    ("output_tokens_per_s", "output tokens", "per_s", ""),
    ("goodput", "goodput", "share", "of the time in steps that are kept"),
    ("trial_hours", "trial hours", "count", ""), ("best_loss", "best loss", "count", ""),
    ("env_steps_per_s", "env steps", "per_s", ""),
    ("bytes_per_s_per_node", "sorted per node", "bytes_per_s", ""),
)  # fmt: skip
"""Metrics of libraries that are tiles: name, label, unit, note."""


def _library_tiles(summary: Mapping[str, Any]) -> Iterator[Fact]:
    jobs = summary.get("libraries") or []
    for job in jobs:
        for name, label, unit, note in _HEADLINES:
            if name in job["metrics"]:
                alike = sum(name in other["metrics"] for other in jobs) > 1
                said = f"{label}, {job['kind']}" if alike else label
                yield Fact(said, words.cell(job["metrics"][name], unit), note)


def actions(summary: Mapping[str, Any]) -> Iterator[Action]:
    """What hangs or binds first, then warnings with their fix, then what would help."""
    if summary["program"]["exit"] == "hang":
        for line in summary["pending"]["examples"][:1]:
            yield Action("Waits for ever", "!", "warns", line)
    yield Action("Bound by", "=", "binds", summary["bound_by"]["text"])
    for job in summary.get("libraries") or []:
        for warning in job["warnings"]:
            yield Action("Beware", "!", "warns", warning["cause"], warning["fix"])
    for line in summary.get("warnings") or []:
        yield Action("Beware", "!", "warns", line)
    for job in summary.get("libraries") or []:
        for line in job["would_help"]:
            yield Action("Would help", "+", "helps", line)


def _idle(summary: Mapping[str, Any]) -> Iterator[Fact]:
    """Money for what nobody held: of GPUs where there are any, else of CPUs."""
    for row in summary["utilisation"]:
        main = "GPU" if "GPU" in row["resources"] else "CPU"
        used = row["resources"].get(main)
        price = next((g["usd_per_hour"] for g in summary["cluster"]["groups"]
                      if g["name"] == row["group"]), None)  # fmt: skip
        if used is None or price is None:
            continue
        usd = row["node_seconds"] / 3600 * price
        yield Fact(
            f"idle: {row['group']}", words.usd(usd * (1 - used["frac"])),
            f"{words.percent(1 - used['frac'])} of the group's {main}-seconds are held by nobody",
        )  # fmt: skip


def _energy(summary: Mapping[str, Any]) -> Iterator[Fact]:
    energy = words.table(summary.get("energy"))
    if words.number(energy.get("kwh")) is None:
        return
    yield Fact("energy", f"{words.plain(energy['kwh'])} kWh", "with the site's overhead (PUE)")
    watts = words.number(energy.get("average_kw"))
    if watts is not None:
        yield Fact("power", f"{words.plain(watts)} kW", "in the mean")
    if words.number(energy.get("kg_co2e")) is not None:
        yield Fact("emissions", f"{words.plain(energy['kg_co2e'])} kg CO2e")
