"""What rows of training runs say together: errors beside baselines', order of choices, verdicts.

The baselines need no simulator. Both are fitted on the rows marked calibration, the same ones that
fixed raysim's constants: *one MFU*, the model's FLOPs at one share of the peak for every GPU; and
*6 N D*, six FLOPs per parameter and token at a share of the peak per type of GPU (of a type without
calibration rows: the mean of the others).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from raysim.validate.job import Job
from raysim.validate.points import OUT_OF_MEMORY, Point

TIME_UNITS = {"s": 1.0, "ms": 1e3}
"""Per second. Any other unit of a row with a job is a rate, but memory's."""
MEMORY_UNITS = {"GiB", "MiB", "GB"}
FEWEST = 3
"""Rows that make a sweep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Sizes of some relative errors."""

    median: float
    p90: float
    mean: float
    worst: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """One family of timed training runs: raysim's errors, and the baselines' on the same rows."""

    family: str
    rows: int
    raysim: Spread
    one_mfu: Spread
    six_nd: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """How well the order of choices is told, over the sweeps of one family."""

    family: str
    sweeps: int
    pairs: int
    """Of rows of one sweep with different measured values."""
    tau: float
    """Kendall's: pairs in the right order less pairs in the wrong one, as a share of all."""
    best: float
    """Share of sweeps whose measured best choice is the predicted best."""
    regret: float
    """Mean over sweeps: how much worse the predicted best choice was than the best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """Runs of one family that did or did not end out of memory."""

    family: str
    ran_out: int
    flagged: int
    """Of those, predicted not to fit."""
    ran: int
    false_alarms: int
    """Of those that ran, predicted not to fit."""


def timed(points: Iterable[Point]) -> list[tuple[Point, Job]]:
    """Compared rows of training runs whose value is a time or a rate."""
    return [
        (p, p.job) for p in points
        if p.job is not None and p.error is not None and p.unit not in MEMORY_UNITS
    ]  # fmt: skip


def seconds_over(p: Point) -> float:
    """Measured over predicted seconds: of a rate, predicted over measured."""
    assert p.measured is not None
    assert p.predicted is not None
    memory_or_time = p.unit in TIME_UNITS or p.unit in MEMORY_UNITS
    return p.measured / p.predicted if memory_or_time else p.predicted / p.measured


def seconds(p: Point, value: float) -> float:
    """Of a step, or of what a rate counts."""
    return value / TIME_UNITS[p.unit] if p.unit in TIME_UNITS else 1.0 / value


def _value(p: Point, seconds: float) -> float:
    return seconds * TIME_UNITS[p.unit] if p.unit in TIME_UNITS else 1.0 / seconds


def baselines(points: Iterable[Point]) -> tuple[Callable[[Point, Job], float], ...]:
    """*One MFU* and *6 N D*, fitted: geometric means of the calibration rows' shares of the peak.

    Raises
    ------
    ValueError
        There is no calibration row.
    """
    fitted = [(p, job) for p, job in timed(points) if p.role == "calibration"]
    if not fitted:
        raise ValueError("no calibration row of a training run: nothing to fit baselines on")
    one = _mean(job.ideal_model_s / seconds(p, p.measured or 0.0) for p, job in fitted)
    gpus = dict.fromkeys(job.features.gpu for _, job in fitted)
    by_gpu = {
        gpu: _mean(
            job.ideal_s / seconds(p, p.measured or 0.0)
            for p, job in fitted if job.features.gpu == gpu
        )
        for gpu in gpus
    }  # fmt: skip
    elsewhere = sum(by_gpu.values()) / len(by_gpu)

    def one_mfu(p: Point, job: Job) -> float:
        return _value(p, job.ideal_model_s / one)

    def six_nd(p: Point, job: Job) -> float:
        return _value(p, job.ideal_s / by_gpu.get(job.features.gpu, elsewhere))

    return one_mfu, six_nd


def _mean(shares: Iterable[float]) -> float:
    logs = [math.log(share) for share in shares]
    return math.exp(sum(logs) / len(logs))


def beside(points: Sequence[Point]) -> list[Beside]:
    """Each family of timed runs; [] where nothing was there to fit the baselines on."""
    held = [(p, job) for p, job in timed(points) if p.role == "validation" and job.ideal_s]
    if not any(p.role == "calibration" for p, _ in timed(points)):
        return []
    one_mfu, six_nd = baselines(points)
    found = []
    for family in ("", *dict.fromkeys(p.family for p, _ in held)):
        of_it = [(p, job) for p, job in held if not family or p.family == family]
        if not of_it:
            continue
        found.append(
            Beside(
                family=family or "all runs", rows=len(of_it),
                raysim=_spread(p.error or 0.0 for p, _ in of_it),
                one_mfu=_spread(one_mfu(p, j) / (p.measured or 1.0) - 1 for p, j in of_it),
                six_nd=_spread(six_nd(p, j) / (p.measured or 1.0) - 1 for p, j in of_it),
            )
        )  # fmt: skip
    return found


def _spread(relative: Iterable[float]) -> Spread:
    sizes = np.abs(np.array(list(relative)))
    return Spread(
        median=float(np.median(sizes)), p90=float(np.percentile(sizes, 90)),
        mean=float(sizes.mean()), worst=float(sizes.max()),
    )  # fmt: skip


def rankings(points: Iterable[Point]) -> list[Ranking]:
    """Of each family that has a sweep."""
    sweeps = _sweeps(points)
    families = dict.fromkeys(family for family, _ in sweeps)
    return [_ranking(f, [rows for (own, _), rows in sweeps.items() if own == f]) for f in families]


def sweep_rankings(points: Iterable[Point]) -> list[Ranking]:
    """Of each sweep, under its name."""
    sweeps = _sweeps(points)
    return [_ranking(f"{family}: {name}", [rows]) for (family, name), rows in sweeps.items()]


def _sweeps(points: Iterable[Point]) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Costs, predicted and measured, of the rows of each sweep: three or more, not all alike."""
    sweeps: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for p, job in timed(points):
        if p.role != "validation":
            continue
        costs = (_cost(p, job, p.predicted or 0.0), _cost(p, job, p.measured or 0.0))
        for sweep in job.sweeps:
            sweeps.setdefault((p.family, sweep), []).append(costs)
    return {
        key: rows
        for key, rows in sweeps.items()
        if len(rows) >= FEWEST and len({measured for _, measured in rows}) > 1
    }


def _cost(p: Point, job: Job, value: float) -> float:
    """Seconds per sample, or of what a rate counts."""
    return seconds(p, value) / job.samples


def _ranking(family: str, sweeps: Sequence[Sequence[tuple[float, float]]]) -> Ranking:
    signs = [order for rows in sweeps for order in _orders(rows)]
    chosen = [min(rows) for rows in sweeps]
    best = [min(measured for _, measured in rows) for rows in sweeps]
    losses = [measured / least - 1 for (_, measured), least in zip(chosen, best, strict=True)]
    return Ranking(
        family=family, sweeps=len(sweeps), pairs=len(signs), tau=sum(signs) / len(signs),
        best=sum(loss == 0 for loss in losses) / len(losses), regret=sum(losses) / len(losses),
    )  # fmt: skip


def _orders(rows: Sequence[tuple[float, float]]) -> list[int]:
    """1 of a pair in the right order, -1 in the wrong one, 0 where both are predicted equal."""
    return [
        ((a > b) - (a < b)) * (1 if x > y else -1)
        for (a, x), (b, y) in combinations(rows, 2)
        if x != y
    ]


def verdicts(points: Iterable[Point]) -> list[Verdicts]:
    """Of each family with runs whose memory is known."""
    known = [p for p in points if p.unit == OUT_OF_MEMORY]
    found = []
    for family in dict.fromkeys(p.family for p in known):
        of_it = [(p.measured == 1.0, (p.predicted or 0.0) > 1) for p in known if p.family == family]
        found.append(
            Verdicts(
                family=family.partition("/")[2],
                ran_out=sum(out for out, _ in of_it),
                flagged=sum(out and said for out, said in of_it),
                ran=sum(not out for out, _ in of_it),
                false_alarms=sum(said and not out for out, said in of_it),
            )
        )
    return found


def reasons(points: Iterable[Point]) -> list[tuple[str, str, int]]:
    """(case, why, rows) of what is left out, most rows first."""
    counted = Counter((p.family.partition("/")[0], p.left_out) for p in points if p.left_out)
    return [(case, why, count) for (case, why), count in counted.most_common()]
