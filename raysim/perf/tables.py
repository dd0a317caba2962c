"""Measured curves as CSV with their origin, and interpolation that never extrapolates silently.

A file is comment lines ``# key: text`` (source, date, method, held-out error), a header and rows.
Only rows of the asked system are parsed, once.

Not modelled: uncertainty between knots; the held-out errors in the files' heads stand for it.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, log, log2
from pathlib import Path
from typing import Literal

from raysim.errors import CalibrationError

Basis = Literal["interpolated", "extrapolated", "formula"]

logger = logging.getLogger(__name__)
FOLDER = Path(__file__).parent / "tables"


@cache
def _text(name: str) -> tuple[str, ...]:
    """Lines of one table file."""
    return tuple((FOLDER / f"{name}.csv").read_text(encoding="ascii").splitlines())


@cache
def meta(name: str) -> dict[str, str]:
    """What the head of a table says of it: source, date, method, held-out error."""
    heads = (line[2:].partition(": ") for line in _text(name) if line.startswith("# "))
    return {key: text for key, _, text in heads}


@cache
def rows(name: str, system: str) -> tuple[dict[str, str], ...]:
    """Rows of ``system``, each by column name; empty when it was not measured."""
    lines = [line for line in _text(name) if not line.startswith("#")]
    columns = lines[0].split(",")
    own = (line.split(",") for line in lines[1:] if line.startswith(f"{system},"))
    found = tuple(dict(zip(columns, cells, strict=True)) for cells in own)
    logger.info("table %s: %d rows of %s", name, len(found), system)
    return found


@cache
def systems(name: str) -> tuple[str, ...]:
    """Systems a table holds, in file order."""
    lines = [line for line in _text(name) if not line.startswith("#")]
    return tuple(dict.fromkeys(line.partition(",")[0] for line in lines[1:]))


@dataclass(frozen=True, slots=True)
class Curve:
    """A positive quantity over a positive size, straight between knots in log-log."""

    sizes: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse knots that cannot be interpolated.

        Raises
        ------
        CalibrationError
            Fewer than two knots, unequal counts, sizes not increasing or a value not positive.
        """
        increasing = all(a < b for a, b in zip(self.sizes, self.sizes[1:], strict=False))
        if len(self.sizes) < 2 or len(self.sizes) != len(self.values) or not increasing:
            raise CalibrationError(f"knots of a curve must increase and match: {self.sizes}")
        if min(self.values) <= 0.0 or self.sizes[0] <= 0.0:
            raise CalibrationError(f"log-log needs positive knots: {self.sizes}, {self.values}")

    def at(self, size: float) -> tuple[float, Basis]:
        """The value and how it was found: constant below the first knot, linear beyond the last.

        Beyond the last knot the slope of the last segment goes on, as a bandwidth plateau does.
        """
        sizes, values = self.sizes, self.values
        if size <= sizes[0]:
            return values[0], "interpolated" if size == sizes[0] else "extrapolated"
        if size > sizes[-1]:
            return values[-1] + (size - sizes[-1]) * self.last_slope, "extrapolated"
        i = min(bisect_right(sizes, size), len(sizes) - 1)
        low, high = sizes[i - 1], sizes[i]
        share = log(size / low) / log(high / low)
        return values[i - 1] * (values[i] / values[i - 1]) ** share, "interpolated"

    @property
    def last_slope(self) -> float:
        """Rise per unit of size over the last segment."""
        run = self.sizes[-1] - self.sizes[-2]
        return (self.values[-1] - self.values[-2]) / run


@dataclass(frozen=True, slots=True)
class Grid:
    """A factor over (m, n, k), trilinear in the logarithms between knots, constant outside them."""

    log2_m: tuple[float, ...]
    log2_n: tuple[float, ...]
    log2_k: tuple[float, ...]
    log_factor: tuple[tuple[tuple[float, ...], ...], ...]

    def factor(self, m: float, n: float, k: float) -> float:
        """The factor at one shape."""
        i, u = _place(self.log2_m, log2(m))
        j, v = _place(self.log2_n, log2(n))
        h, w = _place(self.log2_k, log2(k))
        low, high = self.log_factor[i], self.log_factor[i + 1]
        a, b, c, d = low[j], low[j + 1], high[j], high[j + 1]
        first = (1 - v) * (a[h] + w * (a[h + 1] - a[h])) + v * (b[h] + w * (b[h + 1] - b[h]))
        second = (1 - v) * (c[h] + w * (c[h + 1] - c[h])) + v * (d[h] + w * (d[h + 1] - d[h]))
        return exp((1 - u) * first + u * second)


@dataclass(frozen=True, slots=True)
class Plane:
    """A factor over two sizes, bilinear in the logarithms between knots, constant outside them."""

    log2_x: tuple[float, ...]
    log2_y: tuple[float, ...]
    log_factor: tuple[tuple[float, ...], ...]

    def factor(self, x: float, y: float) -> float:
        """The factor at one point."""
        i, u = _place(self.log2_x, log2(x))
        j, v = _place(self.log2_y, log2(y))
        a, b = self.log_factor[i], self.log_factor[i + 1]
        low, high = a[j] + v * (a[j + 1] - a[j]), b[j] + v * (b[j + 1] - b[j])
        return exp(low + u * (high - low))


def _place(knots: Sequence[float], x: float) -> tuple[int, float]:
    """Segment of ``x`` among ``knots`` and how far into it, both clipped to the ends."""
    if x <= knots[0]:
        return 0, 0.0
    last = len(knots) - 2
    if x >= knots[-1]:
        return last, 1.0
    i = min(bisect_right(knots, x) - 1, last)
    return i, (x - knots[i]) / (knots[i + 1] - knots[i])


@cache
def gemm_grid(system: str, dtype: str) -> Grid | None:
    """What ``gemm.csv``'s constants leave unexplained on one system; None where not measured."""
    own = [r for r in rows("gemm_grid", system) if r["dtype"] == dtype]
    if not own:
        return None
    ms = tuple(dict.fromkeys(int(r["m"]) for r in own))
    ns = tuple(dict.fromkeys(int(r["n"]) for r in own))
    columns = [name for name in own[0] if name[0] == "k" and name[1:].isdigit()]
    by_shape = {
        (int(r["m"]), int(r["n"])): tuple(log(1 + int(r[c]) / 100) for c in columns) for r in own
    }
    return Grid(
        log2_m=tuple(log2(m) for m in ms),
        log2_n=tuple(log2(n) for n in ns),
        log2_k=tuple(log2(int(c[1:])) for c in columns),
        log_factor=tuple(tuple(by_shape[m, n] for n in ns) for m in ms),
    )


@cache
def gemm_plane(system: str, dtype: str, name: str) -> Plane | None:
    """What multiplies the grid: ``nk`` over n and k, ``waves`` over waves of tiles and k."""
    own = [r for r in rows("gemm_planes", system) if (r["dtype"], r["plane"]) == (dtype, name)]
    if not own:
        return None
    columns = [name for name in own[0] if name[0] == "k" and name[1:].isdigit()]
    return Plane(
        log2_x=tuple(log2(float(r["knot"])) for r in own),
        log2_y=tuple(log2(int(c[1:])) for c in columns),
        log_factor=tuple(tuple(log(1 + int(r[c]) / 100) for c in columns) for r in own),
    )


@cache
def grouped_curve(system: str, table: str = "moe") -> Curve | None:
    """Time of a grouped product over a plain one, by rows per group; None where not measured.

    ``moe``: of one kernel for all groups; ``grouped``: of Transformer Engine's.
    """
    for row in rows(table, system):
        columns = [name for name in row if name[0] == "r" and name[1:].isdigit()]
        return Curve(
            sizes=tuple(float(name[1:]) for name in columns),
            values=tuple(1.0 + int(row[name]) / 100 for name in columns),
        )
    return None


@cache
def attention_grid(system: str, *, windowed: bool) -> Grid | None:
    """What ``attention.csv``'s constants leave of forward; None where not measured.

    Over blocks of 128 query rows per SM, query length and head dimension.
    """
    own = [r for r in rows("attention_grid", system) if r["windowed"] == str(int(windowed))]
    if not own:
        return None
    lengths = [name for name in own[0] if name[0] == "q" and name[1:].isdigit()]
    dims = tuple(dict.fromkeys(int(r["head_dim"]) for r in own))
    waves = tuple(dict.fromkeys(float(r["waves"]) for r in own))
    cells = {(float(r["waves"]), int(r["head_dim"])): r for r in own}
    return Grid(
        log2_m=tuple(log2(w) for w in waves),
        log2_n=tuple(log2(int(q[1:])) for q in lengths),
        log2_k=tuple(log2(d) for d in dims),
        log_factor=tuple(
            tuple(tuple(log(1 + int(cells[w, d][q]) / 100) for d in dims) for q in lengths)
            for w in waves
        ),
    )


@cache
def nccl_curves(system: str) -> dict[tuple[str, int], Curve]:
    """Seconds over full-buffer bytes, by (collective, ranks), measured inside one node."""
    found = {}
    for row in rows("nccl", system):
        columns = [name for name in row if name[0] == "b" and name[1:].isdigit()]
        sizes = tuple(float(name[1:]) for name in columns)
        values = tuple(float(row[name]) * 1e-6 for name in columns)
        found[row["op"], int(row["ranks"])] = Curve(sizes=sizes, values=values)
    return found
