"""Runs side by side: what differs most first.

Works from ``summary.json`` alone. A row is a metric, a part of the step or of a program's run, a
category of memory, or a function of a Ray program.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raysim.report.words import plain, seconds, tflops, usd
from raysim.results.targets import METRICS, value_of
from raysim.units import GIB, format_bytes

Summary = Mapping[str, Any]
SAME = 1e-9
TWICE = ("days", "total_seconds", "gpu_mem_peak")
"""Metrics that say what another says."""
SMALL_SHARE = 0.002
"""Parts that are less than this of the step, or of memory, in every run are left out."""
_TOLD = (
    ("job.strategy", "strategy"), ("cluster.gpu", "GPU"), ("cluster.gpus", "GPUs"),
    ("cluster.network", "network"), ("job.model", "model"), ("verdict.fits", "fits"),
    ("bound_by.what", "bound by"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One line: a value per run, as text, and how far they are apart."""

    name: str
    cells: tuple[str, ...]
    ratio: float | None
    """Last over first; None of words, or where one has no value."""

    @property
    def apart(self) -> float:
        """For sorting: words that differ come first."""
        if self.ratio is None:
            return math.inf
        return abs(math.log(self.ratio)) if self.ratio > 0 else math.inf


def rows_of(summaries: Sequence[Summary]) -> list[Row]:
    """What differs between runs, most first; what is the same is not there."""
    found = [
        *_words(summaries), *_metrics(summaries), *_parts(summaries), *_of_programs(summaries)
    ]  # fmt: skip
    return sorted(found, key=lambda row: (-row.apart, row.name))


def _words(summaries: Sequence[Summary]) -> Iterator[Row]:
    for path, name in _TOLD:
        found = [at(s, path) for s in summaries]
        values = ["-" if value is None else str(value) for value in found]
        if len(set(values)) > 1:
            yield Row(name, tuple(_without_common(values)), None)


def _without_common(values: Sequence[str]) -> Iterator[str]:
    """Of lists in words what not all have: ``ZeRO-3`` beside ``ZeRO-2``, both in bf16."""
    lists = [value.split(", ") for value in values]
    common = set(lists[0]).intersection(*lists[1:])
    for value, parts in zip(values, lists, strict=True):
        yield ", ".join(part for part in parts if part not in common) or value


def _metrics(summaries: Sequence[Summary]) -> Iterator[Row]:
    for name in (m for m in METRICS if m not in TWICE):
        values = [value_of(name, s) for s in summaries]
        if any(v is not None for v in values):
            yield from _row(name, values, lambda v, name=name: _metric_text(name, v))


def _metric_text(name: str, value: float) -> str:
    if name.endswith("seconds"):
        return seconds(value)
    if name == "memory_peak":
        return f"{value / GIB:.1f} GiB"
    if name in ("mfu", "hfu", "goodput", "gpu_mem_peak"):
        return f"{value:.1%}"
    if name.startswith("usd"):
        return usd(value)
    return tflops(value) if name.startswith("model_flops") else plain(value)


def _parts(summaries: Sequence[Summary]) -> Iterator[Row]:
    """Of the step's time and of the fullest GPU's memory."""
    step = [_by_name(at(s, "step.breakdown"), "seconds") for s in summaries]
    whole = [at(s, "step.seconds") or 0.0 for s in summaries]
    yield from _named("step: ", step, whole, seconds)
    memory = [_by_name(at(s, "memory.by_category"), "bytes") for s in summaries]
    peak = [at(s, "memory.peak_bytes") or 0.0 for s in summaries]
    yield from _named("memory: ", memory, peak, lambda v: f"{v / GIB:.2f} GiB")


def _of_programs(summaries: Sequence[Summary]) -> Iterator[Row]:
    """Where the time of a Ray program goes, what its tasks take, what its store holds."""
    whole = [at(s, "run.virtual_seconds") or 0.0 for s in summaries]
    yield from _named("time: ", [_by_name(at(s, "time"), "seconds") for s in summaries], whole,
                      seconds)  # fmt: skip
    busy = [_by_name(at(s, "tasks.by_function"), "busy_seconds") for s in summaries]
    yield from _named("tasks: ", busy, [0.0] * len(busy), seconds)
    for key in ("peak_bytes", "spilled_bytes", "restored_bytes"):
        values = [at(s, f"object_store.{key}") for s in summaries]
        if any(v is not None for v in values):
            name = f"store: {key.removesuffix('_bytes')}"
            yield from _row(name, values, format_bytes)


def _named(
    prefix: str, parts: Sequence[Mapping[str, float]], whole: Sequence[float], text: Any
) -> Iterator[Row]:
    for name in dict.fromkeys(name for part in parts for name in part):
        values = [part.get(name, 0.0) for part in parts]
        if any(v > SMALL_SHARE * w for v, w in zip(values, whole, strict=True)):
            yield from _row(f"{prefix}{name}", values, text)


def _row(name: str, values: Sequence[float | None], text: Any) -> Iterator[Row]:
    known = [v for v in values if v is not None]
    if len(known) == len(values) and max(known) - min(known) <= SAME * max(
        map(abs, known), default=0.0
    ):
        return
    cells = tuple("-" if v is None else text(v) for v in values)
    first, last = values[0], values[-1]
    yield Row(name, cells, last / first if first and last is not None else None)


def _by_name(parts: Any, key: str) -> dict[str, float]:
    return {part["name"]: part[key] for part in parts or []}


def at(summary: Summary, path: str) -> Any:
    """What stands at a dotted path; None where nothing does."""
    here: Any = summary
    for part in path.split("."):
        here = here.get(part) if isinstance(here, Mapping) else None
    return here
