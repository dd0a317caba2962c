"""Runs side by side as one offline page: what was changed, what it did, and where in the step.

What it models: nothing; it shows ``summary.json``, the resolved scenarios and recorded frames.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from raysim.report import changed, charts, comparing, comparing_spans, words
from raysim.report.html import _environment
from raysim.report.plan_words import metrics_of
from raysim.report.plan_words import text as metric_text
from raysim.results.targets import values_of

Summary = Mapping[str, Any]
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
RUN_COLORS = ("gradient", "activation", "parameter", "temporary", "optimizer_state", "context")
"""Of `charts.MEMORY_COLORS`: told apart by all; runs are also lettered and dashed apart."""
MOST_OPERATIONS = 60
HEADLINE = ("tokens_per_s", "samples_per_s", "seconds", "step_seconds")
ALSO = ("step_seconds", "seconds", "gpu_mem_peak", "usd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One of the runs compared."""

    name: str
    summary: Summary
    scenario_yaml: str = ""
    scenario: Mapping[str, Any] | None = None
    """The same, as data."""
    recorded: comparing_spans.Recorded | None = None


class Part(NamedTuple):
    """A part of a whole in each run: seconds or bytes, and a bar of the change."""

    name: str
    color: str
    values: tuple[float, ...]
    lefts: tuple[float, ...]
    """Where each run's bar begins, as a share of the scale."""
    widths: tuple[float, ...]
    change: float
    """Of the last over the first."""
    tornado: tuple[float, float]


def render(runs: Sequence[Run]) -> str:
    """The page as one HTML document without external references."""
    summaries = [run.summary for run in runs]
    have = all(run.recorded is not None and run.recorded.spans for run in runs)
    recorded = [run.recorded for run in runs if run.recorded is not None] if have else []
    steps = [comparing_spans.step_of(r) for r in recorded]
    timeline = comparing_spans.timeline(steps) if steps else None
    curves = [comparing_spans.curve(r, s) for r, s in zip(recorded, steps, strict=True)]
    operations = comparing_spans.operations(steps)
    moved = [o for o in operations if len(set(o.seconds)) > 1 or len(set(o.counts)) > 1]
    keys = changed.changed_keys([run.scenario or {} for run in runs])
    return _environment().get_template("compare.html.j2").render(
        runs=runs, letters=LETTERS, run_colors=RUN_COLORS, changed=keys,
        head=head(summaries), also=also(summaries), rows=comparing.rows_of(summaries),
        step=parts(summaries, "step.breakdown", "seconds", chained=True),
        time=parts(summaries, "time", "seconds", chained=False),
        memory=parts(summaries, "memory.by_category", "bytes", chained=False),
        capacities=[words.number(comparing.at(s, "memory.capacity_bytes")) for s in summaries],
        functions=functions(summaries), stores=stores(summaries),
        timeline=timeline, curves=any(curves), operations=moved[:MOST_OPERATIONS],
        unlisted=len(moved) - len(moved[:MOST_OPERATIONS]), labels=[r.label for r in recorded],
        data=words.script_json({
            "timeline": timeline, "curves": curves if any(curves) else None,
            "letters": LETTERS[: len(runs)], "colors": RUN_COLORS,
        }),
        diffs=diffs(runs), memory_colors=charts.MEMORY_COLORS, slice_colors=charts.SLICE_COLORS,
        part_colors=charts.PART_COLORS, neutral=charts.NEUTRAL,
        version=summaries[0].get("raysim", ""),
    )  # fmt: skip


def head(summaries: Sequence[Summary]) -> str:
    """The first difference that people ask for, in a sentence."""
    found = [values_of(s) for s in summaries]
    for s, values in zip(summaries, found, strict=True):
        if words.table(s.get("verdict")).get("fits") is False:
            values.clear()
    out = [LETTERS[i] for i, values in enumerate(found) if not values]
    if out:
        return f"{' and '.join(out)} {'does' if len(out) == 1 else 'do'} not fit in GPU memory"
    name = next((n for n in HEADLINE if all(v.get(n) for v in found)), None)
    if name is None:
        return f"{len(summaries)} runs"
    more = name.endswith("per_s")
    speeds = [v[name] if more else 1 / v[name] for v in found]
    first = speeds[0]
    if len(summaries) > 2:
        best = max(range(len(speeds)), key=speeds.__getitem__)
        if best == 0:
            return f"A is the fastest of {len(summaries)}"
        gain = words.percent(speeds[best] / first - 1)
        return f"{LETTERS[best]} is the fastest of {len(summaries)}, {gain} faster than A"
    ratio = speeds[1] / first
    if abs(ratio - 1) < comparing.SAME:
        return "A and B are equally fast"
    if not more:
        how = words.percent(abs(1 / ratio - 1))
        return f"B takes {how} {'less time' if ratio > 1 else 'longer'} than A"
    how = words.percent(abs(ratio - 1))
    return f"B is {how} {'faster' if ratio > 1 else 'slower'} than A"


def also(summaries: Sequence[Summary]) -> str:
    """What else a person wants to know at once: last against first."""
    first, last = values_of(summaries[0]), values_of(summaries[-1])
    objective = {"objective": {"metric": "", "direction": "minimize"}}
    found = []
    for name in ALSO:
        a, b = first.get(name), last.get(name)
        if a is None or b is None or a == b:
            continue
        (metric,) = metrics_of([name], objective)
        found.append(f"{metric.label} {metric_text(metric, b)} instead of {metric_text(metric, a)}")
    return ", ".join(found)


def parts(summaries: Sequence[Summary], path: str, unit: str, *, chained: bool) -> list[Part]:
    """Parts of the step, of the run or of memory, by name; ``chained`` ones follow each other."""
    listed = [words.rows(comparing.at(s, path)) for s in summaries]
    by_name = [{r["name"]: float(r.get(unit) or 0.0) for r in rows} for rows in listed]
    kinds = {r["name"]: r.get("key") or r.get("category") or "" for rows in listed for r in rows}
    names = sorted(kinds, key=lambda n: -max(values.get(n, 0.0) for values in by_name))
    if chained:
        scale = max((sum(v.values()) for v in by_name), default=0.0)
    else:
        scale = max((v for values in by_name for v in values.values()), default=0.0)
    changes = [by_name[-1].get(n, 0.0) - by_name[0].get(n, 0.0) for n in names] if names else []
    before = [0.0] * len(summaries)
    found = []
    for name, change, bar in zip(names, changes, charts.tornado(changes), strict=True):
        values = tuple(v.get(name, 0.0) for v in by_name)
        lefts = tuple(b / scale for b in before) if chained and scale else (0.0,) * len(values)
        widths = tuple(v / scale if scale else 0.0 for v in values)
        before = [b + v for b, v in zip(before, values, strict=True)]
        kind = charts.PART_COLORS.get(kinds[name], kinds[name])
        found.append(Part(name, kind, values, lefts, widths, change, bar))
    return found


def functions(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """Tasks by function of Ray programs: a row per function, a cell per run."""
    by_name = [
        {r["name"]: r for r in words.rows(comparing.at(s, "tasks.by_function"))} for s in summaries
    ]
    names = dict.fromkeys(name for rows in by_name for name in rows)
    found = [{"name": name, "runs": [rows.get(name) for rows in by_name]} for name in names]
    for row in found:
        first, last = ((row["runs"][i] or {}).get("busy_seconds", 0.0) for i in (0, -1))
        row["change"] = last - first
    return sorted(found, key=lambda r: (-abs(r["change"]), r["name"]))


def stores(summaries: Sequence[Summary]) -> list[tuple[str, list[Any]]]:
    """The object store of Ray programs: rows of bytes per run."""
    rows = (
        ("fullest store", "object_store.peak_bytes"),
        ("its capacity", "object_store.capacity_bytes"),
        ("spilled", "object_store.spilled_bytes"), ("restored", "object_store.restored_bytes"),
        ("moved between nodes", "network.bytes"),
    )  # fmt: skip
    found = [(name, [comparing.at(s, path) for s in summaries]) for name, path in rows]
    return [row for row in found if any(v is not None for v in row[1])]


def diffs(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Of each run's resolved scenario against the first one's."""
    found = []
    for letter, run in zip(LETTERS[1:], runs[1:], strict=False):
        lines = changed.text_diff(runs[0].scenario_yaml, run.scenario_yaml, ("A", letter))
        found.append((letter, lines))
    return found
