"""Workload files on the emulator as a function of constants, alone or on several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from raysim.calibrate.fit import Evaluate
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
    folder: Path
    """Of the measured tables, which says what machine that is."""

    def __call__(self, values: Mapping[str, float]) -> dict[RowKey, float]:
        """Rows with those constants of ``RayCosts``.

        Raises
        ------
        CalibrationError
            A workload does not end as it should with these constants.
        """
        costs = costs_with(values)
        rows: dict[RowKey, float] = {}
        for workload in self.workloads:
            try:
                rows |= _rows(workload, self.folder, costs)
            except NotPredicted as reason:
                said = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
                raise CalibrationError(f"{workload.name}: {reason}; with {said}") from None
        return rows


def survey(
    workloads: Sequence[Workload], folder: Path, told: Callable[[str], None] = lambda _: None
) -> tuple[dict[RowKey, float], dict[str, str]]:
    """Every row with raysim's own constants, and why a workload has none, by its name."""
    rows: dict[RowKey, float] = {}
    reasons: dict[str, str] = {}
    for workload in workloads:
        told(workload.name)
        try:
            rows |= _rows(workload, folder, RayCosts())
        except NotPredicted as reason:
            reasons[workload.name] = str(reason)
    return rows, reasons


def _rows(workload: Workload, folder: Path, costs: RayCosts) -> dict[RowKey, float]:
    found = predicted(workload, Against(folder=folder), costs)
    return {(workload.name, row): value for row, value in found.items()}


@contextmanager
def evaluating(processes: int) -> Iterator[Evaluate]:
    """How ``fit`` evaluates several sets of constants: one by one, or on so many processes."""
    if processes <= 1:
        yield map
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:

        def spread(
            predict: Callable[[Mapping[str, float]], Mapping[RowKey, float]],
            points: Iterable[Mapping[str, float]],
        ) -> Iterable[Mapping[RowKey, float]]:
            return pool.map(predict, points)

        yield spread
