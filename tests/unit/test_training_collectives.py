"""Compiled programs move what real DeepSpeed moves: the same collectives, bytes and order.

Two records of DeepSpeed 0.19.8 on CPU ranks: a small GPT in many configurations, in order, and a
larger one on two and four ranks, counted.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.deepspeed_reference import SCALAR_BYTES, compiled, gpt, heard, recorded, tensors_only

SMALL, LARGE = recorded("small_gpt.json"), recorded("gpt_384.json")


def named(cases: list[dict[str, Any]]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=[c["name"] for c in cases])


@named(SMALL)
def test_gradients_and_parameters_move_in_the_same_collectives(case: dict[str, Any]) -> None:
    assert tensors_only(compiled(case)) == tensors_only(heard(case))


@named(SMALL)
def test_norms_and_flags_are_reduced_as_often(case: dict[str, Any]) -> None:
    ours, theirs = (
        [c for c in found if c[1] <= SCALAR_BYTES] for found in (compiled(case), heard(case))
    )
    assert ours == theirs


@named(LARGE)
def test_the_larger_model_agrees_too(case: dict[str, Any]) -> None:
    assert Counter(compiled(case, case["ranks"])) == Counter(heard(case))


def test_the_table_is_the_model_of_the_record() -> None:
    model = gpt(**LARGE[0]["model"])
    assert model.num_parameters == LARGE[0]["parameters"]
    assert sum(1 for _ in model.parameters()) == LARGE[0]["tensors"]
