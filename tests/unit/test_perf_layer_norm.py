"""What a layer norm's weight gradients wait for, by rows and columns."""

from __future__ import annotations

import pytest

from raysim.hardware import catalog
from raysim.models.shapes import LayerNorm
from raysim.models.table import Operator
from raysim.perf.compute import ComputeModel
from raysim.perf.layer_norm import DIVIDED_ROW_S, ROW_S, column_sums_s

COMPUTE = ComputeModel(catalog.gpu("H100-SXM-80GB"))


def whole_s(rows: int, width: int, dtype: str = "fp32") -> float:
    """With the two passes that it is beside."""
    c, size = COMPUTE.constants, 4 if dtype == "fp32" else 2
    beside = column_sums_s(c, [LayerNorm(rows=rows / 2, width=width)], 2, dtype)
    return beside + 2.0 * rows * width * size / c.memory_bytes_per_s


@pytest.mark.parametrize("width", [64, 128, 320])
def test_few_columns_wait_for_blocks_that_walk_over_all_rows(width: int) -> None:
    assert whole_s(16_384, width) == pytest.approx(16_384 * ROW_S)


def test_many_rows_are_divided() -> None:
    assert whole_s(200_000, 96) == pytest.approx(200_000 * DIVIDED_ROW_S)
    assert whole_s(65_536, 96) == pytest.approx(65_536 * ROW_S)
    assert whole_s(65_537, 96) < whole_s(65_536, 96) / 4


def test_of_many_columns_nothing_is_left_beside_their_traffic() -> None:
    assert column_sums_s(COMPUTE.constants, [LayerNorm(rows=4096, width=4096)], 1, "fp32") == 0.0


def test_only_backward_of_one_with_weights_waits() -> None:
    with_weights = Operator(
        name="n", kind="norm", moved=2e5, layer_norms=(LayerNorm(rows=2000, width=64),)
    )
    without = Operator(name="n", kind="norm", moved=2e5)

    def more_s(*, backward: bool) -> float:
        a, b = (
            COMPUTE.operator_s(o, batch=8, dtype="bf16", backward=backward)
            for o in (with_weights, without)
        )
        return a - b

    assert more_s(backward=False) == 0.0
    assert more_s(backward=True) == pytest.approx(
        column_sums_s(COMPUTE.constants, with_weights.layer_norms, 8, "bf16")
    )
