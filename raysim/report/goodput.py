"""What a run makes of its wall time, printed and on the page: parts, failures, when to save."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rich.text import Text

from raysim.report import charts, words
from raysim.report.layout import BAR, NAME, Page, bar, number, percent
from raysim.units import format_seconds

Summary = Mapping[str, Any]
_LITTLE = 0.0005
"""Share that prints as less than 0.1 %."""


def goodput(page: Page, summary: Summary) -> None:
    """The table of the whole run and the sentences under it; nothing where machines are ideal."""
    found = summary.get("goodput")
    if not found:
        return
    if found.get("parts"):
        _table(page, found)
    page.blank()
    if found.get("parts"):
        page.labelled("Goodput", [Text(said) for said in _answer(found)])
    page.labelled("Machines", [Text(said) for said in slow_words(found)])
    for label, some in (("Failures", failure_words(found)), ("Saving", saving_words(found))):
        if some:
            page.labelled(label, [Text(said) for said in some])


def _table(page: Page, found: Summary) -> None:
    title = "the whole run" if found["runs"] == 1 else f"the whole run, mean of {found['runs']}"
    page.blank()
    page.add((f" {title:<{NAME}}", "bold"), (f"{'time':>10}{'share':>9}", "dim"))
    page.rule()
    longest = max(row["seconds"] for row in found["parts"])
    columns = min(BAR, page.width - NAME - 24)
    for row in _rows(found):
        style = "green" if row["key"] == "kept" else "yellow"
        page.add(
            f" {row['name']:<{NAME}}{format_seconds(row['seconds']):>10}",
            f"{percent(row['frac']):>9}",
            ("   " + bar(row["seconds"] / longest, columns), style),
        )
    wall = format_seconds(found["wall_seconds"])
    page.add((f" {'wall time':<{NAME}}{wall:>10}{'100 %':>9}", "bold"), "   ")
    page.words(spread_words(found), indent=NAME + 23, style="dim")


def _rows(found: Summary) -> list[Summary]:
    """The parts; more than one that would round to nothing are one row."""
    large = [row for row in found["parts"] if row["frac"] >= _LITTLE]
    small = [row for row in found["parts"] if row["frac"] < _LITTLE]
    if len(small) < 2:
        return list(found["parts"])
    total = {key: sum(row[key] for row in small) for key in ("seconds", "frac")}
    return [*large, {"key": "rest", "name": f"{len(small)} smaller parts", **total}]


def peer_words(summary: Summary) -> str:
    """What a rank that was simulated is among those it stands for."""
    unlike = (summary.get("goodput") or {}).get("step_inflation_frac")
    return "the slowest" if unlike else "the others are equal"


def spread_words(found: Summary) -> str:
    """How far the wall times of the lives played lie apart."""
    spread = found.get("wall_seconds_p5_p95")
    if not found.get("finished", True):
        return "given up: fails faster than it saves"
    if not spread:
        return ""
    return f"9 of 10 in {format_seconds(spread[0])} to {format_seconds(spread[1])}"


def _answer(found: Summary) -> list[str]:
    said = [f"{percent(found['frac'])} of the wall time becomes kept steps"]
    if found.get("effective_tokens_per_s"):
        said.append(f"{number(found['effective_tokens_per_s'])} tokens/s over the whole run")
    if found.get("expected_wall_seconds"):
        said.append(f"closed form {format_seconds(found['expected_wall_seconds'])}")
    return said


def slow_words(found: Summary) -> list[str]:
    """A step beside that of healthy machines."""
    healthy, step = (format_seconds(found[k]) for k in ("healthy_step_seconds", "step_seconds"))
    inflation = found["step_inflation_frac"]
    if abs(inflation) < 0.0005:
        return [f"step {step}, as on healthy machines"]
    return [f"step {step}, {inflation * 100:+.1f} % on the {healthy} of healthy machines"]


def failure_words(found: Summary) -> list[str]:
    """How many, how often."""
    count, mtbf = found.get("failures") or 0.0, found.get("mtbf_seconds")
    if not count and not mtbf:
        return []
    shown = f"{count:,.0f}" if count >= 100 or count == round(count) else f"{count:.3g}"
    said = [f"{shown} failure{'s' * (count != 1)}"]
    if mtbf:
        said.append(f"one every {format_seconds(mtbf)}")
    delta = found.get("one_more_spare_delta_frac")
    if delta is not None and delta <= -_LITTLE:
        said.append(f"one more spare node: {delta * 100:+.2f} % wall time")
    return said


def saving_words(found: Summary) -> list[str]:
    """The interval between checkpoints, and the best one."""
    now, best = found.get("interval"), found.get("best_interval")
    said = []
    if now:
        said.append(f"every {format_seconds(now['seconds'])} of steps ({now['steps']:,} steps)")
    if not best:
        return said
    if now and now["steps"] == best["steps"]:
        return [*said, "which is the best interval"]
    other = f"best every {format_seconds(best['seconds'])} ({best['steps']:,} steps)"
    delta = best.get("wall_delta_frac")
    if delta is not None:
        other += f": {delta * 100:+.2f} % wall time"
    return [*said, other]


class Section(NamedTuple):
    """The page's section: sentences, and the wall time as bars end to end."""

    said: list[tuple[str, str]]
    bars: list[charts.Bar]
    wall_s: float
    spread: str


COLORS = {
    "kept": "parameter", "slow": "logits", "startup": "launch", "evaluation": "forward",
    "checkpoints": "offload", "lost": "activation", "detection": "host", "waiting": "collective",
    "restart": "recompute", "link_down": "copy",
}  # fmt: skip
"""Part of the wall time to a colour of the page's set."""


def section(summary: Summary) -> Section | None:
    """What the page shows; None where all machines are alike and none fails."""
    found = words.table(summary.get("goodput"))
    if not found:
        return None
    parts = words.rows(found.get("parts"))
    wall_s = words.number(found.get("wall_seconds")) or 0.0
    bars = [(str(p["key"]), str(p["name"]), float(p["seconds"])) for p in parts]
    said = [
        ("Goodput", _answer(found) if parts else []),
        ("Machines", slow_words(found)),
        ("Failures", failure_words(found)),
        ("Saving", saving_words(found)),
    ]
    return Section(
        [(label, "; ".join(some)) for label, some in said if some],
        [bar._replace(key=COLORS.get(bar.key, "")) for bar in charts.stacked(bars, wall_s)],
        wall_s,
        spread_words(found),
    )
