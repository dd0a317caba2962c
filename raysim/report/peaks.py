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
    plain,
    rows,
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
        peak = number(stage.get("peak_bytes"))
        found.append(_peak(label, rank, parts, peak=peak, capacity=capacity, scale=scale))
    return found


def host_peak(summary: Table) -> Peak | None:
    """Host memory per node, where the summary says it."""
    host = table(table(summary.get("memory")).get("host"))
    peak, capacity = number(host.get("peak_bytes_per_node")), number(host.get("capacity_bytes"))
    if peak is None:
        return None
    scale, parts = max(peak, capacity or 0.0) * 1.02, _parts(host.get("by_category"))
    return _peak("host, per node", "", parts, peak=peak, capacity=capacity, scale=scale)
