"""The fullest moment of a GPU and of a host, by category, as bars beside their capacity.

Pure functions of a summary in which every key may be missing or null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from raysim.report import charts
from raysim.report.words import (
    Table,
    number,
    percent,
    plain,
    rows,
    size,
    table,
)  # fmt: skip


def where(memory: Table) -> str:
    """``node-0/gpu-3``."""
    gpu = memory.get("gpu")
    parts = (str(memory.get("node") or ""), "" if gpu is None else f"gpu-{gpu}")
    return "/".join(part for part in parts if part)


class Peak(NamedTuple):
    """Memory of one GPU (or host) at its peak as a stacked bar against its capacity."""

    label: str
    note: str
    bars: list[charts.Bar]
    peak_bytes: float
    capacity_bytes: float | None
    capacity_left: float
    fits: bool


Parts = list[tuple[str, str, float]]


def _parts(value: Any) -> Parts:
    """(category, name, bytes) of rows that have these keys."""
    return [
        (
            str(row.get("category") or ""),
            str(row.get("name") or row.get("category") or ""),
            number(row.get("bytes")) or 0.0,
        )
        for row in rows(value)
    ]


def _peak(
    label: str, note: str, parts: Parts, *, peak: float | None, capacity: float | None, scale: float
) -> Peak:
    """A peak whose parts fill it: what the parts leave is named ``not itemised``."""
    order = charts.memory_order(key for key, _, _ in parts)
    parts = sorted(parts, key=lambda p: order.index(p[0]))
    most = peak or sum(p[2] for p in parts)
    rest = most - sum(p[2] for p in parts)
    if rest > 0.005 * most:
        parts.append(("", "not itemised", rest))
    left = (capacity or 0.0) / scale if scale else 0.0
    fits = capacity is None or most <= capacity
    return Peak(label, note, charts.stacked(parts, scale), most, capacity, left, fits)


def memory_name(category: str, names: Mapping[str, str]) -> str:
    """What the page calls a memory category."""
    return names.get(category) or category.replace("_", " ")


def memory_names(summary: Table) -> dict[str, str]:
    """Category to the name the summary gives it."""
    memory = table(summary.get("memory"))
    named = rows(memory.get("by_category")) + rows(table(memory.get("host")).get("by_category"))
    return {str(row.get("category")): str(row.get("name") or "") for row in named}


def peaks(summary: Table) -> list[Peak]:
    """The fullest GPU, then each pipeline stage (where there are several), on one scale."""
    memory, names = table(summary.get("memory")), memory_names(summary)
    stages, most = rows(memory.get("per_stage")), number(memory.get("peak_bytes"))
    capacity = number(memory.get("capacity_bytes"))
    tops = [most, capacity, *(number(s.get("peak_bytes")) for s in stages)]
    scale = max((t for t in tops if t), default=0.0) * 1.02
    parts = _parts(memory.get("by_category"))
    found = []
    if parts or most:
        at = where(memory)
        found.append(_peak("fullest GPU", at, parts, peak=most, capacity=capacity, scale=scale))
    for stage in stages if len(stages) > 1 else ():
        held = table(stage.get("by_category")).items()
        parts = [(str(k), memory_name(str(k), names), number(v) or 0.0) for k, v in held]
        label, rank = f"stage {plain(stage.get('pp'))}", f"rank {plain(stage.get('rank'))}"
        if (number(table(summary.get("job")).get("pp")) or 1) <= 1:  # every rank was simulated
            label, rank = rank, ""
        peak = number(stage.get("peak_bytes"))
        found.append(_peak(label, rank, parts, peak=peak, capacity=capacity, scale=scale))
    return found


def explained(summary: Table) -> str:
    """The peak in words: where, when, what fills it, what is left; empty where nothing is known."""
    memory = table(summary.get("memory"))
    peak, capacity = number(memory.get("peak_bytes")), number(memory.get("capacity_bytes"))
    parts = sorted(_parts(memory.get("by_category")), key=lambda p: -p[2])
    if not peak or peak < 0 or not parts:
        return ""
    at, rank = where(memory), memory.get("rank")
    said = f"The fullest GPU{f' is {at}' if at else ''}"
    said += f" (rank {rank})" if isinstance(rank, int) else ""
    said += f": {size(peak)}"
    if memory.get("when"):
        said += f", in {memory['when']}"
    if (making := memory.get("allocating")) and str(making) not in str(memory.get("when")):
        said += f", while {making} asks for memory"
    said += ". " + _filled_by(parts, peak)
    if capacity and capacity > 0:
        rest = capacity - peak
        said += f" {size(rest)} are free." if rest >= 0 else f" That is {size(-rest)} too much."
    return said


def _filled_by(parts: Parts, peak: float) -> str:
    """The largest categories, until they make up most of the peak; what they are for."""
    named, held = list[str](), 0.0
    for key, name, held_bytes in parts[:4]:
        why = _WHY.get(key, "")
        named.append(f"{name} {percent(held_bytes / peak)}" + (f" ({why})" if why else ""))
        held += held_bytes
        if held > 0.75 * peak:
            break
    return f"{percent(held / peak)} of it are {', '.join(named)}."


_WHY = {
    "logits": "outputs of the head over the vocabulary, their gradients and the loss",
    "optimizer_state": "held all the time",
    "parameter": "held all the time",
    "gradient": "held from backward to the optimizer step",
    "activation": "kept by forward for backward",
    "gathered_parameter": "whole parameters while their layers run",
    "bucket": "gradients on their way to be reduced",
    "slack": "cached by torch's allocator, in no tensor",
    "context": "outside torch",
}


class Large(NamedTuple):
    """One of the largest tensors at the peak."""

    label: str
    category: str
    name: str
    bytes: float
    frac: float


def largest(summary: Table) -> list[Large]:
    """As the summary orders them."""
    memory, names = table(summary.get("memory")), memory_names(summary)
    peak, found = number(memory.get("peak_bytes")), []
    for row in rows(memory.get("largest")):
        key, held = str(row.get("category") or ""), number(row.get("bytes"))
        if held is not None and peak:
            label = str(row.get("label") or "")
            found.append(Large(label, key, memory_name(key, names), held, held / peak))
    return found


def host_peak(summary: Table) -> Peak | None:
    """Host memory per node, where the summary says it."""
    host = table(table(summary.get("memory")).get("host"))
    peak, capacity = number(host.get("peak_bytes_per_node")), number(host.get("capacity_bytes"))
    if peak is None:
        return None
    scale, parts = max(peak, capacity or 0.0) * 1.02, _parts(host.get("by_category"))
    return _peak("host, per node", "", parts, peak=peak, capacity=capacity, scale=scale)
