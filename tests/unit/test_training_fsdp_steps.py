"""Real steps of FSDP1 and FSDP2 on gloo ranks: the same collectives in order, the same bytes held.

``validation/data/torch_fsdp/steps.json``: GPT-2 and Llama with odd sizes on two and four ranks.
On the CPU FSDP1 gathers into a list (``all_gather``) where a GPU has ``all_gather_into_tensor``;
bytes and order are the same. gloo has a ``reduce_scatter`` of its own for both versions.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from raysim.training.program import Program
from raysim.validate.training_plans import plan_of
from tests.deepspeed_reference import DATA
from tests.training_parts import programs
from tests.unit.test_training_huggingface_steps import before_step, calls

CASES: list[dict[str, Any]] = json.loads((DATA / "torch_fsdp" / "steps.json").read_text())["cases"]
HELD = ("parameter", "gathered_parameter", "optimizer_state")


def test_both_versions_are_recorded_on_two_and_four_ranks() -> None:
    assert {(c["engine"], c["ranks"]) for c in CASES} == {
        ("fsdp1", 2), ("fsdp1", 4), ("fsdp2", 2), ("fsdp2", 4),
    }  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[f"{c['name']}-{c['ranks']}" for c in CASES])
def test_collectives_and_bytes_held_are_torchs(case: dict[str, Any]) -> None:
    (program,) = programs(plan_of(case), steps=3)
    record = case["records"][0]
    theirs = [(op, size) for _, op, size, times in record["collectives"] for _ in range(times)]
    assert calls(program) == theirs
    held, real = program.step_held[-1], record["memory"]
    assert {k: held.get(k, 0) for k in HELD} == {k: real.get(k, 0) for k in HELD}
    assert before_step(program) == max(r["memory"]["gradient"] for r in case["records"])
    assert nothing_else_is_held(program)


def nothing_else_is_held(program: Program) -> bool:
    """Between steps there are shards and states only."""
    return set(program.step_held[-1]) <= {"parameter", "optimizer_state"}
