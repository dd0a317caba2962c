"""Measured curves: interpolation, no silent extrapolation, and the heads of the files."""

from __future__ import annotations

import math

import pytest

from raysim.errors import CalibrationError
from raysim.perf import tables
from raysim.perf.tables import Curve, Grid


def test_power_law_is_reproduced_between_knots() -> None:
    curve = Curve((1.0, 10.0, 1000.0), (2.0, 2.0 * 10**1.5, 2.0 * 1000**1.5))
    value, basis = curve.at(100.0)
    assert value == pytest.approx(2.0 * 100**1.5)
    assert basis == "interpolated"


def test_outside_the_knots_the_answer_says_extrapolated() -> None:
    curve = Curve((10.0, 100.0, 200.0), (5.0, 6.0, 16.0))
    assert curve.at(1.0) == (5.0, "extrapolated")
    assert curve.at(10.0) == (5.0, "interpolated")
    assert curve.at(200.0) == (pytest.approx(16.0), "interpolated")
    assert curve.at(300.0) == (pytest.approx(26.0), "extrapolated")  # 0.1 per unit goes on


@pytest.mark.parametrize(
    ("sizes", "values"),
    [((1.0,), (1.0,)), ((2.0, 1.0), (1.0, 1.0)), ((1.0, 2.0), (0.0, 1.0)), ((1.0, 2.0), (1.0,))],
)
def test_unusable_knots_are_refused(sizes: tuple[float, ...], values: tuple[float, ...]) -> None:
    with pytest.raises(CalibrationError):
        Curve(sizes, values)


def test_grid_is_trilinear_in_logarithms_and_flat_outside() -> None:
    corners = tuple(
        tuple(tuple(0.1 * i + 0.2 * j + 0.4 * h for h in (0, 1)) for j in (0, 1)) for i in (0, 1)
    )
    grid = Grid((0.0, 2.0), (0.0, 2.0), (0.0, 2.0), corners)
    assert math.log(grid.factor(2, 2, 2)) == pytest.approx(0.35)
    assert math.log(grid.factor(4, 1, 1)) == pytest.approx(0.1)
    assert math.log(grid.factor(1, 4, 1)) == pytest.approx(0.2)
    assert math.log(grid.factor(1, 1, 4)) == pytest.approx(0.4)
    assert grid.factor(64, 64, 64) == pytest.approx(grid.factor(4, 4, 4))


@pytest.mark.parametrize("name", ["gemm", "gemm_grid", "attention", "nccl"])
def test_every_table_says_where_it_is_from(name: str) -> None:
    head = tables.meta(name)
    assert "AIConfigurator" in head["source"]
    assert head["date"]
    assert head["method"]


@pytest.mark.parametrize("name", ["gemm", "attention", "nccl"])
def test_fitted_tables_state_their_held_out_error(name: str) -> None:
    assert "held out" in tables.meta(name)


def test_what_layouts_cost_says_where_it_is_from_and_what_is_assumed() -> None:
    head = tables.meta("layout")
    assert "cookbook" in head["source"]
    assert {"date", "method", "assumed", "held out"} <= head.keys()


def test_held_out_error_of_16_bit_products_is_below_the_target() -> None:
    errors = {}
    for system in tables.systems("gemm"):
        row = next(r for r in tables.rows("gemm", system) if r["dtype"] != "fp8")
        errors[system] = float(row["error_percent"])
    assert len(errors) == 7
    assert sum(errors.values()) / 7 < 8.0
    assert max(errors.values()) < 13.0


def test_every_measured_curve_rises_with_size() -> None:
    for system in tables.systems("nccl"):
        for key, curve in tables.nccl_curves(system).items():
            assert sorted(curve.values) == list(curve.values), (system, key)
            assert curve.last_slope > 0


def test_unmeasured_system_has_no_rows() -> None:
    assert tables.rows("attention", "v100") == ()
    assert tables.gemm_grid("v100", "bf16") is None
    assert tables.nccl_curves("v100") == {}
