"""Conditions on the summary that set the exit code, and measurements to compare it with.

Both name the same metrics: `METRICS` says where each one stands in the summary; others are those of
jobs of Ray's libraries.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from raysim.results import libraries
from raysim.units import format_bytes, format_bytes_per_s, format_seconds

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_DAY_S = 86400.0


class Target(Protocol):
    """What this module needs of a parsed target (`raysim.scenario.schema.Target`)."""

    @property
    def name(self) -> str:
        """Metric, one of `METRICS`."""

    @property
    def op(self) -> str:
        """<=, <, >= or >."""

    @property
    def limit(self) -> float:
        """In ``unit``."""

    @property
    def unit(self) -> str:
        """days, seconds, usd, count, share, bytes, per_s or bytes_per_s."""

    @property
    def condition(self) -> str:
        """As the user wrote it."""


@dataclass(frozen=True, slots=True)
class Metric:
    """Where a metric stands in the summary, and one over its unit there."""

    path: str
    scale: float = 1.0
    needs_a_run: bool = True
    """False: known even of a job that does not fit into memory."""


METRICS: dict[str, Metric] = {
    "days": Metric("run.seconds", 1 / _DAY_S),
    "seconds": Metric("run.seconds"),
    "total_seconds": Metric("run.seconds"),
    "epoch_seconds": Metric("run.epoch_seconds"),
    "step_seconds": Metric("step.seconds"),
    "startup_seconds": Metric("run.startup_seconds"),
    "usd": Metric("cost.usd"),
    "usd_per_million_tokens": Metric("cost.usd_per_million_tokens"),
    "usd_per_million_output_tokens": Metric("cost.usd_per_million_output_tokens"),
    "gpu_hours": Metric("cost.gpu_hours"),
    "kwh": Metric("energy.kwh"),
    "kg_co2e": Metric("energy.kg_co2e"),
    "tokens_per_s": Metric("throughput.tokens_per_s"),
    "tokens_per_s_per_gpu": Metric("throughput.tokens_per_s_per_gpu"),
    "samples_per_s": Metric("throughput.samples_per_s"),
    "model_flops_per_s_per_gpu": Metric("throughput.model_flops_per_s_per_gpu"),
    "goodput": Metric("goodput.frac"),
    "effective_tokens_per_s": Metric("goodput.effective_tokens_per_s"),
    "mfu": Metric("throughput.mfu"),
    "hfu": Metric("throughput.hfu"),
    "gpu_mem_peak": Metric("memory.frac", needs_a_run=False),
    "memory_peak": Metric("memory.peak_bytes", needs_a_run=False),
}


def value_of(name: str, summary: Mapping[str, Any]) -> float | None:
    """A metric's value in its own unit; None where the summary does not have it."""
    metric = METRICS.get(name)
    if metric is None:
        return libraries.metric(name, summary)
    here: Any = summary
    for part in metric.path.split("."):
        here = here.get(part) if isinstance(here, Mapping) else None
    if isinstance(here, int | float):
        return here * metric.scale
    return libraries.metric(name, summary)


def values_of(summary: Mapping[str, Any]) -> dict[str, float]:
    """Every metric that the summary has, in its own unit."""
    known = {n: v for n in METRICS if (v := value_of(n, summary)) is not None}
    return libraries.metrics(summary) | known


def show(value: float, unit: str) -> str:
    """A value as a person reads it, in the unit of its target."""
    if unit == "seconds":
        return format_seconds(value)
    if unit == "bytes":
        return format_bytes(value)
    if unit == "bytes_per_s":
        return format_bytes_per_s(value)
    if unit == "share":
        return f"{value * 100:.4g} %"
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if unit == "per_s":
        return f"{text}/s"
    return f"${text}" if unit == "usd" else text


def evaluate(targets: Iterable[Target], summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The ``targets`` part of the summary: one row per condition, passed or not.

    A job that does not fit into memory misses every target that needs it to run. A metric that the
    summary does not have (``epoch_seconds`` of a run counted in steps) is missed as well.
    """
    fits = answered(summary)
    rows = []
    for target in targets:
        in_bytes = target.name == "gpu_mem_peak" and target.unit == "bytes"
        name = "memory_peak" if in_bytes else target.name
        always = name in METRICS and not METRICS[name].needs_a_run
        value = value_of(name, summary) if fits or always else None
        rows.append(
            {
                "name": target.name,
                "condition": target.condition,
                "value": value,
                "value_text": "not reached" if value is None else show(value, target.unit),
                "limit": target.limit,
                "op": target.op,
                "passed": value is not None and holds(target, value),
                "text": f"{target.name} {target.op} {show(target.limit, target.unit)}",
            }
        )
    return rows


def holds(target: Target, value: float) -> bool:
    """Whether a value in the target's unit meets it."""
    return _OPERATORS[target.op](value, target.limit)


def answered(summary: Mapping[str, Any]) -> bool:
    """Whether the job fits into memory, or the program came to its end."""
    verdict = summary.get("verdict") or {}
    return bool(verdict.get("fits", True) and verdict.get("ok", True))


def missed(summary: Mapping[str, Any]) -> bool:
    """True when a target is missed, the job does not fit or the program failed: exit code 1."""
    if not answered(summary):
        return True
    return any(not row["passed"] for row in summary.get("targets") or [])


def compare(
    measured: Mapping[str, float], summary: Mapping[str, Any], *, source: str | None = None
) -> dict[str, Any]:
    """The ``reference`` part of the summary: measured values beside the predicted ones.

    Parameters
    ----------
    measured
        Metric to measured value, in the metric's own unit.
    summary
        The summary so far.
    source
        Where the measurement is from.
    """
    values = []
    for name, value in measured.items():
        predicted = value_of(name, summary)
        error = None if predicted is None else predicted / value - 1
        values.append(
            {"name": name, "measured": value, "predicted": predicted, "error_frac": error}
        )
    return {"source": source, "values": values}
