"""What a run costs: rates, where each dollar goes, a sentence to pass on.

Pure functions of a summary in which every key may be missing or null.
"""

from __future__ import annotations

from typing import NamedTuple

from raysim.report import charts
from raysim.report.goodput import COLORS
from raysim.report.words import (
    DASH,
    Table,
    count,
    number,
    percent,
    plain,
    plain_text,
    rows,
    seconds,
    table,
    usd,
)

_LITTLE_USD = 0.001
_COLORS = COLORS | {"waiting": "bucket", "restart": "gathered_parameter"}
"""Beside the parts of the step, whose colours goodput's waiting and restarting have."""


class Share(NamedTuple):
    """One part of the bill."""

    bar: charts.Bar
    """Of the whole bill; its value in dollars."""
    frac: float

    @property
    def text(self) -> str:
        """Its dollars; of next to nothing, that."""
        return usd(self.bar.value) if self.bar.value >= _LITTLE_USD else f"< ${_LITTLE_USD:g}"


class Money(NamedTuple):
    """Where the money of the whole run goes, and the sentence."""

    sentence: str
    shares: list[Share]


def money(summary: Table) -> Money | None:
    """None where no price is known."""
    cost = table(summary.get("cost"))
    whole = number(cost.get("usd"))
    if not whole or whole < 0:
        return None
    parts = _parts(summary)
    sum_s = sum(s for _, _, s in parts)
    bars = charts.stacked([(k, n, whole * s / sum_s) for k, n, s in parts] if sum_s else [], whole)
    return Money(sentence(summary), [Share(bar, bar.value / whole) for bar in bars])


def _parts(summary: Table) -> list[tuple[str, str, float]]:
    """(colour key, name, seconds) of the whole run: steps by what they are made of, then the rest.

    Time is money at a constant price; what each part of the step takes, it costs.
    """
    goodput = rows(table(summary.get("goodput")).get("parts"))
    phases = goodput or rows(table(summary.get("run")).get("phases"))
    steps_of = "kept" if goodput else "training steps"
    found: list[tuple[str, str, float]] = []
    other: list[tuple[str, str, float]] = []
    for phase in phases:
        name, s = str(phase.get("name") or ""), number(phase.get("seconds")) or 0.0
        if s <= 0:
            continue
        key = str(phase.get("key") or "")
        if steps_of in (key, name):
            found += _step_parts(summary, s)
        else:
            other.append((_COLORS.get(key, "host"), name, s))
    other.sort(key=lambda p: -p[2])
    whole = sum(p[2] for p in (*found, *other))
    small = [p for p in other if p[2] < 0.001 * whole]
    kept = [p for p in other if p not in small]
    if small:
        kept.append(("host", "start-up and the like", sum(p[2] for p in small)))
    return [*found, *kept]


def _step_parts(summary: Table, all_steps_s: float) -> list[tuple[str, str, float]]:
    """The steps of the run, shared out as one step is."""
    parts = [
        (str(p.get("key") or ""), str(p.get("name") or ""), number(p.get("seconds")) or 0.0)
        for p in rows(table(summary.get("step")).get("breakdown"))
    ]
    whole = sum(p[2] for p in parts if p[2] > 0)
    if not whole:
        return [("forward", "training steps", all_steps_s)]
    return [
        (charts.PART_COLORS.get(key, ""), name, s / whole * all_steps_s)
        for key, name, s in parts if s > 0
    ]  # fmt: skip


def step_usd(summary: Table) -> float | None:
    """Dollars of one optimizer step, on machines that never fail."""
    per_hour = number(table(summary.get("cluster")).get("usd_per_hour"))
    step_s = number(table(summary.get("step")).get("seconds"))
    return per_hour * step_s / 3600 if per_hour and step_s else None


def lost_usd(summary: Table) -> float | None:
    """Dollars of the run that no kept step was bought with."""
    whole = number(table(summary.get("cost")).get("usd"))
    kept = number(table(summary.get("goodput")).get("frac"))
    return None if not whole or kept is None else whole * (1 - kept)


def range_usd(summary: Table) -> tuple[float, float] | None:
    """The bill where nine of ten measured steps would lie; a bill grows as its steps do."""
    whole = number(table(summary.get("cost")).get("usd"))
    step_s = number(table(summary.get("step")).get("seconds"))
    found = table(table(summary.get("certainty")).get("step_seconds"))
    low, high = number(found.get("low")), number(found.get("high"))
    if not whole or not step_s or low is None or high is None:
        return None
    return whole * low / step_s, whole * high / step_s


def dollars(value: float | None) -> str:
    """Three significant digits, which is more than a prediction knows."""
    if value is None:
        return DASH
    if abs(value) >= 999_500:
        return f"${value / 1e6:,.3g} million"
    return usd(float(f"{value:.3g}"))


def sentence(summary: Table) -> str:
    """What to tell who pays: what, on what, how long, how much."""
    cost, run, cluster = (table(summary.get(k)) for k in ("cost", "run", "cluster"))
    job, energy = table(summary.get("job")), table(summary.get("energy"))
    size = f" ({count(job['parameters'])} parameters)" if number(job.get("parameters")) else ""
    what = f"Training {job.get('architecture') or job.get('model') or 'this model'}{size}"
    if table(summary.get("verdict")).get("fits") is False:
        what = f"If there were memory enough: {what[:1].lower()}{what[1:]}"
    if number(run.get("tokens")):
        what += f" on {count(run['tokens'])} tokens"
    elif number(run.get("epochs")):
        what += f" for {plain(run['epochs'])} epoch{'s' * (run['epochs'] != 1)}"
    said = f"{what} takes {seconds(run.get('seconds'))} on {plain(cluster.get('gpus'))} "
    said += f"{cluster.get('gpu') or 'GPUs'} and costs {dollars(number(cost.get('usd')))}"
    around = range_usd(summary)
    if around:
        said += f" (nine of ten such runs would cost {dollars(around[0])} to {dollars(around[1])})"
    rate = usd(cost.get("usd_per_million_tokens"))
    if rate != DASH:
        said += f", {rate} per million tokens"
    said += "."
    lost = lost_usd(summary)
    if lost is not None:
        share = percent(table(summary.get("goodput")).get("frac"))
        said += f" {dollars(lost)} of it buys no kept step: goodput is {share}."
    used, grams = number(energy.get("kwh")), number(energy.get("kg_co2e"))
    if used:
        said += f" It uses {plain_text(float(f'{used:.3g}'))} kWh of electricity"
        said += "." if grams is None else f", {plain_text(grams)} kg CO2e."
    return said
