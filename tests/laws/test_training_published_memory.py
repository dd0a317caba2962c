"""Peak memory of a published pipeline run, stage by stage; nothing was fitted on it."""

from __future__ import annotations

from pathlib import Path

from raysim.units import MIB
from raysim.validate.published import pipeline_memory, rows

VALIDATION = Path(__file__).parents[2] / "validation"


def test_stages_of_the_52b_run() -> None:
    memory = pipeline_memory()
    errors = {}
    for row in rows(VALIDATION, "bigscience_52b_memory.json"):
        found = memory[row["stage"]].allocated_bytes / MIB
        errors[row["stage"]] = found / row["max_allocated_mib"] - 1
        print(f"stage {row['stage']:2}  {found:8.0f} MiB  {errors[row['stage']]:+.1%}")
    inner = [abs(e) for stage, e in errors.items() if 0 < stage < 15]
    assert len(inner) == 14
    assert max(inner) < 0.015
    # The first stage's dropout masks and the last one's loss graph are Megatron's own.
    assert abs(errors[0]) < 0.05
    assert abs(errors[15]) < 0.06
    assert "backward" in memory[4].when
    assert "optimizer step" in memory[12].when
