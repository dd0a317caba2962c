"""LoRA and full fine-tuning as Qwen published it: nothing was fitted on its rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysim.validate.points import errors
from raysim.validate.qwen_finetuning import qwen_points

VALIDATION = Path(__file__).parents[2] / "validation"


@pytest.mark.slow
def test_steps_and_memory_of_qwen_s_table() -> None:
    points = list(qwen_points(VALIDATION))
    # Found: medians 6.4, 6.1, 21.7 and 9.4 %, 90th percentiles 15, 11, 29 and 19 %.
    limits = {
        "lora": (24, 0.08, 0.18), "lora_emb": (18, 0.08, 0.14), "full": (9, 0.25, 0.35),
        "memory": (51, 0.11, 0.22),
    }  # fmt: skip
    for kind, (rows, median, p90) in limits.items():
        family = f"qwen_finetuning/{kind}"
        held = errors([p for p in points if p.family == family], family)
        assert held is not None
        assert held.rows == rows
        assert held.median < median
        assert held.p90 < p90
    assert all(p.left_out for p in points if p.measured is None)
