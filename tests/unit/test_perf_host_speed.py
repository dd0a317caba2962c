"""The speed of the host that raysim's host costs were measured on, from a published eager run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raysim.hardware import catalog
from raysim.perf.constants import TrainingConstants
from raysim.perf.host_speed import host_costs

FILE = Path(__file__).parents[2] / "validation" / "data" / "published" / "gpt_fast.json"


def test_an_eager_llama_dispatches_its_published_tokens_per_second() -> None:
    """Calibration: gpt-fast's first version, bound by the CPU, beside an A100."""
    row = json.loads(FILE.read_text(encoding="utf-8"))
    counts = {k: row["layers"] * row["layer"][k] + row["rest"][k] for k in row["rest"]}
    costs = host_costs(TrainingConstants(), catalog.cpu("2x-epyc-7742"))
    token_s = costs.forward_s(counts["operators"], counts["kernels"])
    token_s += counts["modules"] * costs.module_s
    assert 1.0 / token_s == pytest.approx(row["tokens_per_s"], rel=0.01)
