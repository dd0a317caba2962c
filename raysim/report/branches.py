"""What-ifs beside the run they branch from: what differs, the metrics of the job first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from raysim.branching import BASELINE
from raysim.report.comparing import SAME, rows_of
from raysim.results import targets

Summary = Mapping[str, Any]
SHOWN_FROM = 0.0005
"""Nearer to the baseline nothing is said of how near."""
MANY = 10
"""Times the baseline, from where on percents tell little."""
MOST_PARTS = 12
"""Rows of parts shown; metrics all are."""


def branch_table(
    baseline: Summary, branches: Mapping[str, Summary], units: Mapping[str, str]
) -> tuple[list[str], list[list[str]]]:
    """Heads and rows; in each cell of a branch how far it is from the baseline.

    ``units`` are those of the job's metrics, in the order wanted.
    """
    summaries = [baseline, *branches.values()]
    heads = ["", BASELINE, *branches]
    rows = _metrics(summaries, units)
    told = {row[0] for row in rows} | set(units)
    pairs = [{r.name: r.ratio for r in rows_of([baseline, s])} for s in branches.values()]
    of_library = bool(baseline.get("libraries"))  # its actors' calls tell a user nothing
    parts = [
        (row, [pair.get(row.name, 1.0) for pair in pairs])
        for row in rows_of(summaries)
        if row.name not in told and not (of_library and row.name.startswith("tasks: "))
    ]
    parts = sorted((p for p in parts if _apart(p[1])), key=lambda p: -_apart(p[1]))
    rows += [
        [row.name, row.cells[0], *map(_beside, row.cells[1:], ratios)]
        for row, ratios in parts[:MOST_PARTS]
    ]
    return heads, rows


def _apart(ratios: Sequence[float | None]) -> float:
    """How far the farthest branch is from the baseline; words that differ are farthest."""
    far = [math.inf if not r else abs(math.log(r)) for r in ratios]
    return max((f for f in far if f >= SHOWN_FROM), default=0.0)


def _metrics(summaries: Sequence[Summary], units: Mapping[str, str]) -> list[list[str]]:
    rows = []
    for name, unit in units.items():
        values = [targets.value_of(name, s) for s in summaries]
        first, known = values[0], [v for v in values if v is not None]
        if not known or (len(known) == len(values) and _same(known)):
            continue
        texts = ["-" if v is None else targets.show(v, unit) for v in values]
        ratios = [v / first if first and v is not None else None for v in values[1:]]
        rows.append([name, texts[0], *map(_beside, texts[1:], ratios)])
    return rows


def _beside(text: str, ratio: float | None) -> str:
    if ratio is None or abs(ratio - 1) < SHOWN_FROM:
        return text
    return f"{text} ({ratio - 1:+.1%})" if ratio < MANY else f"{text} (x{ratio:,.0f})"


def _same(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= SAME * max(map(abs, values))
