"""Charts of a Ray program, from what its cluster's rooms wrote down (`Activity`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from raysim.errors import ScenarioError
from raysim.raycore.resources import UNIT
from raysim.raystate.moment import in_order
from raysim.raystate.names import node_name
from raysim.report.charts import binned
from raysim.report.plots.chart import Chart
from raysim.report.plots.marks import Area, Axis, Boxes, Heat, Mark, Rule
from raysim.report.program.over_time import added, scaled
from raysim.results.ray.activity import Activity, Series, Steps
from raysim.results.ray.trace import CLUSTER
from raysim.results.traces.layout import in_order as tracks_in_order
from raysim.results.traces.layout import lanes
from raysim.units import format_seconds

if TYPE_CHECKING:
    from raysim.kernel.record import Span
    from raysim.results.ray.recorded import Recorded

CELLS = 240
MOST_ROWS = 60
"""Workers on the time line; the title says how many there are."""
PENDING = (
    "PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT", "PENDING_OBJ_STORE_MEM_AVAIL",
    "PENDING_ARGS_FETCH", "SUBMITTED_TO_WORKER", "PENDING_ACTOR_TASK_ARGS_FETCH",
    "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY", "GETTING_AND_PINNING_ARGS",
)  # fmt: skip
STATES: dict[str, str] = {
    "RUNNING": "#0072b2", "RUNNING_IN_RAY_GET": "#56b4e9", "RUNNING_IN_RAY_WAIT": "#8fd3bf",
    "GETTING_AND_PINNING_ARGS": "#009e73", "SUBMITTED_TO_WORKER": "#f0e442",
    "PENDING_ACTOR_TASK_ARGS_FETCH": "#cc79a7",
    "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY": "#d55e00", "PENDING_ARGS_FETCH": "#8c6d31",
    "PENDING_NODE_ASSIGNMENT": "#e69f00", "PENDING_OBJ_STORE_MEM_AVAIL": "#1f4e79",
    "PENDING_ARGS_AVAIL": "#c9ced4",
}  # fmt: skip
"""Colours by ``ray list tasks``' states, also the order of stacking."""
KINDS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6d31", "#1f4e79")
OTHER = "#7f8790"


class Played(Protocol):
    """What charts are made of (`raysim.results.result.Result`)."""

    @property
    def summary(self) -> Mapping[str, Any]:
        """Numbers with units in their names."""

    @property
    def program(self) -> Recorded | None:
        """Rows of the state log, or None where nothing was recorded."""


@dataclass(frozen=True)
class ProgramPlots:
    """``result.plot`` of a Ray program: each method answers a `Chart`."""

    result: Played

    @cached_property
    def activity(self) -> Activity:
        """What the cluster was doing all along."""
        recorded = self._recorded
        return Activity(
            in_order(recorded.rows), recorded.end_ns, lost=recorded.lost, costs=recorded.costs
        )

    @property
    def _recorded(self) -> Recorded:
        if self.result.program is None:
            raise ScenarioError("nothing was recorded: run with record=True")
        return self.result.program

    def nodes(self) -> Chart:
        """Which share of each node's CPUs has a running task, over time; blank while it is down."""
        activity, cell = self.activity, self._cell_s
        nodes = sorted(activity.up)
        values = []
        for node in nodes:
            up = binned(activity.up[node].steps, activity.end_ns, CELLS)
            running = activity.running.get(node, Series()).steps
            tasks = binned(running, activity.end_ns, CELLS)
            cpus = activity.total.get(node, {}).get("CPU", UNIT) / UNIT or 1.0
            values.append([t / cpus if u > 0.5 else None for u, t in zip(up, tasks, strict=True)])
        heat = Heat(name="running tasks per CPU", color="#0072b2", begin=0.0, cell=cell,
                    values=values, most=1.0, unit="frac")  # fmt: skip
        rows = tuple(map(node_name, nodes))
        return Chart(
            title="Nodes: running tasks over their CPUs", x=self._time, y=Axis(rows=rows),
            marks=(heat, *self._faults()), legend=False,
        )  # fmt: skip

    def store(self) -> Chart:
        """Bytes of objects in all nodes' stores, and spilled to disk."""
        marks: list[Mark] = [
            self._area(name, color, added(series.values()))
            for name, color, series in (
                ("in the stores' memory", "#0072b2", self.activity.store),
                ("spilled to disk", "#e69f00", self.activity.disk),
            )
            if any(s.peak for s in series.values())
        ]
        if not marks:
            raise ScenarioError("no object was put into a store")
        return Chart(
            title="Objects", x=self._time, y=Axis(label="size", unit="B"),
            marks=(*marks, *self._faults()),
        )  # fmt: skip

    def held(self) -> Chart:
        """How much of each resource is held, over what the nodes that are up have."""
        activity = self.activity
        names = [n for n in ("CPU", "GPU") if any(name == n for _, name in activity.held)]
        marks: list[Mark] = []
        for name, color in zip(names, ("#0072b2", "#e69f00"), strict=False):
            held = added(s for (_, n), s in sorted(activity.held.items()) if n == name)
            there = added(
                scaled(up, activity.total[node].get(name, 0))
                for node, up in sorted(activity.up.items())
                if node in activity.total
            )
            used, most = (binned(s, activity.end_ns, CELLS) for s in (held, there))
            shares = [u / m if m else 0.0 for u, m in zip(used, most, strict=True)]
            marks.append(self._area(f"{name} held", color, [
                (round(i * activity.end_ns / CELLS), share) for i, share in enumerate(shares)
            ]))  # fmt: skip
        if not marks:
            raise ScenarioError("nothing held CPUs or GPUs")
        return Chart(
            title="Resources held", x=self._time, y=Axis(label="held", unit="frac", top=1.0),
            marks=(*marks, *self._faults()),
        )  # fmt: skip

    def tasks(self) -> Chart:
        """How many tasks are in which state, as ``ray summary tasks`` counts them."""
        steps: dict[str, Steps] = defaultdict(list)
        for track, name, t_ns, value in self._recorded.trace().counters():
            if track == CLUSTER and name.startswith("tasks/"):
                steps[name.removeprefix("tasks/")].append((t_ns, value))
        if not steps:
            raise ScenarioError("there were no tasks")
        known = [state for state in STATES if state in steps]
        others = sorted(state for state in steps if state not in STATES)
        times = sorted({0, self.activity.end_ns, *(t for s in steps.values() for t, _ in s)})
        marks = [
            Area(name=state, color=STATES.get(state, OTHER), stacked=True,
                 x=[t / 1e9 for t in times], y=_at(steps[state], times))
            for state in (*known, *others)
        ]  # fmt: skip
        return Chart(
            title="Tasks by state", x=self._time, y=Axis(label="tasks"),
            marks=(*marks, *self._faults()),
        )  # fmt: skip

    def timeline(self) -> Chart:
        """What each worker runs, as ``ray timeline`` draws it."""
        by_track: dict[tuple[str, ...], list[Span]] = defaultdict(list)
        for span in self._recorded.trace().spans():
            if span.category.startswith("task::"):
                by_track[span.track].append(span)
        if not by_track:
            raise ScenarioError("no task ran")
        ordered = [
            (track, lane) for track in tracks_in_order(by_track) for lane in lanes(by_track[track])
        ]
        shown = ordered[:MOST_ROWS]
        kinds: dict[str, list[tuple[int, Span]]] = defaultdict(list)
        for row, (_, spans) in enumerate(shown):
            for span in spans:
                kinds[span.category.removeprefix("task::")].append((row, span))
        by_time = sorted(kinds, key=lambda k: -sum(s.end_ns - s.start_ns for _, s in kinds[k]))
        colors = dict(zip(by_time, KINDS, strict=False))
        marks = [
            Boxes(
                name=kind if kind in colors else "others", color=colors.get(kind, OTHER),
                rows=[row for row, _ in kinds[kind]],
                starts=[s.start_ns / 1e9 for _, s in kinds[kind]],
                sizes=[(s.end_ns - s.start_ns) / 1e9 for _, s in kinds[kind]],
                tips=[f"{s.name}: {format_seconds((s.end_ns - s.start_ns) / 1e9)}"
                      for _, s in kinds[kind]],
            )
            for kind in by_time
        ]  # fmt: skip
        left_out = len(ordered) - len(shown)
        return Chart(
            title="Workers" + (f", the first {MOST_ROWS} of {len(ordered)}" if left_out else ""),
            x=self._time, y=Axis(rows=tuple("  ".join(track) for track, _ in shown)),
            marks=(*marks, *self._faults()),
        )  # fmt: skip

    @property
    def _time(self) -> Axis:
        return Axis(label="time", unit="s", top=self.activity.end_ns / 1e9)

    @property
    def _cell_s(self) -> float:
        return self.activity.end_ns / 1e9 / CELLS

    def _area(self, name: str, color: str, steps: Steps) -> Area:
        whole = [*steps, (self.activity.end_ns, steps[-1][1] if steps else 0.0)]
        return Area(name=name, color=color, x=[t / 1e9 for t, _ in whole], y=[v for _, v in whole])

    def _faults(self) -> list[Rule]:
        return [
            Rule(name=f"{fault['kind']} {fault['node']}", at=float(fault["at_seconds"]), across="x")
            for fault in self.result.summary.get("faults") or []
        ]


def _at(steps: Steps, times: Sequence[int]) -> list[float]:
    """Values of a step function at moments in order."""
    values, held, at = [], 0.0, 0
    for t_ns in times:
        while at < len(steps) and steps[at][0] <= t_ns:
            held = steps[at][1]
            at += 1
        values.append(held)
    return values
