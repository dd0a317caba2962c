"""``ray list X`` of a moment, as text and as a pandas frame.

Real counterpart: ``get_table_output`` in ``ray/util/state/state_cli.py``; its tables are drawn by
``tabulate`` in its plain format. Virtual time stands where Ray prints the date.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from raysim.raystate.listings import columns_of, rows
from raysim.raystate.moment import Moment
from raysim.results.ray.status import clock

if TYPE_CHECKING:
    import pandas as pd

RULE = "-" * 30


def list_text(now: Moment, resource: str) -> str:
    """The table of one of ``listings.BASE``.

    Raises
    ------
    ValueError
        There is no such resource.
    """
    listed = rows(now, resource)
    columns = columns_of(resource, detail=False)
    header = f"======== List: {clock(now.t_ns)} ========"
    lines = [header, "Stats:", RULE, f"Total: {len(listed)}", "", "Table:", RULE]
    if listed:
        cells = [[_cell(row[column]) for column in columns] for row in listed]
        numbers = [all(_is_number(row[column]) for row in listed) for column in columns]
        heads = [column.upper() for column in columns]
        lines += _plain(heads, cells, numbers)
    return "\n".join(lines)


def frame(now: Moment, resource: str) -> pd.DataFrame:
    """The same with ``--detail``, as a pandas frame."""
    import pandas as pd

    columns = list(columns_of(resource, detail=True))
    return pd.DataFrame(rows(now, resource, detail=True), columns=columns)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: Any) -> list[str]:
    """A value on its lines: a mapping is YAML, one key a line."""
    if value is None:
        return [""]
    if isinstance(value, dict):
        return [f"{k}: {v}" for k, v in sorted(value.items())] or ["{}"]
    return str(value).split("\n")


def _plain(
    heads: Sequence[str], cells: Sequence[Sequence[list[str]]], numbers: Sequence[bool]
) -> list[str]:
    """Columns two blanks apart, numbers to the right, rows numbered."""
    index = max(2, len(str(len(cells) - 1)))
    widths = [
        max(len(head), *(len(line) for row in cells for line in row[i]))
        for i, head in enumerate(heads)
    ]

    def line(first: str, texts: Sequence[str]) -> str:
        aligned = (
            t.rjust(w) if right else t.ljust(w)
            for t, w, right in zip(texts, widths, numbers, strict=True)
        )
        return "  ".join([first.rjust(index), *aligned]).rstrip()

    lines = [line("", heads)]
    for n, row in enumerate(cells):
        height = max(len(cell) for cell in row)
        for k in range(height):
            texts = [cell[k] if k < len(cell) else "" for cell in row]
            lines.append(line(str(n) if not k else "", texts))
    return lines
