"""``result.plot``, ``answer.plot`` and ``frame.raysim``: which charts a thing has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from raysim.report.plots.program import Played, ProgramPlots
from raysim.report.plots.sweeps import SweepPlots
from raysim.report.plots.training import Recorded, TrainingPlots

if TYPE_CHECKING:
    import pandas as pd

    from raysim.report.plots.chart import Chart

ACCESSOR = "raysim"


class _Run(Recorded, Played, Protocol):
    """A result of either kind."""


def of_result(result: _Run) -> TrainingPlots | ProgramPlots:
    """Charts of a run."""
    if result.summary.get("kind") == "program":
        return ProgramPlots(result)
    return TrainingPlots(result)


def of_frame(frame: pd.DataFrame) -> SweepPlots:
    """Charts of a sweep's table."""
    return SweepPlots(frame)


class SweepAccessor:
    """``frame.raysim`` of any pandas frame: charts of a sweep's table."""

    def __init__(self, frame: Any) -> None:
        self.plot = SweepPlots(frame)

    def pareto(self, x: str = "days", y: str = "usd") -> Chart:
        """As `SweepPlots.pareto`."""
        return self.plot.pareto(x, y)

    def parallel(self, *metrics: str) -> Chart:
        """As `SweepPlots.parallel`."""
        return self.plot.parallel(*metrics)


def register() -> None:
    """Give pandas frames the accessor, once; a frame's own ``plot`` stays pandas'."""
    import pandas as pd

    if not hasattr(pd.DataFrame, ACCESSOR):
        pd.api.extensions.register_dataframe_accessor(ACCESSOR)(SweepAccessor)
