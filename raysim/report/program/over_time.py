"""Lines of the whole cluster over the run: what is held, what waits, nodes, what stores hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from raysim.raycore.resources import UNIT
from raysim.raycore.state_log import Change
from raysim.raycore.tasks import TaskSpec
from raysim.raylibs.charts import Chart, Mark
from raysim.raystate.moment import ENDED
from raysim.raystate.names import node_name, task_name
from raysim.report.charts import binned
from raysim.report.program.figures import Figure, figure, lines_of
from raysim.results.ray.activity import Activity, Series, Steps
from raysim.results.ray.recorded import Recorded
from raysim.units import NS_PER_S, format_bytes

BINS = 400
MOST_STORES = 64
"""Small pictures, one a node."""
MOST_MAKERS = 12
_WAITS = {
    "PENDING_ARGS_AVAIL": "wait for their arguments",
    "PENDING_NODE_ASSIGNMENT": "wait for resources",
    "PENDING_OBJ_STORE_MEM_AVAIL": "wait for room in the store",
    "PENDING_ARGS_FETCH": "fetch arguments",
    "GETTING_AND_PINNING_ARGS": "fetch arguments",
    "PENDING_ACTOR_TASK_ARGS_FETCH": "fetch arguments",
    "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY": "wait for their actor",
    "SUBMITTED_TO_WORKER": "are on their way to a worker",
    "RUNNING": "run", "RUNNING_IN_RAY_GET": "run", "RUNNING_IN_RAY_WAIT": "run",
}  # fmt: skip
"""States of tasks, in a person's words."""


class Store(NamedTuple):
    """One node's object store, small."""

    node: str
    memory: str
    """SVG path of bytes in memory, 0 to 1,000 across and 100 high."""
    disk: str
    cap: float
    """Height of its capacity, from above."""
    said: str


class Maker(NamedTuple):
    """Objects of one function."""

    name: str
    objects: int
    made_bytes: float
    spilled_bytes: float


def held(activity: Activity, summary: Mapping[str, Any]) -> Figure | None:
    """Share of each resource that leases hold, over those of the nodes that were up."""
    names = [n for n in ("CPU", "GPU", "memory") if any(n == name for _, name in activity.held)]
    lines = []
    for name in names:
        used = binned(added(s for (_, n), s in sorted(activity.held.items()) if n == name),
                      activity.end_ns, BINS)  # fmt: skip
        there = binned(
            added(
                scaled(up, activity.total[i].get(name, 0))
                for i, up in sorted(activity.up.items())
                if i in activity.total
            ),
            activity.end_ns, BINS,
        )  # fmt: skip
        shares = [u / m if m else 0.0 for u, m in zip(used, there, strict=True)]
        lines.append((name, _at_bins(shares, activity.end_ns)))
    chart = Chart(
        key="held", title="Resources held", unit="share", limit=1.0, lines=lines_of(lines),
        about="Share of the resources of live nodes that tasks and actors hold, as ray status "
        "counts them.", marks=faults(summary),
    )  # fmt: skip
    return figure(chart, activity.end_ns / NS_PER_S)


def waiting(recorded: Recorded, summary: Mapping[str, Any]) -> Figure | None:
    """Tasks by what they do or wait for."""
    series: dict[str, Series] = {}
    state: dict[int, str] = {}
    calls: dict[int, None] = {}
    for row in sorted((r for r in recorded.rows if r.kind == "task"), key=lambda r: r.t_ns):
        before = state.pop(row.number, None)
        if before is not None:
            series[before].add(-1, row.t_ns)
        if row.state not in ENDED:
            if isinstance(row.detail, TaskSpec) and row.detail.kind == "ACTOR_TASK":
                calls[row.number] = None
            queued = row.state == "SUBMITTED_TO_WORKER" and row.number in calls
            said = "wait for their actor" if queued else _WAITS.get(row.state, "wait")
            state[row.number] = said
            series.setdefault(said, Series()).add(1, row.t_ns)
    order = [said for said in dict.fromkeys(_WAITS.values()) if said in series]
    order.sort(key=lambda said: said != "run")
    end_s = recorded.end_ns / NS_PER_S
    lines = [(said, [*_seconds(series[said].steps), (end_s, series[said].value)]) for said in order]
    chart = Chart(
        key="waiting", title="Tasks that run and wait", lines=lines_of(lines),
        about="Demand over supply: what waits for resources is what a larger cluster would run.",
        marks=faults(summary),
    )  # fmt: skip
    return figure(chart, end_s)


def nodes(activity: Activity, recorded: Recorded, summary: Mapping[str, Any]) -> Figure | None:
    """How many nodes are up, and machines on their way; None if nothing ever changes."""
    groups: dict[str, list[Series]] = defaultdict(list)
    kinds = {r.number: r.detail.node_type for r in recorded.rows
             if r.kind == "node" and r.state == "ALIVE"}  # fmt: skip
    for node_id, up in sorted(activity.up.items()):
        groups[kinds.get(node_id, "nodes")].append(up)
    end_s = activity.end_ns / NS_PER_S
    first_ns = NS_PER_S
    changes = any(t > first_ns for up in activity.up.values() for t, _ in up.steps)
    coming = Series()
    for at_ns, by in sorted(
        [(launch.began_ns, 1) for launch in recorded.launches]
        + [(launch.up_ns, -1) for launch in recorded.launches if launch.up_ns >= 0]
    ):
        if at_ns <= activity.end_ns:
            coming.add(by, at_ns)
    if not changes and not coming.steps:
        return None
    lines = [(f"{group}: up", [*_seconds(added(ups)), (end_s, sum(u.value for u in ups))])
             for group, ups in groups.items()]  # fmt: skip
    if coming.steps:
        lines.append(("asked for, not there yet", [*_seconds(coming.steps), (end_s, coming.value)]))
    chart = Chart(key="nodes-up", title="Nodes", lines=lines_of(lines), marks=faults(summary))
    return figure(chart, end_s)


def store(activity: Activity, summary: Mapping[str, Any]) -> Figure | None:
    """Bytes in all stores' memory and on disk, under what they can hold."""
    end_ns = activity.end_ns
    lines = []
    for label, series in (
        ("in the stores' memory", activity.store), ("spilled to disk", activity.disk),
    ):  # fmt: skip
        if any(s.peak for s in series.values()):
            total = added(s for _, s in sorted(series.items()))
            lines.append((label, [*_seconds(total), (end_ns / NS_PER_S, total[-1][1])]))
    if not lines:
        return None
    there = [activity.total[i].get("object_store_memory", 0) / UNIT for i in activity.total]
    most = max(v for _, points in lines for _, v in points)
    limit = sum(there) if sum(there) < 4 * most else None
    about = "Every sealed object in memory, those also spilled as well."
    if limit is None:
        about += f" All stores together hold {format_bytes(sum(there))}: far above this picture."
    chart = Chart(key="store", title="Object stores, all nodes", unit="bytes", about=about,
                  lines=lines_of(lines), limit=limit, marks=faults(summary))  # fmt: skip
    return figure(chart, end_ns / NS_PER_S)


def moved(rows: Sequence[Change], end_ns: int) -> Figure | None:
    """Bytes a second that are spilled, restored, and copied between nodes."""
    kinds = {"SPILLED": "spilled", "RESTORED": "restored", "FALLBACK": "allocated on disk"}
    sums: dict[str, list[float]] = {}
    sizes: dict[int, int] = {}
    restored: dict[tuple[int, int], None] = {}
    bins = 120
    for row in rows:
        if row.kind != "object" or row.node_id < 0:
            continue
        if isinstance(row.detail, tuple) and row.detail:
            sizes[row.number] = row.detail[0]
        said = kinds.get(row.state, "")
        if row.state == "RESTORED":
            restored[row.number, row.node_id] = None
        if row.state == "COPY" and restored.pop((row.number, row.node_id), 0) is not None:
            said = "copied between nodes"
        if said:
            at = min(bins - 1, row.t_ns * bins // max(1, end_ns))
            sums.setdefault(said, [0.0] * bins)[at] += sizes.get(row.number, 0)
    width_s = end_ns / bins / NS_PER_S
    lines = [
        (said, _at_bins([b / width_s for b in sums[said]], end_ns))
        for said in ("spilled", "restored", "allocated on disk", "copied between nodes")
        if said in sums
    ]
    chart = Chart(
        key="moved", title="Spilling, restoring, copying", unit="bytes_per_s",
        lines=lines_of(lines),
        about="Counted when an object is there, in 120 parts of the run.",
    )  # fmt: skip
    return figure(chart, end_ns / NS_PER_S)


def stores(activity: Activity) -> list[Store]:
    """Each node's store, on one scale of its own capacity; those that held anything."""
    ever = [i for i in sorted(activity.total)
            if _peak(activity.store.get(i)) or _peak(activity.disk.get(i))]  # fmt: skip
    found = []
    for i in ever[:MOST_STORES]:
        capacity = activity.total[i].get("object_store_memory", 0) / UNIT
        end_ns, memory = activity.end_ns, activity.store.get(i, Series())
        disk = activity.disk.get(i, Series())
        top = max(capacity, memory.peak, disk.peak) * 1.05 or 1.0
        said = f"{node_name(i)}: at most {format_bytes(memory.peak)} of {format_bytes(capacity)}"
        if disk.peak:
            said += f", {format_bytes(disk.peak)} on disk"
        found.append(
            Store(
                node_name(i), _area(memory, end_ns, top), _area(disk, end_ns, top),
                100 * (1 - capacity / top), said,
            )
        )  # fmt: skip
    return found


def makers(rows: Sequence[Change], tasks: Mapping[int, Any], task_of: Any) -> list[Maker]:
    """Functions by the bytes of the objects they made; ``put`` has no task of its own."""
    made: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    sizes: dict[int, int] = {}
    names: dict[int, str] = {}
    for row in rows:
        if row.kind != "object" or row.state not in {"CREATED", "SPILLED"}:
            continue
        if isinstance(row.detail, tuple) and row.detail:
            sizes[row.number] = row.detail[0]
        if row.number not in names:
            attempt = tasks.get(task_of(row.number))
            spec = attempt.spec if attempt is not None else None
            put = "the driver's ray.put"
            names[row.number] = task_name(spec) if isinstance(spec, TaskSpec) else put
            made[names[row.number]][0] += 1
            made[names[row.number]][1] += sizes.get(row.number, 0)
        if row.state == "SPILLED":
            made[names[row.number]][2] += sizes.get(row.number, 0)
    ranked = sorted(made.items(), key=lambda item: (-item[1][1], item[0]))
    return [Maker(name, int(n), b, s) for name, (n, b, s) in ranked[:MOST_MAKERS]]


def faults(summary: Mapping[str, Any]) -> tuple[Mark, ...]:
    """Of the scenario, as marks."""
    return tuple(
        Mark(at_s=f["at_seconds"], text=f"{f['kind'].replace('_', ' ')} {f['node']}")
        for f in summary.get("faults") or []
    )


# ---- step functions ------------------------------------------------------------------------------


def added(series: Iterable[Series]) -> Steps:
    """The sum of step functions."""
    changes: list[tuple[int, float]] = []
    for one in series:
        before = 0.0
        for t_ns, value in one.steps:
            changes.append((t_ns, value - before))
            before = value
    changes.sort()
    steps: Steps = []
    total = 0.0
    for t_ns, delta in changes:
        total += delta
        if steps and steps[-1][0] == t_ns:
            steps[-1] = (t_ns, total)
        else:
            steps.append((t_ns, total))
    return steps


def scaled(series: Series, factor: float) -> Series:
    """So many times it."""
    found = Series()
    found.steps = [(t_ns, value * factor) for t_ns, value in series.steps]
    return found


def _seconds(steps: Steps) -> list[tuple[float, float]]:
    first = [] if steps and steps[0][0] == 0 else [(0.0, 0.0)]
    return first + [(t_ns / NS_PER_S, value) for t_ns, value in steps]


def _at_bins(values: Sequence[float], end_ns: int) -> list[tuple[float, float]]:
    width_s = end_ns / len(values) / NS_PER_S
    return [*((i * width_s, v) for i, v in enumerate(values)), (end_ns / NS_PER_S, values[-1])]


def _peak(series: Series | None) -> float:
    return series.peak if series is not None else 0.0


def _area(series: Series, end_ns: int, top: float) -> str:
    """Its outline, closed at the bottom; empty if it never held anything."""
    if not series.peak:
        return ""
    means = binned(series.steps, end_ns, 120)
    points = "".join(
        f"L{i * 1000 / 120:.0f} {100 * (1 - v / top):.1f}H{(i + 1) * 1000 / 120:.0f}"
        for i, v in enumerate(means)
    )
    return f"M0 100{points}V100Z"
