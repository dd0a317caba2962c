"""Trials of a plan as columns for the page's script: words once, numbers to five digits.

At most ``MOST`` trials are on the page: all that were played, the choice, then of the others every
so many. What is left out is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from raysim.report.columns import Words
from raysim.report.plan_words import Metric, metrics_of, shown_as, targets_of
from raysim.report.words import number
from raysim.scenario.overrides import labels, shown

Trial = Mapping[str, Any]
Summary = Mapping[str, Any]

MOST = 20_000
"""Trials on a page: 3 MB, and drawn in a blink."""
STATUSES = (
    ("meets", "meets the targets"),
    ("misses", "misses a target"),
    ("estimated", "only estimated"),
    ("out_of_memory", "out of memory"),
    ("refused", "refused"),
    ("failed", "failed"),
)
OF_ANY = ("gpus", "nodes", "gpu_mem_peak")
"""Metrics that are also those of configurations that do not run."""
ALONG = (
    "usd",
    "seconds",
    "step_seconds",
    "tokens_per_s",
    "samples_per_s",
    "gpu_mem_peak",
    "likely",
)
"""Metrics with an axis of their own beside those of the keys, where there are any."""
MOST_AXES = 6
FEW_AXES = 3


class Kept(NamedTuple):
    """Trials on the page, in order, and how many there are in all."""

    trials: list[Trial]
    total: int


def kept(trials: Sequence[Trial], most: int = MOST) -> Kept:
    """At most ``most`` of them: what was played first."""
    if len(trials) <= most:
        return Kept(list(trials), len(trials))
    played = [t for t in trials if t["status"] in ("ok", "failed")]
    others = [t for t in trials if t["status"] not in ("ok", "failed")]
    played = _thinned(played, most)
    left = _thinned(others, most - len(played))
    return Kept(sorted([*played, *left], key=lambda t: t["number"]), len(trials))


def _thinned(trials: list[Trial], most: int) -> list[Trial]:
    """Evenly spread over those given."""
    if len(trials) <= most:
        return trials
    return [trials[i * len(trials) // most] for i in range(most)]


def status_of(trial: Trial) -> str:
    """As the page calls it."""
    if trial["status"] != "ok":
        return str(trial["status"])
    return "misses" if trial["missed"] else "meets"


def columns(summary: Summary, on_page: Kept) -> dict[str, Any]:
    """All that the script draws."""
    choice = summary["best"] or summary["instead"]
    trials = on_page.trials
    if choice is not None and all(t["number"] != choice["number"] for t in trials):
        trials = [*trials, choice]
    metrics = metrics_of(_names(trials), summary)
    x, y = _axes(metrics, summary)
    told, label = Words(), labels(summary["space"])
    return {
        "keys": [_key(k, label[k], values, trials) for k, values in summary["space"].items()],
        "metrics": [m._asdict() for m in metrics],
        "values": [[_value(t, m.name) for t in trials] for m in metrics],
        "statuses": [list(s) for s in STATUSES],
        "status": [[s for s, _ in STATUSES].index(status_of(t)) for t in trials],
        "number": [t["number"] for t in trials],
        "why": [told.number(t["why"] or "; ".join(t["missed"])) for t in trials],
        "strategy": [told.number(t["strategy"]) for t in trials],
        "bound": [told.number(t["bound_by"]) for t in trials],
        "words": told.words,
        "choice": _index(trials, choice),
        "choice_is": "the choice" if summary["best"] else "the smallest change that would do",
        "nearest": _index(trials, (summary.get("nearest") or {}).get("trial")),
        "x": x, "y": y, "along": _along(metrics, trials, summary),
        "objective": shown_as(summary["objective"]["metric"]), "total": on_page.total,
    }  # fmt: skip


def _index(trials: Sequence[Trial], trial: Trial | None) -> int | None:
    numbers = [t["number"] for t in trials]
    return numbers.index(trial["number"]) if trial and trial["number"] in numbers else None


def _names(trials: Iterable[Trial]) -> list[str]:
    found = dict.fromkeys(name for t in trials for name in t["metrics"])
    found |= {name: None for name in ("gpus", "nodes", "likely") if any(t[name] for t in trials)}
    return list(found)


def _value(trial: Trial, name: str) -> float | int | None:
    if trial["status"] not in ("ok", "estimated") and name not in OF_ANY:
        return None  # what it would take if there were memory enough says nothing here
    raw = trial[name] if name in ("gpus", "nodes", "likely") else trial["metrics"].get(name)
    value = number(raw)
    if value is None or (name in ("gpus", "nodes") and not value):
        return None
    rounded = float(f"{value:.5g}")
    return int(rounded) if rounded == int(rounded) else rounded


def _key(key: str, label: str, values: Sequence[Any], trials: Sequence[Trial]) -> dict[str, Any]:
    """Its values as text, in order, and each trial's place among them."""
    every = dict.fromkeys([*(_text(v) for v in values), *(_text(t["choice"][key]) for t in trials)])
    place = {value: i for i, value in enumerate(every)}
    at = [place[_text(t["choice"][key])] for t in trials]
    return {"key": key, "label": label, "values": list(every), "at": at}


def _text(value: Any) -> str:
    return "none" if value is None else shown(value)


def _axes(metrics: Sequence[Metric], summary: Summary) -> tuple[str, str]:
    """What the scatter shows first: cost against throughput, or what there is of the like."""
    names = [m.name for m in metrics]
    asked = shown_as(summary["objective"]["metric"])
    x = next((n for n in ("usd", "gpu_hours", "gpus", "nodes", *names) if n in names), "")
    wanted = map(shown_as, targets_of(summary))
    gains = ("tokens_per_s", "samples_per_s", *wanted, asked, "seconds", *names)
    return x, next((n for n in gains if n in names and n != x), x)


def _along(metrics: Sequence[Metric], trials: Sequence[Trial], summary: Summary) -> list[str]:
    """Metrics with an axis among the keys: they are not the same everywhere, and few."""
    names = [m.name for m in metrics]
    asked = shown_as(summary["objective"]["metric"])
    wanted = map(shown_as, targets_of(summary))
    told = [n for n in dict.fromkeys([asked, *wanted, *ALONG]) if n in names]
    if len(told) < FEW_AXES:
        told = list(dict.fromkeys([*told, *names]))
    if "tokens_per_s" in told and "samples_per_s" in told and asked != "samples_per_s":
        told.remove("samples_per_s")
    if "seconds" in told and "step_seconds" in told and asked != "step_seconds":
        told.remove("step_seconds")
    differ = [n for n in told if len({_value(t, n) for t in trials} - {None}) > 1]
    return differ[:MOST_AXES]
