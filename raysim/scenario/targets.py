"""``targets:`` of a scenario: a metric, an operator and a limit, decided once the run is done."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from raysim import units
from raysim.errors import Problem
from raysim.scenario.documents import Document, did_you_mean, shorten

Unit = Literal["days", "seconds", "usd", "count", "share", "bytes", "per_s", "bytes_per_s"]
Operator = Literal["<=", "<", ">=", ">"]

METRICS: dict[str, Unit] = {
    "days": "days",
    "seconds": "seconds",
    "epoch_seconds": "seconds",
    "step_seconds": "seconds",
    "startup_seconds": "seconds",
    "usd": "usd",
    "usd_per_million_tokens": "usd",
    "gpu_hours": "count",
    "kwh": "count",
    "kg_co2e": "count",
    "tokens_per_s": "count",
    "tokens_per_s_per_gpu": "count",
    "samples_per_s": "count",
    "goodput": "share",
    "effective_tokens_per_s": "count",
    "mfu": "share",
    "hfu": "share",
    "gpu_mem_peak": "share",
}
"""Names a target may set a limit on; ``gpu_mem_peak`` takes a share or a size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A limit that a run passes or fails."""

    name: str
    op: Operator
    limit: float
    """In ``unit``; a share of 1.0 is 100 %."""
    unit: Unit
    condition: str
    """As the user wrote it."""

    def passed(self, value: float) -> bool:
        """Whether ``value`` meets the limit."""
        if self.op == "<=":
            return value <= self.limit
        if self.op == "<":
            return value < self.limit
        return value >= self.limit if self.op == ">=" else value > self.limit


def parse_target(name: str, condition: object, metrics: Mapping[str, Unit] = METRICS) -> Target:
    """A target of ``days`` and ``"<= 14"``; a bare number is in the metric's own unit.

    Raises
    ------
    ValueError
        The metric is unknown, or the condition is not an operator and a quantity.
    """
    if name not in metrics:
        if name in METRICS:
            raise ValueError(f"this kind of job has no {name}; it has {', '.join(metrics)}")
        hint = did_you_mean(name, metrics) or f"; known: {', '.join(metrics)}"
        raise ValueError(f"unknown metric {name!r}{hint}")
    match = None
    if isinstance(condition, str):
        match = re.fullmatch(r"\s*(<=|<|>=|>)\s*(\S.*?)\s*", condition)
    if match is None or not isinstance(condition, str):
        raise ValueError(f"expected a condition such as '<= 14', got {shorten(condition)}")
    limit, unit = _limit(name, metrics[name], match[2])
    if not math.isfinite(limit) or limit < 0:
        raise ValueError(f"expected a limit of at least 0, got {match[2]!r}")
    op = cast("Operator", match[1])
    return Target(name=name, op=op, limit=limit, unit=unit, condition=condition.strip())


def _limit(name: str, unit: Unit, text: str) -> tuple[float, Unit]:
    """Number and unit of the right-hand side."""
    number = _number(text)
    if unit in ("days", "seconds"):
        scale = 86400.0 if unit == "days" else 1.0
        return (number if number is not None else units.parse_seconds(text) / scale), unit
    if unit == "usd":
        return _count(text.replace("$", "", 1).removesuffix("usd").strip()), unit
    if unit == "bytes":
        return (float(units.parse_bytes(text)) if number is None else number), unit
    if unit == "bytes_per_s":
        return (units.parse_bytes_per_s(text) if number is None else number), unit
    if unit in ("count", "per_s"):
        return _count(text.removesuffix("/s") if unit == "per_s" else text), unit
    if name == "gpu_mem_peak" and number is None and not text.endswith("%"):
        return float(units.parse_bytes(text)), "bytes"
    return units.parse_fraction(text), unit


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _count(text: str) -> float:
    """A number with an optional SI prefix: ``12000``, ``12k``."""
    number = _number(text)
    return float(units.parse_count(text)) if number is None else number


def targets_of(
    document: Document, problems: list[Problem], metrics: Mapping[str, Unit] = METRICS
) -> list[Target]:
    """Conditions of a scenario, with the position of each that cannot be read.

    ``metrics`` are those that its kind of job has.
    """
    written = document.data.get("targets") if isinstance(document.data, dict) else None
    targets = []
    for name, condition in written.items() if isinstance(written, dict) else ():
        try:
            targets.append(parse_target(name, condition, metrics))
        except ValueError as error:
            if isinstance(condition, str):
                problems.append(document.problem(("targets", name), str(error)))
    return targets
