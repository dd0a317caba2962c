"""Intervals of training predictions from the errors of compared rows, and how well they hold.

A one-way random-effects model on log ratios of measured over predicted: what a family (a cluster
and a program, of one time) errs by has a mean and a variance between families, and its rows a
variance within it. A row of a family that nobody measured then lies, with 90 %, within Student's
quantile of as many degrees of freedom as families less one, times the root of both variances and
the mean's own (prediction interval of a random-effects meta-analysis: Higgins, Thompson and
Spiegelhalter, J. R. Stat. Soc. A 172, 2009). Every family counts alike, however many rows it has.
Rows that may have fixed a constant have no part.

Coverage is held out twice: by families, each judged without any row of its own, which is what the
intervals are made for; and by rows, each of ten parts judged by the intervals of the other nine:
there the families are known, so more than nine in ten lie inside. Simplified: log ratios are taken
as normal, within and between, and families as a sample of all there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, variance

from raysim.perf.uncertainty import (
    INTERVALS,
    POINTS,
    RANGES,
    Features,
    Interval,
    Quantity,
    Range,
    pick,
)
from raysim.validate.evidence import MEMORY_UNITS, seconds, seconds_over
from raysim.validate.job import Job
from raysim.validate.points import Point

NORMAL_95 = 1.6448536
"""The normal distribution's 95th percentile: one row in twenty lies above an interval."""
FEWEST = 39
"""Rows of a kind."""
FAMILIES = 3
"""Families of a kind: what one cluster and program err by says nothing of others, and of two the
variance between them is hardly known."""
PARTS = 10
Row = tuple[Point, Job]
Table = dict[tuple[str, ...], Interval]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of job: its interval, and the shares of rows inside when held out."""

    interval: Interval
    by_row: float | None
    """None: no row of this kind is judged by this very kind; a more specific one has it."""
    by_family: float | None


def residuals(points: Iterable[Point]) -> list[Row]:
    """Rows whose errors count, in an order that does not depend on where they come from."""
    found = [
        (p, p.job) for p in points
        if p.job is not None and p.error is not None and p.role == "validation"
    ]  # fmt: skip
    return sorted(found, key=lambda row: (row[0].family, row[0].name))


def quantity(p: Point) -> Quantity:
    """Whether a row's value is a time (or a rate) or memory."""
    return "memory" if p.unit in MEMORY_UNITS else "time"


def table(rows: Iterable[Row]) -> Table:
    """Intervals of every kind that has rows enough."""
    kinds: dict[tuple[str, ...], list[Point]] = {}
    for p, job in rows:
        for kind in dict.fromkeys(job.features.kinds(quantity(p))):
            kinds.setdefault(kind, []).append(p)
    return {
        kind: _interval(kind, of_it)
        for kind, of_it in sorted(kinds.items())
        if len(of_it) >= FEWEST and len({p.family for p in of_it}) >= FAMILIES
    }


def _interval(kind: tuple[str, ...], points: Sequence[Point]) -> Interval:
    families: dict[str, list[float]] = {}
    for p in points:
        families.setdefault(p.family, []).append(math.log(seconds_over(p)))
    means = [mean(logs) for logs in families.values()]
    within = mean([variance(logs) for logs in families.values() if len(logs) > 1] or [0.0])
    middle, between = mean(means), variance(means)
    spread = math.sqrt(between * (1.0 + 1.0 / len(means)) + within)
    reach = student_95(len(means) - 1) * spread
    return Interval(
        kind=kind, rows=len(points), families=len(means),
        low=math.exp(middle - reach), high=math.exp(middle + reach),
    )  # fmt: skip


def student_95(freedom: int) -> float:
    """Student's 95th percentile for two degrees of freedom or more.

    Beyond two by the expansion in their reciprocal (Abramowitz and Stegun, 26.7.5), 0.3 % low at
    three and exact to four digits from six on.
    """
    if freedom == 2:
        return 0.9 * math.sqrt(2.0 / (4.0 * 0.95 * 0.05))
    z = NORMAL_95
    terms = (
        z,
        (z**3 + z) / 4.0,
        (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / 96.0,
        (3.0 * z**7 + 19.0 * z**5 + 17.0 * z**3 - 15.0 * z) / 384.0,
    )
    return math.fsum(term / float(freedom) ** power for power, term in enumerate(terms))


def kinds(rows: Sequence[Row]) -> list[Kind]:
    """The table with its held-out coverage."""
    by_row, by_family = (_held_out(rows, by) for by in ("row", "family"))
    return [
        Kind(
            interval=found,
            by_row=_share([hit.inside for hit in by_row if hit.kind == kind]),
            by_family=_share([hit.inside for hit in by_family if hit.kind == kind]),
        )
        for kind, found in table(rows).items()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Shares of held-out rows inside their interval."""

    quantity: Quantity
    rows: int
    """That some kind of the others speaks of."""
    by_row: float
    by_family: float
    each_family: float
    """``by_family``, every family counting as one: its mean over families."""


def coverage(rows: Sequence[Row]) -> list[Coverage]:
    """Of times (and rates), and of memory, where there are rows."""
    found = []
    quantities: tuple[Quantity, ...] = ("time", "memory")
    for what in quantities:
        own = [row for row in rows if quantity(row[0]) == what]
        by_row, by_family = (_held_out(own, by) for by in ("row", "family"))
        if not by_row or not by_family:
            continue
        families = dict.fromkeys(hit.family for hit in by_family)
        each = [_share([h.inside for h in by_family if h.family == f]) or 0.0 for f in families]
        found.append(
            Coverage(
                quantity=what, rows=len(by_row),
                by_row=_share([hit.inside for hit in by_row]) or 0.0,
                by_family=_share([hit.inside for hit in by_family]) or 0.0,
                each_family=sum(each) / len(each),
            )
        )  # fmt: skip
    return found


def with_intervals(points: Sequence[Point]) -> list[Point]:
    """Points with the interval that the other nine parts give each; others as they are."""
    rows = residuals(points)
    said: dict[tuple[str, str], tuple[float, float]] = {}
    for rest, held in _splits(rows, _PARTITIONS["row"]):
        known = table(rest)
        for p, job in held:
            found = pick(job.features, quantity(p), known)
            if found is not None and p.predicted is not None:
                said[p.family, p.name] = _around(p, found)
    return [
        replace(p, predicted_low=said[key][0], predicted_high=said[key][1])
        if (key := (p.family, p.name)) in said and p.job is not None
        else p
        for p in points
    ]


def _around(p: Point, interval: Interval) -> tuple[float, float]:
    """In the row's unit; a rate is low where its time is high."""
    assert p.predicted is not None
    times = p.measured is not None and seconds_over(p) == p.measured / p.predicted
    if times:
        return interval.around(p.predicted)
    return p.predicted / interval.high, p.predicted / interval.low


def _share(hits: Sequence[bool]) -> float | None:
    return sum(hits) / len(hits) if hits else None


def _family(index: int, row: Row) -> str:  # noqa: ARG001  (one signature for both)
    return row[0].family


def _part(index: int, row: Row) -> str:  # noqa: ARG001
    return str(index % PARTS)


_PARTITIONS: dict[str, Callable[[int, Row], str]] = {"row": _part, "family": _family}


def _splits(
    rows: Sequence[Row], part: Callable[[int, Row], str]
) -> Iterable[tuple[list[Row], list[Row]]]:
    """(the others, the held-out rows) of each part."""
    names = [part(i, row) for i, row in enumerate(rows)]
    for name in dict.fromkeys(names):
        yield (
            [row for own, row in zip(names, rows, strict=True) if own != name],
            [row for own, row in zip(names, rows, strict=True) if own == name],
        )


@dataclass(frozen=True, slots=True)
class _Hit:
    family: str
    kind: tuple[str, ...]
    """That judged the row."""
    inside: bool


def _held_out(rows: Sequence[Row], by: str) -> list[_Hit]:
    """Every row that some kind of the others speaks of."""
    hits = []
    for rest, held in _splits(rows, _PARTITIONS[by]):
        known = table(rest)
        for p, job in held:
            found = pick(job.features, quantity(p), known)
            if found is not None:
                inside = found.low <= seconds_over(p) <= found.high
                hits.append(_Hit(p.family, found.kind, inside))
    return hits


def ranges(rows: Sequence[Row]) -> list[Range]:
    """What the timed rows of each GPU cover."""
    jobs: dict[str, list[Job]] = {}
    for p, job in rows:
        if quantity(p) == "time":
            jobs.setdefault(job.features.gpu, []).append(job)
    return [_range(gpu, [j.features for j in of_it]) for gpu, of_it in sorted(jobs.items())]


def _range(gpu: str, known: Sequence[Features]) -> Range:
    sizes, lengths = [f.parameters for f in known], [f.seq_len for f in known]
    return Range(
        gpu=gpu, rows=len(known), most_gpus=max(f.gpus for f in known),
        parameters=(min(sizes), max(sizes)), seq_len=(min(lengths), max(lengths)),
        engines=tuple(sorted({f.engine for f in known})),
        networks=tuple(sorted({f.network for f in known})),
    )  # fmt: skip


def write_tables(points: Iterable[Point], folder: Path) -> None:
    """``training_intervals``, ``_ranges`` and ``_points``; equal points make equal files."""
    rows = residuals(points)
    held = "; ".join(
        f"{c.quantity}: {100 * c.by_row:.0f} % of rows inside by tenths, {100 * c.by_family:.0f} % "
        f"by families ({100 * c.each_family:.0f} % where each counts as one)"
        for c in coverage(rows)
    )
    heads = {
        "source": "validation/compared, rows of training runs marked validation; written by "
        "`raysim validate --intervals`",
        "method": "random effects of families on the logarithm of measured over predicted, 5 and "
        "95 % of a row of a new family (raysim.validate.intervals)",
        "held out": held,
    }
    lines = ["quantity,tables,nodes,bound,rows,families,low,high,inside_by_row,inside_by_family"]
    for kind in kinds(rows):
        i = kind.interval
        lines.append(
            f"{','.join(i.kind)},{i.rows},{i.families},{i.low:.4g},{i.high:.4g},"
            f"{_cell(kind.by_row)},{_cell(kind.by_family)}"
        )
    _write(folder / f"{INTERVALS}.csv", heads, lines)
    lines = [
        "gpu,rows,most_gpus,least_parameters,most_parameters,least_seq_len,most_seq_len,engines,networks"
    ]
    lines += [
        f"{r.gpu},{r.rows},{r.most_gpus},{r.parameters[0]:.6g},{r.parameters[1]:.6g},"
        f"{r.seq_len[0]},{r.seq_len[1]},{' '.join(r.engines)},"
        f"{' '.join(r.networks)}"
        for r in ranges(rows)
    ]
    _write(folder / f"{RANGES}.csv", {"source": heads["source"]}, lines)
    points_head = {
        "source": heads["source"],
        "method": "time: share of the GPUs' dense peak that the model's own FLOPs reach (MFU); "
        "memory: bytes",
    }
    _write(folder / f"{POINTS}.csv", points_head, _point_lines(rows))


_BYTES = {"GiB": 2.0**30, "MiB": 2.0**20, "GB": 1e9}


def _point_lines(rows: Iterable[Row]) -> Iterator[str]:
    """Each row with what decides its kind, in a unit that all rows share."""
    yield "quantity,tables,nodes,bound,family,name,gpu,gpus,predicted,measured"
    for p, job in rows:
        f, what = job.features, quantity(p)
        assert p.predicted is not None
        assert p.measured is not None
        if what == "time" and not job.ideal_model_s:
            continue
        pair = [
            value * _BYTES[p.unit] if what == "memory" else job.ideal_model_s / seconds(p, value)
            for value in (p.predicted, p.measured)
        ]
        texts = [p.family, p.name, f.gpu]
        nodes = "one" if f.nodes == 1 else "many"
        yield ",".join((
            what, f.tables, nodes, f.bound, *(t.replace(",", ";") for t in texts), str(f.gpus),
            *(f"{value:.4g}" for value in pair),
        ))  # fmt: skip


def _cell(share: float | None) -> str:
    return "" if share is None else f"{share:.3f}"


def _write(path: Path, heads: Mapping[str, str], lines: Iterable[str]) -> None:
    text = [*(f"# {name}: {said}" for name, said in heads.items()), *lines]
    path.write_text("\n".join(text) + "\n", encoding="ascii")
