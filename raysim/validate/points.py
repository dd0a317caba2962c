"""Points: one measured value beside the predicted one; and what many of them say together."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from raysim.errors import CalibrationError
from raysim.validate.job import FIELDS, Job, cells, read_job

GOOD = 0.2
"""An error up to this counts as near."""
OUT_OF_MEMORY = "of GPU memory"
"""Unit of a verdict: measured 1 where the run ended out of memory, 0 where it ran; predicted the
peak as a share of the GPU's memory. It has no error; ``validate.evidence`` counts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One row."""

    family: str
    """Of the error distribution it belongs to, such as ``ray_core/tasks``."""
    name: str
    role: str
    """``validation``, or ``calibration``: it may have fixed constants, and counts for nothing."""
    unit: str = ""
    measured: float | None = None
    low: float | None = None
    """10th percentile of the repetitions; ``high`` the 90th. None: nobody knows the spread."""
    high: float | None = None
    repetitions: int = 1
    predicted: float | None = None
    predicted_low: float | None = None
    """Of the interval that the prediction states; None where it states none."""
    predicted_high: float | None = None
    left_out: str = ""
    """Why there is no comparison."""
    job: Job | None = None
    """Of a training run: what intervals and baselines need to know of it."""

    @property
    def error(self) -> float | None:
        """Predicted over measured, less 1; None of a verdict."""
        if self.predicted is None or self.measured is None or self.left_out:
            return None
        if self.unit == OUT_OF_MEMORY:
            return None
        return self.predicted / self.measured - 1

    @property
    def spread(self) -> float | None:
        """Width of the measured spread as a share of the measured value."""
        if self.low is None or self.high is None or not self.measured:
            return None
        return (self.high - self.low) / self.measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """The distribution of absolute errors of the compared validation rows of a family."""

    family: str
    rows: int
    median: float
    p90: float
    within: float
    """Share of rows with an error of at most ``GOOD``."""
    worst: float
    spread: float | None
    """Median of the measured spread; None where nobody knows it."""
    rank: float | None
    """Spearman's correlation of predicted and measured, within one unit; None below three rows."""
    covered: float | None
    """Share of measured values within the stated interval; None where none is stated."""


def errors(points: Iterable[Point], family: str) -> Errors | None:
    """Of validation rows that could be compared; None if there are none."""
    compared = [p for p in points if p.error is not None and p.role == "validation"]
    if not compared:
        return None
    sizes = np.array([abs(p.error or 0.0) for p in compared])
    spreads = [p.spread for p in compared if p.spread is not None and p.repetitions > 1]
    return Errors(
        family=family,
        rows=len(compared),
        median=float(np.median(sizes)),
        p90=float(np.percentile(sizes, 90)),
        within=float((sizes <= GOOD).mean()),
        worst=float(sizes.max()),
        spread=float(np.median(spreads)) if spreads else None,
        rank=rank_correlation(compared),
        covered=coverage(compared),
    )


def by_family(points: Sequence[Point]) -> list[Errors]:
    """Of each family, in the order they appear."""
    found = []
    for family in dict.fromkeys(p.family for p in points):
        of_it = errors([p for p in points if p.family == family], family)
        if of_it is not None:
            found.append(of_it)
    return found


def rank_correlation(points: Sequence[Point]) -> float | None:
    """Spearman's, of the unit that most rows have: 1 when all choices come in the right order."""
    units = [p.unit for p in points]
    unit = max(dict.fromkeys(units), key=units.count, default="")
    pairs = [(p.predicted, p.measured) for p in points if p.unit == unit]
    if len(pairs) < 3:
        return None
    predicted, measured = (
        _ranks(np.array(values, dtype=float)) for values in zip(*pairs, strict=True)
    )
    if predicted.std() == 0 or measured.std() == 0:
        return None
    return float(np.corrcoef(predicted, measured)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1, equal values sharing the mean of theirs."""
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean: np.ndarray = (last - counts + 1 + last) / 2
    return mean[where]


def coverage(points: Iterable[Point]) -> float | None:
    """Share of measured values within the stated interval."""
    inside = [
        p.predicted_low <= p.measured <= p.predicted_high
        for p in points
        if p.predicted_low is not None and p.predicted_high is not None and p.measured is not None
    ]
    return sum(inside) / len(inside) if inside else None


_NUMBERS = ("measured", "low", "high", "predicted", "predicted_low", "predicted_high")


def write_points(points: Iterable[Point], path: Path) -> None:
    """As CSV, six significant digits; nothing in it depends on when it is written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    points = list(points)
    names = [f.name for f in fields(Point) if f.name != "job"]
    jobs = FIELDS if any(p.job for p in points) else ()
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow((*names, *jobs))
        for point in points:
            own = {name: getattr(point, name) for name in names}
            for name in _NUMBERS:
                own[name] = "" if own[name] is None else f"{own[name]:.6g}"
            more = cells(point.job)
            out.writerow([*(own[name] for name in names), *(more[name] for name in jobs)])


def read_points(path: Path) -> list[Point]:
    """What ``write_points`` wrote; [] if there is no such file.

    Raises
    ------
    CalibrationError
        A line is not a point.
    """
    if not path.exists():
        return []
    points = []
    with path.open(newline="", encoding="utf-8") as file:
        for number, row in enumerate(csv.DictReader(file), 2):
            try:
                numbers: dict[str, Any] = {
                    name: float(row[name]) if row[name] else None for name in _NUMBERS
                }
                texts: dict[str, Any] = {
                    name: row[name] for name in ("family", "name", "role", "unit", "left_out")
                }
                count, job = int(row["repetitions"]), read_job(row)
                points.append(Point(**texts, **numbers, repetitions=count, job=job))
            except (KeyError, ValueError, TypeError) as error:
                raise CalibrationError(f"{path}:{number}: {error}") from None
    return points


def merged(old: Sequence[Point], new: Sequence[Point]) -> list[Point]:
    """``old`` with the points that were made again replaced, sorted by family and name.

    What was said of a workload as a whole, that it is not measured, is over when it has rows.
    """
    rowed = {(p.family, p.name.partition(" ")[0]) for p in new if " " in p.name}
    kept = [p for p in old if (p.family, p.name) not in rowed]
    points = {(p.family, p.name): p for p in (*kept, *new)}
    return [points[key] for key in sorted(points)]


def rounded(point: Point) -> Point:
    """As a reader of the file sees it, so that a report does not depend on where it came from."""
    said = {n: getattr(point, n) for n in _NUMBERS}
    numbers: dict[str, Any] = {n: None if v is None else float(f"{v:.6g}") for n, v in said.items()}
    return replace(point, **numbers, job=read_job(cells(point.job)))
