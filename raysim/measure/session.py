"""One ``raysim measure``: its folder, its time budget, and the loop that fills tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from raysim.errors import CalibrationError
from raysim.measure.machine import installed
from raysim.measure.table import MeasuredRow, MeasuredTable
from raysim.units import format_bytes, format_bytes_per_s, format_seconds

LEAST, MOST = 5, 50
"""Repetitions of a point, if its time allows."""
SAMPLE_S = 1e-3
"""Shorter work is repeated within one sample, far above the clock's own time."""
POINT_S = 5.0
"""Most time for one point, however large the budget is."""


class Unavailable(Exception):  # noqa: N818  (a reason, not a failure)
    """Raised by a point that cannot be measured here, with why; the others go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One row to measure."""

    parameters: Mapping[str, object]
    measure: Callable[[float], Sequence[float]]
    """From the seconds it may take, about, to its samples."""
    unit: str = "s"


class Budget:
    """Wall seconds that may be spent from now on."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end_s = clock() + seconds

    def left_s(self) -> float:
        """What remains; negative when it is spent."""
        return self._end_s - self._clock()


def _silent(line: str) -> None:
    """Say nothing."""


@dataclass(kw_only=True)
class Session:
    """What the user asked for, and what came of it."""

    folder: Path
    budget: Budget
    command: str
    quick: bool = False
    """Few small points, for tests of the measuring itself."""
    device: str | None = None
    """``cuda`` or ``cpu``; None takes the GPU where there is one."""
    backend: str | None = None
    """``nccl`` or ``gloo``; None takes NCCL where there are GPUs."""
    ranks: tuple[int, ...] = ()
    """World sizes; () takes what the machine has."""
    notes: str = ""
    """For ``meta.yaml``."""
    cases: Path | None = None
    """Of steps: a JSON list of training cases; None takes a small model's."""
    say: Callable[[str], None] = field(default=_silent)
    measured: int = 0
    kept: int = 0
    """Rows that an earlier run had measured."""
    left: int = 0
    """Points for which no time was left."""
    left_out: list[str] = field(default_factory=list)
    """Points that cannot be measured here, with reasons."""

    def table(self, what: str, parameters: Sequence[str], notes: str = "") -> MeasuredTable:
        """Open ``<what>.csv`` of the session's folder."""
        notes = "; ".join(note for note in (self.notes, notes) if note)
        return MeasuredTable(self.folder, what, parameters, command=self.command, notes=notes)

    def run(self, table: MeasuredTable, points: Iterable[Point], share: float = 1.0) -> None:
        """Measure the points that the table lacks, in order, in a share of the time left."""
        points = list(points)
        kept_back_s = self.budget.left_s() * (1 - share)
        new = [point for point in points if point.parameters not in table]
        self.kept += len(points) - len(new)
        for done, point in enumerate(new):
            left_s = self.budget.left_s() - kept_back_s
            if left_s <= 0:
                self.left += len(new) - done
                return
            try:
                samples = point.measure(min(POINT_S, left_s / (len(new) - done)))
            except Unavailable as reason:
                self.left_out.append(f"{table.path.stem} {named(point.parameters)}: {reason}")
                self.say(f"left out: {self.left_out[-1]}")
                continue
            self.measured += 1
            self.say(shown(table.path.stem, table.add(point.parameters, samples, point.unit)))


def repeat(
    sample: Callable[[int], float],
    allowed_s: float,
    *,
    most: int = MOST,
    inner_most: int = 10_000,
) -> list[float]:
    """Samples of some work: ``sample(n)`` does it n times and returns the seconds of one.

    One sample warms up and one says how often the work fits into :data:`SAMPLE_S`; neither counts.
    """
    start_s = time.monotonic()
    sample(1)
    once_s = max(sample(1), 1e-9)
    inner = max(1, min(inner_most, round(SAMPLE_S / once_s)))
    samples: list[float] = []
    while len(samples) < most and (
        len(samples) < LEAST or time.monotonic() - start_s + inner * once_s < allowed_s
    ):
        samples.append(sample(inner))
    return samples


def stopwatch(work: Callable[[], object]) -> Callable[[int], float]:
    """``sample`` for :func:`repeat`, of work that is done when its call returns."""

    def sample(times: int) -> float:
        start = time.perf_counter()
        for _ in range(times):
            work()
        return (time.perf_counter() - start) / times

    return sample


def needs(package: str, what: str) -> None:
    """Say how to get a package that is not there.

    Raises
    ------
    CalibrationError
        It is not installed.
    """
    if installed(package) is None:
        raise CalibrationError(
            f"measure {what}: needs {package}, which is not installed: pip install 'raysim[real]'"
        )


def named(parameters: Mapping[str, object]) -> str:
    """``op=put size_bytes=8``."""
    return " ".join(f"{key}={value}" for key, value in parameters.items())


def shown(what: str, row: MeasuredRow) -> str:
    """One line for a person."""
    formats: dict[str, Callable[[float], str]] = {
        "s": format_seconds,
        "bytes": format_bytes,
        "B/s": format_bytes_per_s,
    }
    say: Callable[[float], str] = formats.get(row.unit, lambda x: f"{x:.4g} {row.unit}")
    spread = f"  [{say(row.low)} .. {say(row.high)}] of {row.repetitions}"
    return f"{what}  {named(row.parameters)}  {say(row.value)}" + spread * (row.repetitions > 1)
