"""A small replay on real DeepSpeed every time: the record is what it does, and so is raysim."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real
pytest.importorskip("deepspeed")
pytest.importorskip("transformers")

from raysim.measure.session import Budget, Session  # noqa: E402
from raysim.measure.table import read_rows  # noqa: E402
from raysim.measure.training_step import measure, run_cases  # noqa: E402
from tests.deepspeed_reference import recorded  # noqa: E402

REPLAYED = (
    "llama-zero1", "llama-zero2", "gpt2-tied-zero3", "llama-ddp-bucket-0.05", "gpt2-pipeline-4",
)  # fmt: skip


def cases(*names: str) -> list[dict[str, Any]]:
    return [c for c in recorded("huggingface.json") if c["ranks"] == 2 and c["name"] in names]


@pytest.mark.timeout(300)
def test_real_steps_do_what_the_record_says() -> None:
    asked = cases(*REPLAYED)
    assert len(asked) == len(REPLAYED)
    found = run_cases(asked)
    for case in asked:
        for rank, record in enumerate(case["records"]):
            real = found[rank][case["name"]]
            assert {k: real[k] for k in record} == record, case["name"]


@pytest.mark.timeout(300)
def test_measured_steps_are_tables_that_resume(tmp_path: Path) -> None:
    (case,) = cases("llama-zero1")
    file, folder = tmp_path / "cases.json", tmp_path / "tables"
    file.write_text(json.dumps([case | {"role": "calibration"}]))

    def session() -> Session:
        return Session(folder=folder, budget=Budget(100), command="test", cases=file)

    first = session()
    measure(first)
    rows = read_rows(folder / "training_steps_calibration.csv")
    assert {r.parameters["phase"] for r in rows} == {
        "forward", "backward", "step", "total", "others", "stolen",
    }  # fmt: skip
    assert all(r.value > 0 for r in rows if r.parameters["phase"] not in {"others", "stolen"})
    (name,) = json.loads((folder / "training_records.json").read_text())
    assert name == case["name"]
    again = session()
    measure(again)
    assert (first.measured, again.measured, again.kept) == (1, 0, 1)
