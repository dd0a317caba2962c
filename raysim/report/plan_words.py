"""Metrics of a plan as people call them: a label, a unit, and which end is the better one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from raysim.report import words
from raysim.scenario.overrides import labels

Summary = Mapping[str, Any]


class Metric(NamedTuple):
    """How a metric is shown."""

    name: str
    label: str
    unit: str
    """seconds, usd, share, bytes, flops or count."""
    more: bool
    """More is better."""


_KNOWN = (
    Metric("usd", "cost", "usd", more=False),
    Metric("usd_per_million_tokens", "$ per million tokens", "usd", more=False),
    Metric("usd_per_million_output_tokens", "$ per million output tokens", "usd", more=False),
    Metric("seconds", "time", "seconds", more=False),
    Metric("step_seconds", "step", "seconds", more=False),
    Metric("tokens_per_s", "tokens/s", "count", more=True),
    Metric("samples_per_s", "samples/s", "count", more=True),
    Metric("gpus", "GPUs", "count", more=False),
    Metric("nodes", "nodes in all", "count", more=False),
    Metric("gpu_mem_peak", "GPU memory", "share", more=False),
    Metric("likely", "likely", "share", more=True),
    Metric("tokens_per_s_per_gpu", "tokens/s per GPU", "count", more=True),
    Metric("mfu", "MFU", "share", more=True),
    Metric("hfu", "HFU", "share", more=True),
    Metric("goodput", "goodput", "share", more=True),
    Metric("effective_tokens_per_s", "tokens/s with failures", "count", more=True),
    Metric("model_flops_per_s_per_gpu", "model FLOP/s per GPU", "flops", more=True),
    Metric("gpu_hours", "GPU-hours", "count", more=False),
    Metric("kwh", "kWh", "count", more=False),
    Metric("kg_co2e", "kg CO2e", "count", more=False),
    Metric("epoch_seconds", "epoch", "seconds", more=False),
    Metric("startup_seconds", "start-up", "seconds", more=False),
)
"""In the order in which they are offered."""
_SAID_BY_OTHERS = ("days", "total_seconds", "memory_peak")
_BY_END = (("_seconds", "seconds"), ("_bytes", "bytes"), ("_frac", "share"), ("_usd", "usd"))
_GAINS = ("_per_s", "goodput", "_frac")
_SHOW = {
    "seconds": words.seconds, "usd": words.usd, "share": words.percent, "bytes": words.size,
    "flops": words.tflops, "count": words.plain, "bytes_per_s": words.rate,
}  # fmt: skip


def metrics_of(names: Iterable[str], summary: Summary) -> list[Metric]:
    """Those to show: known ones first, what another says too left out."""
    there = dict.fromkeys(n for n in names if n not in _SAID_BY_OTHERS)
    known = {m.name: m for m in _KNOWN}
    found = [m for m in _KNOWN if m.name in there]
    found += [_other(name, summary) for name in there if name not in known]
    return found


def shown_as(name: str) -> str:
    """The metric that stands for another: ``days`` is told as ``seconds``."""
    return {"days": "seconds", "total_seconds": "seconds", "memory_peak": "gpu_mem_peak"}.get(
        name, name
    )


def text(metric: Metric, value: Any) -> str:
    """A value as a person reads it."""
    return _SHOW[metric.unit](value)


def targets_of(summary: Summary) -> dict[str, str]:
    """Conditions by metric."""
    split = (target.partition(" ") for target in summary.get("targets", ()))
    return {name: condition for name, _, condition in split}


def order_text(summary: Summary) -> str:
    """Whether probability decided the order of the choices; empty where it did not."""
    least = summary["objective"].get("likely")
    chances = [t["likely"] for t in summary["top"] if t["likely"] is not None]
    if not least or all(chance >= least for chance in chances):
        return ""
    return f"likely to fit and to meet the targets ({least:.0%}) before others"


def doubt_text(summary: Summary) -> str:
    """What to do where nothing can be counted on; empty where the first choice can."""
    best, least = summary["best"], summary["objective"].get("likely")
    if best is None or not least or best["likely"] is None or best["likely"] >= least:
        return ""
    return (
        f"it fits and meets the targets with {best['likely']:.0%} only; none tried "
        f"reaches {least:.0%}: vary more, for room in memory and in time"
    )


def further_text(summary: Summary) -> list[str]:
    """What to try next where the best choice has the last value tried; empty where none has."""
    label, best = labels(summary["space"]), summary["best"]
    return [
        f"{label[key]} {best['choice'][key]} is the "
        f"{'most' if values[-1] > best['choice'][key] else 'fewest'} tried, and it paid: "
        f"--vary {key}={','.join(map(str, values))}"
        for key, values in summary.get("beyond", {}).items()
    ]


def value_text(name: str, value: float, summary: Summary) -> str:
    """A value of any metric, the ones that others stand for too."""
    if name == "days":
        return f"{value:.3g}"
    metric = next(iter(metrics_of([name], summary)), None)
    return words.plain(value) if metric is None else text(metric, value)


def _other(name: str, summary: Summary) -> Metric:
    """A metric of a library: the question, a target or its name says which is its better end."""
    objective, target = summary["objective"], targets_of(summary).get(name)
    more = target.startswith(">") if target else name.endswith(_GAINS)
    if objective["metric"] == name:
        more = objective["direction"] == "maximize"
    known = summary.get("units", {}).get(name)
    unit = known or next((unit for end, unit in _BY_END if name.endswith(end)), "count")
    unit = unit if unit in _SHOW else "count"
    return Metric(name, name.replace("_", " "), unit, more)
