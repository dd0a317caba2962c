"""Ranking, baselines, verdicts and intervals of compared rows, small enough to do by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raysim.perf import tables, uncertainty
from raysim.perf.uncertainty import Features, Range, pick, stand
from raysim.validate.evidence import baselines, beside, rankings, reasons, verdicts
from raysim.validate.intervals import (
    coverage,
    ranges,
    residuals,
    student_95,
    table,
    with_intervals,
    write_tables,
)
from raysim.validate.job import Job
from raysim.validate.points import OUT_OF_MEMORY, Point, read_points, write_points

FEATURES = Features(
    gpu="A100-SXM-80GB", architecture="ampere", tables="measured", engine="zero-1", nodes=2,
    gpus=16, network="infiniband", bound="kernels", parameters=1e9, seq_len=2048,
)  # fmt: skip


def row(measured: float, predicted: float, **more: Any) -> Point:
    features = {k: more.pop(k) for k in list(more) if k in Features.__slots__}
    job = {k: more.pop(k) for k in list(more) if k in Job.__slots__}
    known: dict[str, Any] = {"family": "f", "name": "r", "role": "validation", "unit": "s"} | more
    own = Job(features=replace(FEATURES, **features), **job)
    return Point(**known, measured=measured, predicted=predicted, job=own)


def test_kendalls_tau_is_over_the_pairs_of_a_sweep() -> None:
    """Costs 1, 2, 3 told as 1, 3, 2: two pairs right, one wrong; a rate is a cost inverted."""
    sweep = [
        row(10, 10, samples=10, sweeps=("s",)),
        row(40, 60, samples=20, sweeps=("s",)),
        row(1 / 3, 1 / 2, unit="tokens/s/GPU", sweeps=("s",)),
    ]
    (found,) = rankings(sweep)
    assert (found.sweeps, found.pairs) == (1, 3)
    assert found.tau == pytest.approx(1 / 3)
    assert (found.best, found.regret) == (1.0, 0.0)
    wrong = [row(1, 3, sweeps=("s",)), row(2, 2, sweeps=("s",)), row(4, 1, sweeps=("s",))]
    (found,) = rankings(wrong)
    assert (found.tau, found.best, found.regret) == (-1.0, 0.0, pytest.approx(3.0))
    equal = [row(k, 1, sweeps=("s",)) for k in (1, 2, 3)]
    assert rankings(equal)[0].tau == 0
    assert rankings(sweep[:2]) == []


def test_baselines_are_fitted_on_calibration_rows_alone() -> None:
    """Shares of the peak 0.4 and 0.9 on two GPUs: 0.6 for all; of a third type their mean 0.65."""
    held = [
        row(10, 99, role="calibration", ideal_s=4, ideal_model_s=4),
        row(10, 99, role="calibration", gpu="H100", ideal_s=9, ideal_model_s=9),
        row(10, 10, ideal_s=5, ideal_model_s=6),
        row(1, 1, unit="tokens/s/GPU", gpu="V100", ideal_s=0.65, ideal_model_s=0.3),
    ]
    one, six = baselines(held)
    expected = [(p, p.job) for p in held[2:] if p.job]
    assert [one(p, j) for p, j in expected] == [pytest.approx(10.0), pytest.approx(2.0)]
    assert [six(p, j) for p, j in expected] == [pytest.approx(12.5), pytest.approx(1.0)]
    both = beside(held)
    assert [b.family for b in both] == ["all runs", "f"]
    assert (both[0].rows, both[0].raysim.worst, both[0].one_mfu.worst) == (2, 0, pytest.approx(1))
    assert both[0].six_nd.mean == pytest.approx(0.125)
    assert beside(held[2:]) == []
    with pytest.raises(ValueError, match="no calibration row"):
        baselines(held[2:])


def test_verdicts_and_reasons_are_counted() -> None:
    said = [(1.0, 1.2), (1.0, 0.9), (0.0, 0.99), (0.0, 1.01)]
    points = [
        Point(family="out_of_memory/x", name=str(i), role="validation", unit=OUT_OF_MEMORY,
              measured=out, predicted=share)
        for i, (out, share) in enumerate(said)
    ]  # fmt: skip
    (found,) = verdicts(points)
    assert (found.family, found.ran_out, found.flagged) == ("x", 2, 1)
    assert (found.ran, found.false_alarms) == (2, 1)
    assert all(p.error is None for p in points)
    gone = [Point(family="a/b", name=n, role="validation", left_out=w) for n, w in
            (("1", "fp8"), ("2", "fp8"), ("3", "moe"))]  # fmt: skip
    assert reasons(gone) == [("a", "fp8", 2), ("a", "moe", 1)]


def test_jobs_survive_their_file(tmp_path: Path) -> None:
    points = [
        row(10, 12, sweeps=("one; two".replace("; ", " "), "b"), samples=8, ideal_s=0.25),
        Point(family="f", name="without", role="validation", measured=1.0, predicted=2.0),
    ]
    write_points(points, tmp_path / "a.csv")
    assert read_points(tmp_path / "a.csv") == points
    write_points(points[1:], tmp_path / "b.csv")
    assert "job_" not in (tmp_path / "b.csv").read_text()
    older = (tmp_path / "a.csv").read_text().replace("job_network", "job_else")
    (tmp_path / "a.csv").write_text(older)
    assert [p.job for p in read_points(tmp_path / "a.csv")] == [None, None]


def many(count: int, spread: float, seed: int, family: str = "f", **more: Any) -> list[Point]:
    factors = np.exp(np.random.default_rng(seed).normal(0.1, spread, count))
    return [row(10 * f, 10, name=f"{i:04}", family=family, **more) for i, f in enumerate(factors)]


def three_families(points: list[Point]) -> list[Point]:
    """Every third row of another family: a kind needs three."""
    return [replace(p, family=f"{p.family}{i % 3}") for i, p in enumerate(points)]


@pytest.mark.parametrize(
    ("freedom", "known"), [(2, 2.920), (3, 2.353), (5, 2.015), (12, 1.782), (1000, 1.646)]
)
def test_students_quantile(freedom: int, known: float) -> None:
    assert student_95(freedom) == pytest.approx(known, rel=3e-3)


def test_intervals_add_what_families_and_rows_scatter() -> None:
    """Families a factor of two apart, rows of each a factor of 1.1 off: by hand."""
    offsets = [(a, b) for a in (-1, 0, 1) for b in (-1, 1)] * 7
    points = [
        row(10 * 2.0**a * 1.1**b, 10, name=f"{i:02}", family=f"f{a}")
        for i, (a, b) in enumerate(offsets)
    ]
    own = table(residuals(points))[("time", "measured", "many", "kernels")]
    between, within = math.log(2) ** 2, math.log(1.1) ** 2 * 14 / 13
    reach = 2.920 * math.sqrt(between * 4 / 3 + within)
    assert (own.rows, own.families) == (42, 3)
    assert own.low == pytest.approx(math.exp(-reach), rel=1e-3)
    assert own.high == pytest.approx(math.exp(reach), rel=1e-3)
    assert table(residuals(points[:38])) == {}
    assert table(residuals([replace(p, family=p.family.replace("-", "")) for p in points])) == {}
    rates = [replace(p, unit="tokens/s/GPU", measured=10, predicted=p.measured) for p in points]
    assert table(residuals(rates))[own.kind].high == pytest.approx(own.high)
    fitted = [replace(p, role="calibration") for p in points]
    assert residuals(fitted) == []


def test_a_family_with_many_rows_counts_as_one_with_few() -> None:
    few = [*many(20, 0.1, 1, "a"), *many(20, 0.1, 2, "b"), *many(20, 0.1, 3, "c")]
    more = [*many(400, 0.1, 1, "a"), *few[20:]]
    kind = ("time", "measured", "many", "kernels")
    short, long = (table(residuals(points))[kind] for points in (few, more))
    assert long.high == pytest.approx(short.high, rel=0.1)


def test_families_held_out_are_covered_nine_times_in_ten() -> None:
    """Forty families whose means scatter as their rows do."""
    shifts = np.random.default_rng(7).normal(0.0, 0.2, 40)
    points = [
        replace(p, measured=p.measured * float(np.exp(shift)))
        for i, shift in enumerate(shifts)
        for p in many(30, 0.2, i, f"f{i}")
        if p.measured is not None
    ]
    (found,) = coverage(residuals(points))
    assert found.rows == 1200
    assert 0.85 < found.by_family < 0.95
    assert found.by_row >= found.by_family - 0.01


def test_rows_of_a_new_family_are_judged_without_their_own() -> None:
    """A family that errs by a factor of three is outside of what the others say."""
    odd = [replace(p, family="odd", measured=30.0) for p in many(50, 0.1, 2)]
    (found,) = coverage(residuals([*three_families(many(200, 0.1, 1)), *odd]))
    assert found.by_row > 0.85
    assert found.by_family <= 0.8
    assert found.each_family <= 0.75


def test_points_get_the_interval_of_the_others() -> None:
    """Rows that all err alike leave an interval of one value; a rate is divided by it."""
    points = three_families([row(11, 10, name=f"{i:02}") for i in range(60)])
    rate = row(1, 1.1, name="rate", unit="tokens/s/GPU")
    without = replace(rate, name="without", job=None)
    said = with_intervals([*points, rate, without])
    for point in said[:60]:
        assert point.predicted_low == pytest.approx(11.0)
        assert point.predicted_high == pytest.approx(11.0)
    assert said[60].predicted_low == pytest.approx(1.0)
    assert said[60].predicted_high == pytest.approx(1.0)
    assert said[61] == without


def test_a_job_takes_the_most_specific_kind_and_the_cpu_none() -> None:
    borrowed = many(100, 0.4, 2, "g", tables="borrowed", nodes=1)
    known = table(residuals(three_families([*many(100, 0.1, 1), *borrowed])))
    own = pick(FEATURES, "time", known)
    assert own is not None
    assert own.kind == ("time", "measured", "many", "kernels")
    other = pick(replace(FEATURES, bound="network"), "time", known)
    assert other is not None
    assert other.kind == ("time", "measured", "many", "any")
    assert other.said == "GPUs with measured kernels, many nodes"
    wide = pick(replace(FEATURES, tables="borrowed", nodes=2), "time", known)
    assert wide is not None
    assert wide.kind == ("time", "borrowed", "any", "any")
    assert wide.high > own.high
    assert pick(replace(FEATURES, tables="cpu"), "time", known) is None
    assert pick(FEATURES, "memory", known) is None


def test_a_job_beyond_the_rows_says_so() -> None:
    known = [
        Range(gpu="A100-SXM-80GB", rows=9, most_gpus=64, parameters=(5e8, 2e9),
              seq_len=(512, 4096), engines=("zero-1",), networks=("infiniband",)),
    ]  # fmt: skip
    assert stand(FEATURES, known) == uncertainty.Stand(standing="interpolated")
    far = replace(FEATURES, gpus=128, parameters=7e9, seq_len=8192, engine="ddp", network="efa")
    said = stand(far, known)
    assert said.standing == "extrapolated"
    assert [words.split(",")[0] for words in said.reasons] == [
        "128 GPUs", "7 B parameters", "sequences of 8", "no run with ddp was measured on this GPU",
        "no run over efa was measured on this GPU",
    ]  # fmt: skip
    other = stand(replace(FEATURES, gpu="L4"), known)
    assert (other.standing, other.reasons) == ("guessed", ("no run on L4 was measured",))


def test_the_tables_are_what_a_prediction_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = [*many(100, 0.2, 4), *many(60, 0.05, 5, "g", nodes=1, bound="host", gpu="H100")]
    points = three_families(own)
    write_tables(points, tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    write_tables(list(reversed(points)), tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    caches = (tables._text, tables.rows, tables.systems, tables.meta, uncertainty._intervals,
              uncertainty._ranges)  # fmt: skip
    monkeypatch.setattr(tables, "FOLDER", tmp_path)
    try:
        for cached in caches:
            cached.cache_clear()
        read = uncertainty.interval(FEATURES, "time")
        assert read is not None
        expected = table(residuals(points))[read.kind]
        assert (read.rows, read.families) == (100, 3)
        assert math.isclose(read.low, expected.low, rel_tol=1e-3)
        assert [r.gpu for r in uncertainty._ranges()] == [r.gpu for r in ranges(residuals(points))]
        assert uncertainty.standing(FEATURES).standing == "interpolated"
        assert "by tenths" in tables.meta("training_intervals")["held out"]
    finally:
        monkeypatch.undo()
        for cached in caches:
            cached.cache_clear()
