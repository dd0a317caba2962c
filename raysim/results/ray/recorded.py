"""What a Ray program's run keeps beside its summary: rows of the state log, and what it printed."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.hardware.port_history import PortUse
from raysim.perf.ray_core import RayCosts
from raysim.raycore.cloud import Launch
from raysim.raycore.config import RayConfig
from raysim.raycore.ids import NodeID
from raysim.raycore.state_log import Change
from raysim.raylibs.charts import Chart
from raysim.raystate.listings import BASE
from raysim.raystate.moment import moment
from raysim.raystate.timeline import write_timeline
from raysim.results.ray import state_file
from raysim.results.ray.listing import frame
from raysim.results.ray.trace import records

if TYPE_CHECKING:
    import pandas as pd

    from raysim.kernel.record import ColumnRecorder

STATE_FILE = "state.parquet"
LIBRARY_FILE = "library_charts.parquet"
FRAMES = (*BASE, "state", "library_charts")
"""Tables in ``frames/`` of a program's run."""


@dataclass
class Recorded:
    """Everything that the pages and tables of a program are made of."""

    rows: list[Change] = field(repr=False)
    """Of the state log, up to the end of the run."""
    end_ns: int
    config: RayConfig = field(default_factory=RayConfig)
    costs: RayCosts = field(default_factory=RayCosts)
    """By which calls of ``.remote()`` are drawn; raysim's own of a run read from its folder."""
    lost: tuple[tuple[int, NodeID], ...] = ()
    """When which node falls silent."""
    output: str = field(default="", repr=False)
    """What the program printed."""
    compute_rows: tuple[list[str], ...] = field(default=(), repr=False)
    """Of compute.csv, header first, where time was measured."""
    ports: tuple[PortUse, ...] = field(default=(), repr=False)
    """What network ports carried."""
    launches: tuple[Launch, ...] = field(default=(), repr=False)
    """Machines that were asked for."""
    charts: tuple[tuple[Chart, ...], ...] = field(default=(), repr=False)
    """Of each job of the summary's ``libraries``."""

    def __getstate__(self) -> dict[str, Any]:
        """Functions of the program do not travel; everything else does."""
        return {**self.__dict__, "rows": state_file.encode(self.rows)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, rows=state_file.decode(*state["rows"]))

    def frame(self, name: str, t_ns: int | None = None) -> pd.DataFrame:
        """``ray list NAME --detail`` at a moment, as a pandas frame."""
        return frame(moment(self.rows, self.end_ns if t_ns is None else t_ns), name)

    def library_charts(self) -> pd.DataFrame:
        """Every point of every line of the libraries' charts; ``job`` counts ``libraries``."""
        import pandas as pd

        rows = [
            (job, chart.key, line.name, chart.unit, x, value)
            for job, charts in enumerate(self.charts)
            for chart in charts
            for line in chart.lines
            for x, value in line.points
        ]
        return pd.DataFrame(rows, columns=["job", "chart", "line", "unit", "x", "value"])

    def trace(self) -> ColumnRecorder:
        """For ``results.traces``."""
        return records(self.rows, end_ns=self.end_ns, lost=self.lost, costs=self.costs)

    def write(self, folder: Path) -> None:
        """``timeline.json``, ``output.txt``, ``compute.csv`` and ``frames/``."""
        write_timeline(self.rows, folder / "timeline.json", costs=self.costs)
        (folder / "output.txt").write_text(self.output, encoding="utf-8", newline="\n")
        if self.compute_rows:
            with (folder / "compute.csv").open("w", newline="", encoding="utf-8") as file:
                csv.writer(file, lineterminator="\n").writerows(self.compute_rows)
        frames = folder / "frames"
        frames.mkdir(exist_ok=True)
        now = moment(self.rows, self.end_ns)
        for name in BASE:
            state_file.write_table(frame(now, name), frames / f"{name}.parquet")
        if any(self.charts):
            state_file.write_table(self.library_charts(), frames / LIBRARY_FILE)
        state_file.write(self.rows, frames / STATE_FILE, end_ns=self.end_ns, config=self.config)


def read(folder: Path) -> Recorded:
    """What ``write`` wrote, as far as ``raysim show`` needs it.

    Raises
    ------
    OSError
        The folder has no ``frames/state.parquet``.
    """
    rows, end_ns, config = state_file.read(folder / "frames" / STATE_FILE)
    return Recorded(rows=rows, end_ns=end_ns, config=config)
