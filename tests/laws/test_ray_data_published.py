"""Published runs of Ray Data and Exoshuffle: CPUs per GPU, a store that is too small, sorts."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysim.validate.points import Point
from raysim.validate.published import rows
from raysim.validate.ray_data import play

VALIDATION = Path(__file__).parents[2] / "validation"
ROWS = {row["id"]: row for row in rows(VALIDATION, "ray_data.json")}


def error(name: str) -> float:
    return Point(
        family="x", name=name, unit="s", measured=ROWS[name]["value"], role="validation",
        predicted=play(ROWS[name]),
    ).error or 0.0  # fmt: skip


@pytest.mark.parametrize("nodes", [1, 5, 20])
def test_ingest_goes_at_the_disk_s_pace_once_the_store_is_full(nodes: int) -> None:
    assert abs(error(f"air.bulk_ingest.{nodes}n.time")) < 0.1


def test_images_per_gpu_by_its_cpus() -> None:
    # Two sizes fixed two costs; with 16 CPUs a GPU the run is predicted too fast.
    assert abs(error("data.doc.imgcls.cpus.g6.2xlarge")) < 0.02
    assert -0.25 < error("data.doc.imgcls.cpus.g6.4xlarge") < 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "most"), [("1tb-i4i2xl-s3", 0.16), ("2tb-i4i2xl-s3", 0.05), ("6tb-i4i4xl-s3", 0.13)]
)
def test_a_terabyte_is_sorted_by_cores(name: str, most: float) -> None:
    # A map's and a merge's cost were fixed by the stages of the 100 TB run, on twice the cores.
    assert abs(error(f"cloudsort.cfg.{name}")) < most


def test_what_is_left_out_says_why() -> None:
    left = [row for row in ROWS.values() if row["use"] == "left_out"]
    assert len(ROWS) == 40
    assert len(left) == 20
    assert all(row["why"] for row in left)
