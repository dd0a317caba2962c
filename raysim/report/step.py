"""The step as a waterfall from the GPUs' peak down, and as elasticities of the hardware.

Pure functions of a summary in which every key may be missing or null.
"""

from __future__ import annotations

from typing import NamedTuple

from raysim.report import charts
from raysim.report.words import DASH, Table, number, percent, rows, seconds, table, tflops


class Part(NamedTuple):
    """One bar of the waterfall; it begins where the one above it ended."""

    bar: charts.Bar
    end_s: float
    """What the step takes up to here."""
    formula: str


class Waterfall(NamedTuple):
    """The step as bars end to end, the parts that take no time, and the whole."""

    parts: list[Part]
    absent: list[str]
    total_s: float
    from_peak: bool
    """Whether it begins with the time that the model's own FLOPs would take at the GPUs' peak."""


_FORMULAS = {
    "compute": "time of forward and backward kernels on the slowest rank",
    "recompute": "forward kernels run again because their activations were not kept",
    "exposed_collectives": "collectives while no kernel ran on the compute stream, and what hidden "
    "ones take of it: NCCL's SMs, passes over memory",
    "pipeline_transfers": "sends and receives between stages while no kernel ran",
    "bubble": "the stage waited for others to fill or drain the pipeline",
    "offload": "copies between host and GPU, and the optimizer on the CPU, while no kernel ran",
    "launch": "the GPU waited for the host to launch its next kernel",
    "data_wait": "the step waited for its next batch",
    "optimizer": "kernels of the optimizer on the GPU",
    "other": "nothing of the above ran",
}

_Row = tuple[str, str, float, str]


def waterfall(summary: Table) -> Waterfall:
    """Breakdown of the step, kernels split into their time at peak and what they lose to it."""
    step = table(summary.get("step"))
    found = [
        (key := str(p.get("key") or ""), str(p.get("name") or key), number(p.get("seconds")) or 0.0,
         _FORMULAS.get(key, ""))
        for p in rows(step.get("breakdown"))
    ]  # fmt: skip
    some = [p for p in found if p[2] > 0]
    total = number(step.get("seconds")) or sum(p[2] for p in some)
    split = _split(summary, some, total)
    bars = charts.stacked(
        [(key, name, s) for key, name, s, _ in split], max(total, sum(p[2] for p in split))
    )
    parts, end = [], 0.0
    for bar, (_, _, s, formula) in zip(bars, split, strict=True):
        end += s
        parts.append(Part(bar, end, f"{bar.name}: {seconds(s)}. {formula}"))
    absent = [p[1] for p in found if p[2] <= 0]
    return Waterfall(parts, absent, total, len(split) > len(some))


def _split(summary: Table, parts: list[_Row], total: float) -> list[_Row]:
    """``compute`` as ideal time and the rest; as it is where the summary does not allow that."""
    through = table(summary.get("throughput"))
    mfu, peak = number(through.get("mfu")), through.get("peak_flops_per_s")
    kernels = next((p for p in parts if p[0] == "compute"), None)
    if kernels is None or not mfu or not 0 < mfu * total < kernels[2]:
        return parts
    ideal = mfu * total
    said = tflops(peak)
    at = "" if said == DASH else f" of {said} per GPU"
    first = [
        ("ideal", "model FLOPs at the GPU's peak", ideal,
         (f"3 x forward FLOPs of the batch / GPUs / the dense peak{at} = MFU {percent(mfu)} x "
          f"step {seconds(total)}: what the step would take at an MFU of 100 %")),
        ("compute", "kernels below the peak", kernels[2] - ideal,
         (f"forward and backward kernels on the slowest rank {seconds(kernels[2])} less the time "
          "at peak: shapes, memory-bound operators, clocks, uneven stages")),
    ]  # fmt: skip
    return first + sorted((p for p in parts if p is not kernels), key=lambda p: -p[2])


class Sway(NamedTuple):
    """What ten per cent more of one input does to the step."""

    input: str
    elasticity: float
    delta: float
    left: float
    width: float


def sensitivity(summary: Table) -> list[Sway]:
    """A tornado of the elasticities, the strongest first as the summary has them."""
    known = [
        (str(row.get("input") or ""), e)
        for row in rows(summary.get("sensitivity"))
        if (e := number(row.get("elasticity"))) is not None and abs(e) < 100
    ]
    deltas = [1.1**e - 1 for _, e in known]
    bars = charts.tornado(deltas)
    return [
        Sway(name, e, delta, *bar)
        for (name, e), delta, bar in zip(known, deltas, bars, strict=True)
    ]
