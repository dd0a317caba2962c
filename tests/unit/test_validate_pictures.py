"""Published rates of picture models: what a row becomes, without what makes the models."""

from __future__ import annotations

import json
from importlib import util
from pathlib import Path

import pytest

from raysim.hardware import catalog
from raysim.validate import pictures
from raysim.validate.points import OUT_OF_MEMORY

VALIDATION = Path("validation")
ROWS = json.loads((VALIDATION / "data/published/pictures.json").read_text())["rows"]


def test_without_timm_every_row_is_left_out_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    find = util.find_spec
    monkeypatch.setattr(pictures, "find_spec", lambda name: None if name == "timm" else find(name))
    points = list(pictures.picture_points(VALIDATION))
    assert [p.name for p in points] == [row["id"] for row in ROWS]
    assert {p.left_out for p in points} == {"timm is not installed"}


class OutOfMemoryError(RuntimeError):
    """torch's, by its name."""


def test_a_row_that_runs_out_is_priced_with_more_memory_and_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = catalog.gpu(ROWS[0]["gpu"])

    def played(row: object, scripts: Path, given: object) -> dict[str, float]:
        if given == gpu:
            raise OutOfMemoryError
        return {"step_seconds": 0.25, "gpu_mem_peak_bytes": 1.5 * gpu.memory_bytes}

    monkeypatch.setattr(pictures, "played", played)
    rate, memory = pictures._points(ROWS[0], Path())
    assert rate.predicted == ROWS[0]["batch"] * ROWS[0]["gpus"] / 0.25
    assert (memory.unit, memory.predicted, memory.measured) == (OUT_OF_MEMORY, 1.5, 0.0)


def test_ids_are_unique_and_constants_were_fixed_on_three() -> None:
    assert len({row["id"] for row in ROWS}) == len(ROWS)
    assert sum(row.get("role") == "calibration" for row in ROWS) == 3
