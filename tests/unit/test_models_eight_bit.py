"""Linear layers of 8-bit weights, by what ``MatMul8bitLt`` reads and writes."""

from __future__ import annotations

import pytest

from raysim.models.eight_bit import in_eight_bits
from raysim.models.table import Model
from tests.unit.test_models_lora import HIDDEN, llama


def converted(*, threshold: float = 6.0) -> Model:
    model = llama()
    chosen = {n for n, _ in model.parameters() if n.endswith("proj.weight")}
    return in_eight_bits(model, chosen, threshold=threshold)


def test_a_weight_is_a_byte_and_a_row_of_them_shares_a_scale() -> None:
    stored = {n: p.stored_bytes for n, p in converted().parameters() if p.stored_bytes}
    assert {n.split(".")[-2] for n in stored} == {
        f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")
    }
    q = next(size for name, size in stored.items() if "q_proj" in name)
    assert q == pytest.approx(1 + 4 / HIDDEN)


def test_only_backward_makes_a_weight_whole() -> None:
    plain = llama().layers[1].body
    block = converted().layers[1].body
    passes = [o for o in block.operators if o.name.endswith(".dequantize")]
    assert len(passes) == 7
    q = next(o for o in plain.operators if o.gemm and "q_proj" in o.name)
    made = next(o for o in passes if "q_proj" in o.name)
    # 32-bit sums read, 16-bit results written; the weight read as 8 bits, written, scaled.
    assert made.moved == pytest.approx(3 * q.output)
    assert made.moved_fixed == 0
    assert made.moved_fixed_backward == pytest.approx(3.5 * HIDDEN * q.gemm.n)  # type: ignore[union-attr]
    assert block.flops == plain.flops


def test_outliers_are_looked_for_below_a_threshold_and_waited_for() -> None:
    def waits(threshold: float) -> int:
        block = converted(threshold=threshold).layers[1].body
        return sum(o.kind == "sync" for o in block.operators)

    assert waits(6.0) == 7
    assert waits(0.0) == 0
