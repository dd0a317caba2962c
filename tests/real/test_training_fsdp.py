"""FSDP on real ranks every time: the record is what torch does, and so is raysim."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.real
pytest.importorskip("torch")
pytest.importorskip("transformers")

from raysim.measure.training_step import run_cases  # noqa: E402
from tests.unit.test_training_fsdp_steps import CASES  # noqa: E402

REPLAYED = ("llama-fsdp2-mixed", "llama-fsdp1-forward-prefetch", "gpt2-tied-fsdp1-orig")


@pytest.mark.timeout(200)
def test_real_steps_do_what_the_record_says() -> None:
    asked = [c for c in CASES if c["ranks"] == 2 and c["name"] in REPLAYED]
    assert len(asked) == len(REPLAYED)
    found = run_cases(asked)
    for case in asked:
        for rank, record in enumerate(case["records"]):
            real = found[rank][case["name"]]
            assert {k: real[k] for k in record} == record, case["name"]
