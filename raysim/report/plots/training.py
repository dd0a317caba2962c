"""Charts of a training job, from what its summary and its records say."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from raysim.errors import ScenarioError
from raysim.report import charts, peaks
from raysim.report.layout import percent
from raysim.report.plots.chart import Chart
from raysim.report.plots.marks import Area, Axis, Boxes, Heat, Mark, Points, Rule
from raysim.report.step import sensitivity
from raysim.results.traces.layout import in_order as tracks_in_order
from raysim.units import format_bytes, format_bytes_per_s, format_seconds

if TYPE_CHECKING:
    from raysim.kernel.record import ColumnRecorder, Span

CELLS = 240
"""Cells of a row of a heat map."""
MOMENTS = 2000
"""Of a memory curve; every peak stays at its height."""
MOST_LINES = 3
"""Links drawn as lines; more of them are a heat map."""
MOST_GPUS = 8
"""GPUs on the time line, unless asked for by rank."""
HEADROOM = 1.08
GREY = "#57606a"
NAMES = {"p2p": "send, receive", "host": "host", "sync": "host waits"}
"""Categories of slices that do not say what they are."""
OPS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "send_recv")


class Recorded(Protocol):
    """What charts are made of (`raysim.results.result.Result`)."""

    @property
    def summary(self) -> Mapping[str, Any]:
        """Numbers with units in their names."""

    @property
    def records(self) -> ColumnRecorder | None:
        """What happened, or None where nothing was recorded."""


@dataclass(frozen=True)
class TrainingPlots:
    """``result.plot`` of a training job: each method answers a `Chart`."""

    result: Recorded

    def step(self) -> Chart:
        """Where the time of an optimizer step goes, part by part."""
        said = self.result.summary["step"]
        parts = [part for part in said["breakdown"] if part["seconds"] > 0]
        ends = list(itertools.accumulate(part["seconds"] for part in parts))
        marks = [
            Boxes(
                name=part["name"], color=_part_color(part["key"]), rows=[i],
                starts=[end - part["seconds"]], sizes=[part["seconds"]],
                texts=[f"{format_seconds(part['seconds'])}  {percent(part['frac'])}"],
                tips=[f"{part['name']}: {format_seconds(part['seconds'])}"],
            )
            for i, (part, end) in enumerate(zip(parts, ends, strict=True))
        ]  # fmt: skip
        return Chart(
            title=f"One step, {format_seconds(said['seconds'])}, of the slowest rank",
            x=Axis(label="time", unit="s"), y=Axis(rows=tuple(part["name"] for part in parts)),
            marks=tuple(marks), legend=False,
        )  # fmt: skip

    def timeline(
        self,
        step: int | None = None,
        *,
        ranks: Sequence[int] = (),
        window_s: tuple[float, float] | None = None,
    ) -> Chart:
        """What each stream of the recorded GPUs runs during a step.

        Parameters
        ----------
        step
            One of those recorded; by default the last.
        ranks
            Whose GPUs; by default the first recorded ones.
        window_s
            Only so much of it: from and to, in seconds since the step began.

        Raises
        ------
        ScenarioError
            The step, or a rank, was not recorded.
        """
        spans = self._records().spans()
        chosen, (begin, end) = _window(spans, step)
        if window_s is not None:
            begin, end = (begin + round(t * 1e9) for t in window_s)
        gpus = self._gpus({s.track for s in spans}, ranks)
        inside = [s for s in spans if s.track[:2] in gpus and s.start_ns < end and s.end_ns > begin]
        rows = {t: n for n, t in enumerate(tracks_in_order({s.track for s in inside}))}
        found: dict[str, list[Span]] = defaultdict(list)
        for span in inside:
            found[span.category].append(span)
        marks = [_slices(kind, found[kind], rows, (begin, end)) for kind in _by_color(found)]
        spare = 2 if len(gpus) == 1 else int(len({node for node, _ in gpus}) == 1)
        names = tuple("  ".join(track[spare:]) for track in rows)
        where = "" if len(gpus) > 1 else f", {' '.join(gpus[0])}"
        return Chart(
            title=f"Step {chosen}{where}{self._part()}", marks=tuple(marks),
            x=Axis(label=f"time {_since(window_s)}", unit="s", top=(end - begin) / 1e9),
            y=Axis(rows=names),
        )  # fmt: skip

    def memory(self, rank: int | None = None) -> Chart:
        """Memory of a GPU by category during the recorded step.

        Parameters
        ----------
        rank
            One of those recorded; by default the fullest.

        Raises
        ------
        ScenarioError
            The rank was not recorded.
        """
        columns = self._records().counter_columns()
        changes = charts.memory_changes(zip(*columns.values(), strict=True))
        if not changes:
            raise ScenarioError("memory was not recorded")
        curves = {t: charts.memory_curve(rows, MOMENTS) for t, rows in changes.items()}
        track = max(curves, key=lambda t: float(curves[t]["peak"]["bytes"]))
        if rank is not None:
            track = self._gpus(set(curves), (rank,))[0]
        curve = curves[track]
        times = list(itertools.accumulate(curve["t"]))
        x = [(t - times[0]) / 1e9 for t in times]
        names = peaks.memory_names(self.result.summary)
        marks: list[Mark] = [
            Area(
                name=peaks.memory_name(category, names), stacked=True, x=x,
                color=charts.MEMORY_COLORS.get(category, charts.NEUTRAL).light,
                y=[kib * 1024.0 for kib in kibs],
            )
            for category, kibs in zip(curve["categories"], curve["kib"], strict=True)
        ]  # fmt: skip
        peak = curve["peak"]
        marks.append(Rule(name="peak", at=(peak["t"] - times[0]) / 1e9, across="x", color=GREY))
        capacity = self.result.summary["memory"].get("capacity_bytes")
        title = f"GPU memory, {' '.join(track)}{self._part()}: peak {format_bytes(peak['bytes'])}"
        top = peak["bytes"] * HEADROOM
        if capacity:
            title += f" of {format_bytes(capacity)}"
            if capacity < 2 * peak["bytes"]:
                marks.append(Rule(name="capacity", at=capacity))
                top = max(capacity, peak["bytes"]) * HEADROOM
        return Chart(
            title=title, marks=tuple(marks), x=Axis(label="time since the step began", unit="s"),
            y=Axis(label="memory", unit="B", top=top),
        )  # fmt: skip

    def links(self) -> Chart:
        """How fast the links of the recorded GPUs carry bytes during the step."""
        spans = self._records().spans()
        chosen, (begin, end) = _window(spans, None)
        steps: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for _, name, t_ns, value in self._records().counters():
            if name.startswith("link/"):
                steps[name.removeprefix("link/")].append((float(t_ns), value))
        if not steps:
            raise ScenarioError("no link carried anything: one GPU talks to nobody")
        cell = (end - begin) / CELLS
        ordered = tracks_in_order(tuple(name.split("/")) for name in steps)
        names = ["/".join(parts) for parts in ordered]
        values = {name: _means(steps[name], begin, cell) for name in names}
        x = Axis(label="time since the step began", unit="s")
        title = f"Step {chosen}, rate of the links{self._part()}"
        if len(values) > MOST_LINES:
            heat = Heat(
                name="rate", color="#0072b2", begin=0.0, cell=cell / 1e9, unit="B/s",
                values=list(values.values()), most=max(map(max, values.values())),
            )  # fmt: skip
            return Chart(title=title, x=x, y=Axis(rows=tuple(values)), marks=(heat,), legend=False)
        colors = itertools.cycle(("#0072b2", "#e69f00", "#009e73"))
        times = [i * cell / 1e9 for i in range(CELLS + 1)]
        lines = [
            Area(name=name, color=color, x=times, y=[*means, means[-1]])
            for (name, means), color in zip(values.items(), colors, strict=False)
        ]
        return Chart(title=title, x=x, y=Axis(label="rate", unit="B/s"), marks=tuple(lines))

    def collectives(self) -> Chart:
        """Bus bandwidth of the collectives by message size, as nccl-tests draws it."""
        groups: dict[tuple[str, int], list[Span]] = defaultdict(list)
        for span in self._records().spans():
            args = span.args or {}
            if span.category in {"collective", "p2p"} and args.get("bytes"):
                groups[str(args.get("op")), int(args["bytes"])].append(span)
        if not groups:
            raise ScenarioError("there are no collectives: one GPU talks to nobody")
        total_s = {key: _seconds(spans) for key, spans in groups.items()}
        longest = max(total_s.values())
        marks = []
        for op, color in zip(_ops(groups), _OP_COLORS, strict=False):
            rows = sorted((size, spans) for (name, size), spans in groups.items() if name == op)
            marks.append(Points(
                name=op, color=color, x=[float(size) for size, _ in rows],
                y=[_bus_bytes_per_s(size, spans) for size, spans in rows],
                sizes=[7 + 25 * (total_s[op, size] / longest) ** 0.5 for size, _ in rows],
                tips=[_said(op, size, spans) for size, spans in rows],
            ))  # fmt: skip
        ticks = tuple((2.0**n, format_bytes(2**n)) for n in range(0, 41, 4))
        return Chart(
            title="Collectives by message size; the larger, the more time in all, waits included",
            x=Axis(label="message size", log=True, ticks=ticks), marks=tuple(marks),
            y=Axis(label="bus bandwidth", unit="B/s"),
        )  # fmt: skip

    def sensitivity(self) -> Chart:
        """What the step answers to, as a tornado: seconds less with 10 % more of one thing.

        Raises
        ------
        ScenarioError
            The run has none: ``what_if=False``, it does not fit, or is too large to play again.
        """
        found = sensitivity(self.result.summary)
        if not found:
            raise ScenarioError("this run has no elasticities of its step")
        step_s = self.result.summary["step"]["seconds"]
        less = [max(-sway.delta, 0.0) * step_s for sway in found]
        bars = Boxes(
            name="time less", color=charts.SLICE_COLORS["forward"].light, sizes=less,
            rows=range(len(found)), starts=[0.0] * len(found),
            texts=[percent(-sway.delta) for sway in found],
            tips=[f"{sway.input}: elasticity {sway.elasticity:.2f}" for sway in found],
        )  # fmt: skip
        return Chart(
            title=f"What a step of {format_seconds(step_s)} saves with 10 % more of one thing",
            x=Axis(label="time less", unit="s"), y=Axis(rows=tuple(sway.input for sway in found)),
            marks=(bars,), legend=False,
        )  # fmt: skip

    def _part(self) -> str:
        """What is said where the steady stretch of a step stands for the rest of it."""
        said = self.result.summary.get("simulation") or {}
        few, asked = said.get("simulated_micro_batches"), said.get("micro_batches")
        return f", {few} of {asked} micro-batches" if few and asked and few < asked else ""

    def _records(self) -> ColumnRecorder:
        records = self.result.records
        if records is None:
            raise ScenarioError("nothing was recorded: run with record=True")
        return records

    def _gpus(self, tracks: set[charts.Track], ranks: Sequence[int]) -> list[charts.Track]:
        known = charts.gpu_tracks(tracks)
        if not ranks:
            return known[:MOST_GPUS]
        per_node = int(self.result.summary["cluster"]["gpus_per_node"])
        asked = [(f"node-{r // per_node}", f"gpu-{r % per_node}") for r in ranks]
        for rank, track in zip(ranks, asked, strict=True):
            if track not in known:
                there = ", ".join(" ".join(t) for t in known)
                raise ScenarioError(f"rank {rank} was not recorded; these were: {there}")
        return list(asked)


_OP_COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7f8790")


def _part_color(key: str) -> str:
    kind = charts.PART_COLORS.get(key, "")
    return charts.SLICE_COLORS.get(kind, charts.NEUTRAL).light


def _by_color(found: Mapping[str, object]) -> list[str]:
    """Categories in the order of the colours, others behind."""
    order = {name: i for i, name in enumerate(charts.SLICE_COLORS)}
    return sorted(found, key=lambda name: (order.get(name, len(order)), name))


def _since(window_s: tuple[float, float] | None) -> str:
    if window_s is None:
        return "since the step began"
    return f"since {format_seconds(window_s[0])} into the step"


def _slices(
    kind: str, spans: Sequence[Span], rows: Mapping[charts.Track, int], view_ns: tuple[int, int]
) -> Boxes:
    """Slices of one kind, those that reach out of the view cut off."""
    begin, end = view_ns
    parts = [(max(s.start_ns, begin), min(s.end_ns, end)) for s in spans]
    return Boxes(
        name=NAMES.get(kind, kind.replace("_", " ")),
        color=charts.SLICE_COLORS.get(kind, charts.NEUTRAL).light,
        rows=[rows[s.track] for s in spans],
        starts=[(a - begin) / 1e9 for a, _ in parts],
        sizes=[(b - a) / 1e9 for a, b in parts],
        tips=[f"{s.name}: {format_seconds((s.end_ns - s.start_ns) / 1e9)}" for s in spans],
    )  # fmt: skip


def _window(spans: Sequence[Span], step: int | None) -> tuple[int, tuple[int, int]]:
    windows = charts.step_windows(spans)
    if not windows:
        raise ScenarioError("no step was recorded")
    chosen = max(windows) if step is None else step
    if chosen not in windows:
        there = ", ".join(map(str, windows))
        raise ScenarioError(f"step {chosen} was not recorded; these were: {there}")
    return chosen, windows[chosen]


def _means(rows: Sequence[tuple[float, float]], begin: float, cell: float) -> list[float]:
    """The mean of a step function in each cell of the window."""
    means = [0.0] * CELLS
    for (start, value), (stop, _) in itertools.pairwise([*rows, (begin + cell * CELLS, 0.0)]):
        first, last = (start - begin) / cell, (stop - begin) / cell
        for i in range(max(0, int(first)), min(CELLS, int(last) + 1)):
            means[i] += value * max(0.0, min(last, i + 1) - max(first, i))
    return means


def _seconds(spans: Sequence[Span]) -> float:
    return sum(s.end_ns - s.start_ns for s in spans) / 1e9


def _ops(groups: Mapping[tuple[str, int], object]) -> list[str]:
    there = dict.fromkeys(op for op, _ in groups)
    return [op for op in OPS if op in there] + sorted(op for op in there if op not in OPS)


def _bus_bytes_per_s(size: int, spans: Sequence[Span]) -> float:
    """What the record says that nccl-tests would; of sends the fastest, which waited least."""
    rates = [(s.args or {}).get("bus_bytes_per_s") for s in spans]
    known = [float(rate) for rate in rates if rate]
    if known:
        return sum(known) / len(known)
    return size * 1e9 / min(s.end_ns - s.start_ns for s in spans)


def _said(op: str, size: int, spans: Sequence[Span]) -> str:
    rate = format_bytes_per_s(_bus_bytes_per_s(size, spans))
    return f"{op} of {format_bytes(size)}: {len(spans)} times, {_seconds(spans):.3g} s, {rate}"
