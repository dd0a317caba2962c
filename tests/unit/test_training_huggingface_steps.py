"""Hugging Face models under real DeepSpeed, DDP and pipelines: same collectives, same bytes held.

``validation/data/deepspeed_cpu/huggingface.json``: GPT-2 and Llama with odd sizes, tied and untied,
on two and four ranks.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from raysim.training.program import Kind, Program
from raysim.validate.training_plans import plan_of
from tests.deepspeed_reference import recorded
from tests.training_parts import programs

CASES = recorded("huggingface.json")
NAMES = {"all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter"}


def named(cases: list[dict[str, Any]]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=[f"{c['name']}-{c['ranks']}" for c in cases])


def compiled(case: dict[str, Any]) -> tuple[Program, ...]:
    return programs(plan_of(case), steps=3)


def calls(program: Program) -> list[tuple[str, int]]:
    steady = program.ops[program.step_ends[-2] :]
    return [
        (op.call.op if op.kind == Kind.COLLECTIVE else op.kind.name.lower(), op.call.size_bytes)
        for op in steady
        if op.call is not None
    ]


@named(CASES)
def test_collectives_are_deepspeeds_in_order_and_bytes(case: dict[str, Any]) -> None:
    for program in compiled(case):
        record = case["records"][program.rank]["collectives"]
        theirs = [(op, size) for _, op, size, times in record for _ in range(times)]
        assert calls(program) == theirs


@named([c for c in CASES if c["engine"] == "deepspeed"])
def test_comms_logger_counts_the_same(case: dict[str, Any]) -> None:
    """Its size is the buffer it is given: of an all-gather the shard, of the rest the whole."""
    share = {"all_gather": case["ranks"]}
    logged = Counter(
        {
            (NAMES.get(op, op), int(size)): count
            for op, sizes in case["records"][0]["comms_logger"].items()
            for size, count in sizes.items()
        }
    )
    (program,) = compiled(case)
    ours = Counter((op, size // share.get(op, 1)) for op, size in calls(program))
    assert ours == logged


HELD = ("parameter", "gathered_parameter", "optimizer_state")


@named([c for c in CASES if not c["name"].endswith("offload")])
def test_parameters_and_optimizer_states_are_held_to_the_byte(case: dict[str, Any]) -> None:
    for program in compiled(case):
        real = case["records"][program.rank]["memory"]
        held = program.step_held[-1]
        assert {k: held.get(k, 0) for k in HELD} == {k: real.get(k, 0) for k in HELD}


def before_step(program: Program) -> int:
    """Gradient bytes when the last step begins."""
    begins = next(
        i
        for i in range(program.backward_ends[-1], len(program.ops))
        if program.ops[i].category == "optimizer"
    )
    return sum(
        e.delta_bytes
        for e, at in zip(program.memory, program.memory_at, strict=True)
        if at <= begins and e.category == "gradient"
    )


@named([c for c in CASES if c["engine"] != "pipeline" and not c["name"].endswith("offload")])
def test_gradients_of_the_fullest_rank_are_held_to_the_byte(case: dict[str, Any]) -> None:
    (program,) = compiled(case)
    assert before_step(program) == max(r["memory"]["gradient"] for r in case["records"])
