"""What is said of compared points: ``REPORT.md``, the parity plot, tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from raysim.validate.evidence import beside, rankings, reasons, sweep_rankings, verdicts
from raysim.validate.intervals import coverage, kinds, residuals, with_intervals
from raysim.validate.parity import parity_svg
from raysim.validate.points import Errors, Point, by_family, errors

REPORT, PARITY = "REPORT.md", "parity.svg"
NOTHING = "-"


def write_report(points: Sequence[Point], folder: Path, about: Iterable[str] = ()) -> None:
    """Write ``REPORT.md`` and ``parity.svg``; equal points make equal files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / REPORT).write_text(report_text(points, about), encoding="utf-8")
    (folder / PARITY).write_text(parity_svg(points), encoding="utf-8")


def report_text(points: Sequence[Point], about: Iterable[str] = ()) -> str:
    """The report as Markdown."""
    environment = Environment(  # noqa: S701  (Markdown, not HTML)
        loader=PackageLoader("raysim.validate"), undefined=StrictUndefined, trim_blocks=False,
        keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters |= {
        "share": share, "whole": whole, "two": two, "number": number, "signed": signed,
        "spread": spread,
    }  # fmt: skip
    points = with_intervals(points)
    rows = residuals(points)
    compared = [p for p in points if p.error is not None]
    families = dict.fromkeys(p.family for p in compared)
    tables = [
        (f"{family}: {role} rows", of_it)
        for family in families
        for role in ("validation", "calibration")
        if (of_it := [p for p in compared if p.family == family and p.role == role])
    ]
    return environment.get_template("REPORT.md.j2").render(
        about=list(about), families=summary(points), tables=tables,
        beside=beside(points), rankings=rankings(points), sweeps=sweep_rankings(points),
        verdicts=verdicts(points), kinds=kinds(rows), coverage=coverage(rows),
        reasons=reasons(points), left_out=[p for p in points if p.left_out],
    )  # fmt: skip


def summary(points: Sequence[Point]) -> list[Errors]:
    """Each family; where a case has several, the case itself first."""
    found: list[Errors] = []
    for case in dict.fromkeys(p.family.partition("/")[0] for p in points):
        of_it = [p for p in points if p.family.partition("/")[0] == case]
        families = by_family(of_it)
        whole_case = errors(of_it, case)
        if whole_case is not None and (len(families) > 1 or families[0].family != case):
            found.append(whole_case)
        found += families
    return found


ROW_COLUMNS = ("row", "role", "predicted", "measured", "unit", "error", "measured spread")


def row_cells(points: Iterable[Point]) -> list[tuple[str, ...]]:
    """Every compared row, under ``ROW_COLUMNS``."""
    return [
        (
            p.name,
            p.role,
            number(p.predicted),
            number(p.measured),
            p.unit,
            signed(p.error),
            spread(p),
        )
        for p in points
        if p.error is not None
    ]


FAMILY_COLUMNS = (
    "family", "rows", "median", "p90", "within 20 %", "worst", "real spread", "rank", "covered",
)  # fmt: skip


NUMBERS = {*ROW_COLUMNS, *FAMILY_COLUMNS} - {"row", "role", "unit", "family"}
"""Columns that stand on the right."""


def family_cells(points: Sequence[Point]) -> list[tuple[str, ...]]:
    """The error distributions, under ``FAMILY_COLUMNS``."""
    return [
        (e.family, str(e.rows), share(e.median), share(e.p90), whole(e.within), share(e.worst),
         share(e.spread), two(e.rank), whole(e.covered))
        for e in summary(points)
    ]  # fmt: skip


def share(value: float | None) -> str:
    """``4.0 %``."""
    return NOTHING if value is None else f"{100 * value:.1f} %"


def whole(value: float | None) -> str:
    """``78 %``."""
    return NOTHING if value is None else f"{100 * value:.0f} %"


def two(value: float | None) -> str:
    """``0.97``."""
    return NOTHING if value is None else f"{value:.2f}"


def signed(value: float | None) -> str:
    """``+4.0 %``."""
    return NOTHING if value is None else f"{100 * value:+.1f} %"


def number(value: float | None) -> str:
    """Four significant digits, never an exponent where people measure."""
    if value is None:
        return NOTHING
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


def spread(p: Point) -> str:
    """``1.2 - 1.4``."""
    return NOTHING if p.low is None or p.high is None else f"{number(p.low)} - {number(p.high)}"
