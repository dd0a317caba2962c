"""``raysim compare``: runs side by side, differences first."""

from __future__ import annotations

from pathlib import Path

from raysim.cli import terminal
from raysim.cli.show import find, read_summary
from raysim.errors import ScenarioError


def compare(runs: tuple[Path, ...], *, by: str | None) -> None:
    """Print what differs; ``by`` a part of rows' names.

    Raises
    ------
    ScenarioError
        Fewer than two runs, one that is not there, or no row of that name.
    """
    from raysim.report.comparing import rows_of

    if len(runs) < 2:
        raise ScenarioError("compare needs two runs or more")
    folders = [find(run) for run in runs]
    summaries = [read_summary(folder) for folder in folders]
    rows = rows_of(summaries)
    if by is not None:
        rows = [row for row in rows if by in row.name]
        if not rows:
            raise ScenarioError(f"--by {by}: nothing of that name differs")
    if not rows:
        terminal.say("Nothing differs.")
        return
    heads = [folder.name for folder in folders]
    lines = [
        [row.name, *row.cells, "" if row.ratio is None else f"{row.ratio - 1:+.1%}"] for row in rows
    ]
    last = "last over first"
    terminal.table(["", *heads, last], lines, right=[*heads, last])
