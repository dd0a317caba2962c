"""Published fp8 runs: a few predicted here. Bounds are a little above what was found."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from raysim.validate.points import OUT_OF_MEMORY
from raysim.validate.published import PUBLISHED
from raysim.validate.runs import FILE as RUNS
from raysim.validate.runs_fp8 import FILE, points_of

FOLDER = Path(__file__).parents[2] / "validation" / PUBLISHED


@cache
def document(name: str = FILE) -> dict[str, Any]:
    held: dict[str, Any] = json.loads((FOLDER / name).read_text())
    return held


def test_every_row_says_its_machine_source_and_use() -> None:
    held = document()
    for row in held["rows"]:
        assert row["machine"] in held["machines"], row["id"]
        assert row["source"] in held["sources"], row["id"]
        assert row["use"] == "validation", row["id"]
        assert row.get("model", "llama3_8b") in held["models"], row["id"]
    names = [row["id"] for row in held["rows"]]
    names += [name for left in held["left_out"] for name in left["rows"]]
    assert len(names) == len(set(names))
    elsewhere = [left["rows"] for left in document(RUNS)["left_out"] if FILE in left["why"]]
    assert set(elsewhere[0]) == {name.removesuffix("-mx") for name in names}


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("llmfoundry-mpt-3b-h100_80gb-8g-s32768-gbs144-amp_fp8", 0.09),
        ("llmfoundry-mpt-3b-h100_80gb-8g-s8192-gbs144-amp_fp8", 0.06),
        ("llmfoundry-mpt-3b-h100_80gb-8g-s512-gbs1920-amp_fp8", 0.05),
        ("llmfoundry-mpt-1b-h100_80gb-8g-s8192-gbs64-amp_fp8", 0.05),
        ("mbridge-25.11-LLAMA38B-GB300-8g-FP8CSF-pre-training-gbs128", 0.26),
        ("mbridge-25.09-LLAMA38B-B200-8g-notsta-pre-training-gbs128", 0.17),
        ("mbridge-25.09-LLAMA38B-B200-8g-notsta-pre-training-gbs128-mx", 0.14),
    ],
)
def test_rates_and_memory_of_single_nodes(name: str, bound: float) -> None:
    (row,) = (row for row in document()["rows"] if row["id"] == name)
    for point in points_of(document(), row):
        if point.unit == OUT_OF_MEMORY:
            assert point.predicted is not None
            assert point.predicted < 1
            continue
        assert point.error is not None
        print(f"{name} {point.unit}: {point.error:+.1%}")
        assert abs(point.error) < bound
