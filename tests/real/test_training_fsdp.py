"""FSDP on real ranks every time: the record is what torch does, and so is raysim."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.real
pytest.importorskip("torch")
pytest.importorskip("transformers")

from raysim.measure.training_step import run_cases  # noqa: E402
from raysim.training.engines.fsdp import divisors  # noqa: E402
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


def test_gradients_are_divided_by_what_torch_divides_them_by() -> None:
    """FSDP1 for every type, FSDP2 for fp16; in the wider ones FSDP2 leaves it to NCCL."""
    torch = pytest.importorskip("torch")
    hooks = pytest.importorskip("torch.distributed.algorithms._comm_hooks.default_hooks")
    collectives = pytest.importorskip("torch.distributed.fsdp._fully_shard._fsdp_collectives")

    class Ranks:
        def __init__(self, count: int) -> None:
            self.count = count

        def size(self) -> int:
            return self.count

    for ranks in range(2, 600):
        before, after = divisors(ranks)
        assert before == hooks.DefaultState._get_gradient_predivide_factor(ranks)
        factors = collectives._get_gradient_divide_factors
        assert factors(Ranks(ranks), None, torch.float16)[:2] == (before, after)
        for wider in (torch.bfloat16, torch.float32):
            assert factors(Ranks(ranks), None, wider)[:2] == (None, None)
