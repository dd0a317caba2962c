"""Recorded training steps beside predictions, and constants fitted on rows that raysim made."""

from __future__ import annotations

import json
from pathlib import Path

from raysim.validate.training_cases import (
    PRIORS,
    compare,
    compare_steps,
    predict_steps,
    read_cases,
    write_cpu_rank,
)
from tests.deepspeed_reference import DATA

WORKLOADS = DATA.parent / "workloads" / "training" / "cpu_steps.json"
HEAD = "case,ranks,phase,value,unit,repetitions,low,high\n"


def test_recorded_collectives_are_predicted_exactly() -> None:
    rows = compare(DATA / "deepspeed_cpu")
    assert len(rows) > 400
    assert [r for r in rows if r.predicted != r.measured] == []


def test_constants_come_back_from_the_steps_they_make(tmp_path: Path) -> None:
    """Rows of one model size, made with other constants, fix them; another size then agrees."""
    truth = PRIORS | {"product_flops_per_s": 90e9, "optimizer_bytes_per_s": 4e9}
    cases = [c for c in json.loads(WORKLOADS.read_text()) if c["name"].split("-")[0] != "large"]
    (tmp_path / "training_cases.json").write_text(json.dumps(cases))
    for role in ("calibration", "validation"):
        made = predict_steps([c for c in cases if c["role"] == role], truth)
        lines = [f"{name},2,{phase},{s},s,9,{s},{s}\n" for (name, phase), s in made.items()]
        (tmp_path / f"training_steps_{role}.csv").write_text(HEAD + "".join(lines))
    write_cpu_rank(tmp_path)
    rows = compare_steps(tmp_path)
    assert {r.role for r in rows} == {"calibration", "validation"}
    assert max(abs(r.error) for r in rows if r.row == "total") < 0.05
    assert set(read_cases(tmp_path)) == {c["name"] for c in cases}


def test_sizes_of_calibration_and_validation_differ() -> None:
    roles: dict[str, set[int]] = {"calibration": set(), "validation": set()}
    for case in json.loads(WORKLOADS.read_text()):
        roles[case["role"]].add(case["model"]["hidden_size"])
    assert roles["calibration"].isdisjoint(roles["validation"])
    assert len(roles["validation"]) == 3
