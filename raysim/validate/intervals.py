"""Intervals of training predictions from the errors of compared rows, and how well they hold.

Split conformal prediction on log errors: of ``n`` rows of a kind, measured over predicted has its
``k``-th smallest value at the 5th percentile with k = floor((n + 1) / 20), its ``k``-th largest at
the 95th; a further row like them lies between with 90 %, whatever the distribution (Vovk et al.,
*Algorithmic Learning in a Random World*, 2005). Rows that may have fixed a constant have no part.

Coverage is held out twice: by rows, each of ten parts judged by the intervals of the other nine;
and by families, each judged without any row of its own, which says what to expect of a cluster or
a program that nobody measured. The latter is the worse, since rows of one family err alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from raysim.perf.uncertainty import INTERVALS, RANGES, Features, Interval, Quantity, Range, pick
from raysim.validate.evidence import MEMORY_UNITS, seconds_over
from raysim.validate.job import Job
from raysim.validate.points import Point

TAIL = 20
"""One row in so many lies below an interval, one above: 90 %."""
FEWEST = 2 * TAIL - 1
"""Rows of a kind, so that no quantile rests on the single worst row."""
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
        kind: _interval(kind, of_it) for kind, of_it in sorted(kinds.items())
        if len(of_it) >= FEWEST
    }  # fmt: skip


def _interval(kind: tuple[str, ...], points: Sequence[Point]) -> Interval:
    ratios = sorted(seconds_over(p) for p in points)
    k = (len(ratios) + 1) // TAIL
    return Interval(
        kind=kind, rows=len(ratios), families=len({p.family for p in points}),
        low=ratios[k - 1], high=ratios[-k],
    )  # fmt: skip


def kinds(rows: Sequence[Row]) -> list[Kind]:
    """The table with its held-out coverage."""
    inside = {name: _held_out(rows, part) for name, part in _PARTITIONS.items()}
    return [
        Kind(
            interval=found,
            by_row=_share(inside["row"].get(kind)),
            by_family=_share(inside["family"].get(kind)),
        )
        for kind, found in table(rows).items()
    ]


def coverage(rows: Sequence[Row], by: str) -> float | None:
    """Share of all rows inside when held out by ``row`` or by ``family``; None without rows."""
    inside = [hit for hits in _held_out(rows, _PARTITIONS[by]).values() for hit in hits]
    return _share(inside)


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


def _share(hits: Sequence[bool] | None) -> float | None:
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


def _held_out(
    rows: Sequence[Row], part: Callable[[int, Row], str]
) -> dict[tuple[str, ...], list[bool]]:
    """By the kind that judged a row, whether the row lay inside."""
    hits: dict[tuple[str, ...], list[bool]] = {}
    for rest, held in _splits(rows, part):
        known = table(rest)
        for p, job in held:
            found = pick(job.features, quantity(p), known)
            if found is not None:
                inside = found.low <= seconds_over(p) <= found.high
                hits.setdefault(found.kind, []).append(inside)
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
    )  # fmt: skip


def write_tables(points: Iterable[Point], folder: Path) -> None:
    """``training_intervals.csv`` and ``training_ranges.csv``; equal points make equal files."""
    rows = residuals(points)
    by_row, by_family = (100 * (coverage(rows, by) or 0.0) for by in ("row", "family"))
    heads = {
        "source": "validation/compared, rows of training runs marked validation; written by "
        "`raysim validate --intervals`",
        "method": "conformal quantiles of measured over predicted, 5 and 95 % "
        "(raysim.validate.intervals)",
        "held out": f"{by_row:.0f} % of rows inside by tenths, {by_family:.0f} % by families",
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
        "gpu,rows,most_gpus,least_parameters,most_parameters,least_seq_len,most_seq_len,engines"
    ]
    lines += [
        f"{r.gpu},{r.rows},{r.most_gpus},{r.parameters[0]:.6g},{r.parameters[1]:.6g},"
        f"{r.seq_len[0]},{r.seq_len[1]},{' '.join(r.engines)}"
        for r in ranges(rows)
    ]
    _write(folder / f"{RANGES}.csv", {"source": heads["source"]}, lines)


def _cell(share: float | None) -> str:
    return "" if share is None else f"{share:.3f}"


def _write(path: Path, heads: Mapping[str, str], lines: Iterable[str]) -> None:
    text = [*(f"# {name}: {said}" for name, said in heads.items()), *lines]
    path.write_text("\n".join(text) + "\n", encoding="ascii")
