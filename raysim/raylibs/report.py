"""What a library's job comes to: a verdict, metrics and tables, for summaries and pages to show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from raysim.raylibs.warnings import PlannerWarning

if TYPE_CHECKING:
    from raysim.raylibs.charts import Chart

Unit = Literal["text", "count", "seconds", "bytes", "share", "usd", "per_s", "bytes_per_s"]
Cell = str | float | int | None
Basis = Literal["measured", "datasheet", "assumed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of one kind; ``columns`` are names and what their numbers are, the first is text."""

    title: str
    columns: tuple[tuple[str, Unit], ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            assert len(row) == len(self.columns), f"{self.title}: {row} has not {self.columns}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A number the prediction rests on, and where it is from."""

    name: str
    value: Cell
    basis: Basis
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryReport:
    """The result of one job of one library."""

    kind: str
    """``data``, ``train``, ``serve``, ``tune``, ``rl``."""
    ok: bool
    """False: it failed, or ended without doing what was asked."""
    text: str
    """The verdict in one sentence, without the time taken."""
    metrics: Mapping[str, float]
    """By name with its unit: ``rows_per_s``; targets may name those the job declares."""
    tables: tuple[Table, ...] = ()
    bound_by: str = ""
    """What binds, in a sentence; empty: what the cluster's own record says."""
    meanwhile: str = ""
    """What goes on while no task runs; empty: the driver's own code."""
    would_help: tuple[str, ...] = ()
    warnings: tuple[PlannerWarning, ...] = ()
    inputs: tuple[Input, ...] = ()
    simplifications: tuple[str, ...] = ()
    detail: Mapping[str, Any] = field(default_factory=dict)
    """Plain data beyond the tables, for summary.json."""
    charts: tuple[Chart, ...] = ()
    """What it did over time, for pages; not in summary.json."""
