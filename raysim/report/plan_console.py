"""A plan as printed: the verdict, the best few, what faster costs, and why the others are out.

Works from the plan's ``summary.json`` alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from raysim.report.layout import JOINT, WIDE, Page, number, percent, usd
from raysim.scenario.overrides import short_key
from raysim.units import format_seconds

Summary = Mapping[str, Any]
SHOWN = (
    ("tokens_per_s", "tokens/s"), ("samples_per_s", "samples/s"), ("step_seconds", "step"),
    ("seconds", "time"), ("usd", "cost"), ("usd_per_million_tokens", "$/Mtoken"),
    ("gpu_mem_peak", "memory"),
)  # fmt: skip
_INSTEAD = {
    "samples_per_s": "tokens_per_s", "usd_per_million_tokens": "usd", "step_seconds": "seconds",
}  # fmt: skip
"""Columns that another makes superfluous."""
SURE = 0.995
_COUNTED = {"gpus": "GPUs", "nodes": "nodes in all"}


def render(summary: Summary, *, top: int = 5, width: int = WIDE, wrote: Sequence[str] = ()) -> Text:
    """The plan as styled text: ``top`` rows of each table."""
    page = Page(width)
    _verdict(page, summary)
    if summary["top"]:
        page.blank()
        _table(page, "best", summary["top"][:top], summary)
    front = summary["pareto"]
    if (len(front) > 1 and not summary["complete"]) or front:
        page.blank()
        _table(page, "faster costs more", front[:top], summary, missed=True)
    page.blank()
    for reason in summary["reasons"][:top]:
        said = f"{reason['trials']} {reason['what']}"
        page.labelled("Out", [Text(f"{said} (closest: {reason['closest']})")])
    left = sum(r["trials"] for r in summary["reasons"][top:])
    if left:
        page.labelled("", [Text(f"and {left} for other reasons")])
    if summary["rests_on"]:
        inputs = [f"{e['input']} {-e['elasticity']:+.2f}" for e in summary["rests_on"]]
        page.labelled("Rests on", [Text(i) for i in inputs])
        page.add(" " * 12, ("percent of speed per percent of each, for the choice", "dim"))
    if wrote:
        page.labelled("Wrote", [Text(name) for name in wrote], joint="  ")
    return Text("\n").join(page.lines)


def _verdict(page: Page, summary: Summary) -> None:
    tried = f"{summary['tried']:,} of {summary['size']:,} tried"
    best = summary["best"]
    if best is not None:
        page.add((f"{_named(best)}: {_answer(best, summary)}.", "bold"))
        of = f", {summary['meets']:,} meet the targets" if summary["targets"] else ""
        page.add((f"{summary['scenario']}{JOINT}{tried}{of}; {_aim(summary)}", "dim"))
        return
    page.add(("No configuration meets the targets.", "bold"))
    page.add(
        (f"{summary['scenario']}{JOINT}{tried}; targets: {', '.join(summary['targets'])}", "dim")
    )
    other = summary["instead"]
    if other is not None:
        page.labelled(
            "Instead", [Text(f"the smallest change that would do: {_named(other)} -> "
                             f"{_answer(other, summary)}")]
        )  # fmt: skip


def _aim(summary: Summary) -> str:
    metric, direction = summary["objective"]["metric"], summary["objective"]["direction"]
    return f"{'least' if direction == 'minimize' else 'most'} {metric}"


def _named(trial: Summary) -> str:
    return ", ".join(f"{short_key(key)} {value}" for key, value in trial["choice"].items())


def _answer(trial: Summary, summary: Summary) -> str:
    metrics = trial["metrics"]
    asked = summary["objective"]["metric"]
    count = _machines(summary["top"] or [trial])
    found = [f"{trial[count]:,} {_COUNTED[count]}"]
    names = [n for n, _ in SHOWN if n in metrics and n in ("seconds", "usd", "tokens_per_s")]
    shown = [n for n in dict.fromkeys([*names, asked]) if n in metrics]
    found += [_words(name, metrics[name]) for name in shown]
    return ", ".join(found)


def _words(name: str, value: float) -> str:
    if name in ("seconds", "days"):
        return format_seconds(value * (86400 if name == "days" else 1))
    if name in ("usd", "usd_per_million_tokens"):
        return usd(value) + ("" if name == "usd" else "/Mtoken")
    if name == "step_seconds":
        return f"{format_seconds(value)} a step"
    if name == "gpu_mem_peak":
        return f"{percent(value, 0)} of GPU memory"
    return f"{number(value)} {dict(SHOWN).get(name, name)}"


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name in ("usd", "usd_per_million_tokens"):
        return usd(value)
    if name in ("seconds", "step_seconds"):
        return format_seconds(value)
    return percent(value, 0) if name == "gpu_mem_peak" else number(value)


def _table(
    page: Page, title: str, trials: Sequence[Summary], summary: Summary, *, missed: bool = False
) -> None:
    keys = list(summary["space"])
    asked = summary["objective"]["metric"]
    there = [n for n, _ in SHOWN if any(n in t["metrics"] for t in trials)]
    names = [n for n in there if _INSTEAD.get(n) not in there]
    if asked not in names:
        names.insert(0, asked)
    likely = any(t["likely"] is not None for t in trials)
    missed = missed and any(t["missed"] for t in trials)
    count = _machines(trials)
    heads = [*map(short_key, keys), _COUNTED[count], *(dict(SHOWN).get(n, n) for n in names)]
    heads += ["likely"] * likely + ["misses"] * missed
    rows = []
    for trial in trials:
        row = [str(trial["choice"][key]) for key in keys] + [str(trial[count])]
        row += [_cell(n, trial["metrics"].get(n)) for n in names]
        if likely:
            row.append(_chance(trial["likely"]))
        if missed:
            row.append("; ".join(trial["missed"]))
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    page.add((f" {title}", "bold"))
    page.add((_line(heads, widths), ""))
    page.rule()
    for row in rows:
        page.add(_line(row, widths))


def _machines(trials: Sequence[Summary]) -> str:
    """What says how large a cluster is."""
    return "gpus" if any(t["gpus"] for t in trials) else "nodes"


def _chance(value: float | None) -> str:
    if value is None:
        return "-"
    return f">{SURE:.1%}" if value > SURE else percent(value, 0)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return " " + "  ".join(c.rjust(w) for c, w in zip(cells, widths, strict=True)).rstrip()
