"""How a dataset is printed: its shape, a table of columns, some rows of what is materialised.

Real counterpart: ``_internal/dataset_repr.py``. What has to run first is printed as its operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from raysim.rayapi.data.schema import Schema
from raysim.raylibs.data import specs

MOST_ROWS = 10
HEAD_ROWS = 5
MOST_WIDTH = 40
GAP = "\u2026"
_BORDERS = {
    "top": ("\u256d", "\u252c", "\u256e", "\u2500"),
    "middle": ("\u255e", "\u256a", "\u2561", "\u2550"),
    "bottom": ("\u2570", "\u2534", "\u256f", "\u2500"),
}
"""Left, between, right, fill."""
_SIDE, _BETWEEN = "\u2502", "\u2506"


def ascii_repr(
    schema: Schema, rows: int | None, shown: Sequence[dict[str, Any]] | None,
    called: str | None = None,
) -> str:  # fmt: skip
    """A table; ``shown`` are rows of materialised data, all of them or the first and last."""
    heads = [[_short(name) for name in schema.names], ["---"] * len(schema.names)]
    heads.append([_short(str(kind)) for kind in schema.types])
    cells = [[_short(_text(row.get(name))) for name in schema.names] for row in shown or ()]
    if shown and rows is not None and rows > MOST_ROWS:
        cells.insert(HEAD_ROWS, [GAP] * len(schema.names))
    widths = [max(map(len, column)) for column in zip(*heads, *cells, strict=True)]
    said = "?" if rows is None else str(rows)
    last = "(Dataset isn't materialized)"
    if shown is not None:
        last = f"(Showing {len(shown)} of {said} rows)"
    table = "\n".join(_lines(heads, cells, widths))
    begins = "" if called is None else f"name: {called}\n"
    return f"{begins}shape: ({said}, {len(schema.names)})\n{table}\n{last}"


_KEEPING = (specs.AllToAll, specs.Reorder)
"""Operations after which there are as many rows, but for aggregations."""


def rows_after(spec: specs.Dataset) -> int | None:
    """Of a dataset that has not run; None: an operation may change how many there are."""
    rows = spec.source.rows if spec.source.counted else None
    for operation in spec.operations:
        if isinstance(operation, specs.Limit):
            rows = None if rows is None else min(rows, operation.rows)
        elif isinstance(operation, specs.Map):
            rows = None if operation.changes_rows else rows
        elif getattr(operation, "kind", "") == "aggregate" or not isinstance(operation, _KEEPING):
            return None
    return rows


def summary(spec: specs.Dataset, schema: Schema | None) -> str:
    """Operators, the last first, and what they begin with."""
    said = "Unknown schema"
    if schema is not None:
        names = zip(schema.names, schema.types, strict=True)
        said = "{" + ", ".join(f"{name}: {kind}" for name, kind in names) + "}"
    titles = [*(_title(o) for o in reversed(spec.operations))]
    rows = spec.source.rows if spec.source.counted else "?"
    titles.append(f"Dataset(num_rows={rows}, schema={said})")
    return "\n".join(
        title if depth == 0 else f"{'   ' * (depth - 1)}+- {title}"
        for depth, title in enumerate(titles)
    )


def _title(operation: specs.Operation) -> str:
    if isinstance(operation, specs.Map):
        return operation.name
    if isinstance(operation, specs.AllToAll):
        return "".join(word.capitalize() for word in operation.kind.split("_"))
    if isinstance(operation, specs.Limit):
        return f"Limit[limit={operation.rows}]"
    return type(operation).__name__


def _lines(heads: list[list[str]], cells: list[list[str]], widths: list[int]) -> Iterator[str]:
    yield _border("top", widths)
    for row in heads:
        yield _row(row, widths)
    if cells:
        yield _border("middle", widths)
        for row in cells:
            yield _row(row, widths)
    yield _border("bottom", widths)


def _border(which: str, widths: list[int]) -> str:
    left, between, right, fill = _BORDERS[which]
    return left + between.join(fill * (width + 2) for width in widths) + right


def _row(values: list[str], widths: list[int]) -> str:
    cells = (f" {value.ljust(width)} " for value, width in zip(values, widths, strict=True))
    return _SIDE + _BETWEEN.join(cells) + _SIDE


def _text(value: Any) -> str:
    return str(value).replace("\n", " ").replace("\r", " ")


def _short(text: str) -> str:
    return text if len(text) <= MOST_WIDTH else text[: MOST_WIDTH - 1] + GAP
