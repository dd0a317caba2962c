"""What Ray's libraries say of their jobs, printed: tables, advice, warnings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from raysim.report.layout import Page
from raysim.report.words import cell

MOST_ROWS = 10
"""Of a table; the others are in summary.json."""


def tables(page: Page, libraries: list[Mapping[str, Any]]) -> None:
    """Every table of every job."""
    for job in libraries:
        for table in job["tables"]:
            _table(page, table)


def answers(page: Page, libraries: list[Mapping[str, Any]]) -> None:
    """What would help, and what to beware of."""
    for job in libraries:
        if job["would_help"]:
            page.labelled("Would help", [Text(t) for t in job["would_help"]])
    for job in libraries:
        for warning in job["warnings"]:
            page.labelled("Warning", [Text(f"{warning['cause']} {warning['fix']}")])


def _table(page: Page, table: Mapping[str, Any]) -> None:
    units = [column["unit"] for column in table["columns"]]
    names = [column["name"] for column in table["columns"]]
    rows = [[cell(v, u) for v, u in zip(row, units, strict=True)] for row in table["rows"]]
    shown = rows[:MOST_ROWS]
    widths = [max(map(len, column)) for column in zip(names, *shown, strict=True)]
    widths[0] = max(widths[0], len(table["title"]))

    def line(cells: list[str]) -> str:
        padded = [f"{c:>{w}}" for c, w in zip(cells[1:], widths[1:], strict=True)]
        return "  ".join([f" {cells[0]:<{widths[0]}}", *padded])

    page.blank()
    head = line([table["title"], *names[1:]])
    page.add((head[: widths[0] + 1], "bold"), (head[widths[0] + 1 :], "dim"))
    page.rule()
    for cells in shown:
        page.add(line(cells))
    if len(rows) > len(shown):
        page.add((f" and {len(rows) - len(shown):,} more in summary.json", "dim"))
