"""Steps that were measured on one H100, with the profile fitted on other models' steps there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raysim.validate.gpu_steps import gpu_step_points
from raysim.validate.points import Point

VALIDATION = Path(__file__).parents[2] / "validation"
DENSE = (
    "llama_13b", "llama_70b", "llama_1b-bf16", "tinyllama-bf16", "qwen2", "gpt2_large-bf16", "opt",
    "pythia",
)  # fmt: skip
"""Shapes that were stepped in bf16 at three micro-batches each; none of them fixed a constant."""


@pytest.fixture(scope="module")
def times() -> list[Point]:
    return [
        p for p in gpu_step_points(VALIDATION)
        if p.family == "gpu_steps/step time" and p.role == "validation"
    ]  # fmt: skip


def test_models_in_bf16_are_within_seven_per_cent(times: list[Point]) -> None:
    dense = {p.name: p.error for p in times if p.name.startswith(DENSE)}
    assert len(dense) == 24
    errors = np.abs([e for e in dense.values() if e is not None])
    print(dict(sorted(dense.items())))
    assert np.median(errors) < 0.03
    assert np.sort(errors)[-2] < 0.075
    assert errors.max() < 0.12  # the smallest batch of GPT-2 waits for its host: found 0.105


def test_all_steps(times: list[Point]) -> None:
    """ZeRO, FSDP, autocast, checkpoints, experts, compiled ones too."""
    errors = np.abs([p.error for p in times if p.error is not None])
    assert len(errors) == 48
    assert np.median(errors) < 0.045  # found: 0.035
    assert np.quantile(errors, 0.9) < 0.16  # found: 0.140
