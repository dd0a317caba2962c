"""Published runs of Ray Train: what it adds to steps that are known, and to a whole fine-tuning."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysim.validate.points import Point
from raysim.validate.published import rows
from raysim.validate.ray_train import play, ray_train_points

VALIDATION = Path(__file__).parents[2] / "validation"


@pytest.fixture(scope="module")
def points() -> list[Point]:
    return list(ray_train_points(VALIDATION))


def test_steps_that_are_given_leave_little_to_be_wrong(points: list[Point]) -> None:
    given = [p for p in points if p.family == "ray_train/given" and p.error is not None]
    errors = {p.name: abs(p.error) for p in given if p.role == "validation"}
    assert len(errors) == 10
    assert max(errors.values()) < 0.12
    assert sorted(errors.values())[5] < 0.05
    assert all(abs(p.error) < 0.01 for p in given if p.role == "calibration")


def test_twice_the_workers_halve_an_epoch_as_they_did() -> None:
    # 2440 s on 16 nodes, 1280 s on 32: the tower's steps are too short, their ratio is not.
    at = {
        row["id"]: play(row)
        for row in rows(VALIDATION, "ray_train.json")
        if row["family"] == "end_to_end" and row["id"].startswith("train.gptj")
    }
    ratio = at["train.gptj.16xT4.epoch"] / at["train.gptj.32xT4.epoch"]
    assert ratio == pytest.approx(2440 / 1280, rel=0.05)


def test_what_is_left_out_says_why(points: list[Point]) -> None:
    left = [p for p in points if p.left_out]
    assert len(left) == 25
    assert len(points) == 44
    assert all(p.predicted is None for p in left)
