"""Recorded training steps beside predictions, and constants fitted on rows that raysim made."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from raysim.cli.calibrate import CalibrateOptions, calibrate
from raysim.hardware import catalog
from raysim.scenario.profile import load_profile
from raysim.validate.points import errors, merged, read_points, rounded
from raysim.validate.training_cases import (
    collective_points,
    memory_points,
    predict_steps,
    profile_of,
    read_cases,
    step_points,
)
from tests.deepspeed_reference import DATA

WORKLOADS = DATA.parent / "workloads" / "training" / "cpu_steps.json"
MEASURED = DATA / "intel-xeon-2core" / "2026-11-22"
HEAD = "case,ranks,phase,value,unit,repetitions,low,high\n"


def test_recorded_collectives_are_predicted_exactly() -> None:
    points = list(collective_points(DATA / "deepspeed_cpu" / "huggingface.json"))
    assert len(points) > 400
    assert [p for p in points if p.predicted != p.measured] == []


def test_recorded_memory_is_predicted_exactly() -> None:
    """Parameters, gathered ones, states and gradients of every measured step, by rank."""
    points = list(memory_points(MEASURED))
    kinds = Counter(p.name.split()[-1] for p in points)
    assert kinds.keys() == {"parameter", "gathered_parameter", "optimizer_state", "gradient"}
    assert [p for p in points if p.predicted != p.measured] == []


def test_constants_come_back_from_the_steps_they_make(tmp_path: Path) -> None:
    """Rows of one model size, made with other constants, fix them; another size then agrees."""
    rank = catalog.gpu("cpu-rank")
    slower = {"product_flops_per_s": 0.6, "optimizer_bytes_per_s": 0.5}
    truth = profile_of({name: share * getattr(rank, name) for name, share in slower.items()})
    cases = [c for c in json.loads(WORKLOADS.read_text()) if c["name"].split("-")[0] != "large"]
    (tmp_path / "training_cases.json").write_text(json.dumps(cases))
    (tmp_path / "meta.yaml").write_text((MEASURED / "meta.yaml").read_text())
    for role in ("calibration", "validation"):
        made = predict_steps([c for c in cases if c["role"] == role], truth)
        lines = [f"{name},2,{phase},{s},s,9,{s},{s}\n" for (name, phase), s in made.items()]
        (tmp_path / f"training_steps_{role}.csv").write_text(HEAD + "".join(lines))
    for what in ("gemm", "elementwise", "optimizer", "launch", "collectives"):
        (tmp_path / f"{what}.csv").write_text((MEASURED / f"{what}.csv").read_text())
    out = tmp_path / "training_profile.yaml"
    calibrate(tmp_path, CalibrateOptions(family="training", out=out))
    profile = load_profile(out)
    for name, constant in truth.training.items():
        assert profile.training[name].value == pytest.approx(constant.value, rel=0.15)
    points = list(step_points(tmp_path))
    assert {p.role for p in points} == {"calibration", "validation"}
    assert max(abs(p.error or 0.0) for p in points if p.name.endswith("total")) < 0.05
    assert set(read_cases(tmp_path)) == {c["name"] for c in cases}


def test_sizes_of_calibration_and_validation_differ() -> None:
    roles: dict[str, set[int]] = {"calibration": set(), "validation": set()}
    for case in json.loads(WORKLOADS.read_text()):
        roles[case["role"]].add(case["model"]["hidden_size"])
    assert roles["calibration"].isdisjoint(roles["validation"])
    assert len(roles["validation"]) == 3


def test_steps_of_sizes_that_were_not_fitted() -> None:
    """What is kept is what raysim says today; how far off that is: validation/README.md."""
    kept = read_points(DATA.parent / "compared" / "training.csv")
    today = [rounded(p) for p in step_points(MEASURED)]
    assert [p for p in kept if "time" in p.family] == merged([], today)
    judged = [p for p in today if p.family == "training/step time" and p.role == "validation"]
    assert len(judged) == 15
    found = errors(judged, "training/step time")
    assert found is not None
    assert found.median < 0.09
    assert sum(abs(p.error or 0.0) <= 0.15 for p in judged) == 11
