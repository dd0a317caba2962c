"""Links over time: how much of what each could carry it carried, as rows of cells.

Rates come from the records' counters, capacities from the summary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from raysim.report.words import Table, number, rows

if TYPE_CHECKING:
    from raysim.kernel.record import Span

CELLS = 400
"""Parts of the recorded step, each one cell of every row."""
MOST_LINKS = 128
"""Rows drawn at most; the table has them all."""
LEVELS = 255
_PREFIX = "link/"
_KINDS = (
    (r"/nvlink-\d", "NVLink between two GPUs"), (r"/nvlink-", "NVLink ports"),
    (r"/pcie-\d+/", "PCIe switches"), (r"/pcie-", "PCIe ports of GPUs"),
    (r"/host-nic", "NICs of the hosts"), (r"/nic-", "NIC ports"), (r"^leaf-", "leaf switches"),
    (r"/socket-", "between CPU sockets"), (r"/memory", "host memory"),
)  # fmt: skip
_NOTHING = 0.001
"""Share of the step that a copy engine must be busy to have a row."""
COPIES = "copy engines, busy"
"""Of these the time is shown, not the bytes."""


class Row(NamedTuple):
    """One link."""

    link: str
    kind: str
    capacity: float
    carried_bytes: float | None
    mean: float
    peak: float


def kind_of(link: str) -> str:
    """What a link of that name is."""
    return next((kind for pattern, kind in _KINDS if re.search(pattern, link)), "other links")


def table_rows(summary: Table) -> list[Row]:
    """Every link that the summary names, the busiest first."""
    found = []
    for row in rows(summary.get("links")):
        link, capacity = str(row.get("link") or ""), number(row.get("bytes_per_s"))
        mean, peak = number(row.get("mean_frac")), number(row.get("peak_frac"))
        if link and capacity and mean is not None and peak is not None:
            found.append(Row(link, kind_of(link), capacity, number(row.get("bytes")), mean, peak))
    return sorted(found, key=lambda r: -r.mean)


def heat(
    summary: Table,
    counters: Mapping[str, Sequence[Any]],
    spans: Sequence[Span],
    view_ns: tuple[int, int],
    t0: int,
) -> dict[str, Any] | None:
    """The heat map's rows by kind; None where no link carried anything.

    A cell holds the mean share of its time, in ``LEVELS``-ths of capacity as two hexadecimal
    digits, rounded up, so that what is not nothing does not look like it.
    """
    begin, end = view_ns
    known = {row.link: row for row in table_rows(summary)}
    rates: dict[str, list[tuple[int, float]]] = {}
    for name, t_ns, value in zip(
        counters["name"], counters["t_ns"], counters["value"], strict=True
    ):
        if name.startswith(_PREFIX) and name[len(_PREFIX) :] in known:
            rates.setdefault(name[len(_PREFIX) :], []).append((t_ns, value))
    carrying = [link for link in known if link in rates]
    found: list[dict[str, Any]] = []
    for link in carrying[:MOST_LINKS]:
        row = known[link]
        cells = _hex(shares(rates[link], begin, end, row.capacity))
        found.append(
            {"kind": row.kind, "links": [link], "capacity": row.capacity, "mean": row.mean,
             "peak": row.peak, "cells": cells}
        )  # fmt: skip
    found = _joined(found) + _copies(spans, begin, end)
    if not found or end <= begin:
        return None
    order = {kind: i for i, (_, kind) in enumerate(_KINDS)}
    found.sort(key=lambda r: (order.get(r["kind"], len(order)), natural(r["links"][0])))
    return {
        "rows": [row | {"short": _short(row["links"])} for row in found],
        "begin": begin - t0, "end": end - t0, "cells": CELLS, "levels": LEVELS,
        "left_out": max(0, len(carrying) - MOST_LINKS),
    }  # fmt: skip


def _joined(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Both ways of one link as one row where they carry the same."""
    rows_of: dict[tuple[str, str], dict[str, Any]] = {}
    for row in found:
        key = (_WAY.sub("", row["links"][0]), row["cells"])
        if key in rows_of:
            rows_of[key]["links"] = sorted([*rows_of[key]["links"], *row["links"]], reverse=True)
        else:
            rows_of[key] = row
    return list(rows_of.values())


_WAY = re.compile(r"(-|/)(out|in|up|down)$")


def _short(names: Sequence[str]) -> str:
    """What a row of the picture is called: its kind stands above it."""
    base = re.sub(r"/(nvlink|pcie)$", "", _WAY.sub("", names[0]))
    base = base.replace("/h2d", " to GPU").replace("/d2h", " to host")
    ways = [m[2] for name in names if (m := _WAY.search(name))]
    return f"{base} {' + '.join(ways)}".strip()


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key by which node-10 follows node-9."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]


def shares(
    rates: Sequence[tuple[int, float]], begin: int, end: int, capacity: float
) -> list[float]:
    """Mean share of ``capacity`` in each of ``CELLS`` parts of the time."""
    width = (end - begin) / CELLS
    carried = [0.0] * CELLS
    for i, (t, rate) in enumerate(rates):
        until = rates[i + 1][0] if i + 1 < len(rates) else end
        a, b = max(t, begin), min(until, end)
        if rate <= 0 or b <= a:
            continue
        first, last = int((a - begin) / width), min(CELLS - 1, int((b - begin) / width))
        for cell in range(first, last + 1):
            inside = min(b, begin + (cell + 1) * width) - max(a, begin + cell * width)
            carried[cell] += rate * max(0.0, inside)
    return [c / width / capacity for c in carried]


def _hex(cells: Sequence[float]) -> str:
    return "".join(f"{min(LEVELS, -int(-c * LEVELS // 1)):02x}" for c in cells)


def _copies(spans: Sequence[Span], begin: int, end: int) -> list[dict[str, Any]]:
    """Copy streams of GPUs: busy or not; how many bytes they moved is not recorded."""
    busy: dict[tuple[str, ...], list[tuple[int, float]]] = {}
    for track, _, _, start, stop, _ in spans:
        if track[-1] in ("h2d", "d2h") and stop > begin and start < end:
            busy.setdefault(track, []).extend(((start, 1.0), (stop, 0.0)))
    found = []
    for track, rates in sorted(busy.items())[:MOST_LINKS]:
        cells = shares(sorted(rates), begin, end, 1.0)
        if sum(cells) < _NOTHING * CELLS:
            continue
        found.append(
            {"kind": COPIES, "links": ["/".join(track)], "capacity": None,
             "mean": sum(cells) / CELLS, "peak": max(cells), "cells": _hex(cells)}
        )  # fmt: skip
    return found
