"""One offline HTML page for a result: ``render(result) -> str``.

What it models: nothing; it shows a ``Result``. The page is one file without a single request: data,
style and script are inside it, so that it can be mailed, printed and kept. Same result, same bytes.

Not here: the printed report (``console``), the trace for Perfetto (``results.traces``).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from raysim.report import charts, goodput, links, money, parity, peaks, sections, step, words

if TYPE_CHECKING:
    import jinja2

    from raysim.kernel.record import Span
    from raysim.results.ray.recorded import Recorded

MAX_STAGES = charts.MAX_GPUS


class Records(Protocol):
    """What the run recorded (``kernel.record.ColumnRecorder``)."""

    def spans(self) -> Sequence[Span]:
        """Slices of time."""

    def counter_columns(self) -> dict[str, list[Any]]:
        """Values over time, one list per field of ``Counter``."""


class Reportable(Protocol):
    """What a page is made of (``results.result.Result``)."""

    @property
    def summary(self) -> Mapping[str, Any]:
        """Numbers with units in their names; any key may be missing or null."""

    @property
    def records(self) -> Records | None:
        """What happened, or None where nothing was recorded."""

    @property
    def program(self) -> Recorded | None:
        """Of a Ray program: rows of its state log."""

    @property
    def scenario_yaml(self) -> str:
        """The resolved scenario, which replays the run."""


def render(result: Reportable) -> str:
    """The report as one HTML document without external references.

    Parameters
    ----------
    result
        A finished run of any kind; sections it has nothing for say so.
    """
    summary = result.summary
    if summary.get("kind") == "program":
        from raysim.report import program_html

        yaml = result.scenario_yaml or ""
        return program_html.render(summary, result.program, yaml, _environment())
    recorded = _recorded(summary, result.records)
    return _environment().get_template("report.html.j2").render(
        summary=summary,
        verdict_text=sections.verdict(summary),
        headline=sections.headline(summary),
        cluster=sections.cluster(summary),
        job=sections.job(summary),
        job_summary=words.table(summary.get("job")),
        waterfall=step.waterfall(summary),
        sensitivity=step.sensitivity(summary),
        link_rows=links.table_rows(summary),
        heat=recorded["heat"],
        money=money.money(summary),
        parities=parity.parities(summary),
        explained=peaks.explained(summary),
        largest=peaks.largest(summary),
        most_peaks=charts.MAX_GPUS,
        peaks=peaks.peaks(summary),
        host=peaks.host_peak(summary),
        changes=sections.changes(summary),
        run=sections.run_facts(summary),
        cost=sections.cost_facts(summary),
        goodput=goodput.section(summary),
        reference=sections.reference(summary),
        certainty=sections.certainty(summary),
        recorded=recorded,
        data=words.script_json({
            "timeline": recorded["timeline"], "memory": recorded["memory"],
            "links": recorded["heat"], "patterns": charts.PATTERNS,
        }),
        memory_colors=charts.MEMORY_COLORS,
        slice_colors=charts.SLICE_COLORS,
        part_colors=charts.PART_COLORS,
        neutral=charts.NEUTRAL,
        scenario_yaml=result.scenario_yaml or "",
    )  # fmt: skip


@functools.cache
def _environment() -> jinja2.Environment:
    """Templates with the units' filters; whatever is undefined prints as nothing."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("raysim.report", "templates"),
        autoescape=True, undefined=jinja2.ChainableUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "plain": words.plain, "percent": words.percent, "usd": words.usd,
        "tflops": words.tflops, "bytes": words.size, "rate": words.rate,
        "count": words.count, "seconds": words.seconds, "number": words.number,
        "rows": words.rows, "table": words.table, "color": _color,
        "pattern": _pattern,
    }  # fmt: skip
    environment.globals |= {
        "quantity": words.quantity, "reached": sections.reached,
        "collective_formula": sections.collective_formula, "cell": words.cell,
    }  # fmt: skip
    return environment


def _color(key: Any) -> str:
    """Name of the style sheet's variable for a category's colour."""
    known = key in charts.MEMORY_COLORS or key in charts.SLICE_COLORS
    return f"--c-{key}" if known else "--c-other"


def _pattern(key: Any) -> str:
    """Class, after a blank, of the pattern that a category has beside its colour."""
    return f" pt-{charts.PATTERNS[key]}" if key in charts.PATTERNS else ""


def _recorded(summary: Mapping[str, Any], records: Records | None) -> dict[str, Any]:
    """The time charts: which GPUs, which step, slices, memory curves, busy seconds."""
    empty: dict[str, Any] = {
        "timeline": None,
        "memory": None,
        "busy": [],
        "step": None,
        "heat": None,
    }
    if records is None:
        return empty
    spans, counters = records.spans(), records.counter_columns()
    every = charts.gpu_tracks({s.track for s in spans} | set(counters["track"]))
    gpus = _gpus(summary, every)
    mine = {gpu.track for gpu in gpus}
    windows = charts.step_windows([s for s in spans if s.track[:2] in mine])
    fullest = _fullest(summary, gpus)
    curves = _curves(summary, counters, gpus, fullest)
    top = max((c for c in curves if c["fullest"]), key=lambda c: c["peak"]["bytes"], default=None)
    step = charts.choose_step(windows, top["peak"]["t"] if top else None)
    view = windows.get(step) if step is not None else None
    timeline = charts.timeline(spans, gpus, view)
    t0 = timeline["t0"] if timeline["total"] else 0
    if top:
        track = tuple(top["where"].split("/"))
        top["after_s"] = (top["peak"]["t"] - view[0]) / 1e9 if view else None
        top["running"] = charts.running_at(spans, track, top["peak"]["t"])
    timeline |= {
        "steps": [[n, a - t0, b - t0] for n, (a, b) in windows.items()],
        "view": [view[0] - t0, view[1] - t0] if view else [0, timeline["span"]],
    }
    whole = view or (t0, t0 + timeline["span"])
    return {
        "heat": links.heat(summary, counters, spans, whole, t0),
        "by_stage": len(gpus) > 1 and _pipeline(summary),
        "timeline": timeline if timeline["total"] else None,
        "memory": {"curves": curves, "t0": t0, "names": peaks.memory_names(summary)}
        if curves else None,
        "busy": charts.busy(spans, gpus, view),
        "step": step,
        "gpus": len(gpus), "recorded_gpus": len(every),
        "peak": top,
        "uncurved": [
            row.get("name") or row.get("category")
            for row in words.rows(words.table(summary.get("memory")).get("by_category"))
            if top and row.get("category") not in top["categories"]
        ],
    }  # fmt: skip


def _gpus(summary: Mapping[str, Any], recorded: Sequence[charts.Track]) -> list[charts.Gpu]:
    """GPUs to draw: one per pipeline stage where there are stages, else every one recorded."""
    stages = words.rows(words.table(summary.get("memory")).get("per_stage"))
    if len(stages) > 1:
        named = [(s.get("rank"), _stage_label(summary, s)) for s in stages]
        if len(stages) == len(recorded):  # one rank of each stage was simulated: match in order
            pairs = zip(named, recorded, strict=True)
            gpus = [charts.Gpu(t, label) for (_, label), t in pairs]
        else:
            found = [(_track(summary, r), label) for r, label in named]
            gpus = [charts.Gpu(t, label) for t, label in found if t in recorded]
        if gpus:
            return gpus[:MAX_STAGES]
    by_track = {_track(summary, n): n for n in range(_ranks(summary))} if recorded else {}
    shown = recorded[:MAX_STAGES]
    return [charts.Gpu(t, f"rank {by_track[t]}" if t in by_track else t[-1]) for t in shown]


def _stage_label(summary: Mapping[str, Any], stage: Mapping[str, Any]) -> str:
    """``stage 2, rank 8``; of a job that is no pipeline, ``rank 8``."""
    rank = f"rank {stage.get('rank')}"
    return f"stage {words.plain(stage.get('pp'))}, {rank}" if _pipeline(summary) else rank


def _pipeline(summary: Mapping[str, Any]) -> bool:
    return (words.number(words.table(summary.get("job")).get("pp")) or 1) > 1


def _ranks(summary: Mapping[str, Any]) -> int:
    """GPUs of the cluster."""
    return int(words.number(words.table(summary.get("cluster")).get("gpus")) or 0)


def _track(summary: Mapping[str, Any], rank: Any) -> charts.Track:
    """Node and GPU of a rank, ranks filling nodes in order as launchers place them."""
    per_node = words.number(words.table(summary.get("cluster")).get("gpus_per_node"))
    if not per_node or not isinstance(rank, int):
        return ()
    return (f"node-{rank // int(per_node)}", f"gpu-{rank % int(per_node)}")


def _fullest(summary: Mapping[str, Any], gpus: Sequence[charts.Gpu]) -> charts.Track:
    """The GPU the summary calls fullest, if it is drawn or recorded."""
    memory = words.table(summary.get("memory"))
    named = (str(memory.get("node")), f"gpu-{memory.get('gpu')}")
    return named if memory.get("node") else (gpus[0].track if gpus else ())


def _curves(
    summary: Mapping[str, Any],
    counters: Mapping[str, list[Any]],
    gpus: Sequence[charts.Gpu],
    fullest: charts.Track,
) -> list[dict[str, Any]]:
    """Memory curves of the fullest GPU and of those on the time line; times from zero."""
    capacity = words.number(words.table(summary.get("memory")).get("capacity_bytes"))
    shown = [*gpus]
    if fullest and fullest not in {g.track for g in gpus}:
        shown.insert(0, charts.Gpu(fullest, "fullest GPU"))
    changes = charts.memory_changes(zip(*counters.values(), strict=True))
    shown = [gpu for gpu in shown if gpu.track in changes]
    points = charts.MAX_POINTS // max(4, len(shown))
    curves = [
        charts.memory_curve(changes[gpu.track], points)
        | {"label": gpu.label, "where": "/".join(gpu.track), "capacity": capacity,
           "fullest": gpu.track == fullest}
        for gpu in shown
    ]  # fmt: skip
    if curves and not any(c["fullest"] for c in curves):  # folded: a like rank stands for it
        max(curves, key=lambda c: float(c["peak"]["bytes"]))["fullest"] = True
    return curves
