"""The report of a data job: what it came to, what binds, what would help.

Real counterpart: ``ds.stats()`` and the dashboard's Ray Data page, and what one reads out of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raysim.raylibs.data.consumers import Consumed
from raysim.raylibs.data.stats import ExecutionStats
from raysim.raylibs.report import LibraryReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was played."""

    took_s: float
    consumed: tuple[Consumed, ...]
    executions: tuple[ExecutionStats, ...]


def report_of(job: Any, outcome: Outcome, process: Any) -> LibraryReport:
    """A page's worth of it."""
    del process
    rows = sum(c.rows for c in outcome.consumed)
    return LibraryReport(
        kind=job.kind, ok=True, text=f"{rows} rows in {outcome.took_s:.0f} s",
        metrics={"data_s": outcome.took_s, "rows_per_s": rows / outcome.took_s},
    )  # fmt: skip
