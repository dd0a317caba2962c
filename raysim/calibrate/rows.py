"""Measured rows with their role: those that may be fitted, and those that judge.

A calibration row may fix constants. A validation row never does: it says afterwards how good they
are, and asking to fit one is an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from raysim.errors import CalibrationError
from raysim.measure.table import read_rows

RowKey = tuple[str, str]
"""Name of the workload, and of one of the rows it prints."""
Predict = Callable[[Mapping[str, float]], Mapping[RowKey, float]]
"""Values of constants by name in, predicted rows out; the same in gives the same out."""
Role = Literal["calibration", "validation"]
DECILES_APART = 2.563
"""Standard deviations between the 10th and the 90th percentile of a normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One row: median, and 10th and 90th percentile over its repetitions."""

    key: RowKey
    role: Role
    value: float
    unit: str = "s"
    repetitions: int = 1
    low: float | None = None
    high: float | None = None
    family: str = ""
    model_error: float | None = None
    """Of the emulator for this row, where it is not that of the fit."""

    @property
    def spread(self) -> float:
        """Standard deviation of the value's logarithm over repetitions; 0 where it is unknown."""
        if not self.low or not self.high or self.high <= self.low:
            return 0.0
        return math.log(self.high / self.low) / DECILES_APART


def named(key: RowKey) -> str:
    """``workload/row``."""
    return "/".join(key)


def read_replays(folder: Path, family: str | None = None) -> list[Measured]:
    """Every row of ``replay_<family>_<role>.csv`` in a data folder, calibration rows first.

    Raises
    ------
    CalibrationError
        There is no such table, or a row has no positive value.
    """
    rows: list[Measured] = []
    roles: tuple[Role, ...] = ("calibration", "validation")
    for role in roles:
        for path in sorted(folder.glob(f"replay_{family or '*'}_{role}.csv")):
            of = path.stem.removeprefix("replay_").removesuffix(f"_{role}")
            rows += _rows(path, role, of)
    if not any(row.role == "calibration" for row in rows):
        name = f"replay_{family or '*'}_calibration.csv"
        raise CalibrationError(
            f"{folder}: no rows in {name}; `raysim validate --real` makes them{_others(folder)}"
        )
    return rows


def _others(folder: Path) -> str:
    """What families of rows there are instead, as options say them."""
    suffix = "_calibration.csv"
    replays = (path.name for path in sorted(folder.glob(f"replay_*{suffix}")))
    found = [name.removeprefix("replay_").removesuffix(suffix) for name in replays]
    if (folder / "training_cases.json").exists():
        found.append("training")
    if not found:
        return "; training steps measured by `raysim measure step` are --family training"
    return f"; here are rows of {' and '.join(f'--family {name}' for name in found)}"


def _rows(path: Path, role: Role, family: str) -> Iterable[Measured]:
    for line, row in enumerate(read_rows(path), start=2):
        if {"workload", "row"} - row.parameters.keys():
            raise CalibrationError(f"{path}:1: expected columns workload and row")
        key = (row.parameters["workload"], row.parameters["row"])
        if not (math.isfinite(row.value) and row.value > 0):
            said = (
                f"{path}:{line}: {named(key)} is {row.value:g}; only a positive value has a ratio"
            )
            raise CalibrationError(said)
        yield Measured(
            key=key, role=role, value=row.value, unit=row.unit, repetitions=row.repetitions,
            low=row.low, high=row.high, family=family,
        )  # fmt: skip


def only_calibration(rows: Sequence[Measured]) -> None:
    """Refuse to fit what is for judging.

    Raises
    ------
    CalibrationError
        A row's role is validation, or there is no row.
    """
    judges = [named(row.key) for row in rows if row.role != "calibration"]
    if judges:
        more = f" and {len(judges) - 3} more" if len(judges) > 3 else ""
        raise CalibrationError(
            f"{', '.join(judges[:3])}{more}: a validation row is never fitted; "
            "it shows how good the fit is"
        )
    if not rows:
        raise CalibrationError("no calibration row to fit")
