"""Rows of Ray programs measured on a host of 2 cores: what was compared last still holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysim.measure.workload import find, read_workload
from raysim.validate.points import errors, read_points
from raysim.validate.replayed import Against, predicted

VALIDATION = Path(__file__).parents[2] / "validation"
DATA = VALIDATION / "data" / "amd-epyc-2core" / "2026-11-25"
POINTS = [
    p for p in read_points(VALIDATION / "compared" / "ray_core.csv") if p.role == "validation"
]
CHEAP = (
    "actors_pool", "pattern_pool", "tasks_four_nodes", "tasks_mixed", "tasks_retries",
    "tasks_two_nodes",
)  # fmt: skip
"""Workloads that take less than a second to predict."""


def test_every_measured_row_was_compared_or_left_out_with_a_reason() -> None:
    workloads = find(["ray_core"], VALIDATION / "workloads")
    measured = {
        (w.name, row.parameters["row"])
        for w in workloads
        if w.role == "validation"
        for row in Against.at(DATA).rows(w)
    }
    assert len(measured) == 101
    compared = [p for p in POINTS if p.left_out != "not measured"]
    assert {tuple(p.name.split(" ", 1)) for p in compared} == measured
    assert all(p.error is not None or p.left_out for p in compared)


def test_how_far_predictions_are_off() -> None:
    held = errors(POINTS, "ray_core")
    assert held is not None
    # Found with the host's profile: 6.8 % and 26.4 %.
    assert held.median < 0.10
    assert held.p90 < 0.29


@pytest.mark.parametrize("name", CHEAP)
def test_the_report_is_what_the_emulator_says_today(name: str) -> None:
    workload = read_workload(VALIDATION / "workloads" / "ray_core" / f"{name}.py")
    against = Against.at(DATA)
    found = predicted(workload, against, against.profile().ray_costs())
    told = {p.name.split(" ", 1)[1]: p.predicted for p in POINTS if p.name.startswith(f"{name} ")}
    assert found == pytest.approx(told, rel=1e-3)
