"""A plan as one offline page: the choice, what else there is, what decides, files to deploy it.

What it models: nothing; it shows the plan's ``summary.json`` and its trials. Same plan, same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from raysim.report import charts, plan_data, plan_words, words
from raysim.report.html import _environment
from raysim.report.sections import Fact
from raysim.scenario.overrides import labels, shown

Summary = Mapping[str, Any]
MORE = 1.1
"""An input of the hardware is ten per cent more."""
SURE = 0.995
PAIR_SHOWN = 0.005
MOST_REASONS = 4
UNSAID = ("were not played", "are refused", "failed")
"""Reasons that say nothing without the trial's own."""
NBSP = "\xa0"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPage:
    """What a page of a plan is made of: plain data."""

    summary: Summary
    """Of the plan."""
    trials: Sequence[Mapping[str, Any]]
    files: Mapping[str, str]
    """Content by name, ready to deploy; none where nothing is chosen."""
    command: str
    """That made the plan."""
    scenario: str
    """As it was given to the command."""
    scenario_yaml: str
    version: str
    folder: str
    goes_with: tuple[str, ...] = ()
    """Changes that go with every choice, as ``--set`` takes them."""
    chosen: Summary | None = None
    """Of a run of the choice, where one was made."""


class Lean(NamedTuple):
    """What an input of the hardware does to the step."""

    input: str
    elasticity: float
    change: float
    """Of the step, when there is ten per cent more of the input."""
    left: float
    width: float


def render(page: PlanPage) -> str:
    """The page as one HTML document without external references."""
    summary = page.summary
    on_page = plan_data.kept(page.trials)
    data = plan_data.columns(summary, on_page)
    statuses = [plan_data.status_of(t) for t in page.trials]
    counts = {name: statuses.count(name) for name, _ in plan_data.STATUSES}
    return _environment().get_template("plan.html.j2").render(
        plan=page, summary=summary, best=summary["best"], counts=counts,
        head=head(page), tiles=tiles(page), targets=targets(summary),
        choice=said(summary["best"] or summary["instead"]),
        order=plan_words.order_text(summary), doubt=plan_words.doubt_text(summary),
        further=plan_words.further_text(summary), nearest=nearest(summary),
        reasons=reasons(summary), statuses=plan_data.STATUSES,
        shown=len(on_page.trials), total=on_page.total,
        objective=plan_words.metrics_of([data["objective"]], summary)[0].label,
        metrics=data["metrics"], keys=data["keys"],
        data=words.script_json(data | {"scenario": page.scenario, "goes_with": page.goes_with}),
        decides=summary.get("importance"), pairs=pairs(summary),
        rests_on=rests_on(summary["rests_on"]), label=labels(summary["space"]),
        memory_colors=charts.MEMORY_COLORS, slice_colors=charts.SLICE_COLORS,
        part_colors=charts.PART_COLORS, neutral=charts.NEUTRAL,
    )  # fmt: skip


def said(trial: Summary | None) -> str:
    """A choice in a line."""
    if trial is None:
        return ""
    label = labels(trial["choice"])
    return ", ".join(
        f"{label[k]} {'none' if v is None else shown(v)}" for k, v in trial["choice"].items()
    )


def head(page: PlanPage) -> str:
    """The verdict in a few words."""
    summary = page.summary
    trial = summary["best"]
    if trial is None:
        return "Nothing meets the targets" if summary["complete"] else "Nothing yet"
    metrics = trial["metrics"]
    count, unit = (trial["gpus"], "GPU") if trial["gpus"] else (trial["nodes"], "node")
    size = f"{count:,} {unit}{'s' * (count != 1)}"
    found = []
    if words.number(metrics.get("usd")) is not None:
        found.append(words.usd(metrics["usd"]))
    if words.number(metrics.get("seconds")) is not None:
        found.append(f"{words.seconds(metrics['seconds'])}")
    asked = plan_words.shown_as(summary["objective"]["metric"])
    if asked not in ("usd", "seconds") or not found:
        (metric,) = plan_words.metrics_of([asked], summary)
        value = metrics.get(asked, trial.get(asked))
        found.insert(0, f"{plan_words.text(metric, value)} {metric.label.removeprefix('$ ')}")
    return f"{', '.join(found)}, on {size}"


def tiles(page: PlanPage) -> list[Fact]:
    """The numbers of the choice, with where nine of ten measured values would lie."""
    trial = page.summary["best"] or page.summary["instead"]
    if trial is None:
        return []
    metrics, certainty = trial["metrics"], words.table((page.chosen or {}).get("certainty"))
    step = words.table(certainty.get("step_seconds"))
    middle = words.number(metrics.get("step_seconds"))
    spread = (step["low"] / middle, step["high"] / middle) if step and middle else None
    speed = None if spread is None else (1 / spread[1], 1 / spread[0])
    memory = words.table(certainty.get("memory_peak_bytes"))
    peak = words.number(metrics.get("memory_peak"))
    heap = (memory["low"] / peak, memory["high"] / peak) if memory and peak else None
    spreads = {
        "usd": spread, "seconds": spread, "step_seconds": spread, "tokens_per_s": speed,
        "samples_per_s": speed, "gpu_mem_peak": heap,
    }  # fmt: skip
    shown = plan_words.metrics_of([*metrics, "gpus", "nodes"], page.summary)
    asked = plan_words.shown_as(page.summary["objective"]["metric"])
    names = [n for n in ("usd", "seconds", "tokens_per_s", "samples_per_s", "gpus", "gpu_mem_peak")
             if n in metrics or trial.get(n)]  # fmt: skip
    if "tokens_per_s" in names and "samples_per_s" in names:
        names.remove("samples_per_s")
    if "gpus" not in names:
        names.append("nodes")
    found = []
    for name in dict.fromkeys([asked, *names]):
        metric = next((m for m in shown if m.name == name), None)
        value = metrics.get(name, trial.get(name))
        if metric is None or words.number(value) is None:
            continue
        note = _between(metric, value, spreads.get(name))
        if name == "gpus":
            note = f"{trial['nodes']:,} node{'s' * (trial['nodes'] != 1)} in all"
        found.append(Fact(metric.label, plan_words.text(metric, value), note))
    if trial["likely"] is not None:
        chance = f">{SURE:.1%}" if trial["likely"] > SURE else words.percent(trial["likely"])
        formula = "errors are lognormal, with the ends of the interval as quantiles"
        if drawn := (page.summary.get("certainty") or {}).get("drawn"):
            formula = f"k of {drawn} draws of when spot nodes go did: (k + 1) / ({drawn} + 2)"
        found.append(Fact("likely", chance, "that it fits and meets the targets", formula))
    return found


def _between(metric: plan_words.Metric, value: float, spread: tuple[float, float] | None) -> str:
    if spread is None:
        return ""
    ends = (plan_words.text(metric, float(f"{value * s:.3g}")) for s in spread)
    low, high = (end.replace(" ", NBSP) for end in ends)
    return f"90{NBSP}%: {low} to {high}"


def targets(summary: Summary) -> list[tuple[str, str]]:
    """Each target, and whether the choice, if there is one, meets it: the choice meets all."""
    verdict = "" if summary["best"] is None else "good"
    return [(t, verdict) for t in dict.fromkeys(summary["targets"])]


def nearest(summary: Summary) -> str:
    """The trial that came nearest, and how far off it is, in a sentence."""
    found = summary.get("nearest")
    if not found:
        return ""
    trial = found["trial"]
    how = " (estimated)" if trial["status"] == "estimated" else ""
    parts = [(*o["target"].partition(" "), o["value"]) for o in found["off"]]
    off = ", ".join(
        f"{name} {plan_words.value_text(name, v, summary)} instead of {asked}"
        for name, _, asked, v in parts
    )
    return f"{said(trial)}{how}: {off}"


def reasons(summary: Summary) -> str:
    """Why nothing meets the targets: the commonest reasons, counted."""
    found = []
    for r in summary["reasons"][:MOST_REASONS]:
        why = r["example"].partition(";")[0] if r["what"] in UNSAID else ""
        found.append(f"{r['trials']:,} {r['what']}{f' ({why})' if why else ''}")
    if len(summary["reasons"]) > MOST_REASONS:
        found.append("others below")
    return "; ".join(found)


def pairs(summary: Summary) -> list[Mapping[str, Any]]:
    """Of the interactions those that say something."""
    found = (summary.get("importance") or {}).get("pairs", [])
    return [p for p in found if p["frac"] >= PAIR_SHOWN]


def rests_on(found: Sequence[Summary]) -> list[Lean]:
    """Bars about zero, the strongest input first."""
    changes = [MORE ** e["elasticity"] - 1 for e in found]
    return [
        Lean(e["input"], e["elasticity"], change, left, width)
        for e, change, (left, width) in zip(found, changes, charts.tornado(changes), strict=True)
    ]
