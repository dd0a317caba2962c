"""Rows of workload files as a function of constants, for ``calibrate.fit``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from raysim.calibrate.rows import RowKey
from raysim.errors import CalibrationError
from raysim.measure.workload import Workload
from raysim.perf.profile import costs_with
from raysim.perf.ray_core import RayCosts
from raysim.validate.replayed import Against, NotPredicted, predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulator:
    """Predicts every row of its workloads on a machine like the measured one: a ``Predict``."""

    workloads: tuple[Workload, ...]
    against: Against
    """The measured tables, which say what machine that is."""
    known: Mapping[str, float] = field(default_factory=dict)
    """Constants of that machine that are not asked about."""

    def __call__(self, values: Mapping[str, float]) -> dict[RowKey, float]:
        """Rows with those constants of ``RayCosts``.

        Raises
        ------
        CalibrationError
            A workload does not end as it should with these constants.
        """
        costs = costs_with({**self.known, **values})
        rows: dict[RowKey, float] = {}
        for workload in self.workloads:
            try:
                rows |= _rows(workload, self.against, costs)
            except NotPredicted as reason:
                said = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
                raise CalibrationError(f"{workload.name}: {reason}; with {said}") from None
        return rows


def survey(
    workloads: Sequence[Workload], against: Against
) -> tuple[dict[RowKey, float], dict[str, str]]:
    """Every row with raysim's own constants, and why a workload has none, by its name."""
    rows: dict[RowKey, float] = {}
    reasons: dict[str, str] = {}
    for workload in workloads:
        try:
            rows |= _rows(workload, against, RayCosts())
        except NotPredicted as reason:
            reasons[workload.name] = str(reason)
    return rows, reasons


def _rows(workload: Workload, against: Against, costs: RayCosts) -> dict[RowKey, float]:
    found = predicted(workload, against, costs)
    return {(workload.name, row): value for row, value in found.items()}
