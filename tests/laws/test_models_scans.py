"""Published times of gated delta rules' forward kernels, fla's in Triton on one H100.

flashinfer, pull request 3866, column FLA/Triton: heads of 128, 2 of keys and 8 of values (a rank of
eight of Qwen3.5-397B), one sequence. The longest fixed ``perf.scan.STEP_S``; others are compared.
"""

from __future__ import annotations

import pytest

from raysim.hardware import catalog
from raysim.models.mixers import DeltaNet
from raysim.models.table import Operator
from raysim.models.tape import Tape, Tensor
from raysim.perf.compute import ComputeModel

MEASURED_MS = {2048: 0.086, 4096: 0.144, 8192: 0.259, 16384: 0.508, 32768: 0.997}
FITTED_MS = {65536: 1.954}


def core(tokens: int, key_heads: int = 2, value_heads: int = 8) -> Operator:
    net = DeltaNet(
        cls="Qwen3_5", key_heads=key_heads, value_heads=value_heads, key_dim=128, value_dim=128,
        taps=4, fused=False,
    )  # fmt: skip
    tape = Tape()
    net.run(tape, Tensor(name="x", rows=tokens, width=1024))
    return next(o for o in tape.body().operators if o.kind == "scan")


def seconds(operator: Operator, batch: float = 1, *, tp: int = 1, backward: bool = False) -> float:
    gpu = catalog.node("hgx-h100-8").gpu
    assert gpu is not None
    return ComputeModel(gpu).operator_s(
        operator, batch=batch, dtype="bf16", tp=tp, backward=backward
    )


@pytest.mark.parametrize("tokens", MEASURED_MS)
def test_forward_takes_what_was_published(tokens: int) -> None:
    assert seconds(core(tokens)) * 1e3 == pytest.approx(MEASURED_MS[tokens], rel=0.08)


def test_the_fitted_row_is_met() -> None:
    assert seconds(core(65536)) * 1e3 == pytest.approx(FITTED_MS[65536], rel=0.01)


def test_few_heads_wait_for_their_chunks_and_many_do_not() -> None:
    few, many = core(8192), core(8192, 16, 64)
    assert seconds(few, 8) < 5 * seconds(few)
    assert seconds(many, 2) == pytest.approx(2 * seconds(many), rel=0.05)
    assert seconds(many, tp=8) == pytest.approx(seconds(few), rel=0.1)
    assert seconds(many, backward=True) > 2 * seconds(many)
