"""A plan as printed: the verdict, the best few, what faster costs, and why the others are out.

Works from the plan's ``summary.json`` alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from raysim.report.layout import JOINT, WIDE, Page, number, percent, usd
from raysim.report.plan_words import (
    doubt_text,
    further_text,
    order_text,
    shown_as,
    targets_of,
    value_text,
)
from raysim.scenario.overrides import labels, short_key, shown
from raysim.units import format_seconds

Summary = Mapping[str, Any]
SHOWN = (
    ("tokens_per_s", "tokens/s"), ("samples_per_s", "samples/s"), ("step_seconds", "step"),
    ("seconds", "time"), ("usd", "cost"), ("usd_per_million_tokens", "$/Mtoken"),
    ("usd_per_million_output_tokens", "$/Mtoken out"),
    ("gpu_mem_peak", "memory"),
)  # fmt: skip
_INSTEAD = {
    "samples_per_s": "tokens_per_s", "usd_per_million_tokens": "usd", "step_seconds": "seconds",
}  # fmt: skip
"""Columns that another makes superfluous."""
_NODES = ("nodes", "replicas")
_CUTS = ("tensor_parallel", "stages")
"""Last parts of keys that cut a model otherwise than ZeRO does."""
_DOLLARS = ("usd", "usd_per_million_tokens", "usd_per_million_output_tokens")
SURE = 0.995
CHECKPOINTING = "train.activation_checkpointing"
MOST_DECIDING = 4
_COUNTED = {"gpus": "GPUs", "nodes": "nodes in all"}


def render(summary: Summary, *, top: int = 5, width: int = WIDE, wrote: Sequence[str] = ()) -> Text:
    """The plan as styled text: ``top`` rows of each table."""
    page = Page(width)
    _verdict(page, summary)
    if summary["top"]:
        page.blank()
        _table(page, "best", summary["top"][:top], summary)
        if doubt := doubt_text(summary):
            page.blank()
            page.labelled("Unsure", [Text(doubt)])
        _sure(page, summary)
    _kinds(page, summary, top)
    front = summary["pareto"]
    if (len(front) > 1 and not summary["complete"]) or front:
        page.blank()
        _table(page, "faster costs more", front[:top], summary, missed=True)
    page.blank()
    if further := further_text(summary):
        page.labelled("Go on", [Text(said) for said in further])
    for reason in summary["reasons"][:top]:
        said = f"{reason['trials']} {reason['what']}"
        page.labelled("Out", [Text(f"{said} ({reason['example']})")])
    left = sum(r["trials"] for r in summary["reasons"][top:])
    if left:
        page.labelled("", [Text(f"and {left} for other reasons")])
    _untried(page, summary)
    _decides(page, summary)
    if idle := summary.get("no_effect"):
        page.labelled("No effect", [Text(short_key(key)) for key in idle])
    if summary["rests_on"]:
        inputs = [f"{e['input']} {-e['elasticity']:+.2f}" for e in summary["rests_on"]]
        page.labelled("Rests on", [Text(i) for i in inputs])
        page.add(" " * 12, ("percent of speed per percent of each, for the choice", "dim"))
    if wrote:
        page.labelled("Wrote", [Text(name) for name in wrote], joint="  ")
    return Text("\n").join(page.lines)


def _kinds(page: Page, summary: Summary, top: int) -> None:
    """The best of each kind of nodes, unless the best of all show that already."""
    kinds = summary["best_of_each_kind"]
    shown = {t["number"] for t in summary["top"][:top]}
    if any(t["number"] not in shown for t in kinds):
        page.blank()
        _table(page, "best of each kind of node", kinds, summary, missed=True)


def _decides(page: Page, summary: Summary) -> None:
    """What the objective depends on, where there is more than one key to tell apart."""
    found = summary.get("importance")
    if not found or len(found["keys"]) < 2:
        return
    label = labels(summary["space"])
    shares = [f"{label[k['key']]} {percent(k['frac'], 0)}" for k in found["keys"][:MOST_DECIDING]]
    page.labelled("Decided by", [Text(s) for s in shares])
    unsure = "" if found["sure"] else ", on few trials or unlike ones: a hint"
    page.add(" " * 12)
    page.words(
        f"share of the variance of {found['metric']} over the values tried{unsure}",
        indent=12, style="dim",
    )  # fmt: skip


def _verdict(page: Page, summary: Summary) -> None:
    tried = f"{summary['tried']:,} of {summary['size']:,} tried"
    best = summary["best"]
    if not summary["complete"]:
        page.add(("Interrupted: the same command goes on.", "bold"))
        if best is None:
            page.add((f"{summary['scenario']}{JOINT}{tried}", "dim"))
            return
    if best is not None:
        page.add((f"{_named(best)}: {_answer(best, summary)}.", "bold"))
        of = f", {summary['meets']:,} meet the targets" if summary["targets"] else ""
        page.add((f"{summary['scenario']}{JOINT}{tried}{of}; {_aim(summary)}", "dim"))
        return
    asked = f"; targets: {', '.join(summary['targets'])}" if summary["targets"] else ""
    page.add((f"No configuration {'meets the targets' if asked else 'runs'}.", "bold"))
    page.add((f"{summary['scenario']}{JOINT}{tried}{asked}", "dim"))
    other, near = summary["instead"], summary.get("nearest")
    if other is None and near:
        parts = [(*o["target"].partition(" "), o["value"]) for o in near["off"]]
        off = ", ".join(
            f"{name} {value_text(name, v, summary)} instead of {asked}"
            for name, _, asked, v in parts
        )
        page.labelled("Nearest", [Text(f"{_named(near['trial'])}: {off}")])
    if other is not None:
        page.labelled(
            "Instead", [Text(f"the smallest change that would do: {_named(other)} -> "
                             f"{_answer(other, summary)}")]
        )  # fmt: skip


def _untried(page: Page, summary: Summary) -> None:
    """What usually makes a training job fit, where nothing does; and machines of other kinds."""
    big = any(r["what"].startswith("exceed GPU") for r in summary["reasons"])
    tried = any(key.endswith("activation_checkpointing") for key in summary["space"])
    training = "tokens_per_s_per_gpu" in summary["units"]
    if big and training and not (tried or summary["best"] or summary["instead"]):
        page.labelled(
            "Not tried", [Text(f"--vary {CHECKPOINTING}=none,full"),
                          Text("no --vary at all tries stages, offload and batches too")]
        )  # fmt: skip
    cut = any(key.endswith(_CUTS) for key in summary["space"])
    if big and not cut and "ZeRO" in str((summary["best"] or {}).get("strategy")):
        page.labelled(
            "Not tried", [Text("tensor parallelism and pipelines, where the script has them"),
                          Text("--vary train.tensor_parallel=1,2,4,8"),
                          Text("--vary train.pipeline.stages=1,2,4")]
        )  # fmt: skip
    counts = next((k for k in summary["space"] if k.rpartition(".")[2] in _NODES), None)
    if training and counts and not any(k.endswith((".node", ".gpu")) for k in summary["space"]):
        values = ",".join(str(v) for v in summary["space"][counts])
        key = f"{counts.rpartition('.')[0]}.node"
        of = " (plan best/scenario.yaml)" if summary["best"] else ""
        page.labelled(
            "Not tried", [Text(f"other kinds of node{of}"),
                          Text(f"--vary {key}=any --vary {counts}={values}")]
        )  # fmt: skip


def _aim(summary: Summary) -> str:
    metric, direction = summary["objective"]["metric"], summary["objective"]["direction"]
    said = f"{'least' if direction == 'minimize' else 'most'} {metric}"
    quantile, order = summary["objective"].get("quantile"), order_text(summary)
    if quantile is not None:
        said += f" at the {quantile:.0%} quantile of its interval"
    return f"{said}, {order}" if order else said


def _sure(page: Page, summary: Summary) -> None:
    """How far off the first choice may be, and whether the second is really behind it."""
    sure = summary.get("certainty")
    if sure is None:
        return
    metric = summary["objective"]["metric"]
    ends = [_words(metric, sure[end]) for end in ("low", "high")]
    said = [Text(f"nine of ten such jobs would measure {ends[0]} to {ends[1]}")]
    chance = sure["first_beats_second"]
    if chance is not None:
        said.append(Text(f"the first beats the second with {percent(chance, 0)}"))
    if sure["alike"] > 1:
        of = f"{sure['alike']:,} of {summary['meets']:,}"
        said.append(Text(f"{of} cannot be told from the first"))
    page.blank()
    page.labelled("Sure", said)
    if sure.get("drawn"):
        each = (
            f"each is the mean of {sure['drawn']} draws of when spot nodes go, of which it is one"
        )
        page.add(" " * 12, (each, "dim"))
    elif chance is not None:
        assumed = "past errors of layouts of one model on one kind of node were largely shared"
        page.add(" " * 12, (assumed, "dim"))


def _named(trial: Summary) -> str:
    label = labels(trial["choice"])
    return ", ".join(f"{label[key]} {shown(value)}" for key, value in trial["choice"].items())


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
    if name in _DOLLARS:
        return usd(value) + ("" if name == "usd" else dict(SHOWN)[name].removeprefix("$"))
    if name == "step_seconds":
        return f"{format_seconds(value)} a step"
    if name == "gpu_mem_peak":
        return f"{percent(value, 0)} of GPU memory"
    return f"{number(value)} {dict(SHOWN).get(name, name)}"


def _cell(name: str, value: float | None, summary: Summary) -> str:
    if value is None:
        return "-"
    if name in _DOLLARS:
        return usd(value)
    if name in ("seconds", "step_seconds"):
        return format_seconds(value)
    return percent(value, 0) if name == "gpu_mem_peak" else value_text(name, value, summary)


def _table(
    page: Page, title: str, trials: Sequence[Summary], summary: Summary, *, missed: bool = False
) -> None:
    keys = list(summary["space"])
    asked = summary["objective"]["metric"]
    there = [n for n, _ in SHOWN if any(n in t["metrics"] for t in trials)]
    names = [n for n in there if _INSTEAD.get(n) not in there]
    if asked not in names:
        names.insert(0, asked)
    wanted = map(shown_as, targets_of(summary))
    names += [n for n in wanted if n not in names and any(n in t["metrics"] for t in trials)]
    likely = any(t["likely"] is not None for t in trials)
    missed = missed and any(t["missed"] for t in trials)
    count = _machines(trials)
    heads = [*labels(keys).values(), _COUNTED[count], *(dict(SHOWN).get(n, n) for n in names)]
    heads += ["likely"] * likely + ["misses"] * missed
    rows = []
    for trial in trials:
        row = [shown(trial["choice"][key]) for key in keys] + [str(trial[count])]
        row += [_cell(n, trial["metrics"].get(n), summary) for n in names]
        if likely:
            row.append(_chance(trial["likely"]))
        if missed:
            row.append(", ".join(_metric(target) for target in trial["missed"]))
        rows.append(row)
    page.add((f" {title}", "bold"))
    values = [max(map(len, column)) for column in zip(*rows, strict=True)]
    broken = [[head] for head in heads]
    if len(_line(heads, _widths(broken, values))) > page.width:
        broken = [_broken(head, width) for head, width in zip(heads, values, strict=True)]
    widths = _widths(broken, values)
    above = max(map(len, broken))
    for line in zip(*([""] * (above - len(b)) + b for b in broken), strict=True):
        page.add((_line(line, widths), ""))
    page.rule()
    for row in rows:
        page.add(_line(row, widths))


def _widths(heads: Sequence[Sequence[str]], values: Sequence[int]) -> list[int]:
    return [max(width, *map(len, head)) for head, width in zip(heads, values, strict=True)]


def _broken(head: str, width: int) -> list[str]:
    """A head on as many lines as it takes to be no wider than its column, or than a word."""
    lines = [""]
    for part in re.findall(r"[^_ ]+[_ ]?", head):
        if lines[-1] and len(lines[-1] + part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return [line.rstrip() for line in lines]


def _machines(trials: Sequence[Summary]) -> str:
    """What says how large a cluster is."""
    return "gpus" if any(t["gpus"] for t in trials) else "nodes"


def _metric(target: str) -> str:
    """What a target is about, as its column is headed."""
    name = target.partition(" ")[0]
    return dict(SHOWN).get(name, name)


def _chance(value: float | None) -> str:
    if value is None:
        return "-"
    return f">{SURE:.1%}" if value > SURE else percent(value, 0)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return " " + "  ".join(c.rjust(w) for c, w in zip(cells, widths, strict=True)).rstrip()
