"""Compiled programs move what real DeepSpeed moves: the same collectives, bytes and order.

Two records of DeepSpeed 0.19.8 on CPU ranks: a small GPT in many configurations, in order, and a
larger one on two and four ranks, counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.deepspeed_reference import SCALAR_BYTES, compiled, gpt, heard, recorded, tensors_only

SMALL, LARGE = recorded("small_gpt.json"), recorded("gpt_384.json")


ZERO3 = (
    "ZeRO-3: the root module's hooks prefetch first in both passes; what a prefetch skipped for "
    "the next visit is kept; the memory-efficient linear's weight is ready before its bias; "
    "persistent parameters are gathered one by one"
)
SCALARS = (
    "norms are taken whether or not they clip, in 8 bytes under ZeRO-3, and not reduced over "
    "replicas under stage 0 in 16 bits or BF16_Optimizer; the overflow flag is one byte"
)
"""Known differences. A case that comes to agree fails its mark, which is then removed."""


def scalars_differ(case: dict[str, Any]) -> bool:
    name, config = case["name"], case["config"]
    stage = config["zero_optimization"]["stage"]
    clips = config["gradient_clipping"] > 0
    if "bf16" in config:
        return name != "zero0-bf16-no-clipping"
    return stage == 3 or (stage > 0 and not clips)


def zero3_differs(case: dict[str, Any]) -> bool:
    return bool(case["config"]["zero_optimization"]["stage"] == 3)


def named(cases: list[dict[str, Any]], differs: Callable[[dict[str, Any]], bool], why: str) -> Any:
    mark = pytest.mark.xfail(strict=True, reason=why)
    return pytest.mark.parametrize(
        "case",
        [pytest.param(c, id=c["name"], marks=[mark] if differs(c) else []) for c in cases],
    )


@named(SMALL, zero3_differs, ZERO3)
def test_gradients_and_parameters_move_in_the_same_collectives(case: dict[str, Any]) -> None:
    assert tensors_only(compiled(case)) == tensors_only(heard(case))


@named(SMALL, scalars_differ, SCALARS)
def test_norms_and_flags_are_reduced_as_often(case: dict[str, Any]) -> None:
    ours, theirs = (
        [c for c in found if c[1] <= SCALAR_BYTES] for found in (compiled(case), heard(case))
    )
    assert ours == theirs


@named(LARGE, lambda c: zero3_differs(c) or scalars_differ(c), f"{ZERO3}; {SCALARS}")
def test_the_larger_model_agrees_too(case: dict[str, Any]) -> None:
    assert Counter(compiled(case, case["ranks"])) == Counter(heard(case))


def test_the_table_is_the_model_of_the_record() -> None:
    model = gpt(**LARGE[0]["model"])
    assert model.num_parameters == LARGE[0]["parameters"]
    assert sum(1 for _ in model.parameters()) == LARGE[0]["tensors"]
